"""Test the metrics for Prometheus."""

import re
from typing import Any

import pytest

from transduce.serving.metrics import Metrics


def samples(live: Any) -> dict[str, float]:
    reply = live.ask("GET", "/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = [line for line in reply.body.decode().split("\n") if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_count_requests_sentences_and_tokens(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(steps=4)) as live:
        live.translate(["eins zwei", "drei"])
        live.translate("eins", source="zz")
        live.ask("GET", "/secret/address")
        live.ask("GET", "/v1/models/de-en")
        live.ask("GET", "/v1/models/de-en/more")
        found = samples(live)
    assert found['transduce_requests_total{route="/translate",status="200"}'] == 1
    assert found['transduce_requests_total{route="/translate",status="400"}'] == 1
    assert found['transduce_requests_total{route="/v1/models/{id}",status="200"}'] == 1
    assert found['transduce_requests_total{route="other",status="404"}'] == 2
    assert found["transduce_request_seconds_count"] == 5
    assert found["transduce_batch_sentences_sum"] == 2
    assert found["transduce_decoding_steps_total"] == 3
    assert found["transduce_source_tokens_total"] == found["transduce_source_pieces_total"] == 5
    assert found["transduce_characters_total"] == 13
    assert found["transduce_requests_running"] == 0
    assert not any("secret" in name for name in found)


def test_a_text_of_two_sentences_counts_once_in_its_batch(serve: Any, gated_model: Any) -> None:
    with serve(gated_model()) as live:
        live.translate("Eins zwei drei. Vier fünf sechs.")
        assert live.service.metrics.value("transduce_batch_sentences_sum") == 1
        page = live.ask("GET", "/metrics").body.decode()
    assert "# HELP transduce_batch_sentences Texts in a batch, each of one or more sentences.\n" in page


def test_every_metric_has_a_description_and_a_type() -> None:
    page = Metrics().render({"transduce_now": ("At this moment.", 2.0)}).decode()
    names = re.findall(r"^# TYPE (\w+) (?:counter|gauge|histogram)$", page, re.MULTILINE)
    assert len(names) == len(set(names)) == 11
    assert all(f"# HELP {name} " in page for name in names)
    assert page.endswith("transduce_now 2.0\n")


def test_a_bucket_counts_values_up_to_its_bound() -> None:
    metrics = Metrics()
    for value in (0.05, 0.1, 0.5, 300.0):
        metrics.batch_seconds.observe(value)
    buckets = [metrics.value("transduce_batch_seconds_bucket", le=bound) for bound in ("0.05", "0.1", "1.0", "+Inf")]
    assert buckets == [1, 2, 3, 4]
    assert metrics.value("transduce_batch_seconds_count") == 4
    assert metrics.value("transduce_batch_seconds_sum") == pytest.approx(300.65)


def test_two_servers_of_one_process_share_nothing() -> None:
    first, second = Metrics(), Metrics()
    first.characters.inc(123_456_789)
    first.requests.labels('a"b\\\n', 200).inc()
    assert 'transduce_requests_total{route="a\\"b\\\\\\n",status="200"} 1.0\n' in first.render({}).decode()
    assert first.value("transduce_characters_total") == 123_456_789
    assert second.value("transduce_characters_total") == 0
