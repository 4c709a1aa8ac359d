"""Extend uvicorn's HTTP connection by a time limit for request heads, a connection limit and errors as JSON."""

import asyncio
from http import HTTPStatus
from typing import Any

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from transduce.serving.admission import Admission, costly_path
from transduce.serving.messages import ErrorMessage
from transduce.serving.request_error import RequestError

# The client deep-translator sends texts of some thousand characters in the request line, where one character takes up
# to 12 bytes.
MOST_HEAD_BYTES = 128 * 1024
_LINGER_SECONDS = 1.0


class GuardedConnection(H11Protocol):
    """An HTTP connection of uvicorn that enforces limits on connections, request heads and admission."""

    max_connections = 1024
    """Connections open at once; further ones get an error and are closed."""
    head_seconds = 10.0
    """Time in which a request's head must arrive, from its first byte or the opening of the connection."""
    admission: Admission
    """The counter that decides which requests are read, shared by all connections."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_within_head = False
        self._is_refused = False
        self._postponed = b""  # received data that the next iteration of the event loop handles

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or refuse it if there are too many."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            sentence = "The server has too many connections: try again in a moment."
            self._refuse(RequestError(503, sentence, retry_after_seconds=1))
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a closed connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass received data to the parser unless the request is refused; start a timer for an incomplete head."""
        if self._is_refused or self.transport.is_closing():
            return
        cycle_before = self.cycle
        is_idle = cycle_before is None or cycle_before.response_complete
        if self._postponed:
            self._postponed += data
        elif not is_idle or self._is_within_head or self._admits(data):
            super().data_received(data)
            self._is_within_head = is_idle and self.cycle is cycle_before
            if self.cycle is not cycle_before:
                self._stop_timer()
            elif self._is_within_head and self._head_timer is None:
                self._start_timer()

    def _admits(self, data: bytes) -> bool:
        """Return whether to read a new request now; if not, it has been refused or postponed to the next iteration."""
        path = costly_path(data)
        if path is None:
            return True
        if not self.admission.room():
            self._refuse(self.admission.refusal(path))
            return False
        if self.admission.enter(self.loop):
            return True
        self._postponed = data
        self.loop.call_soon(self._retry_postponed)
        return False

    def _retry_postponed(self) -> None:
        data, self._postponed = self._postponed, b""
        self.data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP."""
        self._refuse(RequestError(400, f"{msg.rstrip('.')}: the connection is closed."))

    def _start_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._refuse_late_head)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_late_head(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(RequestError(408, f"A request's head must arrive within {self.head_seconds:g} seconds."))

    def _refuse(self, error: RequestError) -> None:
        """Send an error without the parser, which may be in any state, and close the connection.

        Closing it with unread data would reset the connection and lose the error. So the client gets a moment to read
        the
        error and to close the connection itself.
        """
        self._stop_timer()
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            # A handler is already working on this request: tell it that the client has gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = msgspec.json.encode(ErrorMessage(error=error.sentence))
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Access-Control-Allow-Origin": "*",
            "Connection": "close",
        } | error.headers
        lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}", *(": ".join(h) for h in headers.items())]
        self.transport.write("\r\n".join([*lines, "\r\n"]).encode("ascii") + body)
        self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)


def connection_class(max_connections: int, head_seconds: float, admission: Admission) -> type[GuardedConnection]:
    """Return a connection class with these limits, which uvicorn instantiates for every connection."""
    connections, seconds, shared_admission = max_connections, head_seconds, admission

    class Connection(GuardedConnection):
        max_connections = connections
        head_seconds = seconds
        admission = shared_admission

    return Connection
