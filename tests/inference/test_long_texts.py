"""Test the maximum length of a text: the one that training kept, limited by the model's positions."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from transduce.errors import TransduceError
from transduce.inference.load import open_translator
from transduce.inference.segmentation import cut_long_sentence
from transduce.inference.translator import Translator
from transduce.model.transformer import Transformer
from transduce.search.settings import SearchSettings
from transduce.text.protected import find_protected
from transduce.text.text_settings import SplitSentences, TextSettings, TrainingLines
from transduce.text.vocabulary import Vocabulary

GREEDY = SearchSettings(beam_size=1, max_length=8)
SENTENCE = "老师喜欢苹果。"


def with_limit(trained: Path, folder: Path, limit: str) -> Path:
    """Copy a run to a folder with another line for `max_tokens` in its settings, and return the folder."""
    shutil.copytree(trained, folder)
    (folder / "training_lines.json").unlink()  # as of versions that did not measure lines
    settings = folder / "settings.toml"
    text = settings.read_text("utf-8")
    assert "max_tokens = 256\n" in text
    settings.write_text(text.replace("max_tokens = 256\n", limit), "utf-8")
    return folder


def open_with_limit(trained: Path, folder: Path, pieces: int) -> Translator:
    limited = with_limit(trained, folder, f"max_tokens = {pieces}\n")
    return open_translator(limited, precision="fp32", device="cpu", threads=1)


def document(translator: Translator, pieces: int) -> str:
    """Return sentences with at least this number of tokens, and few more."""
    return SENTENCE * (pieces // len(translator.tokenizer.source.encode(SENTENCE)) + 1)


def test_a_model_trained_on_long_texts_does_not_split_them(
    trained: Path, translator: Translator, tmp_path: Path
) -> None:
    long = open_with_limit(trained, tmp_path / "long", 600)
    text = document(long, 500)
    assert translator(text, search=GREEDY).parts == text.count("。")
    assert long(text, search=GREEDY).parts == 1
    assert "".join(long.stream(text, GREEDY)) == long(text, search=GREEDY).text


def test_the_share_of_multi_sentence_training_lines_decides_about_splitting(trained: Path, tmp_path: Path) -> None:
    assert TrainingLines.load(trained) == TrainingLines(multi_sentence_share=0.0, wordless_share=0.0, tokens=5)
    folder, text = tmp_path / "measured", SENTENCE * 20

    def parts(share: float, splits: SplitSentences = "auto") -> int:
        lines = TrainingLines(multi_sentence_share=share, wordless_share=0.0, tokens=30)
        (folder / "training_lines.json").write_bytes(lines.content())
        translator = open_translator(folder, precision="fp32", device="cpu", threads=1)
        return translator(text, search=GREEDY, text_settings=TextSettings(split_sentences=splits)).parts

    shutil.copytree(trained, folder)
    tokens = len(open_translator(trained).tokenizer.source.encode(SENTENCE * 10))
    assert tokens == 30
    assert parts(0.2) == 20
    assert parts(0.3) == 2  # as few as have at most 30 tokens
    assert parts(0.3, "always") == 20
    assert parts(0.0, "never") == parts(0.3, "never") == 1  # up to 256 tokens
    (folder / "training_lines.json").write_text("{}", "utf-8")
    with pytest.raises(TransduceError, match=r"training_lines\.json cannot be read as measurements of lines"):
        open_translator(folder)


def test_a_text_beyond_the_limit_is_cut_into_as_few_parts_as_possible(trained: Path, tmp_path: Path) -> None:
    long = open_with_limit(trained, tmp_path / "long", 600)
    text = document(long, 1500)
    assert long(text, search=GREEDY).parts == 3
    parts = cut_long_sentence(text, (), vocabulary=long.tokenizer.source, max_tokens=600, gathers=True)
    assert "".join(parts) == text
    assert all(part.endswith("。") and len(long.tokenizer.source.encode(part)) <= 600 for part in parts)
    assert long(text, search=GREEDY).text == " ".join(t.text for t in long(parts, search=GREEDY))


def test_a_model_trained_on_short_texts_splits_longer_ones(trained: Path, tmp_path: Path) -> None:
    short = open_with_limit(trained, tmp_path / "short", 30)
    text = document(short, 60)
    assert short(text, search=GREEDY).parts == text.count("。")


@pytest.mark.parametrize("limit", ["", None])
def test_a_folder_without_a_limit_has_the_default_of_256_tokens(
    trained: Path, tmp_path: Path, limit: str | None
) -> None:
    folder = with_limit(trained, tmp_path / "older", limit or "")
    if limit is None:
        (folder / "settings.toml").unlink()
    assert open_translator(folder, precision="fp32", device="cpu", threads=1).max_sentence_tokens == 256


@pytest.mark.parametrize("limit", ["max_tokens = 0\n", 'max_tokens = "many"\n'])
def test_an_invalid_max_tokens_in_a_folder_is_refused(trained: Path, tmp_path: Path, limit: str) -> None:
    folder = with_limit(trained, tmp_path / "wrong", limit)
    with pytest.raises(TransduceError, match=r"settings\.toml cannot be used: .*max_tokens"):
        open_translator(folder, precision="fp32", device="cpu", threads=1)


def test_an_ensemble_has_the_smallest_length_limit_of_its_models(trained: Path, tmp_path: Path) -> None:
    long = with_limit(trained, tmp_path / "long", "max_tokens = 600\n")
    assert open_translator([long, trained], precision="fp32", device="cpu", threads=1).max_sentence_tokens == 256
    assert open_translator([long, long], precision="fp32", device="cpu", threads=1).max_sentence_tokens == 600


def test_learned_positions_limit_source_and_target_lengths(translator: Translator) -> None:
    config = msgspec.structs.replace(translator.model.config, positions="learned", max_positions=40)
    limited = Translator(Transformer(config).eval(), translator.tokenizer, max_source_tokens=600)
    assert limited.max_sentence_tokens == 39  # and the end symbol
    assert limited("我" * 200, beam_size=1, max_length=8).parts > 5
    # The model is untrained and does not generate the end symbol.
    (written,) = limited("我" * 30, beam_size=1).alternatives
    assert (len(written.tokens), written.ended) == (40, False)


class Characters(Vocabulary):
    """A vocabulary of characters in which spaces are tokens too, as in some imported vocabularies."""

    def __init__(self) -> None:
        self.before, self.after = (), (1,)
        self.may_lengthen = True

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:  # noqa: ARG002
        return [[ord(character) for character in text] for text in texts]


def test_no_part_is_too_long_where_spaces_are_tokens() -> None:
    parts = cut_long_sentence("a  b. " * 500, (), vocabulary=Characters(), max_tokens=300, gathers=True)
    assert max(map(len, parts)) <= 300
    assert len(parts) < 30


URL = "https://example.com/" + "a/" * 200


@pytest.mark.parametrize(
    "text",
    [
        "我" + "".join(f"{{{number}}}我" for number in range(300)),
        "我爱你" * 90 + URL + "你爱我" * 90,
        f"请看 {URL} 吧",
        "{x}" * 3000 + "我爱你",
        "图data:image/png;base64," + "iVBOR" * 200,
    ],
)
@pytest.mark.parametrize("gathers", [False, True])
def test_no_protected_span_is_cut(text: str, *, gathers: bool) -> None:
    spans = find_protected(text)
    parts = cut_long_sentence(text, spans, vocabulary=Characters(), max_tokens=100, gathers=gathers)
    assert "".join(parts) == text
    position, ends = 0, set()
    for part in parts:
        position += len(part)
        ends.add(position)
    assert not any(start < end < stop for start, stop in spans for end in ends)
    visible = len(text) - sum(end - start for start, end in spans)
    assert len(parts) == 1 if visible < 90 else len(parts) > 1


def test_protected_spans_of_long_texts_are_in_the_translation(trained: Path, tmp_path: Path) -> None:
    short = open_with_limit(trained, tmp_path / "short", 30)
    whole = short(f"老师喜欢{URL}苹果", search=GREEDY)
    assert (whole.parts, whole.text.count(URL)) == (1, 1)
    many = short("鱼" + "".join(f"{{{number}}}鱼" for number in range(60)), search=GREEDY)
    assert many.parts > 1
    assert all(many.text.count(f"{{{number}}}") == 1 for number in range(60))


@pytest.mark.parametrize("text", ["{a}" * 60_000, "{龘}" * 40_000 + "我", "{a}我" * 20_000, "{a}\u200b" * 20_000])
def test_many_protected_spans_take_linear_time(translator: Translator, text: str) -> None:
    spans = find_protected(text)
    started = time.process_time()
    parts = cut_long_sentence(text, spans, vocabulary=translator.tokenizer.source, max_tokens=256, gathers=False)
    assert time.process_time() - started < 10
    assert "".join(parts) == text


def test_a_sentence_of_many_spans_is_translated_in_linear_time(translator: Translator) -> None:
    text = "{a}" * 20_000
    started = time.process_time()
    found = translator(f"{text}鱼", search=GREEDY)
    assert time.process_time() - started < 15  # quadratic time takes a minute
    assert (found.parts, found.text.count("{a}")) == (1, 20_000)
