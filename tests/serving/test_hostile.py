"""Test hostile requests: each is refused with a message, uses little memory, and does not affect others."""

import gzip
import http.client
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

MAX_MEGABYTES = 20
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def hostile(load_benchmark: Any) -> Any:
    return load_benchmark("serving_hostile")


def peak_bytes() -> int:
    """Return the peak memory of this process, which includes the server's."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.slow
def test_every_hostile_request_is_refused_in_a_sentence(serve: Any, gated_model: Any, hostile: Any) -> None:
    """Requests of thirty megabytes have three here; benchmarks/serving.py measures full sizes, and memory."""
    requests = hostile.hostile_requests(megabytes=3)
    assert len(requests) == 68
    with serve(gated_model(), read_seconds=3.0) as live:
        verdicts = [hostile.judge(live.url, request) for request in requests]
        assert [verdict for verdict in verdicts if not verdict.is_right] == []
        assert live.translate("danach").json == {"translatedText": "DANACH"}
        assert live.service.metrics.value("transduce_requests_total", route="/translate", status="500") == 0


def test_a_bomb_is_not_unpacked_further_than_the_limit(serve: Any, gated_model: Any) -> None:
    squeezer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(1 << 20)
    bomb = b"".join([*(squeezer.compress(zeros) for _ in range(60)), squeezer.flush()])
    assert len(bomb) < 1 << 20
    with serve(gated_model()) as live:
        live.translate("vorweg")
        before = peak_bytes()
        reply = live.ask("POST", "/translate", bomb, {"Content-Encoding": "gzip"})
        assert reply.status == 413
        assert peak_bytes() - before < MAX_MEGABYTES << 20


@pytest.mark.parametrize("name", ["gzip", "deflate"])
def test_compressed_requests_are_read(live: Any, name: str) -> None:
    squeezer = zlib.compressobj(9, zlib.DEFLATED, 31 if name == "gzip" else 15)
    content = json.dumps({"q": "eins " * 3000, "source": "de", "target": "en"}).encode()
    body = squeezer.compress(content) + squeezer.flush()
    reply = live.ask("POST", "/translate", body, {"Content-Type": "application/json", "Content-Encoding": name})
    assert reply.json["translatedText"] == "EINS " * 3000


def test_a_gzip_body_of_several_members_is_read(live: Any) -> None:
    content = json.dumps({"q": "eins zwei", "source": "de", "target": "en"}).encode()
    body = b"".join(gzip.compress(part) for part in (content[:20], content[20:]))
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert live.ask("POST", "/translate", body, headers).json["translatedText"] == "EINS ZWEI"
    assert live.ask("POST", "/translate", body + b"x", headers).status == 400
    refused = live.ask("POST", "/translate", gzip.compress(b"") * 5000 + body, headers)
    assert (refused.status, "at most" in refused.error) == (400, True)


def test_a_url_inside_of_a_path_belongs_to_the_path(live: Any) -> None:
    assert live.ask("POST", "/translate/http://h", b"{}", {"Content-Type": "application/json"}).status == 404
    assert live.ask("GET", "/http://h/health").status == 404


def answer_to(live: Any, head: str, body: bytes = b"") -> bytes:
    """Return what the server sends after a head and the begin of a body, until it closes the connection."""
    lines = "\r\n".join([*head.split("; "), "Host: a", "Content-Type: application/json", "\r\n"])
    received = b""
    with socket.create_connection(("127.0.0.1", live.port), timeout=20) as connection:
        connection.sendall(lines.encode() + body)
        while chunk := connection.recv(4096):
            received += chunk
    return received


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("POST /translate HTTP/1.1; Content-Length: 9000000; Expect: 100-continue", b""),
        ("POST /translate HTTP/1.1; Content-Length: 9000000", b"{"),
        ("POST /translate HTTP/1.1; Transfer-Encoding: chunked", b"4000\r\n" + b"x" * 0x4000 + b"\r\n"),
    ],
)
def test_a_client_that_does_not_finish_an_oversized_body_is_answered_soon(
    serve: Any, gated_model: Any, head: str, body: bytes
) -> None:
    with serve(gated_model(), max_body_bytes=1000, read_seconds=60.0) as live:
        received = answer_to(live, head, body)  # its connection would time out after 20 seconds
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"100 Continue" not in received


def test_a_request_may_name_the_whole_url_but_not_two_lengths(live: Any) -> None:
    body = json.dumps({"q": "eins", "source": "de", "target": "en"}).encode()
    head = f"POST http://a.example:80/translate HTTP/1.1; Connection: close; Content-Length: {len(body)}"
    assert json.loads(answer_to(live, head, body).partition(b"\r\n\r\n")[2]) == {"translatedText": "EINS"}
    head = "POST /translate HTTP/1.1; Transfer-Encoding: chunked; Content-Length: 4"
    refused = answer_to(live, head, f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 400 ")
    assert b"Transfer-Encoding or a Content-Length, not both" in refused


def test_a_body_of_exactly_the_limit_is_read(serve: Any, gated_model: Any) -> None:
    fields = json.dumps({"q": "eins", "source": "de", "target": "en"})
    kind = {"Content-Type": "application/json"}
    with serve(gated_model(), max_body_bytes=1000) as live:
        assert live.ask("POST", "/translate", fields.ljust(1000), kind).status == 200
        refused = live.ask("POST", "/translate", fields.ljust(1001), kind)
    assert refused.status == 413
    assert refused.error == "The request's body must have at most 1,000 bytes, also when it is uncompressed."


def test_a_refused_body_is_read_to_its_end_so_that_the_connection_goes_on(live: Any) -> None:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=10)
    connection.request("POST", "/translate", b"x" * (3 << 20), {"Content-Type": "application/json"})
    refused = connection.getresponse()
    assert refused.status == 413
    refused.read()
    socket_before = connection.sock
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200
    assert connection.sock is socket_before
    connection.close()


def test_too_many_connections_are_reported(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(), max_connections=5) as live:
        held = [socket.create_connection(("127.0.0.1", live.port), timeout=5) for _ in range(5)]
        for connection in held:
            connection.sendall(b"GET ")
        refused = live.ask("GET", "/health")
        assert refused.status == 503
        assert refused.error == "The server has too many connections: try again in a moment."
        assert refused.headers["retry-after"] == "1"
        for connection in held:
            connection.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such limit")
def test_more_connections_than_file_descriptors_leave_the_log_empty() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "serving_gated.py"), "--set", "read_seconds=1"]
    with subprocess.Popen(
        ["sh", "-c", 'ulimit -n 150; exec "$@"', "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        held, status = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(200)], 0
        time.sleep(2.5)  # connections without a request are closed after a second
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", "/health")
            status = connection.getresponse().status
        for each in held:
            each.close()
        process.terminate()
        log = process.communicate(timeout=30)[1]
    assert status == 200
    assert "Too many open files" not in log
    assert log.count("\n") == 1
    assert re.match(r"Only \d+ connections can be open at once, not 1024 \(--max-connections\)", log)


def test_a_client_that_speaks_no_http_is_answered_in_json(live: Any) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as connection:
        connection.sendall(b"hello\r\n\r\n")
        received = b""
        while chunk := connection.recv(4096):
            received += chunk
    assert received.startswith(b"HTTP/1.1 400 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"].startswith("Invalid HTTP request")


def test_a_body_that_is_no_http_behind_a_good_head_is_refused_once(
    live: Any, caplog: pytest.LogCaptureFixture, wait_until: Any
) -> None:
    metrics = live.service.metrics
    before = metrics.value("transduce_request_seconds_count")
    with socket.create_connection(("127.0.0.1", live.port), timeout=5) as connection:
        connection.sendall(b"POST /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n")
        received = b""
        while chunk := connection.recv(4096):
            received += chunk
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1") == 1
    wait_until(lambda: metrics.value("transduce_request_seconds_count") == before + 1)
    assert caplog.records == []
