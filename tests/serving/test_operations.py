"""Test reloading models, Unix domain sockets, TLS, and the path under which a proxy offers the server."""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from transduce.errors import TransduceError
from transduce.serving.app import Application
from transduce.serving.server import Server, address_of, open_socket, open_unix_socket, serve
from transduce.serving.service import ModelCatalog, Service
from transduce.serving.settings import ServingSettings

BODY = json.dumps({"q": "eins", "source": "de", "target": "en"})
JSON = {"Content-Type": "application/json"}


@contextmanager
def running(server: Server, opened: socket.socket, wait_until: Any) -> Iterator[None]:
    """Run a server in a thread within the context."""
    thread = threading.Thread(target=serve, args=(server, opened))
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield
    finally:
        server.should_exit = True
        thread.join(30)


# --- loading again ---


def test_models_are_loaded_again_without_losing_a_request(serve: Any, gated_model: Any, wait_until: Any) -> None:
    old, new = gated_model(is_open=False), gated_model(languages=("fr", "en"))
    with serve(old, workers=2) as live:
        live.server._load = lambda: ModelCatalog([new], api_keys=("secret",))
        accepted = live.in_background(lambda: live.translate("eins"))
        wait_until(lambda: live.service.engine.batcher.running)
        live.server.handle_reload()
        wait_until(lambda: live.service.routes.pairs == [("fr", "en")])
        key = {"Authorization": "Bearer secret"}
        french = {"q": "un", "source": "fr", "target": "en"}
        assert live.ask("POST", "/translate", french).status == 403  # the keys are new, too
        assert live.ask("POST", "/translate", french, key).json["translatedText"] == "UN"
        assert [each["code"] for each in live.ask("GET", "/languages").json] == ["en", "fr"]
        old.open()
        assert accepted.reply().json["translatedText"] == "EINS"
        assert new.batches
        assert len(new.batches) == 1


