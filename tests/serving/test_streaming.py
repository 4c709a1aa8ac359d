"""Test server-sent events: the final part of the translation so far, then the result."""

import asyncio
import http.client
import itertools
import json
from contextlib import closing
from typing import Any

from transduce.serving.responses import _Exchange


def events(live: Any, **fields: Any) -> list[tuple[str, Any]]:
    """Return the name and data of each event of a streamed translation."""
    body = json.dumps({"q": "ein Satz", "source": "de", "target": "en", "stream": True} | fields)
    with closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=20)) as connection:
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200
        assert reply.getheader("Content-Type") == "text/event-stream; charset=utf-8"
        assert reply.getheader("Access-Control-Allow-Origin") == "*"
        content = reply.read().decode()
    assert content.endswith("\n\n")
    blocks = [block.split("\n") for block in content[:-2].split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def test_progress_comes_before_the_result(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(steps=5)) as live:
        found = events(live)
    *progress, (name, result) = found
    assert (name, result) == ("result", {"translatedText": "EIN SATZ"})
    assert progress
    assert {name for name, _ in progress} == {"progress"}
    texts = [data["text"] for _, data in progress]
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert all(data["draft"].startswith(data["text"]) for _, data in progress)
    assert {(data["index"], data["line"]) for _, data in progress} == {(0, 0)}


def test_each_decoding_step_is_streamed_immediately(serve: Any, gated_model: Any) -> None:
    model = gated_model(steps=4, is_open=False)
    with serve(model) as live, closing(http.client.HTTPConnection("127.0.0.1", live.port, timeout=10)) as connection:
        body = json.dumps({"q": "ein Satz", "source": "de", "target": "en", "stream": True})
        model.let_through(1)
        connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        for words in ("word0", "word0 word1", "word0 word1 word2"):
            lines = [reply.readline().decode() for _ in range(3)]
            assert json.loads(lines[1].removeprefix("data: "))["text"] == words
            model.let_through(1)
        assert reply.readline() == b"event: result\n"
        reply.read()


def test_each_line_of_each_text_has_its_progress(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(steps=5)) as live:
        found = events(live, q=["eins\n\nzwei", "drei"])
    places = {(data["index"], data["line"]) for name, data in found if name == "progress"}
    assert places == {(0, 0), (0, 1), (1, 0)}
    assert found[-1] == ("result", {"translatedText": ["EINS\n\nZWEI", "DREI"]})


def test_html_is_streamed_only_as_a_whole_result(serve: Any, gated_model: Any) -> None:
    with serve(gated_model()) as live:
        assert events(live, q="<b>eins</b>", format="html") == [("result", {"translatedText": "<b>EINS</b>"})]


def test_streaming_requests_refused_at_once_have_an_http_status(serve: Any, gated_model: Any, wait_until: Any) -> None:
    model = gated_model(is_open=False)
    with serve(model, max_running=1, max_waiting=0) as live:
        assert live.translate(stream=True, source="zz").status == 400
        held = live.in_background(live.translate)
        wait_until(lambda: live.service.engine.batcher.running)
        assert live.translate(stream=True).status == 503
        model.open()
        assert held.reply().status == 200
        assert events(live, q=[""]) == [("result", {"translatedText": [""]})]


def test_an_error_during_streaming_is_an_event(serve: Any, gated_model: Any) -> None:
    model = gated_model(is_open=False, steps=10)
    with serve(model, deadline_seconds=0.4) as live:
        model.let_through(1)
        found = events(live)
        model.open()
    assert found[0][0] == "progress"
    name, data = found[-1]
    assert name == "error"
    assert data["error"].startswith("The translation exceeded its time limit")


def test_a_beam_streams_the_common_prefix_of_its_hypotheses(gated_model: Any) -> None:
    import torch

    from transduce.serving.batching import Batcher, BatchObserver, JobBatch
    from transduce.serving.jobs import JobSentence, TranslationJob
    from transduce.serving.metrics import Metrics
    from transduce.serving.settings import ServingSettings

    told: list[tuple[int, list[int], int]] = []
    model = gated_model()
    cut = "long " * (model.max_source_tokens + 1)  # of which one part is left in the batch
    job = TranslationJob(model, ["a", "b c", "cut", cut], model.search, seconds=60)
    job.progress = lambda *said: told.append((*said,))
    batcher = Batcher(ServingSettings(max_running=1, max_waiting=1, batch_tokens=100, gather_milliseconds=0.0))
    observer = BatchObserver(JobBatch([JobSentence(job, number) for number in (1, 0, 2, 3)]), batcher, Metrics())
    pieces = torch.tensor(
        [[[5, 6, 7], [5, 6, 8], [5, 9, 7]], [[1, 2, 3], [2, 2, 3], [1, 2, 3]], *[[[1, 1, 1]] * 3] * 3]
    )
    assert observer.after_step(torch.tensor([0, 1, 2, 2, 3]), pieces) == []
    assert told == [(1, [5, 6, 7], 1), (0, [1, 2, 3], 0)]  # a sentence that was cut has no text yet


def test_nothing_is_written_to_a_connection_that_was_found_closed() -> None:
    """Each write to a closed connection would be a line in the log, from the fifth one on."""

    async def write_ten_events() -> int:
        writes, is_closed = 0, asyncio.Event()

        async def write(_: Any) -> None:
            nonlocal writes
            if not is_closed.is_set():
                writes += 1
                asyncio.get_running_loop().call_soon(is_closed.set)  # as asyncio reports a failed write

        exchange = _Exchange(write, 10.0)
        for _ in range(10):
            await exchange.send({"type": "http.response.body", "body": b"x", "more_body": True})
        return writes

    assert asyncio.run(write_ten_events()) == 1
