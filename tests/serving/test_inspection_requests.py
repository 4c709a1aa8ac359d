"""Test POST /inspect and POST /intervene: their answers, and the rules that all requests follow."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from transduce.commands.serve import inspection_views
from transduce.inference.translator import Translator
from transduce.inspection.interventions import Head, Intervention, InterventionComparison, heads_off, intervene
from transduce.inspection.sentence import inspect_sentence
from transduce.inspection.sentence_view import Inspection
from transduce.search.scorer import Observer
from transduce.search.settings import SearchSettings
from transduce.serving.limits import ReadersWriterLock
from transduce.serving.messages import InspectRequest, InterveneRequest
from transduce.serving.models import ServedModel

SENTENCE = "今天老师喜欢苹果。"


@pytest.fixture(scope="module")
def model(translator: Translator) -> ServedModel:
    return ServedModel(translator, languages=("de", "en"))


@pytest.fixture(scope="module")
def live(serve: Any, model: ServedModel) -> Iterator[Any]:
    with serve(model, views=inspection_views()) as server:
        yield server


def study(live: Any, path: str, **fields: Any) -> Any:
    return live.ask("POST", path, {"q": SENTENCE, "source": "de", "target": "en"} | fields)


# --- what they answer ---


def test_an_inspection_is_what_the_library_gives(live: Any, translator: Translator) -> None:
    reply = study(live, "/inspect")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    found = msgspec.json.decode(reply.body, type=Inspection)
    assert found == inspect_sentence(translator, SENTENCE, search=translator.search)
    assert found.translation == live.translate(SENTENCE).json["translatedText"]


def test_inspection_and_translation_use_the_same_beam_for_alternatives(live: Any, model: ServedModel) -> None:
    assert model.search.beam_size == 4
    greedy = ServedModel(model.translator, search=SearchSettings(beam_size=1), languages=("de", "en"))
    assert greedy.search.beam_size == 1
    live.service.routes._models["de", "en"] = greedy
    try:
        assert study(live, "/inspect").json["beam_size"] == 1
        assert study(live, "/inspect", alternatives=2).json["beam_size"] == 3
    finally:
        live.service.routes._models["de", "en"] = model


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        (
            {"heads_off": [{"kind": "memory", "layer": 1, "head": 2}, {"kind": "encoder", "layer": 0, "head": 0}]},
            Intervention(heads_off=(Head("memory", 1, 2), Head("encoder", 0, 0))),
        ),
        ({"step": 2, "force": "▁fish"}, Intervention(step=2, force="▁fish")),
        ({"step": 0, "forbid": ["▁the", "▁I"]}, Intervention(step=0, forbid=("▁the", "▁I"))),
        ({"changed": "我吃鱼。"}, Intervention(source="我吃鱼。")),
    ],
)
def test_an_intervention_is_what_the_library_gives(
    live: Any, translator: Translator, fields: dict[str, Any], change: Intervention
) -> None:
    reply = study(live, "/intervene", **fields)
    assert reply.status == 200
    found = msgspec.json.decode(reply.body, type=InterventionComparison)
    assert found == intervene(translator, SENTENCE, change, search=translator.search)
    assert found.before != found.after


# --- what is refused ---


@pytest.mark.parametrize(
    ("path", "fields", "sentence"),
    [
        ("/inspect", {"q": ""}, "The source sentence to inspect is empty"),
        ("/inspect", {"q": "我吃鱼。\n我吃鱼。"}, "`q` must be one line"),
        (
            "/inspect",
            {"q": "我吃鱼。" * 200},
            "`q` must have at most 256 tokens to be inspected, but has [0-9]+: shorten",
        ),
        ("/inspect", {"q": "我" * 3001}, r"`q` \(3001\) exceeds text limit \(3000 characters\)"),
        ("/inspect", {"q": ["我"]}, r"expected `str`, got `array`"),
        ("/inspect", {"source": "xx"}, "xx is not supported"),
        ("/inspect", {"source": "auto"}, "auto is not supported"),
        ("/inspect", {"source": "en"}, "are the same language"),
        ("/inspect", {"source": "en", "target": "de"}, "there is no model from en to de"),
        ("/inspect", {"alternatives": 4}, r"alternatives \(4\) exceeds limit \(3\)"),
        ("/intervene", {"heads_off": [{"kind": "memory", "layer": 9, "head": 0}]}, "but layer 9, head 0 was named"),
        ("/intervene", {"heads_off": [{"kind": "none", "layer": 0, "head": 0}]}, "(?i)invalid enum value 'none'"),
        ("/intervene", {"heads_off": [{"kind": "memory", "layer": 0, "head": 0}] * 1001}, "length <= 1000"),
        ("/intervene", {"step": -1, "forbid": []}, ">= 0"),
        ("/intervene", {"step": 999}, "from 0 to [0-9]+, but is 999"),
        ("/intervene", {"force": "▁fish"}, "set `step` to it"),
        ("/intervene", {"step": 0, "force": "no such piece"}, "no token `no such piece`"),
        ("/intervene", {"changed": "a\nb"}, "`changed` must be one line"),
        ("/intervene", {"step": 0, "force": "x" * 201}, "length <= 200"),
        ("/intervene", {"step": 0, "forbid": ["a", "x" * 201]}, "length <= 200"),
        ("/intervene", {"changed": "我" * 3001}, r"`changed` \(3001\) exceeds text limit"),
        ("/intervene", {"changed": "我吃鱼。" * 200}, "`changed` must have at most 256 tokens to be inspected"),
    ],
)
def test_invalid_inspections_and_interventions_are_refused_in_a_sentence(
    live_small: Any, path: str, fields: dict[str, Any], sentence: str
) -> None:
    reply = study(live_small, path, **fields)
    assert reply.status == 400
    assert_matches(reply.error, sentence)


@pytest.fixture(scope="module")
def live_small(serve: Any, model: ServedModel) -> Iterator[Any]:
    with serve(model, views=inspection_views(), max_characters=3000) as server:
        yield server


def assert_matches(said: str, pattern: str) -> None:
    with pytest.raises(AssertionError, match=pattern):
        raise AssertionError(said)


def test_forcing_special_tokens_is_answered_or_refused(live: Any) -> None:
    for piece in ("<pad>", "</s>", "<unk>", "<s>"):
        reply = study(live, "/intervene", step=1, force=piece)
        assert reply.status in (200, 400)
        if reply.status == 200:
            after = reply.json["after"]
            assert all(isinstance(value, float) for value in after["token_log_probabilities"])
            assert after["piece_log_probabilities"] == after["token_log_probabilities"]  # the old key


def test_inspecting_a_model_that_only_translates_is_refused(serve: Any, gated_model: Any) -> None:
    with serve(gated_model(), views=inspection_views()) as live:
        assert study(live, "/inspect").error == "This model cannot be inspected: it can only translate."


def test_inspect_and_intervene_require_the_api_key(serve: Any, model: ServedModel) -> None:
    with serve(model, views=inspection_views(), api_keys=("secret",)) as live:
        for path in ("/inspect", "/intervene"):
            assert study(live, path).status == 403
            assert study(live, path, api_key="wrong").status == 403
            assert study(live, path, api_key="secret").status == 200
        assert live.ask("GET", "/").status == 200
        assert set(live.ask("GET", "/spec").json["paths"]["/intervene"]["post"]) > {"security"}


def test_without_views_there_is_neither_page_nor_study(serve: Any, model: ServedModel) -> None:
    with serve(model) as live:
        assert study(live, "/inspect").status == 404
        assert "/inspect" not in live.ask("GET", "/spec").json["paths"]
        assert live.ask("GET", "/").headers["content-type"].startswith("text/plain")


def test_the_document_lists_former_keys_of_answers_as_deprecated(live: Any) -> None:
    schemas = live.ask("GET", "/spec").json["components"]["schemas"]
    fields = next(
        each["properties"] for each in schemas.values() if "piece_log_probabilities" in each.get("properties", {})
    )
    assert fields["piece_log_probabilities"] == fields["token_log_probabilities"] | {"deprecated": True}
    assert fields["pieces"]["deprecated"]


def test_generated_requests_are_answered_as_the_document_says(live: Any, load_benchmark: Any) -> None:
    statuses, findings = load_benchmark("serving_fuzz").fuzz(live.url, 120, start=3)
    assert findings == []
    assert {200, 400} <= set(statuses) <= {200, 400, 403, 404}  # 403: suggestions are off
    properties = live.ask("GET", "/spec").json["components"]["schemas"]["InterveneRequest"]["properties"]
    assert list(properties) == list(InterveneRequest.__struct_fields__)
    assert properties["q"]["maxLength"] == 20_000


def test_hostile_studies_are_refused_in_a_sentence(live: Any, load_benchmark: Any) -> None:
    hostile = load_benchmark("serving_hostile")
    verdicts = [hostile.judge(live.url, request) for request in hostile.hostile_studies(("de", "en"), megabytes=3)]
    assert len(verdicts) == 23
    assert [verdict for verdict in verdicts if not verdict.is_right] == []


# --- the queue, deadlines, and who computes with the model ---


class Gated:
    """Views that wait at a gate after they begin, and that switch heads off in interventions."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.gate = threading.Event()
        self.inside: list[str] = []
        """What the model makes of the sentence while it is changed."""
        self.views = inspection_views()._replace(inspect=self._inspect, intervene=self._intervene)

    def _inspect(
        self, translator: Translator, asked: InspectRequest, search: SearchSettings, observer: Observer
    ) -> Inspection:
        self._pass()
        return inspect_sentence(translator, asked.q, search=search, observer=observer)

    def _intervene(
        self, translator: Translator, asked: InterveneRequest, search: SearchSettings, observer: Observer
    ) -> InterventionComparison:
        config = translator.transformer.config
        every = [Head("memory", layer, head) for layer in range(2) for head in range(config.num_heads)]
        with heads_off(translator.transformer, every):
            self._pass()
            self.inside.append(translator.translate([asked.q], search)[0].text)
        return intervene(translator, asked.q, Intervention(), search=search, observer=observer)

    def _pass(self) -> None:
        self.begun.set()
        assert self.gate.wait(20)


