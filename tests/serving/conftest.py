"""A live server around a model that waits at a gate (benchmarks/serving_gated.py), and a client for it."""

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
from transduce.serving.service import Service
from transduce.serving.settings import ServingSettings

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def _load_benchmark(name: str) -> Any:
    """A module of benchmarks/, by its name."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class Reply(NamedTuple):
    """A server's answer to a request."""

    status: int
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The sentence of an error, which is all that an error holds; below /v2 twice."""
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
        """One request on a connection of its own; a mapping is sent as JSON."""
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
        """POST /translate from de to en."""
        return self.ask("POST", "/translate", {"q": q, "source": "de", "target": "en"} | fields)

    def in_background(self, ask: Callable[[], Reply]) -> "Background":
        """Asks in another thread."""
        return Background(ask)


class Background:
    """A request that is on its way."""

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
        """The answer, once it is there."""
        self._thread.join(30)
        assert self._reply is not None
        return self._reply


@contextmanager
def live_server(*models: Any, views: Any = None, generators: Any = (), **settings: Any) -> Iterator[Live]:
    """A server with these models on a port that the system chose; with views it has a page."""
    chosen = ServingSettings(**{"port": 0, "gather_milliseconds": 0.0, "shutdown_seconds": 5.0} | settings)
    opened = open_socket(chosen.host, chosen.port)
    server = Server(Application(Service(models, chosen, generators=generators), views), chosen)
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
    """Returns once something holds; fails if it does not in time."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not come about in time"
        time.sleep(0.002)


@pytest.fixture(scope="session")
def gated_model() -> Any:
    """The class `GatedModel`."""
    return _load_benchmark("serving_gated").GatedModel


@pytest.fixture(scope="session")
def load_benchmark() -> Any:
    """The function that loads a module of benchmarks/."""
    return _load_benchmark


@pytest.fixture(scope="session")
def wait_until() -> Any:
    """The function that waits until something holds."""
    return _wait_until


@pytest.fixture(scope="session")
def serve() -> Any:
    """The function `live_server`."""
    return live_server


@pytest.fixture(scope="module")
def live(gated_model: Any) -> Iterator[Live]:
    """A server whose gate is open, for tests that change nothing."""
    second = gated_model(languages=("zh", "en"))
    with live_server(gated_model(), second, gated_model(languages=("en", "pt_BR"))) as server:
        yield server
