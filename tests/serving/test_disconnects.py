"""Test that requests of disconnected clients are not decoded any further."""

import json
import socket
import struct
from typing import Any

import pytest

MAX_FURTHER_STEPS = 2


def send(live: Any, **fields: Any) -> socket.socket:
    """Send a translation request without waiting for the answer, and return the connection."""
    body = json.dumps({"q": "ein Satz", "source": "de", "target": "en"} | fields).encode()
    connection = socket.create_connection(("127.0.0.1", live.port), timeout=10)
    head = (
        f"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


def close(connection: socket.socket, *, abruptly: bool) -> None:
    if abruptly:  # a reset instead of an orderly close
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("abruptly", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_decoding_stops_when_the_client_disconnects(
    serve: Any, gated_model: Any, wait_until: Any, abruptly: bool, stream: bool
) -> None:
    model = gated_model(is_open=False, steps=1000)
    with serve(model) as live:
        for _ in range(5):
            connection = send(live, stream=stream)
            wait_until(lambda: live.service.engine.batcher.running)
            before = model.steps_run
            model.let_through(3)
            wait_until(lambda before=before: model.steps_run == before + 3)
            disconnected = live.service.metrics.value("transduce_disconnects_total")
            close(connection, abruptly=abruptly)
            wait_until(
                lambda disconnected=disconnected: (
                    live.service.metrics.value("transduce_disconnects_total") > disconnected
                )
            )
            closed_at = model.steps_run
            model.let_through(MAX_FURTHER_STEPS)
            wait_until(lambda: not live.service.engine.batcher.running)
            assert model.steps_run - closed_at <= MAX_FURTHER_STEPS
            model.close()


def test_waiting_requests_of_disconnected_clients_are_never_decoded(
    serve: Any, gated_model: Any, wait_until: Any
) -> None:
    model = gated_model(is_open=False)
    with serve(model, max_running=1, max_waiting=8) as live:
        held = live.in_background(lambda: live.translate("der erste"))
        wait_until(lambda: live.service.engine.batcher.running)
        connections = [send(live, q=f"Satz {number}") for number in range(8)]
        wait_until(lambda: live.service.engine.batcher.waiting == 8)
        assert live.translate("zu viel").status == 503
        for connection in connections:
            connection.close()
        wait_until(lambda: live.service.engine.batcher.waiting == 0)
        last = live.in_background(lambda: live.translate("der letzte"))
        wait_until(lambda: live.service.engine.batcher.waiting == 1)
        model.open()
        assert (held.reply().status, last.reply().status) == (200, 200)
    assert list(model.batches) == [["der erste"], ["der letzte"]]


def test_other_requests_of_the_batch_continue_after_a_disconnect(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model(is_open=False, steps=10)
    with serve(model) as live:
        first = live.in_background(lambda: live.translate("vorweg"))
        wait_until(lambda: live.service.engine.batcher.running)
        connection = send(live, q="der eine")
        other = live.in_background(lambda: live.translate("der andere"))
        wait_until(lambda: live.service.engine.batcher.waiting == 2)
        model.let_through(10)
        assert first.reply().status == 200
        wait_until(lambda: live.service.engine.batcher.running == 2)
        connection.close()
        wait_until(lambda: live.service.metrics.value("transduce_disconnects_total") == 1)
        model.let_through(MAX_FURTHER_STEPS)
        wait_until(lambda: live.service.engine.batcher.running == 1)
        model.open()
        assert other.reply().json == {"translatedText": "DER ANDERE"}


def test_a_hundred_disconnects_leave_no_running_requests(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model(steps=100_000)
    with serve(model) as live:
        for _ in range(100):
            send(live).close()
        wait_until(lambda: not live.service.engine.batcher.running + live.service.engine.batcher.waiting)
        model.steps = 2
        assert live.translate("danach").json == {"translatedText": "DANACH"}