@contextmanager
def gated(serve: Any, model: ServedModel, **settings: Any) -> Iterator[tuple[Any, Gated]]:
    views = Gated()
    with serve(model, views=views.views, **settings) as live:
        try:
            yield live, views
        finally:
            views.gate.set()


@pytest.mark.parametrize("workers", [1, 2])
def test_translations_wait_for_an_intervention_and_are_not_changed_by_it(
    serve: Any, model: ServedModel, wait_until: Any, workers: int
) -> None:
    offline = model.translator.translate([SENTENCE], model.search)[0].text
    with gated(serve, model, workers=workers) as (live, views):
        intervening = live.in_background(lambda: study(live, "/intervene"))
        assert views.begun.wait(10)
        translating = [live.in_background(lambda: live.translate(SENTENCE)) for _ in range(3)]
        batcher = live.service.engine.batcher
        wait_until(lambda: batcher.running + batcher.waiting == 4)
        threading.Event().wait(0.3)
        assert not any(ask.is_answered for ask in translating)
        views.gate.set()
        assert intervening.reply().status == 200
        assert {ask.reply().json["translatedText"] for ask in translating} == {offline}
    assert views.inside != [offline]
    assert len(views.inside) == 1


def test_translations_are_answered_during_an_inspection(serve: Any, model: ServedModel) -> None:
    with gated(serve, model, workers=2) as (live, views):
        inspecting = live.in_background(lambda: study(live, "/inspect"))
        assert views.begun.wait(10)
        assert live.translate(SENTENCE).status == 200
        assert not inspecting.is_answered
        views.gate.set()
        assert inspecting.reply().status == 200


