"""Run the server process: open its socket, run uvicorn on it, reload models, and shut down gracefully."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import ssl
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http import HTTPStatus
from types import FrameType
from typing import Any, NamedTuple, cast

import msgspec
import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from transduce.errors import TransduceError
from transduce.serving.app import Application
from transduce.serving.batching import busy_error, call_in_loop
from transduce.serving.limits import AdmissionCounter
from transduce.serving.messages import RequestError
from transduce.serving.responses import error_content
from transduce.serving.service import ModelCatalog
from transduce.serving.settings import ServingSettings

_LOG = logging.getLogger("transduce.serving")

# --- connections ---
# Extend uvicorn's HTTP connection by a time limit for request heads, a connection limit and errors as JSON.


# The client deep-translator sends texts of some thousand characters in the request line, where one character takes up
# to 12 bytes.
MAX_HEAD_BYTES = 128 * 1024
_BACKLOG = 1024
_LINGER_SECONDS = 1.0
_MAX_REFUSED = 64


class LimitedConnection(H11Protocol):
    """An HTTP connection of uvicorn with limits on open connections and on the time until a request's head is complete.

    A request that needs the decoding queue is refused before it is read if the queue is full.
    """

    def __init__(
        self, limits: "ConnectionLimits", head_seconds: float, admission: AdmissionCounter, **options: Any
    ) -> None:
        """Create a connection; uvicorn does this for every client.

        Args:
            limits: how many connections are answered, and how many further ones are refused with an error.
            head_seconds: time in which a request's head must arrive, from its first byte or the opening of the
                connection.
            admission: the counter that decides which requests are read, shared by all connections.
            **options: uvicorn's own arguments.
        """
        super().__init__(**options)
        self.limits = limits
        self.head_seconds = head_seconds
        self.admission = admission
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_within_head = False
        self._is_refused = False
        self._postponed = b""  # received data that the next iteration of the event loop handles

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a new connection unless there are too many.

        The first `max_refused` connections beyond `max_connections` are answered with status 503 and closed. All
        further ones are closed without an answer.
        """
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections + self.limits.max_refused:
            transport.abort()  # without an answer: it would hold a file descriptor for another second
        elif len(self.connections) > self.limits.max_connections:
            sentence = "The server has too many connections: try again in a moment."
            self._refuse(RequestError(503, sentence, retry_after_seconds=1))
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer for request heads, because the connection was closed."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes: pass them to uvicorn's parser unless the request is refused or postponed.

        While the head of a request is incomplete, a timer runs, after which the request is refused.
        """
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
        """Return whether to read a new request now.

        If not, the request is refused because the queue is full, or postponed to the next iteration of the event loop.

        Args:
            data: the first bytes of the request.
        """
        path = self.admission.decoding_path(data)
        if path is None:
            return True
        if not self.admission.free_slots():
            self._refuse(self.admission.make_refusal(path), path)
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
        """Answer data that is not HTTP with status 400 and uvicorn's message, and close the connection."""
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

    def _refuse(self, error: RequestError, path: str = "") -> None:
        """Send an error without uvicorn's parser, which may be in any state, and close the connection.

        Closing a connection with unread data would reset it and lose the error. So the client gets a second to read the
        error and to close the connection itself.

        Args:
            error: the error.
            path: path of the request, which determines the format of the error; "" if it is not known.
        """
        self._stop_timer()
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            # A handler is already working on this request: tell it that the client has gone.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = msgspec.json.encode(error_content(error, path))
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Access-Control-Allow-Origin": "*",
            "Connection": "close",
        } | error.headers
        lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}", *(": ".join(h) for h in headers.items())]
        self.transport.write("\r\n".join([*lines, "\r\n"]).encode("ascii") + body)
        if self.transport.can_write_eof():  # TLS cannot
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)


# --- file descriptors ---
# Each connection takes a file descriptor. When a process has no more of them, asyncio logs a traceback for each
# connection that it cannot accept, thousands of lines a second, so that is avoided.

_SPARE_DESCRIPTORS = 64  # for models that are loaded again, stored glossaries and the like


class ConnectionLimits(NamedTuple):
    """The numbers of connections for which a process has file descriptors."""

    max_connections: int
    """Connections whose requests are answered."""
    max_refused: int
    """Connections beyond them that are answered with an error."""
    backlog: int
    """Connections that the system holds until they are accepted, all at once."""


