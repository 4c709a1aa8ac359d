"""Figures for Prometheus."""

import re
from typing import Any

from transduce.serving.metrics import Counter, Histogram, Metrics


def samples(live: Any) -> dict[str, float]:
    reply = live.ask("GET", "/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = [line for line in reply.body.decode().split("\n") if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_server_counts_what_it_does(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(steps=4)) as live:
        live.translate(["eins zwei", "drei"])
        live.translate("eins", source="zz")
        live.ask("GET", "/secret/address")
        found = samples(live)
    assert found['transduce_requests_total{route="/translate",status="200"}'] == 1
    assert found['transduce_requests_total{route="/translate",status="400"}'] == 1
    assert found['transduce_requests_total{route="other",status="404"}'] == 1
    assert found["transduce_request_seconds_count"] == 3
    assert found["transduce_batch_sentences_sum"] == 2
    assert found["transduce_decoding_steps_total"] == 3
    assert found["transduce_source_pieces_total"] == 5
    assert found["transduce_characters_total"] == 13
    assert found["transduce_requests_running"] == 0
    assert not any("secret" in name for name in found)


def test_every_metric_says_what_it_means_and_of_which_type_it_is() -> None:
    page = Metrics().render({"transduce_now": ("At this moment.", 2.0)})
    names = re.findall(r"^# TYPE (\w+) (?:counter|gauge|histogram)$", page, re.MULTILINE)
    assert len(names) == len(set(names)) == 10
    assert all(f"# HELP {name} " in page for name in names)
    assert page.endswith("transduce_now 2\n")


def test_a_histogram_counts_what_is_not_above_each_bound() -> None:
    histogram = Histogram("seconds", "Time.", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        histogram.observe(value)
    assert list(histogram.lines())[2:] == [
        'seconds_bucket{le="0.1"} 2',
        'seconds_bucket{le="1"} 3',
        'seconds_bucket{le="+Inf"} 4',
        "seconds_sum 3.65",
        "seconds_count 4",
    ]


def test_labels_are_escaped_and_large_numbers_whole() -> None:
    counter = Counter("total", "All.", ("name",))
    counter.add(123_456_789, 'a"b\\\n')
    assert list(counter.lines())[2:] == ['total{name="a\\"b\\\\\\n"} 123456789']
