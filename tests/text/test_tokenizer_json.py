"""Test that tokenizer.json gives the same ids as sentencepiece, using the library that reads it."""

import gzip
import json
import random
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from transduce.text import CorpusFiles, Pair, Tokenizer, TokenizerSettings, read_pairs
from transduce.text.sentencepiece_model import PieceType, is_bpe, read_pieces, round_scores
from transduce.text.tokenizer import tokenizer_json

tokenizers = pytest.importorskip("tokenizers")

ODD = [
    *["", " ", "   ", " a", "a ", "  a  b  ", "a\tb", "\t", "a\u00a0b", "\u3000全角\u3000", "one    two   "],
    *["😀", "👨‍👩‍👧‍👦!", "🇩🇪🇫🇷", "e\u0301 é", "\u200b\u200d\ufeff", "ＡＢＣ１２３，。", "ｶﾀｶﾅ"],
    *["שלום עולם", "مرحبا بالعالم", "a\u2028b", "a\u2029b", "a\u0085b", "a\rb", "a\nb", "\x00", "a\x00b"],
    *["▁", "▁a", "a▁▁b", "a ▁", "a▁ b", "▁▁", "<0x41>", "x<0x0A>y", "<0x4", "\ufffd", "1234567 3.14"],
    *["x" * 300, "aaaaaaaa", "lllllll", "...........", "哈哈哈哈哈哈哈", "-- — –", "𠮷野家 𝒳"],
]


def corpus(folder: Path) -> CorpusFiles:
    name = "zh" if folder.name == "tatoeba-zh-en" else "de"
    return CorpusFiles(source=(str(folder / f"train.{name}.gz"),), target=(str(folder / "train.en.gz"),))


@cache
def train(folder: Path, settings: TokenizerSettings, pairs: int = 6_000) -> Tokenizer:
    return Tokenizer.train(lambda: islice(read_pairs(corpus(folder)), pairs), settings)


def both_ids(tokenizer: Tokenizer, texts: list[str]) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of texts by sentencepiece, with the end symbol, and by Hugging Face's tokenizers."""
    expected = [[*ids, tokenizer.source.eos_id] for ids in tokenizer.source.encode_batch(texts)]
    other: Any = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(tokenizer.source)))
    return expected, [encoding.ids for encoding in other.encode_batch(texts)]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("name", ["tatoeba-zh-en", "tatoeba-de-en"])
def test_ids_equal_sentencepieces_on_thousands_of_real_sentences(data_folder: Path, name: str, kind: Any) -> None:
    tokenizer = train(data_folder / name, TokenizerSettings(kind=kind, vocabulary_size=4_000))
    texts = []
    for path in ("tatoeba-zh-en/train.zh.gz", "tatoeba-de-en/train.de.gz", "tatoeba-de-en/train.en.gz"):
        with gzip.open(data_folder / path, "rt", encoding="utf-8", newline="\n") as lines:
            texts += [line.rstrip("\n") for line in islice(lines, 15_000, 18_000)]
    expected, found = both_ids(tokenizer, texts)
    assert len(texts) == 9_000
    assert found == expected


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    ("byte_fallback", "nfc", "user_symbols"),
    [(True, False, ()), (True, True, ()), (False, False, ()), (True, False, ("<2de>", "<2deu>"))],
)
def test_ids_equal_sentencepieces_on_unusual_texts(
    data_folder: Path, kind: Any, byte_fallback: bool, nfc: bool, user_symbols: tuple[str, ...]
) -> None:
    settings = TokenizerSettings(
        kind=kind, vocabulary_size=2_000, byte_fallback=byte_fallback, nfc=nfc, user_symbols=user_symbols
    )
    texts = [*ODD, "<2de> Hallo", "<2deu><2de>", "a<2de>b <2deu> c", "<2de><0x41>", "<2de"]
    expected, found = both_ids(train(data_folder / "tatoeba-zh-en", settings, pairs=2_000), texts)
    differing = [text for text, left, right in zip(texts, expected, found, strict=True) if left != right]
    assert differing == []


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(("byte_fallback", "user_symbols"), [(True, ()), (False, ()), (True, ("<2de>",))])
def test_the_names_of_special_tokens_can_be_plain_characters(
    data_folder: Path, kind: Any, byte_fallback: bool, user_symbols: tuple[str, ...]
) -> None:
    settings = TokenizerSettings(
        kind=kind, vocabulary_size=2_000, byte_fallback=byte_fallback, user_symbols=user_symbols
    )
    tokenizer = train(data_folder / "tatoeba-zh-en", settings, pairs=2_000)
    other: Any = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(tokenizer.source)))
    other.encode_special_tokens = True
    for text in [
        "Hund </s> Haus",
        "<unk> a",
        "<pad>",
        "</s>",
        "a</s>b",
        "a < b",
        "</ s>",
        *(f"{each}</s>" for each in user_symbols),
        *ODD,
    ]:
        assert other.encode(text).ids == [*tokenizer.source.encode(text), tokenizer.source.eos_id], text


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_decoded_texts_equal_sentencepieces(data_folder: Path, kind: Any) -> None:
    vocabulary = train(data_folder / "tatoeba-zh-en", TokenizerSettings(kind=kind, vocabulary_size=4_000)).source
    other: Any = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(vocabulary)))
    for text in ODD:
        ids = vocabulary.encode(text)
        assert other.decode([*ids, vocabulary.eos_id]).replace("\n", " ") == vocabulary.decode(ids)


