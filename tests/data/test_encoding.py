"""Test that tokenizing each word once gives the tokens that sentencepiece gives for whole sentences."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.data import EncodedSentences, parts
from transduce.data.parts import SentenceEncoder
from transduce.text import CorpusFiles, Pair, Tokenizer, TokenizerSettings, Vocabulary, read_lines, read_pairs
from transduce.text.sentencepiece_model import tokenizes_words_independently

TEXT = [f"The {noun} runs 1{number} times, l'été ﬁne;  we—they…" for number in range(40) for noun in ("dog", "cats")]


def learn(settings: TokenizerSettings) -> Vocabulary:
    pairs = [Pair(text, text.upper(), line) for line, text in enumerate(TEXT, 1)]
    return Tokenizer.train(lambda: pairs, settings).source


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return learn(TokenizerSettings(vocabulary_size=340, user_symbols=("<2de>",)))


def plain(vocabulary: Vocabulary, sentences: list[str]) -> list[list[int]]:
    return [[*ids, vocabulary.eos_id] for ids in vocabulary.encode_batch(sentences)]


def split(run: EncodedSentences) -> list[list[int]]:
    return [run.ids[start:stop].tolist() for start, stop in pairwise(run.offsets)]


ODD = [
    *[
        "",
        " ",
        "  a  b ",
        "dog",
        "dog dog  dog",
        "▁",
        "a▁b",
        "a▁ b",
        "\t",
        "a\u3000b",
        "a\u00a0b",
        "<2de>dog <2de> x<2de>y",
    ],
    *["<0x41> 𝄞 ok", "e\u0301té", "\u2028", "a\rb", "</s> <pad> <unk>", "12345678", "我爱你 dog"],
]


@pytest.mark.parametrize("sentences", [ODD, ODD[:5], [""], ["", ""], TEXT])
def test_tokens_are_those_of_whole_sentences(vocabulary: Vocabulary, sentences: list[str]) -> None:
    encoder = SentenceEncoder(vocabulary)
    for _ in range(2):  # the second time, all words are known
        assert split(encoder.encode(sentences)) == plain(vocabulary, sentences)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from(" ▁a1"), max_size=30)))
def test_tokens_of_any_text_are_those_of_whole_sentences(vocabulary: Vocabulary, sentences: list[str]) -> None:
    assert split(SentenceEncoder(vocabulary).encode(sentences)) == plain(vocabulary, sentences)


@pytest.mark.parametrize("settings", ["unigram", "nfc", "no byte fallback", "large"])
def test_tokens_of_every_kind_of_vocabulary_equal_sentencepieces(settings: str) -> None:
    kinds = {
        "unigram": TokenizerSettings(kind="unigram", vocabulary_size=308),
        "nfc": TokenizerSettings(vocabulary_size=330, nfc=True),
        "no byte fallback": TokenizerSettings(vocabulary_size=90, byte_fallback=False),
        "large": TokenizerSettings(vocabulary_size=380),
    }
    vocabulary = learn(kinds[settings])
    assert split(SentenceEncoder(vocabulary).encode(ODD + TEXT)) == plain(vocabulary, ODD + TEXT)
    assert tokenizes_words_independently(vocabulary.model_bytes) == (settings != "unigram")


def test_tokens_of_real_sentences_are_equal_with_a_small_word_cache(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_MAX_WORDS", 2_000)  # the table begins anew several times
    folder = data_folder / "tatoeba-zh-en"
    files = CorpusFiles(source=(str(folder / "dev.zh.gz"),), target=(str(folder / "dev.en.gz"),))
    tokenizer = Tokenizer.train(lambda: read_pairs(files), TokenizerSettings(vocabulary_size=3_000))
    encoder = SentenceEncoder(tokenizer.source)
    sentences = [*read_lines(files.source[0]), *read_lines(files.target[0])]
    for start in range(0, len(sentences), 500):
        block = sentences[start : start + 500]
        assert split(encoder.encode(block)) == plain(tokenizer.source, block)


def test_a_model_that_rewrites_or_joins_words_is_left_to_sentencepiece(vocabulary: Vocabulary) -> None:
    import io

    import sentencepiece

    assert tokenizes_words_independently(vocabulary.model_bytes)
    others: list[dict[str, Any]] = [
        {"normalization_rule_name": "nmt_nfkc"},
        {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        {"normalization_rule_name": "identity", "add_dummy_prefix": False},
        {"normalization_rule_name": "identity", "split_by_whitespace": False},
        {"normalization_rule_name": "identity", "treat_whitespace_as_suffix": True},
    ]
    for settings in others:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXT), model_writer=model, vocab_size=90, model_type="bpe", minloglevel=2, **settings
        )
        assert not tokenizes_words_independently(model.getvalue())
