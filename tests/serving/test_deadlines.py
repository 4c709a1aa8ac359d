"""Test deadlines: late requests are refused and not computed."""

import socket
import time
from typing import Any

import pytest

TOLERANCE_SECONDS = (
    0.25  # of the tests, on a machine that is busy; benchmarks/serving.py measures it on one that is not
)


def timed(ask: Any) -> tuple[Any, float]:
    started_at = time.monotonic()
    return ask(), time.monotonic() - started_at


@pytest.mark.parametrize("source", ["server", "request"])
def test_a_request_is_stopped_at_its_deadline(serve: Any, gated_model: Any, wait_until: Any, source: str) -> None:
    model = gated_model(is_open=False, steps=100)
    settings = {"deadline_seconds": 0.3} if source == "server" else {}
    fields = {"timeout": 0.3} if source == "request" else {}
    with serve(model, **settings) as live:
        reply, seconds = timed(lambda: live.translate("eins", **fields))
        assert reply.status == 504
        assert reply.error.startswith("The translation exceeded its time limit")
        assert ("the request's own `timeout` of 0.3 seconds" in reply.error) == (source == "request")
        assert 0.3 <= seconds < 0.3 + TOLERANCE_SECONDS
        model.let_through(1)
        wait_until(lambda: not live.service.engine.batcher.running)
        assert model.steps_run == 1
        model.open()
        assert live.translate("zwei").status == 200
    assert model.steps_run == 101


def test_a_request_cannot_ask_for_more_time_than_there_is(serve: Any, gated_model: Any) -> None:
    model = gated_model(is_open=False)
    with serve(model, deadline_seconds=0.2) as live:
        reply, seconds = timed(lambda: live.translate("eins", timeout=100))
        assert reply.status == 504
        assert "`timeout`" not in reply.error
        assert seconds < 0.2 + TOLERANCE_SECONDS
        model.open()


def test_a_request_that_waits_too_long_is_refused_and_never_begun(
    serve: Any, gated_model: Any, wait_until: Any
) -> None:
    model = gated_model(is_open=False)
    with serve(model, max_running=1, queue_seconds=0.3) as live:
        held = live.in_background(lambda: live.translate("eins"))
        wait_until(lambda: live.service.engine.batcher.running)
        reply, seconds = timed(lambda: live.translate("zwei"))
        assert reply.status == 503
        assert reply.error.startswith("The server is busy: the request waited too long in the queue")
        assert int(reply.headers["retry-after"]) >= 1
        assert 0.3 <= seconds < 0.3 + TOLERANCE_SECONDS
        model.open()
        assert held.reply().status == 200
    assert list(model.batches) == [["eins"]]


def test_a_request_that_times_out_in_the_queue_is_refused_with_the_reason(
    serve: Any, gated_model: Any, wait_until: Any
) -> None:
    model = gated_model(is_open=False)
    with serve(model, max_running=1) as live:
        held = live.in_background(lambda: live.translate("eins"))
        wait_until(lambda: live.service.engine.batcher.running)
        reply = live.translate("zwei", timeout=0.3)
        assert reply.status == 504
        assert "the request's own `timeout` of 0.3 seconds" in reply.error
        model.open()
        assert held.reply().status == 200
    assert list(model.batches) == [["eins"]]


def test_other_requests_continue_when_one_exceeds_its_deadline(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model(is_open=False, steps=3)
    with serve(model) as live:
        first = live.in_background(lambda: live.translate("vorweg"))
        wait_until(lambda: live.service.engine.batcher.running)
        asks = [
            live.in_background(lambda seconds=seconds: live.translate("eins zwei", timeout=seconds))
            for seconds in (0.8, 20)
        ]
        wait_until(lambda: live.service.engine.batcher.waiting == 2)
        model.let_through(4)
        assert first.reply().status == 200
        expired, fine = asks
        assert expired.reply().status == 504
        assert live.service.engine.batcher.running == 2
        model.let_through(1)
        wait_until(lambda: live.service.engine.batcher.running == 1)
        model.open()
        assert fine.reply().json == {"translatedText": "EINS ZWEI"}
    assert list(model.batches) == [["vorweg"], ["eins zwei", "eins zwei"]]


def test_no_sentence_of_a_long_text_is_started_after_its_deadline(
    serve: Any, gated_model: Any, wait_until: Any
) -> None:
    model = gated_model(is_open=False, steps=1)
    with serve(model, batch_tokens=8, deadline_seconds=0.3) as live:
        ask = live.in_background(lambda: live.translate("\n".join(["eins zwei drei"] * 10)))
        assert ask.reply().status == 504
        model.open()
        wait_until(lambda: not live.service.engine.batcher.running)
    assert len(model.batches) == 1


@pytest.mark.parametrize(
    "sent",
    [
        b'POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 60\r\n\r\n{"q"',
        b'POST /translate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{"q"\r\n',
        b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: applicat",
        b"",
    ],
    ids=["body", "chunked body", "head", "nothing"],
)
def test_a_client_that_sends_too_slowly_is_informed_and_dropped(live_slow: Any, sent: bytes) -> None:
    started_at = time.monotonic()
    with socket.create_connection(("127.0.0.1", live_slow.port), timeout=5) as connection:
        connection.sendall(sent)
        received = b""
        while chunk := connection.recv(4096):
            received += chunk
        seconds = time.monotonic() - started_at
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b'{"error":"' in received
    assert b"must arrive within 0.3 seconds" in received
    assert 0.3 <= seconds < 0.3 + 2 * TOLERANCE_SECONDS


def test_a_slow_body_that_keeps_coming_is_cut_all_the_same(live_slow: Any) -> None:
    with socket.create_connection(("127.0.0.1", live_slow.port), timeout=5) as connection:
        connection.sendall(b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        started_at = time.monotonic()
        try:
            while time.monotonic() - started_at < 3.0:
                connection.sendall(b" ")
                time.sleep(0.05)
        except OSError:
            pass
        assert time.monotonic() - started_at < 1.0


def test_the_second_head_on_a_connection_has_its_time_too(live_slow: Any) -> None:
    with socket.create_connection(("127.0.0.1", live_slow.port), timeout=5) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        received = b""
        while not received.endswith(b"}"):
            received += connection.recv(4096)
        assert received.startswith(b"HTTP/1.1 200 ")
        connection.sendall(b"GET /health HTTP/1.1\r\nHo")
        assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")


@pytest.fixture(scope="module")
def live_slow(serve: Any, gated_model: Any) -> Any:
    """Yield a server that waits only 0.3 seconds for slow clients."""
    with serve(gated_model(), read_seconds=0.3) as server:
        yield server
