"""Test overload: exactly as many requests as the capacity are accepted, and the rest are refused at once."""

import http.client
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from transduce.serving.limits import ApiKeys, RateLimiter, read_api_keys
from transduce.serving.messages import RequestError


def test_a_burst_of_100_requests_is_accepted_up_to_the_capacity(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model(is_open=False)
    with serve(model, max_running=2, max_waiting=8) as live:
        burst = [live.in_background(lambda: live.translate("ein Satz", timeout=20)) for _ in range(100)]
        wait_until(lambda: sum(ask.is_answered for ask in burst) >= 90)
        time.sleep(0.1)
        assert sum(ask.is_answered for ask in burst) == 90
        model.open()
        statuses = Counter(ask.reply().status for ask in burst)
        assert statuses == {200: 10, 503: 90}
        for ask in burst:
            if ask.reply().status == 503:
                assert ask.reply().error == "The server is busy: try again in a moment."
                assert int(ask.reply().headers["retry-after"]) >= 1
            else:
                assert ask.reply().json == {"translatedText": "EIN SATZ"}
    assert all(len(batch) <= 2 for batch in model.batches)


@contextmanager
def one_turn(live: Any) -> Iterator[None]:
    """Block the server's event loop within the context, so that it sees all requests of the context at once."""
    loop, sent = live.server.servers[0].get_loop(), threading.Event()
    loop.call_soon_threadsafe(sent.wait, 10)
    yield
    time.sleep(0.05)  # for what is on its way through the system
    sent.set()


def connected(live: Any, count: int) -> list[socket.socket]:
    """Return connections that the server has accepted."""
    opened = [socket.create_connection(("127.0.0.1", live.port), timeout=10) for _ in range(count)]
    opened[-1].sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
    assert status(opened[-1]) == 200
    return opened


def post(fields: dict[str, Any] | str) -> bytes:
    body = fields if isinstance(fields, str) else json.dumps({"source": "de", "target": "en"} | fields)
    head = f"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode("ascii")


def reply(connection: socket.socket) -> http.client.HTTPResponse:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer


def status(connection: socket.socket) -> int:
    answer = reply(connection)
    answer.read()
    return answer.status


def test_bodies_of_a_burst_are_parsed_only_up_to_the_capacity(serve: Any, gated_model: Any) -> None:
    model = gated_model(is_open=False)
    with serve(model, max_running=2, max_waiting=3) as live:
        connections = connected(live, 40)
        with one_turn(live):
            for connection in connections:
                connection.sendall(post({"q": "ein Satz"}))
        assert [status(connection) for connection in connections[5:]] == [503] * 35
        model.open()
        assert [status(connection) for connection in connections[:5]] == [200] * 5
        metrics = live.ask("GET", "/metrics").body.decode().split("\n")
        assert 'transduce_requests_total{route="/translate",status="503"} 35.0' in metrics
        assert "transduce_request_seconds_count 6.0" in metrics  # those that got past the door, and GET /health
        for connection in connections:
            connection.close()


def test_requests_that_make_no_sense_cost_nobody_a_slot(serve: Any, gated_model: Any) -> None:
    model = gated_model(is_open=False)
    with serve(model, max_running=1, max_waiting=1) as live:
        connections = connected(live, 9)
        with one_turn(live):
            for connection in connections[:5]:
                connection.sendall(post("{"))
            for connection in connections[5:]:
                connection.sendall(post({"q": "ein Satz"}))
        assert [status(connection) for connection in connections[:5]] == [400] * 5
        assert [status(connection) for connection in connections[7:]] == [503] * 2
        model.open()
        assert [status(connection) for connection in connections[5:7]] == [200] * 2
        for connection in connections:
            connection.close()


def test_a_large_request_that_has_to_wait_a_moment_is_read_whole(serve: Any, gated_model: Any) -> None:
    text = "eins zwei " * 70_000
    with serve(gated_model(), max_running=1, max_waiting=0, max_characters=10**6) as live:
        connections = connected(live, 6)
        with one_turn(live):
            for connection in connections[:5]:
                connection.sendall(post("{"))
            sending = threading.Thread(target=connections[5].sendall, args=(post({"q": text}),))
            sending.start()
        assert [status(connection) for connection in connections[:5]] == [400] * 5
        assert json.loads(reply(connections[5]).read()) == {"translatedText": text.upper()}
        sending.join()
        for connection in connections:
            connection.close()


def test_capacity_of_answered_requests_is_available_again(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model()
    with serve(model, max_running=1, max_waiting=0) as live:
        for _ in range(20):
            assert live.translate("eins").status == 200
        model.close()
        held = live.in_background(lambda: live.translate("zwei"))
        wait_until(lambda: live.service.engine.batcher.running)
        assert live.translate("drei").status == 503
        model.open()
        assert held.reply().status == 200
        assert live.translate("vier").status == 200


def test_a_request_that_is_refused_is_refused_before_its_body_is_read(
    serve: Any, gated_model: Any, wait_until: Any
) -> None:
    model = gated_model(is_open=False)
    with serve(model, max_running=1, max_waiting=0) as live:
        held = live.in_background(lambda: live.translate("eins"))
        wait_until(lambda: live.service.engine.batcher.running)
        with socket.create_connection(("127.0.0.1", live.port), timeout=5) as connection:
            connection.sendall(b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 503 ")
        model.open()
        assert held.reply().status == 200


def test_requests_of_several_clients_are_decoded_together(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model(is_open=False)
    with serve(model) as live:
        first = live.in_background(lambda: live.translate("der erste"))
        wait_until(lambda: live.service.engine.batcher.running)
        others = [live.in_background(lambda number=number: live.translate(f"Satz {number}")) for number in range(5)]
        wait_until(lambda: live.service.engine.batcher.waiting == 5)
        model.open()
        assert first.reply().json == {"translatedText": "DER ERSTE"}
        assert [ask.reply().json["translatedText"] for ask in others] == [f"SATZ {number}" for number in range(5)]
    assert model.batches[0] == ["der erste"]
    assert sorted(model.batches[1]) == [f"Satz {number}" for number in range(5)]


def test_one_requests_fault_does_not_reach_another(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model(is_open=False)
    with serve(model) as live:
        first = live.in_background(lambda: live.translate("der erste"))
        wait_until(lambda: live.service.engine.batcher.running)
        asks = [live.in_background(lambda text=text: live.translate(text)) for text in ("gut", "poison", "schön")]
        wait_until(lambda: live.service.engine.batcher.waiting == 3)
        model.open()
        assert first.reply().status == 200
        good, failed, fine = (ask.reply() for ask in asks)
        assert (good.json, fine.json) == ({"translatedText": "GUT"}, {"translatedText": "SCHÖN"})
        assert failed.status == 500
        assert failed.error == "The model failed on this text; the server's log has the details."
        assert live.translate("weiter").status == 200
    assert sorted(model.batches[1]) == ["gut", "poison", "schön"]


# --- keys and rates ---


def test_without_a_key_nobody_translates(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(), api_keys=("secret", "second")) as live:
        assert live.translate("eins").status == 403
        assert live.translate("eins").error.startswith("An API key is needed here")
        assert live.translate("eins", api_key="wrong").error.startswith("The API key is not valid")
        assert live.translate("eins", api_key="secret").status == 200
        fields = {"q": "eins", "source": "de", "target": "en"}
        for scheme in ("Bearer", "bearer", "DeepL-Auth-Key"):
            assert live.ask("POST", "/translate", fields, {"Authorization": f"{scheme} second"}).status == 200
        assert live.ask("POST", "/translate", fields, {"Authorization": "Basic secret"}).status == 403
        assert live.ask("POST", "/detect", {"q": "eins"}).status == 403
        assert live.ask("GET", "/metrics").status == 403
        assert live.ask("GET", "/metrics", headers={"Authorization": "Bearer secret"}).status == 200
        for path in ("/languages", "/health", "/spec"):
            assert live.ask("GET", path).status == 200
        assert live.ask("GET", "/frontend/settings").json["keyRequired"] is True


def test_keys_are_read_from_a_file(tmp_path: Any) -> None:
    from transduce.errors import TransduceError

    path = tmp_path / "keys"
    for encoding in ("utf-8", "utf-8-sig"):
        path.write_text("# mine\none\n\n two \n", encoding)
        assert read_api_keys(path) == ("one", "two")
    path.write_text("# none\n", "utf-8")
    with pytest.raises(TransduceError, match=r"must hold one API key per line, but holds none"):
        read_api_keys(path)
    with pytest.raises(TransduceError, match=r"cannot be read \(No such file or directory\): pass another file"):
        read_api_keys(tmp_path / "missing")


def test_without_configured_keys_every_request_is_accepted() -> None:
    ApiKeys([]).check({}, "whatever")


def test_a_client_that_asks_too_often_learns_when_to_come_again(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(), requests_per_minute=3) as live:
        assert [live.translate("eins").status for _ in range(4)] == [200, 200, 200, 429]
        refused = live.ask("POST", "/detect", {"q": "eins"})
        assert refused.status == 429
        assert refused.error == "Slowdown: 3 requests a minute are allowed."
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert live.ask("GET", "/health").status == 200


def test_the_bucket_fills_up_again() -> None:
    now = 0.0
    limiter = RateLimiter(60, lambda: now)
    for _ in range(60):
        limiter.take("a")
    with pytest.raises(RequestError) as refused:
        limiter.take("a")
    assert refused.value.headers == {"Retry-After": "1"}
    limiter.take("b")
    now = 1.0
    limiter.take("a")
    with pytest.raises(RequestError):
        limiter.take("a")
    now = 10_000.0
    for _ in range(60):
        limiter.take("a")
    with pytest.raises(RequestError):
        limiter.take("a")


def test_the_limiter_forgets_clients() -> None:
    limiter = RateLimiter(1)
    for number in range(20_000):
        limiter.take(str(number))
    assert len(limiter._buckets) == 10_000
