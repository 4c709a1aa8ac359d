"""Test that files of word2vec and GloVe initialize an embedding matrix."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from transduce.errors import TransduceError
from transduce.interop.hugging_face.imported_tokenizer import ImportedVocabulary, ImportedVocabularyRecord
from transduce.interop.hugging_face.token_pipelines import (
    ByteLevelBpeRecord,
    CharacterBpeRecord,
    TokenizationRecord,
    TokenizerJson,
    WordListRecord,
    WordPieceRecord,
)
from transduce.interop.word_vectors import fill_embeddings, match_vectors, read_word_vectors, vector_width
from transduce.text.tokenizer import Tokenizer

WORDS = {"I": [1.0, 0.0, 2.0], "tea": [0.0, 3.0, 0.5], "，": [-1.0, 2.0, 2.0], "zebra crossing": [5.0, 5.0, 5.0]}


def text_lines(*, header: bool) -> bytes:
    lines = [f"{word} {' '.join(map(str, vector))}" for word, vector in WORDS.items()]
    return "\n".join([f"{len(WORDS)} 3"] * header + lines).encode() + b"\n"


def binary(*, line_feeds: bool) -> bytes:
    end = b"\n" if line_feeds else b""
    rows = (word.encode() + b" " + np.array(vector, "<f4").tobytes() + end for word, vector in WORDS.items())
    return b"".join([f"{len(WORDS)} 3\n".encode(), *rows])


@pytest.mark.parametrize(
    "content",
    [text_lines(header=True), text_lines(header=False), gzip.compress(text_lines(header=False))],
    ids=["word2vec", "glove", "gzip"],
)
def test_word2vec_and_glove_text_files_are_read(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(content)
    assert {word: vector.tolist() for word, vector in read_word_vectors(path)} == WORDS


def test_a_byte_order_mark_belongs_to_no_word(tmp_path: Path) -> None:
    for header in (True, False):
        path = tmp_path / f"vectors-{header}"
        path.write_bytes(b"\xef\xbb\xbf" + text_lines(header=header))
        assert {word: vector.tolist() for word, vector in read_word_vectors(path)} == WORDS


@pytest.mark.parametrize("header", [True, False])
def test_blank_lines_at_the_end_are_ignored(header: bool, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(text_lines(header=header) + b"\n \n")
    assert {word: vector.tolist() for word, vector in read_word_vectors(path)} == WORDS


def test_the_first_of_several_vectors_of_a_word_is_taken(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    path.write_text("tea 1 2 3\ntea 4 5 6\n", "utf-8")
    weight = torch.zeros(small_tokenizer.source.size, 3)
    fill_embeddings(weight, small_tokenizer.source, path, rescale=False)
    assert not (weight == 4.0).any()


@pytest.mark.parametrize("first", ["zebra crossing", ". . .", "page 9", "9"])
def test_the_first_word_may_hold_spaces_and_numbers(first: str, tmp_path: Path) -> None:
    path = tmp_path / "glove"
    path.write_text(f"{first} 1 2 3\ntea 4 5 6\nmilk 7 8 9\n", "utf-8")
    assert [word for word, _ in read_word_vectors(path)] == [first, "tea", "milk"]
    assert vector_width(path) == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 3\nchapter 1 0.1 0.2 0.3\n", ["chapter 1"]),
        ("2 3\nchapter 1 0.1 0.2 0.3\nchapter 2 1 0.2 0.3\n", ["chapter 1", "chapter 2"]),
        ("3 3\na 1 2 3\nv 1.5 0.1 0.2 0.3\nv 2.5 0.1 0.2 0.3\n", ["a", "v 1.5", "v 2.5"]),
    ],
)
def test_a_header_shows_where_a_word_that_ends_with_numbers_ends(text: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "vectors").write_text(text, "utf-8")
    found = dict(read_word_vectors(tmp_path / "vectors"))
    assert list(found) == words
    assert found[words[-1]].tolist()[1:] == pytest.approx([0.2, 0.3])


@pytest.mark.parametrize("line_feeds", [False, True])
def test_binary_word2vec_files_are_read(line_feeds: bool, tmp_path: Path) -> None:
    path = tmp_path / "vectors.bin"
    words = {word: vector for word, vector in WORDS.items() if " " not in word}
    rows = binary(line_feeds=line_feeds).replace(b"zebra crossing", b"zebra")
    path.write_bytes(rows)
    found = {word: vector.tolist() for word, vector in read_word_vectors(path)}
    assert found == words | {"zebra": [5.0, 5.0, 5.0]}


def test_each_token_that_is_a_word_gets_the_vector_of_that_word(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    vocabulary = small_tokenizer.source
    tokens = [vocabulary.token(id) for id in range(vocabulary.size)]
    words = [token.removeprefix("▁") for token in tokens]
    is_word = [token.startswith("▁") or not token.isascii() or not token.isalnum() for token in tokens]
    known = sorted({word for word, each in zip(words[3:], is_word[3:], strict=True) if word and each})[:20]
    path = tmp_path / "glove.txt"
    path.write_text("".join(f"{word} {number} 1 2\n" for number, word in enumerate(known)), "utf-8")
    weight = torch.randn(vocabulary.size, 3)
    before = weight.clone()
    coverage = fill_embeddings(weight, vocabulary, path, rescale=False)
    rows = [row for row in range(3, vocabulary.size) if not torch.equal(weight[row], before[row])]
    assert [weight[row].tolist() for row in rows] == [[float(known.index(words[row])), 1.0, 2.0] for row in rows]
    assert coverage.found == len(rows) >= len(known)
    assert {words[row] for row in rows} == set(known)
    assert all(is_word[row] for row in rows)
    assert any(words[row] in known for row in range(3, vocabulary.size) if not is_word[row])
    assert coverage.tokens == vocabulary.size - 3
    assert coverage.words_in_file == len(known)
    assert torch.equal(weight[:3], before[:3])
    assert "tokens (" in str(coverage)


VOCABULARIES: dict[str, tuple[TokenizationRecord, tuple[str, ...], set[str]]] = {
    "sentencepiece": (CharacterBpeRecord(merges=()), ("▁he", "he", "ing", "▁The", "▁", "我", ","), {"▁he", "▁The"}),
    "byte-level": (ByteLevelBpeRecord(()), ("Ġhe", "he", "ing", "ĠThe", "Ġ", "æĪĳ", ","), {"Ġhe", "ĠThe", "æĪĳ"}),
    "WordPiece": (WordPieceRecord(), ("he", "##he", "##ing", "The", "##我", ","), {"he", "The"}),
    "characters": (TokenizerJson({"model": {"type": "BPE", "vocab": {}, "merges": []}}), ("h", "我", ",", " "), set()),
    "words": (WordListRecord(), ("he", "The", "ing", "我", ","), {"he", "The", "ing"}),
    "marked words": (WordListRecord(marked=True), ("▁he", "he", "ing", ","), {"▁he", "he", "ing"}),
    "word level": (
        TokenizerJson({"model": {"type": "WordLevel", "vocab": {}, "unk_token": "<unk>"}}),
        ("he", "ing", ","),
        {"he", "ing"},
    ),
}


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_token_inside_words_has_no_vector_of_a_word(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    algorithm, tokens, words = VOCABULARIES[kind]
    ids = {token: id for id, token in enumerate(("<pad>", "</s>", "<unk>", *tokens))}
    if isinstance(algorithm, TokenizerJson):
        algorithm.content["model"]["vocab"] = ids
    record = ImportedVocabularyRecord(algorithm=algorithm, ids=ids, size=len(ids), pad_id=0, eos_id=1, unk_id=2)
    vocabulary = ImportedVocabulary(record)
    (tmp_path / "words").write_text("he 1 2\nthe 3 4\ning 5 6\n我 7 8\n, 9 9\nh 1 1\n", "utf-8")
    found = match_vectors(vocabulary, tmp_path / "words", 2)
    expected = words | {token for token in tokens if token in ("我", "##我", ",")}
    assert {vocabulary.token(row) for row in found.rows.tolist()} == expected
    assert (found.coverage.found, found.coverage.tokens) == (len(expected), len(tokens))


def test_vectors_of_tokens_are_those_of_tokens_with_exactly_the_same_spelling(
    small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    vocabulary = small_tokenizer.source
    tokens = [vocabulary.token(id) for id in range(vocabulary.size)]
    inside = next(token for token in tokens[3:] if token.isascii() and token.isalpha() and f"▁{token}" in tokens)
    (tmp_path / "tokens").write_text(f"{inside} 1 2\n▁unknown 3 4\n", "utf-8")
    found = match_vectors(vocabulary, tmp_path / "tokens", 2)
    assert found.rows.tolist() == [vocabulary.id(inside)]


def test_rescaled_vectors_have_the_mean_norm_of_the_replaced_rows(small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    vocabulary = small_tokenizer.source
    path = tmp_path / "glove.txt"
    path.write_text("".join(f"{vocabulary.token(id)} {id} 50 -9\n" for id in range(3, 40)), "utf-8")
    weight = torch.nn.functional.normalize(torch.randn(vocabulary.size, 3), dim=1)
    fill_embeddings(weight, vocabulary, path)
    assert float(weight[3:40].norm(dim=1).mean()) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 1 2\n", r"as wide as the embeddings, 3 .* but have 2 numbers"),
        (b"a 1 2 3\nb 1 x 3\n", r"line 2: a line must hold a word and 3 numbers, but begins 'b 1 x 3"),
        (b"5 3\na \x00\x00\x80\x3f", r"must hold 5 vectors of 3 numbers by its first line, but breaks off after 0"),
        (b"3 3\na 1 2 3\nb 1 2 3\n", r"must hold 3 vectors of 3 numbers by its first line, but breaks off after 2"),
        (b"a 1 2 3\nb c 1 2\nd 1 2 3\n", r"line 2: a line must hold a word and 3 numbers, but begins 'b c 1 2"),
        (
            binary(line_feeds=False).replace(b"4 3\n", b"4 64\n"),
            r"must hold 4 vectors of 64 numbers by its first line, .* correct that line",
        ),
        (b"word\n", r"line 1: a line must hold a word and 1 numbers"),
        (b"a 1 2 3\nb 1 nan 3\n", r"line 2: a vector must hold finite numbers: remove the line"),
        (b"a 1 2 3\nb 1 1e39 3\n", r"line 2: a vector must hold finite numbers"),
        (b"1 3\na " + np.array([1, np.inf, 2], "<f4").tobytes(), r"vector 1 must hold finite numbers, but does not"),
        (b"\xba\x16\x4f\x2f\x0c\x00\x00\x00", r"is a model of fastText, not a file of vectors: name the \.vec file"),
        (b"", r"must hold word vectors, but is empty"),
        (b"0 3\n", r"must hold word vectors, but is empty"),
        (b"\n\n", r"must hold word vectors, but is empty"),
        (b"tea\t1\t2\t3\nmilk\t4\t5\t6\n", r"line 1: spaces must separate a word and its numbers, but there is a tab"),
        (b"2\t3\ntea\t1\t2\t3\nmilk\t4\t5\t6\n", r"line 2: spaces must separate"),
        (b"tea\t1 2 3 4\nmilk\t4 5 6 7\n", r"line 1: spaces must separate"),
        (b"tea 1 2 3\nmilk 1 2 3\nice\t1 2 3\n", r"line 3: spaces must separate"),
        (b"1 3\ntea 1 2 3\nmilk 4 5 6\n", r"must hold 1 vectors of 3 numbers by its first line, but has 2"),
        (b"2 3\ntea 1 2 3 4\nmilk 4 5 6 7\n", r"line 1: the vectors have 3 numbers by this line, but 4 on the next"),
        (b"1 3\ntea 1 .2 .3 .4 .5\n", r"line 1: the vectors have 3 numbers by this line, but 5 on the next"),
        (b"2 4\ntea 1 2 3\nmilk 4 5 6\n", r"line 1: the vectors have 4 numbers by this line, but 3 on the next"),
        (b"a .1 .2 .3\nb .1 .2 .3 .4\nc .1 .2 .3\n", r"line 2: a line must hold a word and 3 numbers, but begins"),
        (b"a 1 2 3\nb -1.5e-3 1 2 3\nc 1 2 3\n", r"line 2: a line must hold a word and 3 numbers, but begins"),
        (b"a 1 2 3\n\nb 1 2 3\n", r"line 2: a line must hold a word and numbers, but is empty"),
        (binary(line_feeds=False).replace(b"zebra crossing", b"zebra") + b"a", r"must hold 4 vectors of 3 .* has more"),
        (binary(line_feeds=True).replace(b"zebra crossing", b"zebra").replace(b"4 3", b"3 3"), r"but has more"),
        (b"3 99999999\n", r"line 1: vectors must have 1 to 65,536 numbers, but have 99,999,999"),
    ],
)
def test_files_of_wrong_width_or_form_are_refused(
    content: bytes, message: str, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = tmp_path / "vectors"
    path.write_bytes(content)
    with pytest.raises(TransduceError, match=message):
        fill_embeddings(torch.zeros(small_tokenizer.source.size, 3), small_tokenizer.source, path)
