"""Test vocabularies: learned reproducibly, able to spell every text, saved and loaded."""

import os
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from transduce.errors import TransduceError
from transduce.text import CorpusFiles, Pair, Tokenizer, TokenizerSettings, Vocabulary, read_pairs
from transduce.text.sentencepiece_model import train_model
from transduce.text.tokenizer import _sample

SENTENCES = [
    ("我 爱 你", "I love you."),
    ("你喜欢什么颜色？", "Which colours do you like?"),
    ("他有三只狗和两只猫", "He has three dogs and two cats."),
    ("我们明天去学校", "We are going to school tomorrow."),
    ("她在看书", "She is reading a book about dogs."),
]
ODD = [
    "",
    "😀 👨‍👩‍👧‍👦 é",
    "ＡＢＣ，１２３。",
    "שלום עולم",
    "a\u2028b\u0085c\rd\te",
    "a\x00b",
    "Ünïcödé → ∞",
    "e\u0301",
]


def read_sentences() -> Iterable[Pair]:
    return [Pair(source, target, number) for number, (source, target) in enumerate(SENTENCES * 20, 1)]


@pytest.fixture(scope="module")
def joint_tokenizer() -> Tokenizer:
    return Tokenizer.train(read_sentences, TokenizerSettings(vocabulary_size=380))


def test_whole_words_are_not_learned_by_train() -> None:
    with pytest.raises(TransduceError, match="learns parts of words, but `kind` is word: choose bpe"):
        Tokenizer.train(list, TokenizerSettings(kind="word"))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("text", ODD)
def test_decoding_restores_every_encoded_text(kind: str, text: str) -> None:
    tokenizer = Tokenizer.train(read_sentences, TokenizerSettings(kind=kind, vocabulary_size=325))  # type: ignore[arg-type]
    assert tokenizer.source.decode(tokenizer.source.encode(text)) == unicodedata.normalize("NFC", text)


def test_spaces_are_trimmed_and_collapsed_and_nothing_else(joint_tokenizer: Tokenizer) -> None:
    vocabulary = joint_tokenizer.source
    assert vocabulary.decode(vocabulary.encode("  I  love \u3000 you\t ")) == "I love \u3000 you\t"
    assert vocabulary.encode("I   love") == vocabulary.encode(" I love ")


def test_special_ids_come_first_and_decode_to_nothing(joint_tokenizer: Tokenizer) -> None:
    vocabulary = joint_tokenizer.target
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
    assert vocabulary.tokens([0, 1, 2]) == ["<pad>", "</s>", "<unk>"]
    ids = vocabulary.encode("I love you.")
    assert not {0, 1, 2} & set(ids)
    assert vocabulary.decode([*ids, 1, 0, 0]) == vocabulary.decode([0, *ids]) == "I love you."


def test_text_cannot_spell_a_special_token(joint_tokenizer: Tokenizer) -> None:
    assert not {0, 1, 2} & set(joint_tokenizer.source.encode("<pad></s><unk>"))


def test_a_line_feed_is_decoded_as_a_space(joint_tokenizer: Tokenizer) -> None:
    assert joint_tokenizer.source.decode(joint_tokenizer.source.encode("I\nlove")) == "I love"


def test_a_lone_surrogate_is_read_as_a_replacement_character(joint_tokenizer: Tokenizer) -> None:
    vocabulary = joint_tokenizer.source
    assert vocabulary.encode_batch(["ok", "a\ud800b"]) == vocabulary.encode_batch(["ok", "a\ufffdb"])
    assert vocabulary.decode(vocabulary.encode("\ud83d\ude00")) == "😀"


def test_tokens_and_ids_convert_into_each_other(joint_tokenizer: Tokenizer) -> None:
    vocabulary = joint_tokenizer.source
    ids = vocabulary.encode("我爱你 dogs")
    assert "".join(vocabulary.tokens(ids)).replace("▁", " ") == " 我爱你 dogs"
    assert [vocabulary.id(piece) for piece in vocabulary.tokens(ids)] == ids
    assert vocabulary.id("no such piece") == vocabulary.unk_id


def test_many_sentences_are_encoded_like_one_with_any_number_of_threads(joint_tokenizer: Tokenizer) -> None:
    texts = [text for pair in SENTENCES for text in pair] + ODD
    one_by_one = [joint_tokenizer.source.encode(text) for text in texts]
    assert (
        joint_tokenizer.source.encode_batch(texts)
        == joint_tokenizer.source.encode_batch(texts, threads=3)
        == one_by_one
    )


def test_without_byte_fallback_rare_characters_are_unknown() -> None:
    settings = TokenizerSettings(vocabulary_size=130, byte_fallback=False)
    vocabulary = Tokenizer.train(read_sentences, settings).source
    assert vocabulary.unk_id in vocabulary.encode("😀")
    assert vocabulary.unk_id not in vocabulary.encode("I love you.")


