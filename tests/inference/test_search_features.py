"""Test search features of a Translator: observers, streams, phrases, forbidden texts, strict results, ensembles."""

import json
import re
import shutil
from collections.abc import Collection
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.inference.batching import pad
from transduce.inference.decoding import ForbiddenTexts, tokenize_phrase
from transduce.inference.load import open_translator
from transduce.inference.scorers import BatchInvariantScorer, EncoderDecoderScorer, padded_length
from transduce.inference.translation import GrowingText, Translation, decode_start
from transduce.inference.translator import Translator
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Transformer
from transduce.search.rules import GenerateSettings
from transduce.search.settings import SamplingSettings, SearchSettings

GREEDY, BEAM = SearchSettings(beam_size=1), SearchSettings()


@pytest.fixture(scope="module")
def sentences(toy_corpus: Path) -> list[str]:
    return (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:12]


def assert_alike(found: list[Translation], expected: list[Translation]) -> None:
    """Assert equal texts, and scores that differ by no more than float32 rounding in different batches."""
    assert [translation.text for translation in found] == [translation.text for translation in expected]
    assert [translation.score for translation in found] == pytest.approx([t.score for t in expected], abs=1e-4)


# --- observers ---


class GiveUp:
    """An observer that abandons sentences at one step, and records the sentences of each step."""

    def __init__(self, places: set[int], at_step: int = 1) -> None:
        self.places = places
        self.at_step = at_step
        self.seen: list[list[int]] = []

    def after_step(self, sentence_indices: Tensor, pieces: Tensor) -> Collection[int]:
        assert len(sentence_indices) == len(pieces)
        self.seen.append(sentence_indices.tolist())
        return self.places if len(self.seen) >= self.at_step else ()


@pytest.mark.parametrize("search", [GREEDY, BEAM])
def test_stopped_sentences_keep_input_order_and_others_continue(
    translator: Translator, sentences: list[str], search: SearchSettings
) -> None:
    mixed = [sentences[0], "", *sentences[1:5]]
    plain = translator.translate(mixed, search)
    observer = GiveUp({2, 4}, at_step=2)
    found = translator.translate(mixed, search, observer=observer)
    assert [translation.stopped for translation in found] == [False, False, True, False, True, False]
    assert_alike([found[n] for n in (0, 1, 3, 5)], [plain[n] for n in (0, 1, 3, 5)])
    assert set(observer.seen[0]) == {0, 2, 3, 4, 5}
    assert not {2, 4} & set(observer.seen[2])
    assert not found[2].alternatives[0].ended
    assert len(found[2].alternatives[0].tokens) == 2


def test_stopping_a_long_sentence_stops_all_its_parts(translator: Translator, sentences: list[str]) -> None:
    long = "".join(f"{sentence.rstrip('？。')}。" for sentence in sentences) * 16
    search = msgspec.structs.replace(GREEDY, max_length=8)
    observer = GiveUp({1})
    found = translator.translate([sentences[0], long, sentences[1]], search, observer=observer)
    assert found[1].parts > 20
    assert found[1].stopped
    assert not found[1].alternatives[0].ended
    assert_alike([found[0], found[2]], translator.translate([sentences[0], sentences[1]], search))
    assert observer.seen[0].count(1) > 1
    assert sum(1 in rows for rows in observer.seen) == 1  # further batches of its parts were never begun


def test_a_sentence_stopped_at_once_has_at_most_one_token(translator: Translator) -> None:
    (found,) = translator.translate(["我吃鱼。"], BEAM, observer=GiveUp({0}))
    assert found.stopped
    assert len(found.alternatives[0].tokens) <= 1


# --- streams ---


@pytest.mark.parametrize("search", [GREEDY, BEAM, SearchSettings(sampling=SamplingSettings(seed=3), max_length=12)])
def test_a_stream_joined_is_the_translation(
    translator: Translator, sentences: list[str], search: SearchSettings
) -> None:
    pieces = 0
    for sentence in sentences:
        streamed = list(translator.stream(sentence, search))
        assert "".join(streamed) == translator(sentence, search=search).text
        assert all(streamed)
        pieces += len(streamed)
    assert pieces > 2 * len(sentences)


def test_a_stream_of_a_cut_text_joins_its_parts(translator: Translator, sentences: list[str]) -> None:
    long = "".join(f"{sentence.rstrip('？。')}。" for sentence in sentences) * 12
    search = msgspec.structs.replace(GREEDY, max_length=8)
    found = translator(long, search=search)
    assert found.parts > 20
    assert "".join(translator.stream(long, search)) == found.text