def connection_limits(max_connections: int) -> ConnectionLimits:
    """Return how many connections this process can hold open, at most `max_connections`.

    The process's limit of file descriptors is raised if necessary. If the system does not allow that, the numbers are
    lower, and the log says how to raise them.
    """
    needed = max_connections + _MAX_REFUSED + _BACKLOG
    available = _free_descriptors(needed)
    if available is None or available >= needed:
        return ConnectionLimits(max_connections, _MAX_REFUSED, _BACKLOG)
    limits = ConnectionLimits(
        max(1, min(max_connections, available // 2)), max(1, min(_MAX_REFUSED, available // 8)), max(1, available // 4)
    )
    if limits.max_connections < max_connections:
        _LOG.warning(
            "Only %d connections can be open at once, not %d (--max-connections), because of the limit of file "
            "descriptors: raise it (`ulimit -n`, LimitNOFILE in a systemd unit) to %d.",
            limits.max_connections,
            max_connections,
            needed + 2 * _SPARE_DESCRIPTORS,
        )
    return limits


def _free_descriptors(needed: int) -> int | None:
    """Return how many file descriptors connections can have; None if there is no limit or it is not known.

    The process's limit is raised first, as far as necessary and possible.

    Args:
        needed: the number of descriptors to have.
    """
    try:
        import resource

        reserved = len(os.listdir("/dev/fd")) + _SPARE_DESCRIPTORS
        limit, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = needed + reserved
    except (ImportError, OSError):  # Windows has no such limit
        return None
    if resource.RLIM_INFINITY != limit < wanted:
        raised = wanted if maximum == resource.RLIM_INFINITY else min(wanted, maximum)
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower maximum than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, maximum))
            limit = raised
    return None if limit == resource.RLIM_INFINITY else max(0, limit - reserved)


# --- server process ---

_RELOAD_SIGNALS = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()
# Time to send the "shutting down" errors after the remaining requests were given up.
_FINAL_SECONDS = 1
_JOIN_SECONDS = 0.1  # after which a signal during a wait for a thread is noticed


def open_socket(host: str, port: int) -> socket.socket:
    """Return a TCP socket that is bound to an address but does not listen yet.

    Args:
        host: name or IP address of this machine.
        port: the port; 0: the system chooses one.

    Raises:
        TransduceError: the address is not this machine's, or the port cannot be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise _no_address(host, error) from None
    try:
        if sys.platform != "win32":  # on Windows it would let two servers share a port
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        opened.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_address(host, error) from None
        reason = error.strerror or str(error)
        raise TransduceError(f"Port {port} of {host} cannot be used ({reason}): choose another with --port.") from None
    return opened


def _no_address(host: str, error: Exception) -> TransduceError:
    reason = getattr(error, "strerror", None) or error
    return TransduceError(
        f"`host` must be an address of this machine, but `{host}` is not ({reason}): use 127.0.0.1 for clients on "
        "this machine only, or 0.0.0.0 for all clients."
    )


class UnixSocket(socket.socket):
    """A bound Unix domain socket that can remove its file, unless another server has replaced the file meanwhile."""

    _path = ""
    _file: tuple[int, int, int] | None = None

    @override
    def bind(self, path: Any, /) -> None:
        super().bind(path)
        self._path, self._file = path, _identity(path)

    def remove_file(self) -> None:
        """Remove the socket's file, unless it is missing or belongs to another server's socket."""
        with contextlib.suppress(OSError):
            if self._file == _identity(self._path):
                os.unlink(self._path)


def _identity(path: str) -> tuple[int, int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_mtime_ns  # the number of an inode is soon used again


def open_unix_socket(path: str) -> UnixSocket:
    """Return a Unix domain socket that is bound to a path but does not listen yet.

    This user and its group may connect to it. A socket on which no server listens any more is replaced.

    Raises:
        TransduceError: the path is taken or cannot be used, or the system has no such sockets.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise TransduceError("This system has no Unix domain sockets: leave --unix-socket out.")
    opened = UnixSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_abandoned_socket(path):
            os.unlink(path)
        opened.bind(path)
        os.chmod(path, 0o660)
    except OSError as error:
        opened.close()
        reason = error.strerror or str(error)
        raise TransduceError(f"{path} cannot be used as a socket ({reason}): choose another path.") from None
    return opened


