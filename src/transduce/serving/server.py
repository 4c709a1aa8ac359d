"""The server process: its socket, uvicorn on it, and a graceful shutdown."""

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
    nothing;
    a further SIGINT gives up the requests that are still running.
    """

    def __init__(
        self, application: Application, settings: ServingSettings, announce: Callable[[], object] = lambda: None
    ) -> None:
        """Configure uvicorn; `announce` is called once the server accepts requests."""
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
        self.application.service.metrics.requests.labels(path, busy().status).inc()
        return busy()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Route signals to `handle_exit`; unlike uvicorn's version, do not raise them again after the shutdown."""
        with handled(self.handle_exit):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Start the shutdown; a repeated SIGINT also gives up the running requests."""
        if self.should_exit and sig == signal.SIGINT:
            self.application.service.engine.give_up()
        self.application.is_draining = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the decoding threads, then listen."""
        self.application.service.engine.start()
        await super().startup(sockets)
        self.announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, wait for the accepted ones, and give them up after `shutdown_seconds`."""
        self.application.is_draining = True
        engine = self.application.service.engine
        engine.stop()
        giving_up = asyncio.get_running_loop().call_later(self.settings.shutdown_seconds, engine.give_up)
        await super().shutdown(sockets)
        giving_up.cancel()
        engine.give_up()
        engine.workers.join(_FINAL_SECONDS)


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
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