def test_inspections_wait_in_the_common_request_queue(serve: Any, model: ServedModel, wait_until: Any) -> None:
    with gated(serve, model, max_running=1, max_waiting=1) as (live, views):
        first = live.in_background(lambda: study(live, "/inspect"))
        assert views.begun.wait(10)
        second = live.in_background(lambda: study(live, "/intervene"))
        wait_until(lambda: live.service.engine.batcher.waiting == 1)
        for path in ("/inspect", "/intervene", "/translate"):
            refused = study(live, path)
            assert refused.status == 503
            assert refused.error == "The server is busy: try again in a moment."
            assert "retry-after" in refused.headers
        metrics = live.ask("GET", "/metrics").body.decode()
        assert 'transduce_requests_total{route="/intervene",status="503"} 1' in metrics
        views.gate.set()
        assert (first.reply().status, second.reply().status) == (200, 200)


def test_an_inspection_beyond_its_deadline_is_refused(serve: Any, model: ServedModel) -> None:
    with gated(serve, model) as (live, views):
        expired = study(live, "/inspect", timeout=0.2)
        assert expired.status == 504
        assert expired.error.startswith("The translation exceeded its time limit")
        views.gate.set()
        assert study(live, "/inspect").status == 200


@pytest.mark.parametrize("path", ["/inspect", "/intervene"])
def test_studies_of_disconnected_clients_are_not_computed(
    serve: Any, model: ServedModel, wait_until: Any, path: str
) -> None:
    with gated(serve, model) as (live, views):
        connection = http.client.HTTPConnection("127.0.0.1", live.port)
        body = json.dumps({"q": SENTENCE, "source": "de", "target": "en"})
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        assert views.begun.wait(10)
        connection.close()
        metrics = live.service.metrics
        wait_until(lambda: metrics.value("transduce_disconnects_total") == 1)
        before = metrics.value("transduce_decoding_steps_total")
        views.gate.set()
        wait_until(lambda: not live.service.engine.batcher.running)
        assert metrics.value("transduce_decoding_steps_total") - before <= 2


def test_a_failed_inspection_reveals_no_internal_error(serve: Any, model: ServedModel) -> None:
    def fail(*asked: Any) -> Any:  # noqa: ARG001
        raise RuntimeError("secrets")

    with serve(model, views=inspection_views()._replace(inspect=fail)) as live:
        reply = study(live, "/inspect")
        assert (reply.status, reply.error) == (500, "The model failed on this text; the server's log has the details.")
        assert live.translate(SENTENCE).status == 200


def test_exclusive_access_precedes_later_shared_access(wait_until: Any) -> None:
    access, order, leave = ReadersWriterLock(), list[str](), threading.Event()
    threads = []

    def enter(name: str, *, alone: bool) -> None:
        with access.hold_exclusively() if alone else access.hold_shared():
            order.append(name)
            assert leave.wait(10)

    for name, alone in (("one", False), ("two", False), ("alone", True), ("later", False)):
        threads.append(threading.Thread(target=enter, args=(name,), kwargs={"alone": alone}))
        threads[-1].start()
        if name == "two":
            wait_until(lambda: len(order) == 2)
        if name == "alone":
            wait_until(lambda: access._waiting_for_exclusive == 1)
    assert sorted(order) == ["one", "two"]
    leave.set()
    for thread in threads:
        thread.join(10)
    assert order[2:] == ["alone", "later"]