def test_streaming_blank_text_returns_the_text(translator: Translator) -> None:
    assert list(translator.stream("")) == []
    assert list(translator.stream("  ")) == ["  "]


def test_a_stream_leaves_the_callers_gradients_alone(translator: Translator, sentences: list[str]) -> None:
    for _ in translator.stream(sentences[0], GREEDY):
        assert not torch.is_inference_mode_enabled()


def test_a_character_is_shown_when_all_of_its_bytes_are_there() -> None:
    class Bytes:
        eos_id = 1

        def decode(self, ids: list[int]) -> str:
            return bytes(ids).decode("utf-8", "replace")

    growing = GrowingText(partial(decode_start, Bytes(), line_feeds=True))  # type: ignore[arg-type]
    content = "a爱b".encode()
    shown = [growing.grow(torch.tensor([list(content[:end])])) for end in range(1, len(content) + 1)]
    assert shown == ["a", "", "", "爱", "b"]
    assert growing.finish("a爱bc") == "c"


def test_growing_text_is_the_common_prefix_of_all_hypotheses(translator: Translator) -> None:
    vocabulary = translator.tokenizer.target
    first, second = vocabulary.encode("we eat apples"), vocabulary.encode("we eat fish")
    length = min(len(first), len(second))
    pieces = torch.tensor([first[:length], second[:length]])
    decode = partial(decode_start, vocabulary, line_feeds=True)
    assert "we eat".startswith(GrowingText(decode).grow(pieces))
    ended = torch.tensor([first[:length], [*first[:1], *[vocabulary.eos_id] * (length - 1)]])
    assert GrowingText(decode).grow(ended) == vocabulary.decode(first[:1])


# --- phrases and forbidden texts ---


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("phrases", [["the teacher"], ["tea", "yesterday"], ["fish", "they eat fish"]])
def test_phrases_are_in_every_translation(
    translator: Translator, sentences: list[str], beam_size: int, phrases: list[str]
) -> None:
    for translation in translator(sentences[:6], beam_size=beam_size, phrases=phrases):
        assert all(phrase in translation.text for phrase in phrases)
        assert translation.alternatives[0].ended


def test_each_sentence_has_phrases_of_its_own(translator: Translator, sentences: list[str]) -> None:
    wanted = [["tea"], [], ["water", "the teacher"], []]
    found = translator.translate(sentences[:4], BEAM, phrases=wanted)
    plain = translator.translate(sentences[:4], BEAM)
    assert_alike([found[1], found[3]], [plain[1], plain[3]])
    assert "tea" in found[0].text
    assert "water" in found[2].text
    assert "the teacher" in found[2].text
    pairs = zip(sentences, wanted, strict=False)
    assert_alike(found, [translator.translate([sentence], BEAM, phrases=[own])[0] for sentence, own in pairs])


def test_a_phrase_and_a_prefix_together(translator: Translator, sentences: list[str]) -> None:
    found = translator(sentences[0], prefix="she likes", phrases=["milk"])
    assert found.text.startswith("she likes")
    assert "milk" in found.text


def test_a_required_phrase_is_written_in_the_sentence_whose_score_it_lowers_least(translator: Translator) -> None:
    search = SearchSettings(beam_size=2, max_length=8)
    plain = translator("我吃鱼。老师卖牛奶。她买苹果。", search=search)
    assert plain.parts == 3
    # One sentence has it anyway.
    word = plain.sentences[1].text.rstrip(".").split()[-1]
    assert all(word not in plain.sentences[number].text for number in (0, 2))
    having = translator(plain.source, search=search, phrases=[word])
    alone = translator(plain.sentences[1].source, search=search, phrases=[word])
    assert [each.text for each in having.sentences] == [plain.sentences[0].text, alone.text, plain.sentences[2].text]
    # None has it: the sentence whose score it lowers least.
    found = translator(plain.source, search=search, phrases=["water"])
    changed = [one.text != other.text for one, other in zip(found.sentences, plain.sentences, strict=True)]
    assert changed.count(True) == 1
    assert "water" in found.sentences[changed.index(True)].text
    losses = [each.score - translator(each.source, search=search, phrases=["water"]).score for each in plain.sentences]
    assert changed.index(True) == losses.index(min(losses))
    assert "".join(translator.stream(plain.source, search, phrases=["water"])) == found.text