CODE = ["def f(x):", "    if x:", "        return [a  for a in x]  ", "", "\treturn None  # end", "  x = 1"]


def spaced_texts() -> list[str]:
    """Return texts with spaces everywhere, including runs longer than any token."""
    runs = [" " * count for count in range(40)]
    choose = random.Random(1).choice
    drawn = ["".join(choose("    aex(\t=é") for _ in range(count)) for count in range(40) for _ in range(10)]
    return [*CODE, *(f"{run}x{run}=" for run in runs), *runs, *drawn]


@pytest.mark.parametrize("nfc", [False, True])
@pytest.mark.parametrize(("kind", "byte_fallback"), [("bpe", True), ("unigram", True), ("character", True)])
def test_a_vocabulary_that_keeps_spaces_restores_each_line_in_both_libraries(
    kind: Any, byte_fallback: bool, nfc: bool
) -> None:
    pairs = [Pair(line.replace("x", f"x{number % 9}"), "", 1) for number in range(60) for line in CODE]
    settings = TokenizerSettings(
        kind=kind, vocabulary_size=320, byte_fallback=byte_fallback, keep_spaces=True, nfc=nfc, character_coverage=1.0
    )
    tokenizer = Tokenizer.train(lambda: pairs, settings, adjust=True)
    vocabulary, texts = tokenizer.source, spaced_texts()
    assert [vocabulary.decode(vocabulary.encode(text)) for text in texts] == texts
    other: Any = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(vocabulary)))
    assert [other.decode(other.encode(text).ids) for text in texts] == texts
    expected, found = both_ids(tokenizer, texts)
    assert found == expected
    if kind == "bpe":
        assert len(vocabulary.encode("        return x")) < 5  # eight spaces are not eight tokens


def test_a_saved_folder_has_what_other_programs_look_for(data_folder: Path, tmp_path: Path) -> None:
    train(data_folder / "tatoeba-zh-en", TokenizerSettings(vocabulary_size=4_000)).save(tmp_path, model_max_length=128)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "sentencepiece.model",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer_settings.json",
    ]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "model_max_length": 128,
        "clean_up_tokenization_spaces": False,
    }
    other: Any = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert other.encode("你好", "Hi").ids[-1] == other.token_to_id("</s>") == 1


def test_two_vocabularies_are_written_apart(data_folder: Path, tmp_path: Path) -> None:
    train(data_folder / "tatoeba-zh-en", TokenizerSettings(vocabulary_size=2_000, joint=False)).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "source.spm",
        "source.tokenizer.json",
        "target.spm",
        "target.tokenizer.json",
        "tokenizer_settings.json",
    ]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_model_file_is_read_as_sentencepiece_reads_it(data_folder: Path, kind: Any) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    settings = TokenizerSettings(kind=kind, vocabulary_size=2_000, user_symbols=("<2de>",))
    model = train(data_folder / "tatoeba-zh-en", settings, pairs=2_000).source.model_bytes
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    pieces = read_pieces(model)
    ids = range(processor.vocab_size())
    assert is_bpe(model) is (kind == "bpe")
    assert [piece.text for piece in pieces] == [processor.id_to_piece(id) for id in ids]
    assert [piece.score for piece in pieces] == [processor.get_score(id) for id in ids]
    assert [piece.type is PieceType.BYTE for piece in pieces] == [processor.is_byte(id) for id in ids]
    assert [piece.type is PieceType.CONTROL for piece in pieces] == [processor.is_control(id) for id in ids]
    assert [id for id in ids if pieces[id].type is PieceType.UNKNOWN] == [processor.unk_id()]
    assert [piece.text for piece in pieces if piece.type is PieceType.USER_DEFINED] == ["<2de>"]


def test_unigram_scores_add_up_exactly(data_folder: Path) -> None:
    model = train(data_folder / "tatoeba-zh-en", TokenizerSettings(kind="unigram", vocabulary_size=4_000)).source
    assert all((piece.score * 1024).is_integer() for piece in read_pieces(model.model_bytes))
    coarse = read_pieces(round_scores(model.model_bytes, 0))
    assert [piece.score for piece in coarse] == [round(piece.score) for piece in read_pieces(model.model_bytes)]
