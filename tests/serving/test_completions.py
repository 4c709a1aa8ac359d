"""Test OpenAI's and Ollama's completion APIs: limits, stop sequences, tokens, and language models."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
import torch

from transduce.errors import TransduceError
from transduce.inference.generator import Continuation, Generator
from transduce.inference.translation import Alternative
from transduce.model.config import ModelConfig
from transduce.model.transformer import Decoder
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.serving.batching import Batcher, DecodingThreads
from transduce.serving.completions import CompletionRequest, GenerationJob, _choice_of, _safe_length
from transduce.serving.jobs import TranslationJob
from transduce.serving.messages import RequestError
from transduce.serving.metrics import Metrics
from transduce.serving.models import ServedGenerator
from transduce.serving.openai import _chat_choice
from transduce.serving.settings import ServingSettings
from transduce.text.corpus import Pair
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def generator() -> ServedGenerator:
    """Return a character-level language model with random weights."""
    torch.manual_seed(3)
    pairs = [Pair("abc def ghi", "", 1), Pair("  gab  hid ", "", 2)]
    tokenizer = Tokenizer.train(lambda: pairs, TokenizerSettings(kind="character", byte_fallback=False))
    config = ModelConfig(
        kind="decoder",
        source_vocabulary_size=tokenizer.target.size,
        target_vocabulary_size=tokenizer.target.size,
        num_decoder_layers=1,
        d_model=32,
        d_ff=64,
        num_heads=2,
        positions="learned",
        max_positions=12,
        pad_id=tokenizer.target.pad_id,
        eos_id=tokenizer.target.eos_id,
        start_id=tokenizer.target.eos_id,
    )
    return ServedGenerator("letters", Generator(Decoder(config).eval(), tokenizer, context=12))


@pytest.fixture(scope="module")
def live_with_both_kinds(serve: Any, gated_model: Any, generator: ServedGenerator) -> Any:
    """Yield a server with a translation model and a language model."""
    with serve(gated_model(), generators=[generator]) as live:
        yield live


def chat(live: Any, content: str = "ein Satz", model: str = "de-en", **fields: Any) -> Any:
    return live.ask("POST", CHAT, {"model": model, "messages": [{"role": "user", "content": content}]} | fields)


# --- translation ---


def test_a_text_is_completed_by_its_translation(live: Any) -> None:
    reply = live.ask("POST", TEXT, {"model": "de-en", "prompt": ["eins zwei", "drei"]}).json
    assert [(choice["index"], choice["text"]) for choice in reply["choices"]] == [(0, "EINS ZWEI"), (1, "DREI")]
    assert reply["object"] == "text_completion"
    assert reply["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


@pytest.mark.parametrize(
    ("fields", "text", "reason", "tokens"),
    [
        ({}, "EINS ZWEI DREI", "stop", 3),
        ({"max_tokens": 3}, "EINS ZWEI DREI", "stop", 3),
        ({"max_tokens": 2}, "EINS ZWEI ", "length", 2),
        ({"max_completion_tokens": 1, "max_tokens": 5}, "EINS ", "length", 1),
        ({"stop": " DREI"}, "EINS ZWEI", "stop", 2),
        ({"stop": ["X", "ZW"]}, "EINS ", "stop", 1),
        ({"stop": "DREI", "max_tokens": 1}, "EINS ", "length", 1),
        ({"stop": []}, "EINS ZWEI DREI", "stop", 3),
        (
            {"temperature": 0.7, "top_p": 0.9, "seed": 4, "user": "a", "metadata": {"a": "b"}},
            "EINS ZWEI DREI",
            "stop",
            3,
        ),
        ({"tools": [], "response_format": {"type": "text"}, "top_logprobs": 0}, "EINS ZWEI DREI", "stop", 3),
    ],
)
def test_token_limits_and_stop_sequences_end_a_translation(
    fields: dict[str, Any], text: str, reason: str, tokens: int, live: Any
) -> None:
    reply = chat(live, "eins zwei drei", **fields).json
    choice = reply["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)
    assert reply["usage"]["completion_tokens"] == tokens


def test_a_text_in_another_language_is_reported_in_a_header(live: Any) -> None:
    text = "We have had no time today at all."
    warning = "Text 1 looks English, not German: its translation may be nonsense."
    assert chat(live, text).headers["transduce-warning"] == warning
    asked = {"model": "de-en", "prompt": text, "stream": False}
    assert live.ask("POST", "/api/generate", asked).headers["transduce-warning"] == warning


def test_a_cut_translation_has_the_finish_reason_length(serve: Any, gated_model: Any) -> None:
    model = gated_model()
    decode = model.translate

    def cut(*arguments: Any, **options: Any) -> Any:
        return [
            msgspec.structs.replace(
                each, alternatives=tuple(msgspec.structs.replace(one, ended=False) for one in each.alternatives)
            )
            for each in decode(*arguments, **options)
        ]

    model.translate = cut
    with serve(model) as live:
        assert chat(live).json["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tools": [{"type": "function"}]}, "`tools` is not supported"),
        ({"response_format": {"type": "json_object"}}, "`response_format` is not supported"),
        ({"logit_bias": {"5": 1}}, "`logit_bias` is not supported"),
        ({"modalities": ["audio"]}, "`modalities` is not supported"),
        ({"top_logprobs": 2}, "`top_logprobs` is not supported"),
        ({"stop": [""]}, "`stop` must have at most 16 texts"),
        ({"stop": ["a"] * 17}, "length <= 16"),
        ({"max_tokens": 0}, "expected `int` >= 1"),
        ({"logprobs": True, "n": 2}, "`logprobs` are known for one translation only"),
        ({"logprobs": True, "stream": True}, "`logprobs` cannot be streamed"),
    ],
)
def test_unsupported_options_are_refused(fields: dict[str, Any], sentence: str, live: Any) -> None:
    reply = chat(live, **fields)
    assert reply.status == 400
    assert sentence in reply.json["error"]["message"]


def test_log_probabilities_of_the_tokens(serve: Any, gated_model: Any) -> None:
    model = gated_model()
    decode = model.translate

    def with_tokens(*arguments: Any, **options: Any) -> Any:
        alternatives = (Alternative("ONE", ("▁O", "NE"), (-0.5, -0.25, -0.1), score=-0.85, ended=True),)
        return [msgspec.structs.replace(each, alternatives=alternatives) for each in decode(*arguments, **options)]

    model.translate = with_tokens
    with serve(model) as live:
        content = chat(live, "eins", logprobs=True).json["choices"][0]["logprobs"]["content"]
        assert [(each["token"], each["logprob"], each["bytes"]) for each in content] == [
            (" O", -0.5, [32, 79]),
            ("NE", -0.25, [78, 69]),
        ]
        text = live.ask("POST", TEXT, {"model": "de-en", "prompt": "eins", "logprobs": 0}).json["choices"][0]
        assert text["logprobs"] == {
            "tokens": [" O", "NE"],
            "token_logprobs": [-0.5, -0.25],
            "text_offset": [0, 1],
            "top_logprobs": None,
        }
        assert live.ask("POST", TEXT, {"model": "de-en", "prompt": "eins", "logprobs": 1}).status == 400


def test_tokens_decide_limits_offsets_and_usage(serve: Any, gated_model: Any) -> None:
    model = gated_model()
    decode = model.translate
    tokens = ("▁The", "▁hou", "se", ".", "▁No", ".")
    scores = (-0.1, -0.2, -0.3, -0.4, -0.5, -0.6, -0.7)

    def with_tokens(*arguments: Any, **options: Any) -> Any:
        alternatives = (Alternative("The house.\tNo.", tokens, scores, score=-2.8, ended=True),)
        return [msgspec.structs.replace(each, alternatives=alternatives) for each in decode(*arguments, **options)]

    model.translate = with_tokens
    with serve(model) as live:
        whole, cut, stopped = (
            live.ask("POST", TEXT, {"model": "de-en", "prompt": "eins", "logprobs": 0} | fields).json
            for fields in ({}, {"max_tokens": 2}, {"stop": "."})
        )
    found = [(each["choices"][0]["text"], each["usage"]["completion_tokens"]) for each in (whole, cut, stopped)]
    assert found == [("The house.\tNo.", 6), ("The hou", 2), ("The house", 3)]
    assert whole["choices"][0]["logprobs"]["text_offset"] == [0, 3, 7, 9, 11, 13]
    for each in (whole, cut, stopped):
        assert len(each["choices"][0]["logprobs"]["tokens"]) == each["usage"]["completion_tokens"]
    assert [each["choices"][0]["finish_reason"] for each in (whole, cut, stopped)] == ["stop", "length", "stop"]


def test_each_of_several_choices_has_its_own_end(serve: Any, gated_model: Any) -> None:
    """Alternatives are cut between their own tokens, and a character is never cut."""
    model = gated_model(beam_size=4)
    decode = model.translate
    texts = (("▁Unendlich", "keit"), ("▁Cafe", "\u0301", "▁zu"), ("▁ja",))
    alternatives = tuple(
        Alternative("".join(tokens).strip("▁").replace("▁", " "), tokens, (-0.1,) * len(tokens), -0.1, ended=number < 2)
        for number, tokens in enumerate(texts)
    )

    def with_alternatives(*arguments: Any, **options: Any) -> Any:
        return [msgspec.structs.replace(each, alternatives=alternatives) for each in decode(*arguments, **options)]

    model.translate = with_alternatives
    with serve(model) as live:
        whole = chat(live, "eins", n=3).json
        cut = chat(live, "eins", n=3, max_tokens=1).json
    found = [
        [(each["message"]["content"], each["finish_reason"]) for each in reply["choices"]] for reply in (whole, cut)
    ]
    assert found[0] == [("Unendlichkeit", "stop"), ("Cafe\u0301 zu", "stop"), ("ja", "length")]
    assert found[1] == [("Unendlich", "length"), ("Caf", "length"), ("ja", "length")]
    assert (whole["usage"]["completion_tokens"], cut["usage"]["completion_tokens"]) == (6, 3)


def test_each_of_several_prompts_has_as_many_choices(serve: Any, gated_model: Any) -> None:
    class Terms(gated_model):  # type: ignore[misc]
        """Has one translation of the prompt `Hund`, and alternatives of others."""

        def translate(self, *args: Any, **options: Any) -> Any:
            found = super().translate(*args, **options)
            return [
                msgspec.structs.replace(each, alternatives=each.alternatives[:1]) if each.source == "Hund" else each
                for each in found
            ]

    with serve(Terms()) as live:
        fields = {"model": "de-en", "prompt": ["Hund", "ein Satz"], "n": 2}
        choices = live.ask("POST", TEXT, fields).json["choices"]
        assert [(each["index"], each["text"]) for each in choices][:3] == [(0, "HUND"), (1, "HUND"), (2, "EIN SATZ")]
        assert len(choices) == 4
        assert choices[3]["text"] != "EIN SATZ"
        (single,) = live.ask("POST", TEXT, fields | {"prompt": "Hund"}).json["choices"]
        assert single["text"] == "HUND"


def test_equal_samples_are_separate_choices_and_alternatives(serve: Any, gated_model: Any) -> None:
    class Sampler(gated_model):  # type: ignore[misc]
        """Draws the same translation each time."""

        def __init__(self) -> None:
            super().__init__()
            self.search = SearchSettings(sampling=SamplingSettings())

        def translate(self, *args: Any, **options: Any) -> Any:
            found = super().translate(*args, **options)
            return [msgspec.structs.replace(each, alternatives=each.alternatives[:1] * 3) for each in found]

    with serve(Sampler()) as live:
        choices = live.ask("POST", TEXT, {"model": "de-en", "prompt": "Hund", "n": 3}).json["choices"]
        assert [(each["index"], each["text"]) for each in choices] == [(0, "HUND"), (1, "HUND"), (2, "HUND")]
        assert live.translate("Hund", alternatives=2).json["alternatives"] == ["HUND", "HUND"]


def test_a_stream_reports_a_text_in_another_language_in_its_head(live: Any) -> None:
    text = "We have had no time today at all."
    warning = "Text 1 looks English, not German: its translation may be nonsense."
    assert chat(live, text, stream=True).headers["transduce-warning"] == warning
    reply = live.ask("POST", "/api/generate", {"model": "de-en", "prompt": text})
    assert reply.headers["transduce-warning"] == warning
    assert "transduce-warning" not in chat(live, "Wir haben heute keine Zeit.", stream=True).headers


def test_curl_needs_no_content_type(live: Any) -> None:
    body = json.dumps({"model": "de-en", "prompt": "ein Satz", "stream": False})
    reply = live.ask("POST", "/api/generate", body, {"Content-Type": "application/x-www-form-urlencoded"})
    assert (reply.status, reply.json["response"]) == (200, "EIN SATZ")
    assert live.ask("POST", "/api/show", {}).json["error"] == "Invalid request: missing model parameter"


def events(live: Any, path: str, body: dict[str, Any]) -> list[Any]:
    lines = live.ask("POST", path, body | {"stream": True}).body.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_a_stream_ends_with_the_usage(serve: Any, gated_model: Any) -> None:
    model = gated_model()
    model.decode_start = lambda ids, _: "EINS"[: len(ids)]
    body = {"model": "de-en", "prompt": "eins zwei\ndrei", "stream_options": {"include_usage": True}}
    with serve(model) as live:
        found = events(live, TEXT, body)
        plain = events(live, TEXT, body | {"stream_options": None})
        cut = events(live, TEXT, body | {"stop": " ZWEI"})
    assert {each["object"] for each in found} == {"text_completion"}
    assert "".join(choice["text"] for each in found for choice in each["choices"]) == "EINS ZWEI\nDREI"
    assert [each["usage"] for each in found[:-1]] == [None] * (len(found) - 1)
    assert (found[-1]["choices"], found[-1]["usage"]["total_tokens"]) == ([], 6)
    assert all("usage" not in each for each in plain)
    assert "".join(choice["text"] for each in cut for choice in each["choices"]) == "EINS"


@pytest.mark.parametrize(
    ("text", "stops", "length"),
    [
        ("abc", (), 3),
        ("abc", ("x",), 3),
        ("abc", ("cd",), 2),
        ("abc", ("bcd", "cx"), 1),
        ("abc", ("b",), 1),
        ("aab", ("abab",), 1),
        ("", ("a",), 0),
    ],
)
def test_only_text_that_no_stop_sequence_can_shorten_is_sent(text: str, stops: tuple[str, ...], length: int) -> None:
    assert _safe_length(text, stops) == length


# --- language models ---


def test_models_of_both_kinds_are_listed(live_with_both_kinds: Any) -> None:
    assert [each["id"] for each in live_with_both_kinds.ask("GET", "/v1/models").json["data"]] == ["de-en", "letters"]
    assert live_with_both_kinds.ask("GET", "/v1/models/letters").json["id"] == "letters"
    assert live_with_both_kinds.ask("GET", "/v1/models/nothing").status == 404


def test_a_language_model_continues_a_text(live_with_both_kinds: Any, generator: ServedGenerator) -> None:
    body = {"model": "letters", "prompt": "abc", "max_tokens": 8, "temperature": 0}
    reply = live_with_both_kinds.ask("POST", TEXT, body).json
    expected = generator.generator("abc", max_length=8, temperature=0).continuations[0]
    assert reply["choices"][0]["text"] == expected.text
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"] == {"prompt_tokens": 4, "completion_tokens": 8, "total_tokens": 12}
    streamed = events(live_with_both_kinds, TEXT, body)
    assert "".join(choice["text"] for each in streamed for choice in each["choices"]) == expected.text
    answer = chat(live_with_both_kinds, "abc", model="letters", max_tokens=8, temperature=0).json
    assert answer["choices"][0]["message"]["content"] == expected.text
    logged = chat(live_with_both_kinds, "abc", model="letters", max_tokens=8, temperature=0, logprobs=True).json
    found = [each["logprob"] for each in logged["choices"][0]["logprobs"]["content"]]
    assert found == pytest.approx(list(expected.token_log_probabilities), abs=1e-5)


def test_sampling_follows_the_seed(live_with_both_kinds: Any) -> None:
    body = {"model": "letters", "prompt": "abc", "max_tokens": 12, "temperature": 1.0, "n": 2}

    def texts(**fields: Any) -> list[str]:
        return [choice["text"] for choice in live_with_both_kinds.ask("POST", TEXT, body | fields).json["choices"]]

    assert texts(seed=7) == texts(seed=7)
    assert texts(seed=7) != texts(seed=8)
    assert len({tuple(texts()) for _ in range(4)}) > 1  # without a seed, each request has another one
    assert texts(seed=-1)  # OpenAI allows any integer


def test_the_bytes_of_a_character_before_a_stop_sequence_are_kept() -> None:
    """A byte token, such as <0xF0>, is a part of one character, however many letters its name has."""
    tokens = ("▁so", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁and", "▁on")
    generated = Continuation("so🙂 and on", tokens, (-0.5,) * 8, -4.0, ended=True)
    choice = _choice_of(generated, CompletionRequest("letters", ["x"], stop=(" on",), with_tokens=True))
    assert choice.text == "so🙂 and"
    assert [token.text for token in choice.tokens] == [token.replace("▁", " ") for token in tokens[:-1]]
    assert choice.num_tokens == 6
    log_probabilities = _chat_choice(0, choice, with_tokens=True).logprobs
    assert log_probabilities is not None
    assert bytes(byte for token in log_probabilities.content for byte in token.bytes).decode() == " so🙂 and"


@pytest.mark.parametrize("model", ["de-en", "letters"])
def test_a_request_without_prompts_has_no_choices(live_with_both_kinds: Any, model: str) -> None:
    live = live_with_both_kinds
    reply = live.ask("POST", TEXT, {"model": model, "prompt": []})
    assert (reply.status, reply.json["choices"]) == (200, [])
    reply = live.ask("POST", TEXT, {"model": model, "prompt": [], "stream": True})
    assert (reply.status, "send one prompt" in reply.json["error"]["message"]) == (400, True)
    assert live.service.engine.workers.all_alive


def test_a_language_model_stops_at_a_stop_sequence(live_with_both_kinds: Any, generator: ServedGenerator) -> None:
    whole = generator.generator("abc", max_length=40, temperature=0).continuations[0].text
    stop = whole[6:8]
    reply = live_with_both_kinds.ask(
        "POST", TEXT, {"model": "letters", "prompt": "abc", "max_tokens": 40, "temperature": 0, "stop": stop}
    ).json
    choice = reply["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (whole[: whole.index(stop)], "stop")
    assert reply["usage"]["completion_tokens"] <= 8


REQUESTS = [
    CompletionRequest("letters", ["abc", "d"], choices=2, max_tokens=90, sampling={"seed": 4}),
    CompletionRequest("letters", ["hi d e f g h i"], choices=2, max_tokens=12, sampling={"seed": 5}),
    CompletionRequest("letters", ["g"], choices=2, max_tokens=60, stop=("a", "b", "c"), sampling={"seed": 5}),
    CompletionRequest("letters", ["abc"], max_tokens=9, sampling={"temperature": 0.0}),
]


@contextmanager
def working() -> Iterator[Batcher]:
    batcher = Batcher(ServingSettings(max_running=9, max_waiting=9, batch_tokens=1000, gather_milliseconds=0.0))
    workers = DecodingThreads(batcher, Metrics(), workers=1, threads=1)
    workers.start()
    try:
        yield batcher
    finally:
        batcher.close()
        workers.join(30)


def test_requests_that_join_a_running_batch_equal_each_alone(generator: ServedGenerator) -> None:
    """The first request is running when the others come; it is the last to be answered."""

    def jobs() -> list[GenerationJob]:
        return [GenerationJob(generator, request, ServingSettings()) for request in REQUESTS]

    alone, together, ended = jobs(), jobs(), list[int]()
    reported: list[list[str]] = [[], []]
    with working() as batcher:
        for job in alone:
            if job is alone[1]:
                job.report = reported[0].append
            batcher.submit(job)
            job.future.result(60)
    first, *others = together
    for job in together:
        job.future.add_done_callback(lambda future: ended.append([job.future for job in together].index(future)))

    def begin_others(text: str) -> None:  # noqa: ARG001
        first.report = None
        batcher.submit(*others)

    first.report, others[0].report = begin_others, reported[1].append
    with working() as batcher:
        batcher.submit(first)
        assert [job.future.result(60) for job in together] == [job.future.result(60) for job in alone]
    assert reported[0] == reported[1] != []
    assert ended[-1] == 0
    assert sorted(ended) == [0, 1, 2, 3]


def test_a_short_translation_overtakes_a_long_continuation(generator: ServedGenerator, gated_model: Any) -> None:
    """The thread that continues the prompt waits until the translation is there; a prompt waits for the thread."""
    job = GenerationJob(generator, CompletionRequest("letters", ["abc"], max_tokens=90), ServingSettings())
    prompt = GenerationJob(generator, CompletionRequest("letters", ["d"], max_tokens=9), ServingSettings())
    model = gated_model()
    translation = TranslationJob(model, ["gut"], model.search, seconds=60.0)

    def translate(text: str) -> None:  # noqa: ARG001
        job.report = None
        batcher.submit(prompt, translation)
        assert translation.future.result(30)[0].translation.text == "GUT"
        assert not prompt.future.done()

    job.report = translate
    with working() as batcher:
        batcher.submit(job)
        assert job.future.result(60)
        assert prompt.future.result(60)


def test_an_abandoned_completion_leaves_the_batch_and_others_continue(generator: ServedGenerator) -> None:
    requests = [CompletionRequest("letters", ["ab"], max_tokens=most, sampling={"seed": 1}) for most in (500, 40, 40)]
    jobs = [GenerationJob(generator, request, ServingSettings()) for request in requests]
    with working() as batcher:

        def give_up(text: str) -> None:
            if len(text) > 5:
                batcher.abandon(jobs[0])

        jobs[0].report = give_up
        batcher.submit(*jobs)
        assert jobs[1].future.result(60) == jobs[2].future.result(60)
        batcher.close()
    assert not jobs[0].future.done()
    assert batcher.running == 0


def test_an_error_reaches_the_request_that_caused_it_alone(
    generator: ServedGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [GenerationJob(generator, request, ServingSettings()) for request in REQUESTS]
    prompt_ids = generator.generator.prompt_ids

    def refuse(text: str) -> list[int]:
        if text == "g":
            raise TransduceError("No g.")
        return prompt_ids(text)

    monkeypatch.setattr(generator.generator, "prompt_ids", refuse)
    with working() as batcher:
        batcher.submit(*jobs)
        assert isinstance(jobs[2].future.exception(60), RequestError)
        assert [job.future.exception(60) for job in (jobs[0], jobs[1], jobs[3])] == [None] * 3


def test_penalties_of_openai_are_those_of_the_settings(live_with_both_kinds: Any, generator: ServedGenerator) -> None:
    penalties = {"frequency_penalty": 0.7, "presence_penalty": -0.4}
    plain = SearchSettings(beam_size=1, length_penalty=0.0, max_length=30)
    penalized = msgspec.structs.replace(plain, **penalties)
    texts = [generator.generator.generate("abc", search).continuations[0].text for search in (plain, penalized)]
    reply = live_with_both_kinds.ask(
        "POST", TEXT, {"model": "letters", "prompt": "abc", "max_tokens": 30, "temperature": 0} | penalties
    ).json
    assert reply["choices"][0]["text"] == texts[1] != texts[0]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_tokens": 2000}, "the maximum number of tokens must be at most 1000, but is 2000"),
        ({"frequency_penalty": 2.5}, "`frequency_penalty`"),
        ({"temperature": 0, "n": 2}, "`n` must be 1 if `temperature` is 0"),
        ({"n": 5}, "`n` must be at most 4, but is 5"),
        ({"echo": True}, "`echo` is not supported"),
        ({"best_of": 3}, "`best_of` must equal `n`, 1, but is 3"),
        ({"suffix": "z"}, "`suffix` is not supported"),
        ({"prompt": "a" * 20_001}, "a request may have 128 prompts with 20000 characters"),
    ],
)
def test_requests_to_a_language_model_are_checked(
    fields: dict[str, Any], sentence: str, live_with_both_kinds: Any
) -> None:
    reply = live_with_both_kinds.ask("POST", TEXT, {"model": "letters", "prompt": "abc"} | fields)
    assert reply.status == 400
    assert sentence in reply.json["error"]["message"]


def test_a_server_without_translation_models_offers_completions_only(serve: Any, generator: ServedGenerator) -> None:
    with serve(generators=[generator]) as live:
        assert chat(live, "ab", model="letters", max_tokens=3).status == 200
        assert live.ask("GET", "/languages").json == []
        assert live.ask("GET", "/frontend/settings").status == 404
        assert live.translate("eins").status == 400


# --- Ollama ---


def test_ollama_chat_returns_translation_and_token_counts(live: Any) -> None:
    body = {"model": "de-en:latest", "messages": [{"role": "user", "content": "ein Satz"}], "stream": False}
    reply = live.ask("POST", "/api/chat", body).json
    assert (reply["model"], reply["message"]) == ("de-en:latest", {"role": "assistant", "content": "EIN SATZ"})
    assert (reply["done"], reply["done_reason"]) == (True, "stop")
    assert (reply["prompt_eval_count"], reply["eval_count"]) == (2, 2)
    cut = live.ask("POST", "/api/chat", body | {"options": {"num_predict": 1, "mirostat": 0}}).json
    assert (cut["message"]["content"], cut["done_reason"]) == ("EIN ", "length")


def test_ollama_streams_lines(serve: Any, gated_model: Any) -> None:
    model = gated_model()
    model.decode_start = lambda ids, _: "EIN"[: len(ids)]
    with serve(model) as live:
        reply = live.ask("POST", "/api/generate", {"model": "de-en", "prompt": "ein Satz"})
    assert reply.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in reply.body.splitlines()]
    assert "".join(line["response"] for line in lines) == "EIN SATZ"
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]


@pytest.mark.parametrize(
    ("fields", "status", "sentence"),
    [
        ({"model": "gpt"}, 404, "There is no model `gpt`"),
        ({"format": "json"}, 400, "`format` is not supported"),
        ({"think": True}, 400, "`think` is not supported"),
        ({"images": ["aa"]}, 400, "`images` is not supported"),
        ({"suffix": "a"}, 400, "`suffix` is not supported"),
        ({"options": {"top_p": 2}}, 400, "expected `float` <= 1.0"),
    ],
)
def test_ollama_requests_are_checked(fields: dict[str, Any], status: int, sentence: str, live: Any) -> None:
    reply = live.ask("POST", "/api/generate", {"model": "de-en", "prompt": "eins"} | fields)
    assert reply.status == status
    assert sentence in reply.error


def test_ollama_lists_models(live_with_both_kinds: Any) -> None:
    assert [each["name"] for each in live_with_both_kinds.ask("GET", "/api/tags").json["models"]] == [
        "de-en:latest",
        "letters:latest",
    ]
    assert live_with_both_kinds.ask("POST", "/api/show", {"model": "de-en"}).json["capabilities"] == ["completion"]
    assert live_with_both_kinds.ask("POST", "/api/show", {"model": "gpt"}).status == 404
    assert live_with_both_kinds.ask("GET", "/api/version").json["version"]
