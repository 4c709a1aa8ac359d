"""uvicorn's HTTP connection, and what it lacks: a time by which a request's head must be there, a limit to how many
connections there are, and errors as JSON.
"""

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

# A request line may hold a text of some thousand characters, as deep-translator sends it, and a character takes up to
# 12 bytes in it.
MOST_HEAD_BYTES = 128 * 1024
_LINGER_SECONDS = 1.0


class GuardedConnection(H11Protocol):
    """One connection."""

    max_connections = 1024
    """Open at once; what comes on top is told so and closed."""
    head_seconds = 10.0
    """In which a request's head must arrive, counted from its first byte, or from the opening of the connection."""
    admission: Admission
    """Decides who is let in."""

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
        self._postponed = b""  # what has arrived and is looked at in the next turn of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accepts it, or says why not."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            sentence = "The server has too many connections: come again in a moment."
            self._refuse(RequestError(503, sentence, retry_after_seconds=1))
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feeds the parser, or refuses what there is no room for. A head that has begun must be complete in time."""
        if self._is_refused or self.transport.is_closing():
            return
        before = self.cycle
        is_idle = before is None or before.response_complete
        if self._postponed:
            self._postponed += data
        elif not is_idle or self._is_within_head or self._is_let_in(data):
            super().data_received(data)
            self._is_within_head = is_idle and self.cycle is before
            if self.cycle is not before:
                self._stop_timer()
            elif self._is_within_head and self._head_timer is None:
                self._expect_head()

    def _is_let_in(self, data: bytes) -> bool:
        """Whether a request that begins is read now, and not refused, nor looked at again in a moment."""
        path = costly_path(data)
        if path is None:
            return True
        if not self.admission.room():
            self._refuse(self.admission.refusal(path))
            return False
        if self.admission.enter(self.loop):
            return True
        self._postponed = data
        self.loop.call_soon(self._look_again)
        return False

    def _look_again(self) -> None:
        data, self._postponed = self._postponed, b""
        self.data_received(data)

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP."""
        self._refuse(RequestError(400, f"{msg.rstrip('.')}: the connection is closed."))

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(RequestError(408, f"A request's head must arrive within {self.head_seconds:g} seconds."))

    def _refuse(self, error: RequestError) -> None:
        """Writes an answer past the parser, which may be in any state, and hangs up.

        Hanging up on bytes that were not read would reset the connection, and the answer with it. So the client is
        given a moment to read and to hang up itself.
        """
        self._stop_timer()
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            # The head was good and the body is not: whatever answers it has nobody to answer any more.
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
    """The class with these limits; uvicorn makes its objects."""
    most, seconds, let_in = max_connections, head_seconds, admission

    class Connection(GuardedConnection):
        max_connections = most
        head_seconds = seconds
        admission = let_in

    return Connection