def test_nfc_is_part_of_the_fingerprint() -> None:
    plain, composed = (
        Tokenizer.train(read_sentences, TokenizerSettings(vocabulary_size=360, nfc=nfc)) for nfc in (False, True)
    )
    assert plain.source.decode(plain.source.encode("e\u0301，")) == "é，"
    assert composed.source.decode(composed.source.encode("e\u0301，")) == "é，"
    assert plain.fingerprint != composed.fingerprint


def test_user_symbols_are_never_cut() -> None:
    settings = TokenizerSettings(vocabulary_size=360, user_symbols=("<2en>", "<2zh>"))
    vocabulary = Tokenizer.train(read_sentences, settings).source
    assert "<2zh>" in vocabulary.tokens(vocabulary.encode("<2zh> I love you."))
    assert vocabulary.decode(vocabulary.encode("<2zh> I love you.")) == "<2zh> I love you."


def test_separate_vocabularies_know_their_own_side() -> None:
    settings = TokenizerSettings(vocabulary_size=330, joint=False)
    tokenizer = Tokenizer.train(read_sentences, settings)
    assert not tokenizer.joint
    assert len(tokenizer.source.encode("我们明天")) < len(tokenizer.target.encode("我们明天"))
    assert len(tokenizer.target.encode("tomorrow")) < len(tokenizer.source.encode("tomorrow"))


@pytest.mark.parametrize("is_joint", [True, False])
@pytest.mark.parametrize("nfc", [True, False])
def test_a_saved_tokenizer_loads_equal(tmp_path: Path, is_joint: bool, nfc: bool) -> None:
    settings = TokenizerSettings(vocabulary_size=330, joint=is_joint, nfc=nfc)
    tokenizer = Tokenizer.train(read_sentences, settings)
    tokenizer.save(tmp_path / "model")
    loaded = Tokenizer.load(tmp_path / "model")
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.joint is is_joint is (loaded.source is loaded.target)
    text = "e\u0301 我爱你 dogs"
    assert loaded.source.encode(text) == tokenizer.source.encode(text)
    assert loaded.target.encode(text) == tokenizer.target.encode(text)
    assert not list((tmp_path / "model").glob("*.partial"))


SCRIPT = """
import sys
import unicodedata
from transduce.text import CorpusFiles, Tokenizer, TokenizerSettings, read_pairs
files = CorpusFiles(source=(sys.argv[1],), target=(sys.argv[2],))
settings = TokenizerSettings(kind=sys.argv[3], vocabulary_size=320)
print(Tokenizer.train(lambda: read_pairs(files), settings).fingerprint)
"""


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_equal_files_give_equal_vocabularies_in_every_process(
    write_lines: Callable[[str, Iterable[str]], Path], kind: str
) -> None:
    paths = [str(write_lines(f"train.{side}", [pair[side] for pair in SENTENCES * 20])) for side in (0, 1)]
    source_folder = str(Path(sys.modules["transduce"].__path__[0]).parent)
    fingerprints = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, *paths, kind],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source_folder},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(fingerprints) == 1
    assert len(fingerprints.pop().strip()) == 64


def test_a_small_corpus_allows_only_a_small_vocabulary() -> None:
    settings = TokenizerSettings(vocabulary_size=8_000)
    with pytest.raises(TransduceError, match=r"too small for `tokenizer\.vocabulary_size` 8000: set it to \d+ at most"):
        Tokenizer.train(read_sentences, settings)
    shrunk = Tokenizer.train(read_sentences, settings, adjust=True)
    assert 260 < shrunk.source.size < 8_000
    assert shrunk.source.decode(shrunk.source.encode("I love cats.")) == "I love cats."


def test_a_vocabulary_must_hold_the_characters() -> None:
    with pytest.raises(
        TransduceError, match=r"`tokenizer\.vocabulary_size` 270 is too small .* need \d+: set it to that or more"
    ):
        Tokenizer.train(read_sentences, TokenizerSettings(vocabulary_size=270))
    grown = Tokenizer.train(read_sentences, TokenizerSettings(vocabulary_size=270), adjust=True)
    assert 270 < grown.source.size < 1_000
    assert grown.source.decode(grown.source.encode("I love cats.")) == "I love cats."


def test_a_corpus_without_text_is_refused() -> None:
    for lines in ([], ["", "  "]):
        with pytest.raises(TransduceError, match="A vocabulary is learned from text, but the corpus has none"):
            train_model(lambda lines=lines: lines, TokenizerSettings())  # type: ignore[misc]