def test_models_that_cannot_be_loaded_leave_the_old_ones(
    serve: Any, gated_model: Any, wait_until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> ModelCatalog:
        raise TransduceError("models/a is gone.")

    with serve(gated_model()) as live:
        live.server._load = fail
        live.server.handle_reload()
        wait_until(lambda: "The models were not loaded again: models/a is gone." in caplog.text)
        live.server._load = lambda: ModelCatalog([gated_model(), gated_model()])
        live.server.handle_reload()
        wait_until(lambda: "de → en has two" in caplog.text)
        assert live.translate("eins").status == 200


def test_a_server_that_shuts_down_finishes_loading_and_does_not_begin_again(gated_model: Any, wait_until: Any) -> None:
    begun, may_end, ended = threading.Semaphore(0), threading.Event(), threading.Event()

    def load() -> ModelCatalog:
        begun.release()
        assert may_end.wait(20)
        time.sleep(0.1)
        ended.set()
        return ModelCatalog([gated_model()])

    settings = ServingSettings(port=0, shutdown_seconds=10.0)
    server = Server(Application(Service(ModelCatalog([gated_model()]), settings)), settings, load=load)
    opened = open_socket(settings.host, 0)
    with running(server, opened, wait_until):
        server.handle_reload()
        server.handle_reload()  # waits for the first one
        assert begun.acquire(timeout=10)
        server.should_exit = True
        threading.Timer(0.2, may_end.set).start()
    assert ended.is_set()
    assert not begun.acquire(blocking=False)
    assert not [thread for thread in server._reloads if thread.is_alive()]


def test_a_second_interrupt_does_not_wait_for_models_that_are_being_loaded(gated_model: Any, wait_until: Any) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def load() -> ModelCatalog:
        begun.set()
        assert may_end.wait(20)
        return ModelCatalog([gated_model()])

    settings = ServingSettings(port=0, shutdown_seconds=15.0)
    server = Server(Application(Service(ModelCatalog([gated_model()]), settings)), settings, load=load)
    with running(server, open_socket(settings.host, 0), wait_until):
        server.handle_reload()
        assert begun.wait(10)
        server.handle_exit(signal.SIGINT, None)
        time.sleep(0.5)  # until the server waits for the models only
        started_at = time.monotonic()
        server.handle_exit(signal.SIGINT, None)
    assert time.monotonic() - started_at < 5
    assert server._reloads[0].is_alive()
    may_end.set()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
def test_the_command_loads_its_models_again(trained: Path, tmp_path: Path) -> None:
    import sys

    command = [sys.executable, "-m", "transduce", "serve", f"zh:en={trained}", "--device", "cpu", "--threads", "1"]
    path = str(tmp_path / "socket")
    source = Path(__file__).resolve().parents[2] / "src"
    with subprocess.Popen(
        [*command, "--unix-socket", path],
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": str(source), "PYTHONUTF8": "1"},
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"Serving zh → en on unix:{path} (Ctrl-C ends it).\n"
        process.send_signal(signal.SIGHUP)
        assert process.stderr.readline() == "The models were loaded again.\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not Path(path).exists()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGHUP")
def test_a_signal_while_the_models_are_loaded_loads_them_again(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transduce.commands import serve as command
    from transduce.commands.main import build_parser

    load, loaded = command.load_models, []

    def load_models(options: Any) -> Any:
        loaded.append(options)
        if len(loaded) == 1:
            signal.raise_signal(signal.SIGHUP)
            return load(options)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        return load(options)

    monkeypatch.setattr(command, "load_models", load_models)
    before = signal.getsignal(signal.SIGHUP)
    command.run(build_parser("serve").parse([f"zh:en={trained}", "--port", "0", "--device", "cpu"]))
    assert signal.getsignal(signal.SIGHUP) == before
    assert len(loaded) == 2
    assert "Serving zh → en" in capsys.readouterr().err


# --- Unix domain sockets ---


class UnixConnection(http.client.HTTPConnection):
    """A connection over a Unix domain socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(self.host)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no Unix domain sockets")
def test_the_server_answers_on_a_unix_domain_socket(gated_model: Any, wait_until: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    settings = ServingSettings(unix_socket=path, requests_per_minute=2)
    opened = open_unix_socket(path)
    assert address_of(opened) == f"unix:{path}"
    assert os.stat(path).st_mode & 0o777 == 0o660
    server = Server(Application(Service(ModelCatalog([gated_model()]), settings)), settings)
    with running(server, opened, wait_until):

        def status(client: str) -> int:
            with closing(UnixConnection(path)) as connection:
                connection.request("POST", "/translate", BODY, JSON | {"X-Forwarded-For": client})
                return connection.getresponse().status

        assert [status("10.0.0.1") for _ in range(3)] == [200, 200, 429]  # the proxy's word is taken
        assert status("10.0.0.2") == 200
        with pytest.raises(TransduceError, match="cannot be used as a socket"):
            open_unix_socket(path)  # a server listens there
    assert not Path(path).exists()


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no Unix domain sockets")
def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    open_unix_socket(path).close()
    with open_unix_socket(path) as opened, opened.dup() as copied:
        assert copied.getsockname() == path
        copied.remove_file()  # the file is the first one's
        assert Path(path).exists()
    (tmp_path / "file").write_text("text")
    with pytest.raises(TransduceError, match="cannot be used as a socket"):
        open_unix_socket(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no Unix domain sockets")
def test_a_server_that_ends_leaves_the_socket_of_its_successor(
    gated_model: Any, wait_until: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "socket")
    old, settings = open_unix_socket(path), ServingSettings(unix_socket=path)
    server = Server(Application(Service(ModelCatalog([gated_model()]), settings)), settings)
    with running(server, old, wait_until):
        os.unlink(path)  # as the successor does while this server answers its last requests
        successor = open_unix_socket(path)
    assert Path(path).exists()
    successor.remove_file()
    assert not Path(path).exists()
    successor.close()


# --- TLS ---


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Return the files of a self-signed certificate for localhost and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


def make_certificate(folder: Path) -> tuple[str, str]:
    """Return the files of a new self-signed certificate for localhost and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    files = str(folder / "certificate.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    extension = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *extension, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


def test_the_server_answers_over_https(gated_model: Any, wait_until: Any, certificate: tuple[str, str]) -> None:
    settings = ServingSettings(port=0, tls_certificate=certificate[0], tls_key=certificate[1])
    opened = open_socket(settings.host, 0)
    port = opened.getsockname()[1]
    assert address_of(opened, has_tls=True) == f"https://127.0.0.1:{port}"
    server = Server(Application(Service(ModelCatalog([gated_model()]), settings)), settings)
    with running(server, opened, wait_until):
        context = ssl.create_default_context(cafile=certificate[0])
        with closing(http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=10)) as connection:
            connection.request("POST", "/translate", BODY, JSON)
            assert json.loads(connection.getresponse().read()) == {"translatedText": "EINS"}
            connection.request("POST", "/translate", b"x" * 2_000_000, JSON)
            assert connection.getresponse().status == 413
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="localhost") as raw:
            raw.sendall(b"nonsense\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 400 Bad Request")


def test_a_certificate_without_its_key_leaves_the_old_one(
    gated_model: Any, wait_until: Any, certificate: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "new").mkdir()
    new = make_certificate(tmp_path / "new")
    used = str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem")
    for source, target in zip(certificate, used, strict=True):
        shutil.copy(source, target)
    settings = ServingSettings(port=0, tls_certificate=used[0], tls_key=used[1])
    opened = open_socket(settings.host, 0)
    port = opened.getsockname()[1]
    old_model, new_model = gated_model(), gated_model(languages=("fr", "en"))
    service = Service(ModelCatalog([old_model]), settings)
    server = Server(Application(service), settings, load=lambda: ModelCatalog([new_model]))

    def answers_with(certificate_file: str, name: str | None) -> bool:
        context = ssl.create_default_context(cafile=certificate_file)
        context.check_hostname = name is not None
        try:
            with context.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname=name):
                return True
        except ssl.SSLError:
            return False

    with running(server, opened, wait_until):
        shutil.copy(new[0], used[0])  # the certificate is renewed, its key not yet
        server.handle_reload()
        wait_until(lambda: "The models were not loaded again: " in caplog.text)
        assert "must be a certificate and its key" in caplog.text
        assert service.routes.pairs == [("de", "en")]
        assert all(answers_with(certificate[0], name) for name in ("localhost", None))
        shutil.copy(new[1], used[1])
        server.handle_reload()
        wait_until(lambda: service.routes.pairs == [("fr", "en")])
        assert all(answers_with(new[0], name) for name in ("localhost", None))
        assert not answers_with(certificate[0], "localhost")


