"""The server process: its socket, uvicorn on it, and a graceful shutdown."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from http import HTTPStatus
from types import FrameType
from typing import Any

import msgspec
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from transduce.errors import TransduceError
from transduce.serving.app import Application
from transduce.serving.batching import busy_error
from transduce.serving.limits import AdmissionCounter, decoding_path
from transduce.serving.messages import ErrorMessage, RequestError
from transduce.serving.settings import ServingSettings

# --- connections ---
# Extend uvicorn's HTTP connection by a time limit for request heads, a connection limit and errors as JSON.


# The client deep-translator sends texts of some thousand characters in the request line, where one character takes up
# to 12 bytes.
MAX_HEAD_BYTES = 128 * 1024
_LINGER_SECONDS = 1.0


class LimitedConnection(H11Protocol):
    """An HTTP connection of uvicorn that enforces limits on connections, request heads and admission."""

    max_connections = 1024
    """Connections open at once; further ones get an error and are closed."""
    head_seconds = 10.0
    """Time in which a request's head must arrive, from its first byte or the opening of the connection."""
    admission: AdmissionCounter
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
        """Return whether to read a new request now; otherwise it was refused, or waits for the event loop."""
        path = decoding_path(data)
        if path is None:
            return True
        if not self.admission.free_slots():
            self._refuse(self.admission.make_refusal(path))
            return False
        if self.admission.admit(self.loop):
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
        the error and to close the connection itself.
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


def connection_class(max_connections: int, head_seconds: float, admission: AdmissionCounter) -> type[LimitedConnection]:
    """Return a connection class with these limits, which uvicorn instantiates for every connection."""
    connections, seconds, shared_admission = max_connections, head_seconds, admission

    class Connection(LimitedConnection):
        max_connections = connections
        head_seconds = seconds
        admission = shared_admission

    return Connection


# --- server process ---

_BACKLOG = 1024
# Time to send the "shutting down" errors after the remaining requests were given up.
_FINAL_SECONDS = 1


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket bound to the address, which reserves the port but does not listen yet.

    Raises:
        TransduceError: the address is not this machine's, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TransduceError(
            f"`host` must be an address of this machine, but `{host}` is not ({reason}): use 127.0.0.1 for clients on "
            "this machine only, or 0.0.0.0 for all clients."
        ) from None
    try:
        if sys.platform != "win32":  # on Windows it would let two servers share a port
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        opened.close()
        reason = error.strerror or str(error)
        raise TransduceError(f"Port {port} of {host} cannot be used ({reason}): choose another with --port.") from None
    return opened


def address_of(opened: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """A uvicorn server with a graceful shutdown and the exit status 0.

    The first SIGTERM or SIGINT makes it refuse new requests and finish those accepted. A further SIGTERM changes
    nothing; a further SIGINT aborts the requests that are still running.
    """

    def __init__(
        self, application: Application, settings: ServingSettings, announce: Callable[[], object] = lambda: None
    ) -> None:
        """Configure uvicorn; `announce` is called once the server accepts requests."""
        admission = AdmissionCounter(application.service.engine.batcher.free_slots, self._refusal)
        config = uvicorn.Config(
            application,
            http=connection_class(settings.max_connections, settings.read_seconds, admission),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=list(settings.trusted_proxies),
            backlog=_BACKLOG,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds)) + _FINAL_SECONDS,
        )
        super().__init__(config)
        # uvicorn's messages repeat ours or report invalid requests of clients.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self.application = application
        self.settings = settings
        self.announce = announce

    def _refusal(self, path: str) -> RequestError:
        """Count and return the error for a request that needs decoding while the queue is full."""
        self.application.service.metrics.requests.labels(path, busy_error().status).inc()
        return busy_error()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Route signals to `handle_exit`; unlike uvicorn's version, do not raise them again after the shutdown."""
        with signal_handlers(self.handle_exit):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Start the shutdown; a repeated SIGINT also aborts the running requests."""
        if self.should_exit and sig == signal.SIGINT:
            self.application.service.engine.fail_remaining()
        self.application.is_draining = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the decoding threads, then listen."""
        self.application.service.engine.start()
        await super().startup(sockets)
        self.announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, wait for the accepted ones, and abort them after `shutdown_seconds`."""
        self.application.is_draining = True
        engine = self.application.service.engine
        engine.stop()
        giving_up = asyncio.get_running_loop().call_later(self.settings.shutdown_seconds, engine.fail_remaining)
        await super().shutdown(sockets)
        giving_up.cancel()
        engine.fail_remaining()
        engine.workers.join(_FINAL_SECONDS)


@contextlib.contextmanager
def signal_handlers(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Route SIGTERM and SIGINT to a handler within a `with` block in the main thread; in other threads, do nothing."""
    try:
        previous = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:
        previous = {}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)


def serve(
    application: Application, settings: ServingSettings, opened: socket.socket, announce: Callable[[], object]
) -> None:
    """Serve until a signal ends the server; `announce` is called once it accepts requests."""
    Server(application, settings, announce).run(sockets=[opened])