def test_long_lines_contribute_to_the_vocabulary() -> None:
    # The trainer alone would skip both sentences: they have more than 4,192 bytes.
    long_sentence, without_spaces = " ".join(["dogs"] * 1_500), "我们明天去学校" * 300
    model = train_model(lambda: [long_sentence, without_spaces], TokenizerSettings(vocabulary_size=290))
    vocabulary = Vocabulary(model)
    assert vocabulary.tokens(vocabulary.encode("dogs")) == ["▁dogs"]
    assert "天" in "".join(piece for piece in vocabulary.tokens(vocabulary.encode("明天")) if "<0x" not in piece)


def test_nul_in_training_text_does_no_harm() -> None:
    lines = [text.replace(" ", "\x00") for _, text in SENTENCES * 20]
    vocabulary = Vocabulary(train_model(lambda: lines, TokenizerSettings(vocabulary_size=330)))
    assert vocabulary.decode(vocabulary.encode("I\x00love")) == "I\x00love"


def test_large_corpora_are_sampled_evenly() -> None:
    pairs = [Pair(str(number), "", number) for number in range(10)]
    assert [pair.line for pair in _sample(pairs, 10, 5)] == [1, 3, 5, 7, 9]
    assert [pair.line for pair in _sample(pairs, 10, 3)] == [3, 6, 9]
    assert [pair.line for pair in _sample(pairs, 10, 10)] == list(range(10))


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(TransduceError, match=r"`tokenizer\.vocabulary_size` must be at least 4, but is 3"):
        TokenizerSettings(vocabulary_size=3)
    with pytest.raises(TransduceError, match=r"`tokenizer\.character_coverage` must be from 0\.98 to 1, but is 0\.5"):
        TokenizerSettings(character_coverage=0.5)
    for symbols in (("<a b>",), ("a,b",), ("",), ("<x>", "<x>"), ("▁a",)):
        with pytest.raises(TransduceError, match=r"`tokenizer\.user_symbols` must differ and have no space"):
            TokenizerSettings(user_symbols=symbols)


def test_folders_without_a_readable_tokenizer_are_refused(tmp_path: Path, joint_tokenizer: Tokenizer) -> None:
    with pytest.raises(TransduceError, match=r"tokenizer_settings\.json does not exist: .* holds no tokenizer"):
        Tokenizer.load(tmp_path)
    joint_tokenizer.save(tmp_path)
    card = tmp_path / "tokenizer_settings.json"
    good = card.read_bytes()
    card.write_bytes(b"{}")
    with pytest.raises(TransduceError, match=r"is not a tokenizer's description \(.*format_version.*\): copy"):
        Tokenizer.load(tmp_path)
    card.write_bytes(good.replace(b'"format_version": 1', b'"format_version": 2'))
    with pytest.raises(TransduceError, match=r"has format 2, but this version reads format 1: use"):
        Tokenizer.load(tmp_path)
    card.write_bytes(good)
    for content in (b"", b"no model"):
        (tmp_path / "sentencepiece.model").write_bytes(content)
        with pytest.raises(TransduceError, match=r"sentencepiece\.model is not a sentencepiece model: train or copy"):
            Tokenizer.load(tmp_path)
    (tmp_path / "sentencepiece.model").unlink()
    with pytest.raises(TransduceError, match=r"sentencepiece\.model does not exist: a tokenizer needs it"):
        Tokenizer.load(tmp_path)


def test_a_vocabulary_of_characters_has_them_all() -> None:
    """Also the rarest of a large script, which other vocabularies leave to bytes."""
    common = "".join(chr(0x4E00 + number) for number in range(40))
    lines = [common] * 200 + ["龘", "齉"]
    settings = TokenizerSettings(kind="character", vocabulary_size=4_000, byte_fallback=False)
    pairs = [Pair(line, line, number) for number, line in enumerate(lines)]
    vocabulary = Tokenizer.train(lambda: iter(pairs), settings).source
    assert vocabulary.decode(vocabulary.encode("龘一齉")) == "龘一齉"


def test_a_large_script_leaves_its_rarest_characters_to_bytes(data_folder: Path) -> None:
    folder = data_folder / "tatoeba-zh-en"
    files = CorpusFiles(source=(str(folder / "train.zh.gz"),), target=(str(folder / "train.en.gz"),))
    small = Tokenizer.train(lambda: read_pairs(files), TokenizerSettings(vocabulary_size=1_500)).source
    assert small.size == 1_500
    dev = [pair for pair, _ in zip(read_pairs(files), range(1_000), strict=False)]
    assert all(small.decode(small.encode(pair.source)) == pair.source.strip() for pair in dev)


def test_the_old_name_for_ids_with_special_tokens_works_with_a_warning(joint_tokenizer: Tokenizer) -> None:
    vocabulary = joint_tokenizer.source
    ids = vocabulary.encode("a")
    with pytest.warns(DeprecationWarning, match="with_special_tokens"):
        assert vocabulary.closed(ids) == vocabulary.with_special_tokens(ids)
