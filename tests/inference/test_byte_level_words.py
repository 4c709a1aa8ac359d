"""Test forced and forbidden words, and unchanged texts, with byte-level tokens: GPT-2, BART, Qwen2."""

import pytest
import torch

from transduce.inference.decoding import ForbiddenTexts, tokenize_phrase
from transduce.inference.glossary_search import check_glossary
from transduce.inference.translation import decode_with_line_feeds
from transduce.interop.hugging_face.imported_tokenizer import ImportedVocabulary, ImportedVocabularyRecord
from transduce.interop.hugging_face.token_pipelines import ByteLevelBpeRecord
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary, Term
from transduce.text.word_spans import token_spans

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


@pytest.fixture(scope="module")
def vocabulary() -> ImportedVocabulary:
    """Return a byte-level vocabulary with a few words, with or without a space before them."""
    bytes_ = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
    pieces, merges = [*SPECIAL, *bytes_], []
    for word in ("Ġapple", "Ġthe", "apple", "pine"):
        whole = word[0]
        for character in word[1:]:
            merges.append((whole, character))
            whole += character
            pieces.append(whole)
    ids = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    algorithm = ByteLevelBpeRecord(merges=tuple(dict.fromkeys(merges)))
    record = ImportedVocabularyRecord(
        algorithm=algorithm, ids=ids, size=len(ids), pad_id=1, eos_id=2, unk_id=3, silent=(0,)
    )
    return ImportedVocabulary(record)


def forbidden(vocabulary: ImportedVocabulary, text: str, written: list[int]) -> set[str]:
    """Return the tokens that must not follow."""
    logits = torch.zeros(1, 1, vocabulary.size)
    found = ForbiddenTexts([text], vocabulary).apply(logits, torch.tensor([[written]]), torch.arange(1))
    return {vocabulary.token(id) for id in range(vocabulary.size) if found[0, 0, id] == -torch.inf}


def test_a_forbidden_word_is_known_by_its_bytes(vocabulary: ImportedVocabulary) -> None:
    assert forbidden(vocabulary, "apple", vocabulary.encode("the")) == {"Ġapple"}
    assert forbidden(vocabulary, "apple", vocabulary.encode("pine")) == {"Ġapple"}  # not `pineapple`
    first, second = vocabulary.encode("é")
    assert forbidden(vocabulary, "é", [first]) == {vocabulary.token(second)}


def test_a_line_of_a_language_model_ends_a_word(vocabulary: ImportedVocabulary) -> None:
    assert forbidden(vocabulary, "apple", [*vocabulary.encode("pine"), vocabulary.eos_id]) == {"Ġapple", "apple"}
    assert forbidden(vocabulary, "pine", [*vocabulary.encode("pin"), vocabulary.eos_id]) == {"pine"}


def test_a_phrase_begins_a_word(vocabulary: ImportedVocabulary) -> None:
    assert [vocabulary.tokens(spelling) for spelling in tokenize_phrase("apple", vocabulary)] == [["Ġapple"]]


def test_a_term_may_begin_a_sentence(vocabulary: ImportedVocabulary) -> None:
    glossary = Glossary([Term("pomme", ("apple", "pine apple")), Term("Mac", ("Apple",))])
    spelt = check_glossary(glossary, SearchSettings(), vocabulary)
    forms = {source: [vocabulary.decode(list(ids)).strip() for ids in phrase] for source, phrase in spelt.items()}
    assert forms == {"pomme": ["apple", "pine apple", "Apple", "Pine apple"], "Mac": ["Apple"]}


def test_a_language_model_writes_its_own_line_feeds(vocabulary: ImportedVocabulary) -> None:
    ids = vocabulary.encode("if\n  x")
    assert decode_with_line_feeds([*ids, vocabulary.eos_id, *ids], vocabulary) == "if\n  x\nif\n  x"
    assert vocabulary.decode(ids) == "if   x"  # a translation stays on its line


def test_tokens_are_spelt_as_sentencepiece_would(vocabulary: ImportedVocabulary) -> None:
    text = "Café the apple 我"
    spelt = vocabulary.token_texts([*vocabulary.encode(text), vocabulary.eos_id])
    assert spelt == [*"Caf", "<0xC3>", "<0xA9>", "▁the", "▁apple", "▁", "<0xE6>", "<0x88>", "<0x91>", "</s>"]
    assert [text[start:end] for start, end in token_spans(spelt, text)] == [
        *("C", "a", "f", "é", "é", "the", "apple", "", "我", "我", "我", "")
    ]
