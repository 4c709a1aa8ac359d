"""Fixtures of a running server whose model waits at a gate (benchmarks/serving_gated.py), and of its clients."""

import http.client
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from transduce.serving.app import Application
from transduce.serving.server import Server, open_socket
from transduce.serving.service import ModelCatalog, Service
from transduce.serving.settings import ServingSettings

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def _load_benchmark(name: str) -> Any:
    """Import a module of benchmarks/ by its name, and return it."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class Reply(NamedTuple):
    """A server's answer to an HTTP request."""

    status: int
    headers: dict[str, str]
    """The values of the headers by their names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of an error, which must be all that the body holds (under /v2 a second time, as `message`)."""
        assert self.headers["content-type"] == "application/json"
        assert set(self.json) - {"message"} == {"error"}
        assert self.json.get("message", self.json["error"]) == self.json["error"]
        sentence: str = self.json["error"]
        return sentence


class Live:
    """A server that runs in a thread of this process."""

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port
        self.service = server.application.service
        self.url = f"http://127.0.0.1:{port}"

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request on a new connection, and return the answer; a mapping is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            sent = dict(headers or {})
            if isinstance(body, Mapping):
                body, sent = json.dumps(body), {"Content-Type": "application/json"} | sent
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def translate(self, q: Any = "ein Satz", **fields: Any) -> Reply:
        """Send POST /translate with a text `q` from German to English, and return the answer."""
        return self.ask("POST", "/translate", {"q": q, "source": "de", "target": "en"} | fields)

    def in_background(self, ask: Callable[[], Reply]) -> "Background":
        """Run a function that sends a request in another thread, and return an object for its answer."""
        return Background(ask)


class Background:
    """A request that runs in another thread."""

    def __init__(self, ask: Callable[[], Reply]) -> None:
        self.seconds = 0.0
        self._reply: Reply | None = None
        self._thread = threading.Thread(target=self._run, args=(ask,))
        self._thread.start()

    def _run(self, ask: Callable[[], Reply]) -> None:
        started_at = time.monotonic()
        self._reply = ask()
        self.seconds = time.monotonic() - started_at

    @property
    def is_answered(self) -> bool:
        return not self._thread.is_alive()

    def reply(self) -> Reply:
        """Wait for the answer, and return it."""
        self._thread.join(30)
        assert self._reply is not None
        return self._reply


@contextmanager
def live_server(*models: Any, views: Any = None, generators: Any = (), **settings: Any) -> Iterator[Live]:
    """Run a server with these models on a free port within the context; with `views` it has a web page."""
    chosen = ServingSettings(**{"port": 0, "gather_milliseconds": 0.0, "shutdown_seconds": 5.0} | settings)
    opened = open_socket(chosen.host, chosen.port)
    server = Server(Application(Service(ModelCatalog(models, generators), chosen), views), chosen)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    port = opened.getsockname()[1]
    thread.start()
    try:
        _wait_until(lambda: server.started)
        yield Live(server, port)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def _wait_until(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until a function returns a true value; fail after a number of seconds."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, f"the condition was not met in {seconds} seconds"
        time.sleep(0.002)


@pytest.fixture(scope="session")
def gated_model() -> Any:
    """Return the class `GatedModel`, a model that waits at a gate."""
    return _load_benchmark("serving_gated").GatedModel


@pytest.fixture(scope="session")
def load_benchmark() -> Any:
    """Return a function that imports a module of benchmarks/ by its name."""
    return _load_benchmark


@pytest.fixture(scope="session")
def wait_until() -> Any:
    """Return a function that waits until a function returns a true value."""
    return _wait_until


@pytest.fixture(scope="session")
def serve() -> Any:
    """Return `live_server`, a context manager that runs a server with given models."""
    return live_server


@pytest.fixture(scope="module")
def live(gated_model: Any) -> Iterator[Live]:
    """Yield a server for de-en, zh-en and en-pt_BR whose gates are open, for tests that do not change its state."""
    second = gated_model(languages=("zh", "en"))
    with live_server(gated_model(), second, gated_model(languages=("en", "pt_BR"))) as server:
        yield server
