"""The process: a socket, uvicorn on it, and an orderly end."""

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
from transduce.serving.batching import busy
from transduce.serving.limits import Admission, costly_path
from transduce.serving.messages import ErrorMessage, RequestError
from transduce.serving.settings import ServingSettings

# --- protocol ---
# uvicorn's HTTP connection, and what it lacks: a time by which a request's head must be there, a limit to how many
# connections there are, and errors as JSON.


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


# --- server ---


_BACKLOG = 1024
# After accepted requests were told that the server ends, their answers still have to be sent.
_LAST_WORDS_SECONDS = 1


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that nobody else takes the port, and does not listen yet.

    Raises:
        TransduceError: the address is not this machine's, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TransduceError(
            f"`host` must be an address of this machine, but `{host}` is none ({reason}): 127.0.0.1 is this machine "
            "alone, 0.0.0.0 all that reaches it."
        ) from None
    try:
        if sys.platform != "win32":  # there it would let two servers share a port
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        opened.close()
        reason = error.strerror or str(error)
        raise TransduceError(f"Port {port} of {host} cannot be used ({reason}): choose another with --port.") from None
    return opened


def address_of(opened: socket.socket) -> str:
    """The URL of a bound socket."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """Ends in order: what was accepted is answered, what comes new is refused, and the exit status is 0.

    The first SIGTERM or SIGINT ends it; a further SIGTERM changes nothing, a further SIGINT gives up what is running.
    """

    def __init__(
        self, application: Application, settings: ServingSettings, announce: Callable[[], object] = lambda: None
    ) -> None:
        """`announce` is called once requests are taken."""
        admission = Admission(application.service.engine.batcher.room, self._refusal)
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
            h11_max_incomplete_event_size=MOST_HEAD_BYTES,
            timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds)) + _LAST_WORDS_SECONDS,
        )
        super().__init__(config)
        # What uvicorn would say is either said by ourselves or a stranger's fault.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self.application = application
        self.settings = settings
        self.announce = announce

    def _refusal(self, path: str) -> RequestError:
        """What a request for something costly is told while there is no room."""
        self.application.service.metrics.requests.labels(path, busy().status).inc()
        return busy()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Has signals end the server; unlike uvicorn's own, they do not end the process after it."""
        with handled(self.handle_exit):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Begins the end."""
        if self.should_exit and sig == signal.SIGINT:
            self.application.service.engine.give_up()
        self.application.is_draining = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to translate, then to listen."""
        self.application.service.engine.start()
        await super().startup(sockets)
        self.announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuses what is new, waits for what was accepted, and gives it up when that takes too long."""
        self.application.is_draining = True
        engine = self.application.service.engine
        engine.stop()
        giving_up = asyncio.get_running_loop().call_later(self.settings.shutdown_seconds, engine.give_up)
        await super().shutdown(sockets)
        giving_up.cancel()
        engine.give_up()
        engine.workers.join(_LAST_WORDS_SECONDS)


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Has SIGTERM and SIGINT call a handler, where this is the main thread, which alone can take them."""
    try:
        before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:
        before = {}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def serve(
    application: Application, settings: ServingSettings, opened: socket.socket, announce: Callable[[], object]
) -> None:
    """Serves until a signal comes; `announce` is called once requests are taken."""
    Server(application, settings, announce).run(sockets=[opened])
