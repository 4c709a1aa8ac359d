"""Test shutdown: accepted requests are answered, new ones are refused, and the exit status is 0."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GATED = [sys.executable, str(ROOT / "benchmarks" / "serving_gated.py")]
HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGTERM that a process can take")


@contextmanager
def gated_process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a server with a gated model in a process within the context; yield the process and the port."""
    process = subprocess.Popen(
        [*GATED, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline().rpartition(":")[2])
    finally:
        process.kill()
        process.communicate()


def ask(port: int, text: str, answers: dict[str, Any]) -> None:
    """Send a translation request, and store the answer or the error under the text."""
    body = json.dumps({"q": text, "source": "de", "target": "en"})
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
            connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            answers[text] = reply.status, json.loads(reply.read())
    except OSError as error:
        answers[text] = error


def metric(port: int, name: str) -> float:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().split("\n")
    return float(next(line.split()[-1] for line in lines if line.startswith(f"{name} ")))


def read_answer(connection: socket.socket) -> bytes:
    """Return the head and JSON body of an answer; empty if the connection was closed."""
    received = b""
    while not received.endswith(b"}") and (chunk := connection.recv(4096)):
        received += chunk
    return received


def begin_ten(port: int) -> tuple[list[threading.Thread], dict[str, Any]]:
    """Send ten requests, six of which run while four wait; return their threads and the answers by text."""
    answers: dict[str, Any] = {}
    threads = [threading.Thread(target=ask, args=(port, f"Satz {number}", answers)) for number in range(10)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 10
    while metric(port, "transduce_requests_running") + metric(port, "transduce_requests_waiting") < 10:
        assert time.monotonic() < until
        time.sleep(0.01)
    return threads, answers


def is_refused(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return False
    except OSError:
        return True


def test_two_signals_let_accepted_requests_be_answered_and_refuse_new_ones() -> None:
    with gated_process("--set", "max_running=6", "--set", "max_waiting=8") as (process, port):
        assert process.stdin is not None
        threads, answers = begin_ten(port)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        until = time.monotonic() + 5
        while not is_refused(port):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert process.poll() is None
        assert not answers
        process.stdin.write("open\n")
        process.stdin.flush()
        for thread in threads:
            thread.join(20)
        assert answers == {f"Satz {n}": (200, {"translatedText": f"SATZ {n}"}) for n in range(10)}
        assert process.wait(timeout=30) == 0


@pytest.mark.parametrize("interrupted", [False, True])
def test_requests_unfinished_at_shutdown_are_reported(
    serve: Any, gated_model: Any, wait_until: Any, interrupted: bool
) -> None:
    model = gated_model(is_open=False)
    answers: dict[str, Any] = {}
    with serve(model, max_running=1, shutdown_seconds=20 if interrupted else 0.4) as live:
        asks = [threading.Thread(target=ask, args=(live.port, f"Satz {n}", answers)) for n in range(3)]
        for thread in asks:
            thread.start()
        batcher = live.service.engine.batcher
        wait_until(lambda: batcher.running == 1 and batcher.waiting == 2)
        started_at = time.monotonic()
        for _ in range(1 + interrupted):
            live.server.handle_exit(signal.SIGINT, None)
        for thread in asks:
            thread.join(10)
        assert time.monotonic() - started_at < 3.0
        sentence = "The server is shutting down: try again later."
        assert list(answers.values()) == [(503, {"error": sentence})] * 3
        model.open()


def test_a_request_whose_text_comes_after_all_was_stopped_is_reported(
    serve: Any, gated_model: Any, wait_until: Any
) -> None:
    body = json.dumps({"q": "ein Satz", "source": "de", "target": "en"}).encode()
    lines = ["POST /translate HTTP/1.1", "Host: a", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    with (
        serve(gated_model(is_open=False), shutdown_seconds=20) as live,
        socket.create_connection(("127.0.0.1", live.port), timeout=5) as connection,
    ):
        connection.sendall("\r\n".join([*lines, "\r\n"]).encode())
        wait_until(lambda: live.server.server_state.tasks)
        for _ in range(2):
            live.server.handle_exit(signal.SIGINT, None)
        connection.sendall(body)
        assert read_answer(connection).startswith(b"HTTP/1.1 503 ")


def test_requests_on_open_connections_are_refused_at_the_end(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model(is_open=False)
    with serve(model) as live, socket.create_connection(("127.0.0.1", live.port), timeout=5) as connection:
        connection.sendall(HEALTH)
        assert read_answer(connection).startswith(b"HTTP/1.1 200 ")
        held = live.in_background(live.translate)
        wait_until(lambda: live.service.engine.batcher.running)
        live.server.handle_exit(signal.SIGTERM, None)
        connection.sendall(HEALTH)
        received = read_answer(connection)  # a refusal, or the end of an idle connection, whichever was first
        assert received == b"" or received.startswith(b"HTTP/1.1 503 ")
        model.open()
        assert held.reply().status == 200