def _is_abandoned_socket(path: str) -> bool:
    """Return whether a path is a Unix domain socket on which no process listens; False if it does not exist."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return False
    except FileNotFoundError:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(path) != 0


def address_of(opened: socket.socket, *, has_tls: bool = False) -> str:
    """Return the address of a bound socket for people: its URL, or "unix:PATH" for a Unix domain socket.

    Args:
        opened: the socket.
        has_tls: the server speaks HTTPS on it.
    """
    name = opened.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host, port = name[:2]
    scheme = "https" if has_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _unusable_certificate(settings: ServingSettings, error: OSError) -> TransduceError:
    return TransduceError(
        f"{settings.tls_certificate} and {settings.tls_key} must be a certificate and its key in PEM, but cannot be "
        f"used ({error.strerror or error}): choose other files."
    )


class Server(uvicorn.Server):
    """A uvicorn server with a graceful shutdown and the exit status 0.

    After the first SIGTERM or SIGINT, the server refuses new requests and finishes the accepted ones. A further SIGTERM
    changes nothing; a further SIGINT aborts the requests that are still running, and does not wait for models that are
    being loaded. SIGHUP loads the models again.
    """

    def __init__(
        self,
        application: Application,
        settings: ServingSettings,
        announce: Callable[[], object] = lambda: None,
        load: Callable[[], ModelCatalog] | None = None,
    ) -> None:
        """Configure uvicorn for the application; nothing runs until `serve` is called.

        Args:
            application: the ASGI application that answers the requests.
            settings: the settings of the server.
            announce: called once the server accepts requests.
            load: loads the models again; None: SIGHUP has no effect.

        Raises:
            TransduceError: the certificate cannot be used.
        """
        admission = AdmissionCounter(
            [operation.path for operation, _ in application.operations if operation.decodes],
            application.service.engine.batcher.free_slots,
            self._refusal,
            settings.root_path,
        )
        limits = connection_limits(settings.max_connections)
        config = uvicorn.Config(
            application,
            # uvicorn would prefer uvloop where it is installed, whose transports are not those of `LimitedConnection`.
            loop="asyncio",
            http=cast(Any, partial(LimitedConnection, limits, settings.read_seconds, admission)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=bool(settings.trusted_proxies) or settings.unix_socket is not None,
            forwarded_allow_ips=list(settings.trusted_proxies) if settings.unix_socket is None else "*",
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=settings.tls_key,
            backlog=limits.backlog,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            timeout_graceful_shutdown=max(1, round(settings.shutdown_seconds)) + _FINAL_SECONDS,
        )
        try:
            config.load()
        except OSError as error:  # an SSLError, too
            raise _unusable_certificate(settings, error) from None
        super().__init__(config)
        # uvicorn's messages repeat ours or report invalid requests of clients.
        logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        self.application = application
        self.settings = settings
        self.announce = announce
        self._load = load
        self._has_terminal = os.isatty(2)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_loading = threading.Lock()
        self._reloads: list[threading.Thread] = []  # those that have not ended
        self._is_hurried = False  # by a SIGINT during the shutdown
        self._tls = config.ssl
        if config.ssl is not None:
            config.ssl.sni_callback = self._use_current_tls

    def _refusal(self, path: str) -> RequestError:
        """Count a request that the full queue cannot take, and return its `RequestError` (status 503).

        Args:
            path: the path of the request, under which the metrics count the refusal.
        """
        self.application.service.metrics.requests.labels(path, busy_error().status).inc()
        return busy_error()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """In a `with` block, let SIGTERM and SIGINT start the shutdown, and SIGHUP reload the models.

        Unlike in uvicorn's version, the signals are not raised again after the shutdown.
        """
        with signal_handlers(self.handle_exit), signal_handlers(self.handle_reload, _RELOAD_SIGNALS):
            yield

    def handle_reload(self, sig: int = 0, frame: FrameType | None = None) -> None:  # noqa: ARG002
        """Load the models again in a thread when SIGHUP arrives.

        Requests are answered with the old models until the new ones are ready. If the new models cannot be loaded, the
        log says why, and the old models stay. If the terminal that the server was started in has been closed, the
        server shuts down instead.
        """
        if self._has_terminal and not os.isatty(2):
            self.handle_exit(signal.SIGTERM, frame)
        elif self._load is not None and self._loop is not None:
            self._reloads = [thread for thread in self._reloads if thread.is_alive()]
            self._reloads.append(threading.Thread(target=self._reload, name="reload", daemon=True))
            self._reloads[-1].start()

    def _use_current_tls(self, tls: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:  # noqa: ARG002
        """Let a new connection use the certificate that was loaded last; called by `ssl` in each handshake."""
        tls.context = self._tls or context

    def _load_certificate(self) -> ssl.SSLContext | None:
        """Return a new TLS context with the certificate and key as their files are now; None without TLS.

        Raises:
            TransduceError: the files are no certificate with its key.
        """
        if self.settings.tls_certificate is None:
            return None
        context = ssl.SSLContext(self.config.ssl_version)
        try:
            context.load_cert_chain(self.settings.tls_certificate, self.settings.tls_key)
        except OSError as error:
            raise _unusable_certificate(self.settings, error) from None
        return context

    def _reload(self) -> None:
        assert self._load is not None
        assert self._loop is not None
        with self._is_loading:  # a further signal waits and loads what is there then
            if self.should_exit:
                return
            try:
                catalog, tls = self._load(), self._load_certificate()
            except TransduceError as error:
                _LOG.error("The models were not loaded again: %s", error)
            except Exception:  # noqa: BLE001 - a server goes on with the models that it has
                _LOG.exception("The models were not loaded again")
            else:
                call_in_loop(self._loop, self._use, catalog, tls)

    def _use(self, catalog: ModelCatalog, tls: ssl.SSLContext | None) -> None:
        try:
            self.application.service.use(catalog)
        except TransduceError as error:
            _LOG.error("The models were not loaded again: %s", error)
        else:
            self._tls = tls
            _LOG.warning("The models were loaded again.")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Start the shutdown when SIGTERM or SIGINT arrives.

        A SIGINT during the shutdown also makes all unfinished requests fail.
        """
        if self.should_exit and sig == signal.SIGINT:
            self._is_hurried = True
            self.application.service.engine.batcher.fail_remaining()
        self.application.is_draining = True
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the decoding threads, listen for connections, and announce that the server accepts requests.

        Args:
            sockets: the bound sockets to listen on.
        """
        self._loop = asyncio.get_running_loop()
        self.application.service.engine.workers.start()
        await super().startup(sockets)
        self.announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, and wait until the accepted requests are answered.

        Requests that are unfinished after `shutdown_seconds` fail. The server also waits until then for models that are
        being loaded, unless a SIGINT arrives during the shutdown.

        Args:
            sockets: the sockets to close.
        """
        until = time.monotonic() + self.settings.shutdown_seconds
        self.application.is_draining = True
        engine = self.application.service.engine
        engine.batcher.close()
        giving_up = asyncio.get_running_loop().call_later(self.settings.shutdown_seconds, engine.batcher.fail_remaining)
        await super().shutdown(sockets)
        giving_up.cancel()
        engine.batcher.fail_remaining()
        engine.workers.join(_FINAL_SECONDS)
        for thread in self._reloads:  # a thread that computes in C++ when the interpreter ends would abort the process
            while thread.is_alive() and not self._is_hurried and (left := until - time.monotonic()) > 0:
                thread.join(min(left, _JOIN_SECONDS))


@contextlib.contextmanager
def signal_handlers(
    handler: Callable[[int, FrameType | None], object], numbers: Sequence[int] = (signal.SIGTERM, signal.SIGINT)
) -> Iterator[None]:
    """Install a signal handler during a `with` block, and restore the previous handlers afterwards.

    Outside of the main thread nothing happens, because only that can handle signals.

    Args:
        handler: the handler, with the arguments that `signal.signal` states.
        numbers: the signals.
    """
    try:
        previous = {number: signal.signal(number, handler) for number in numbers}
    except ValueError:
        previous = {}
    try:
        yield
    finally:
        for number, previous_handler in previous.items():
            signal.signal(number, previous_handler)


def serve(server: Server, opened: socket.socket) -> None:
    """Run a server on a bound socket until a signal ends it; remove the file of a Unix domain socket at the end."""
    try:
        server.run(sockets=[opened])
    finally:
        if isinstance(opened, UnixSocket):
            opened.remove_file()