def test_a_phrase_in_a_script_without_spaces_need_not_begin_a_word(translator: Translator) -> None:
    vocabulary = translator.tokenizer.target  # a joint one
    with_space, *joined = tokenize_phrase("苹果", vocabulary)
    assert vocabulary.decode(with_space) == "苹果"
    assert all(vocabulary.token(spelling[0])[0] != "▁" for spelling in joined)
    assert [vocabulary.decode(spelling) for spelling in joined] == ["苹果"]
    assert len(tokenize_phrase("apples", vocabulary)) == 1


@pytest.mark.parametrize(
    ("phrases", "search", "message"),
    [
        (["  "], BEAM, "A phrase that a translation must contain needs at least one word, but one is empty"),
        (["\u3000\t"], BEAM, "A phrase that a translation must contain needs at least one word, but one is empty"),
        (["龘"], BEAM, "A translation cannot contain `龘`: some of its characters are not in the model's vocabulary"),
        (["tea"], SearchSettings(sampling=SamplingSettings()), "must contain are searched for: leave sampling out"),
        (["tea"], SearchSettings(diverse_groups=2), "take a beam of their own, but `diverse_groups` is 2: make it 1"),
        (["green tea"], SearchSettings(forbidden=("tea",)), "must contain `green tea`, but `tea` is forbidden in it"),
        (["tea " * 500], BEAM, "must contain may have 64 tokens here, but have 500: shorten them, or set `max_length`"),
        (["tea " * 64, "the " * 9], BEAM, "must contain may have 64 tokens here, but have 73: shorten them"),
        (["the teacher"], SearchSettings(max_length=1), "`max_length` must leave room for the prefix, the phrases"),
    ],
)
def test_unusable_phrases_are_refused(
    translator: Translator, phrases: list[str], search: SearchSettings, message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        translator("我吃鱼。", search=search, phrases=phrases)


def test_a_forced_first_token_counts_besides_the_phrases(translator: Translator) -> None:
    target = translator.tokenizer.target
    generate, length = GenerateSettings(forced_first_id=target.encode("she")[0]), len(target.encode("tea milk")) + 2
    search = SearchSettings(max_length=length, generate=generate)
    found = translator("我吃鱼。", search=search, phrases=["tea milk"])
    assert found.alternatives[0].ended
    assert found.text.endswith("tea milk")
    with pytest.raises(TransduceError, match=f"at least {length} tokens, but it is {length - 1}"):
        translator("我吃鱼。", search=msgspec.structs.replace(search, max_length=length - 1), phrases=["tea milk"])


@pytest.mark.parametrize(("prefix", "phrases"), [("", ["the teacher", "teacher"]), ("the teacher", ["teacher"])])
def test_phrases_that_share_tokens_fit_into_their_shortest_text(
    translator: Translator, prefix: str, phrases: list[str]
) -> None:
    tokens = len(tokenize_phrase("the teacher", translator.tokenizer.target)[0])
    search = SearchSettings(max_length=tokens + 1)
    assert translator("我吃鱼。", search=search, prefix=prefix, phrases=phrases).text == "the teacher"
    with pytest.raises(TransduceError, match=f"at least {tokens + 1} tokens, but it is {tokens}"):
        translator("我吃鱼。", search=search, max_length=tokens, prefix=prefix, phrases=phrases)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("forbidden", [("fish",), ("I", "the", "he", "milk"), (".",), ("the teacher", "eat")])
def test_forbidden_texts_do_not_occur(
    translator: Translator, sentences: list[str], beam_size: int, forbidden: tuple[str, ...]
) -> None:
    def holding(search: SearchSettings) -> int:
        patterns = [re.escape(text) if text == "." else rf"\b{re.escape(text)}\b" for text in forbidden]
        found = translator([*sentences, "我吃鱼。", "老师吃鱼。"], search=search)
        return sum(bool(re.search("|".join(patterns), translation.text)) for translation in found)

    free = SearchSettings(beam_size=beam_size, max_length=12)
    assert holding(free) > 0
    assert holding(msgspec.structs.replace(free, forbidden=forbidden)) == 0


def test_forbidding_a_word_allows_words_that_contain_it(translator: Translator) -> None:
    """If `he` is forbidden, `the teacher` and `she` are not."""
    search = SearchSettings(beam_size=1, forbidden=("he", "teach"))
    for sentence in ("老师吃鱼。", "她吃鱼。"):
        assert translator(sentence, search=search).text == translator(sentence, beam_size=1).text


@pytest.mark.parametrize("written", [(), ("a",), ("a", "pp"), ("▁",), ("▁a", "p"), ("▁p", "in", "e", "a", "pp")])
def test_a_forbidden_word_is_forbidden_in_any_tokenization(written: tuple[str, ...]) -> None:
    pieces = ["<pad>", "</s>", "<unk>", "▁", "▁a", "▁apple", "▁apples", "apple", "pple", "pp", "p", "le", "a", "e",
              "ple", "les", "▁p", "in", "le."]  # fmt: skip

    class Pieces:
        size, pad_id, eos_id, unk_id = len(pieces), 0, 1, 2

        def surface(self, id: int) -> bytes:
            return pieces[id].replace("▁", " ").encode()

    rule = ForbiddenTexts(["apple"], Pieces())  # type: ignore[arg-type]
    ids = torch.tensor([[[pieces.index(piece) for piece in written]]], dtype=torch.int64)
    logits = rule.apply(torch.zeros(1, 1, len(pieces)), ids, torch.arange(1))
    text = "".join(written).replace("▁", " ")
    for id in range(3, len(pieces)):
        after = text + pieces[id].replace("▁", " ")
        ends = any(after.endswith(f"{start}apple{end}") for start in (" ",) for end in ("", ".")) or after in (
            "apple",
            "apple.",
        )
        assert bool(logits[0, 0, id] == -torch.inf) == ends, after


def test_the_unknown_token_can_be_forbidden(translator: Translator) -> None:
    found = translator("龘龘龘", search=SearchSettings(beam_size=1, forbidden=("<unk>",), max_length=8))
    assert "⁇" not in found.text
    with pytest.raises(TransduceError, match="A forbidden text needs at least one character, but one is empty"):
        translator("我", search=SearchSettings(forbidden=("",)))


# --- strict ---


@pytest.mark.parametrize("search", [GREEDY, SearchSettings(n_best=3, coverage_penalty=0.2)])
def test_strict_scores_are_bit_equal_in_every_batch(
    translator: Translator, toy_corpus: Path, search: SearchSettings
) -> None:
    lines = (toy_corpus / "dev.zh").read_text("utf-8").split("\n")[:40]
    strict = msgspec.structs.replace(search, batch_invariant=True, max_length=12)
    together = translator(lines, search=strict)
    assert [translator(line, search=strict) for line in lines[:10]] == together[:10]
    assert translator(lines[::-1], search=strict)[::-1] == together
    plain = translator(lines, search=msgspec.structs.replace(strict, batch_invariant=False))
    assert [translation.text for translation in plain] == [translation.text for translation in together]


def test_batch_invariant_search_with_two_threads_is_refused(trained: Path) -> None:
    strict = open_translator(trained, precision="fp32", device="cpu", threads=1)
    torch.set_num_threads(2)
    try:
        with pytest.raises(TransduceError, match="need one thread a process, but this one computes with 2"):
            strict("我吃鱼。", search=SearchSettings(batch_invariant=True))
    finally:
        torch.set_num_threads(1)


def test_strict_results_are_refused_where_a_score_depends_on_the_batch(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = EncoderDecoderScorer.step

    def step(self: EncoderDecoderScorer, pieces: Tensor) -> Tensor:
        logits = original(self, pieces)
        logits[..., 5] += 1e-6 * len(pieces)  # as a kernel that sums in another order would
        return logits

    monkeypatch.setattr(EncoderDecoderScorer, "step", step)
    translator = open_translator(trained, precision="fp32", device="cpu", threads=1)
    with pytest.raises(
        TransduceError, match="Batch-invariant results are not possible on this machine at this precision"
    ):
        translator("我吃鱼。", search=SearchSettings(batch_invariant=True))
    assert translator("我吃鱼。").text


def test_a_strict_batch_never_has_few_rows(translator: Translator) -> None:
    rows: list[int] = []

    class Model:
        def __getattr__(self, name: str) -> object:
            return getattr(translator.model, name)

        def project(self, hidden: Tensor) -> Tensor:
            rows.append(hidden.shape[0] * hidden.shape[1])
            return translator.model.project(hidden)

    ids = pad([[5, 6, 1]] * 3, 0, torch.device("cpu"), width=padded_length(3))
    with torch.inference_mode():
        scorer = BatchInvariantScorer(EncoderDecoderScorer(Model(), ids), ids)  # type: ignore[arg-type]
        assert scorer.step(torch.zeros(3, 1, dtype=torch.int64)).shape[:2] == (3, 1)
        scorer.reorder(torch.zeros(3, 4, dtype=torch.int64))
        assert scorer.step(torch.full((3, 4), 5)).shape[:2] == (3, 4)
        scorer.keep_sentences(torch.tensor([1]))
        assert scorer.step(torch.full((1, 4), 5)).shape[:2] == (1, 4)
    assert rows == [16, 64, 16]
    assert [padded_length(length) for length in (1, 16, 17)] == [16, 16, 32]


# --- several models, and the folder's settings ---


def test_an_ensemble_of_equal_models_equals_the_model(
    trained: Path, translator: Translator, sentences: list[str]
) -> None:
    twice = open_translator([trained, trained], precision="fp32", device="cpu", threads=1)
    assert len(twice.models) == 2
    for one, two in zip(translator(sentences), twice(sentences), strict=True):
        assert one.text == two.text
        assert one.score == pytest.approx(two.score, abs=1e-4)
    covered = SearchSettings(coverage_penalty=0.3)
    assert twice(sentences[0], search=covered).score == pytest.approx(
        translator(sentences[0], search=covered).score, abs=1e-4
    )


def test_models_that_differ_average_their_probabilities(trained: Path, translator: Translator) -> None:
    both = open_translator([trained, trained], precision="fp32", device="cpu", threads=1)
    with torch.no_grad():
        for parameter in both.models[1].parameters():
            parameter.mul_(0.9)
    other = Translator(both.models[1], both.tokenizer)
    (mean,) = both.score(["我吃鱼。"], ["I eat fish."])
    scores = [each.score(["我吃鱼。"], ["I eat fish."])[0] for each in (translator, other)]
    columns = zip(*(score.token_log_probabilities for score in scores), strict=True)
    expected = [torch.tensor(column).exp().mean().log().item() for column in columns]
    assert mean.token_log_probabilities == pytest.approx(expected, abs=1e-4)
    best = both("我吃鱼。", beam_size=1, length_penalty=0.0)
    (again,) = both.score(["我吃鱼。"], [best.text])
    assert best.score == pytest.approx(again.score, abs=1e-5)


def test_models_with_other_vocabularies_are_refused(
    trained: Path, tmp_path: Path, toy_settings: dict[str, object]
) -> None:
    from transduce.tasks.train import train

    settings = toy_settings | {"tokenizer.vocabulary_size": 200, "training.steps": 2, "training.validate_every": 1}
    train(out=tmp_path / "other", settings=settings, device="cpu", threads=1)
    with pytest.raises(TransduceError, match=r"must have one vocabulary, but .*other has another than .*toy"):
        open_translator([trained, tmp_path / "other"])
    with pytest.raises(TransduceError, match="At least one model folder is needed, but none was named"):
        open_translator([])


@pytest.mark.parametrize(
    ("source", "target", "unlike"),
    [
        ("en", "zh", "zh → en, and .*other for en → zh"),
        (None, "zh", "en, and .*other for zh"),
        ("de", "eng", "zh, and .*other for de"),
        ("zh-Hant", "en", "zh, and .*other for zh-Hant"),
        ("zho_Hans", "en-GB", None),
    ],
)
def test_models_of_other_languages_are_refused(
    trained: Path, tmp_path: Path, source: str | None, target: str, unlike: str | None
) -> None:
    """Models of both directions may share a vocabulary, but the mean of their probabilities is no translation."""
    shutil.copytree(trained, tmp_path / "other")
    manifest = json.loads((tmp_path / "other/manifest.json").read_text("utf-8"))
    manifest |= {"source_language": source, "target_language": target}
    (tmp_path / "other/manifest.json").write_text(json.dumps(manifest), "utf-8")
    message = f"must have the same languages, but .*toy is for {unlike}: leave one out"
    with pytest.raises(TransduceError, match=message) if unlike else nullcontext():
        open_translator([trained, tmp_path / "other"])


@pytest.mark.parametrize(("one", "other"), [("no", "nb"), ("iw", "he"), ("de_AT", "de_DE")])
def test_models_of_one_language_with_two_codes_translate_together(
    trained: Path, tmp_path: Path, one: str, other: str
) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    for folder, language in zip(folders, (one, other), strict=True):
        shutil.copytree(trained, folder)
        manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
        (folder / "manifest.json").write_text(json.dumps(manifest | {"target_language": language}), "utf-8")
    open_translator(folders)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("settings.toml", "[search]\nbeam_size = 7\nlength_penalty = 1.0\n",
         SearchSettings(beam_size=7, length_penalty=1.0)),
        ("settings.toml", "[model]\nd_model = 32\n", SearchSettings(beam_size=4)),
        ("generation_config.json", '{"num_beams": 3, "no_repeat_ngram_size": 2, "length_penalty": 2.0}',
         SearchSettings(beam_size=3, no_repeated_ngrams=2)),
        (None, "", SearchSettings(beam_size=4)),
    ],
)  # fmt: skip
def test_search_settings_default_to_those_of_the_folder(
    trained: Path, tmp_path: Path, name: str | None, content: str, expected: SearchSettings
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints", "corpus*"))
    (folder / "settings.toml").unlink()
    if name:
        (folder / name).write_text(content, "utf-8")
    translator = open_translator(folder, precision="fp32", device="cpu", threads=1)
    assert translator.search == expected
    assert translator("我吃鱼。").text == translator("我吃鱼。", search=expected).text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[search]\nbeam_sizes = 7\n", "The search settings in .*settings.toml cannot be used: .*beam_sizes"),
        ("[search]\nbeam_size = 0\n", "`beam_size` must be at least 1, but is 0"),
        ("[search\n", r"settings\.toml cannot be read"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(trained: Path, tmp_path: Path, content: str, message: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints", "corpus*"))
    (folder / "settings.toml").write_text(content, "utf-8")
    with pytest.raises(TransduceError, match=message):
        open_translator(folder)


def test_an_output_ends_where_learned_positions_do(translator: Translator) -> None:
    """A model that has learnt nothing yet never ends by itself; validation must not fail for that."""
    config = msgspec.structs.replace(translator.model.config, positions="learned", max_positions=12)
    torch.manual_seed(0)
    model = Transformer(config)
    with torch.no_grad():
        model.get_parameter("target_embedding.positions.weight").mul_(3.0)
    for search in (GREEDY, BEAM, msgspec.structs.replace(GREEDY, max_length=500)):
        found = Translator(model.eval(), translator.tokenizer, search=search)("我爱你")
        assert len(found.alternatives[0].tokens) == 12
        assert not found.alternatives[0].ended
    with pytest.raises(
        TransduceError, match=r"learned positions .* leave 12 tokens for a translation, .* or `min_length` need 14 with"
    ):
        Translator(model, translator.tokenizer, search=msgspec.structs.replace(GREEDY, min_length=13))("我爱你")


def test_the_best_of_diverse_beams_is_the_best_however_many_are_asked_for(
    translator: Translator, sentences: list[str]
) -> None:
    """Also where the first group's was cut, and another one's has ended."""
    for length in (2, 3, 4, 6):
        search = SearchSettings(beam_size=4, diverse_groups=2, diversity_penalty=1.0, max_length=length)
        several = translator.translate(sentences, msgspec.structs.replace(search, n_best=4))
        assert_alike(translator.translate(sentences, search), several)


def test_a_forced_first_token_stands_before_the_prefix(translator: Translator) -> None:
    """The forced first token precedes the prefix, like BART's start symbol."""
    vocabulary = translator.tokenizer.target
    first, prefix = vocabulary.encode("tea")[0], vocabulary.encode("we eat")
    for beam_size in (1, 3):
        search = SearchSettings(beam_size=beam_size, generate=GenerateSettings(forced_first_id=first))
        (found,) = translator.translate(["我爱你"], search, prefix="we eat")
        assert list(found.alternatives[0].tokens)[: len(prefix) + 1] == [
            vocabulary.token(id) for id in (first, *prefix)
        ]


def test_coverage_needs_attention(translator: Translator) -> None:
    config = msgspec.structs.replace(
        translator.model.config,
        kind="recurrent",
        recurrent_attention="none",
        num_encoder_layers=1,
        num_decoder_layers=1,
    )
    plain = Translator(Recurrent(config).eval(), translator.tokenizer)
    search = msgspec.structs.replace(BEAM, coverage_penalty=0.2)
    with pytest.raises(
        TransduceError, match="`coverage_penalty` needs the decoder's cross-attention, but this model has"
    ):
        plain.translate(["我爱你"], search)