def test_a_file_that_is_no_certificate_is_refused(gated_model: Any, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("text")
    settings = ServingSettings(tls_certificate=str(tmp_path / "a"), tls_key=str(tmp_path / "a"))
    with pytest.raises(TransduceError, match="must be a certificate and its key in PEM"):
        Server(Application(Service(ModelCatalog([gated_model()]), settings)), settings)
    with pytest.raises(TransduceError, match="set both, or neither"):
        ServingSettings(tls_key="a")


# --- root path ---


def test_a_root_path_prefixes_all_addresses(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(), root_path="/mt") as live:
        for path in ("/mt/translate", "/translate"):  # whether the proxy removes it or not
            reply = live.ask("POST", path, {"q": "eins", "source": "de", "target": "en"})
            assert reply.json["translatedText"] == "EINS"
        assert live.ask("POST", "/mtx/translate").status == 404
        assert live.ask("GET", "/mt/spec").json["servers"] == [{"url": "/mt"}]
        form = (
            '--m\r\nContent-Disposition: form-data; name="source"\r\n\r\nde\r\n'
            '--m\r\nContent-Disposition: form-data; name="target"\r\n\r\nen\r\n'
            '--m\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\neins\r\n--m--\r\n'
        )
        reply = live.ask("POST", "/mt/translate_file", form, {"Content-Type": "multipart/form-data; boundary=m"})
        url = reply.json["translatedFileUrl"]
        assert url.startswith(f"{live.url}/mt/download_file/")
        assert live.ask("GET", url.removeprefix(live.url)).body == b"EINS"
    for path in ("mt", "/mt/", "/a b", "/"):
        with pytest.raises(TransduceError, match="`root_path` must be a path"):
            ServingSettings(root_path=path)


def test_a_busy_server_refuses_requests_below_its_root_path(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model(is_open=False)
    with serve(model, root_path="/mt", max_running=1, max_waiting=0) as live:
        first = live.in_background(lambda: live.translate("eins"))
        wait_until(lambda: live.service.engine.batcher.running)
        body = {"model": "de-en", "messages": [{"role": "user", "content": "eins"}]}
        refused = live.ask("POST", "/mt/v1/chat/completions", body)
        assert (refused.status, refused.json["error"]["type"]) == (503, "server_error")
        model.open()
        assert first.reply().status == 200


# --- deployment ---

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the image is for Linux")
def test_the_steps_of_the_image_run_in_an_empty_folder(trained: Path) -> None:
    import sys

    pytest.importorskip("hatchling")
    command = [sys.executable, str(DEPLOY / "try_steps.py"), f"zh:en={trained}", "--installed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok: it ended after" in done.stdout


def test_the_unit_and_the_image_use_options_that_exist() -> None:
    import re

    from transduce.commands.main import build_parser

    unit = (DEPLOY / "transduce.service").read_text("utf-8")
    (command,) = re.findall(r"^ExecStart=\S+/transduce (.+)$", unit, re.MULTILINE)
    verb, *arguments = command.split()
    options = build_parser(verb).parse(arguments)
    assert options.unix_socket == "/run/transduce/socket"
    image = (DEPLOY / "Dockerfile").read_text("utf-8")
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", image, re.MULTILINE)
    (argument,) = re.findall(r"^CMD (.+)$", image, re.MULTILINE)
    words: list[str] = json.loads(entry) + json.loads(argument)
    assert build_parser(words[1]).parse(words[2:]).host == "0.0.0.0"
