"""The process: a socket, uvicorn on it, and an orderly end."""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from transduce.errors import TransduceError
from transduce.serving.admission import Admission
from transduce.serving.app import Application
from transduce.serving.batcher import busy
from transduce.serving.protocol import MOST_HEAD_BYTES, connection_class
from transduce.serving.request_error import RequestError
from transduce.serving.settings import ServingSettings

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
