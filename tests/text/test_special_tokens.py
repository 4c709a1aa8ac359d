"""Test special tokens of encoders: where a vocabulary has them, and what a mask replaces."""

import pytest

from transduce.errors import TransduceError
from transduce.interop.hugging_face.imported_tokenizer import ImportedVocabulary, ImportedVocabularyRecord
from transduce.interop.hugging_face.token_pipelines import WordPieceRecord
from transduce.text.sentencepiece_model import TokenizerSettings, train_model
from transduce.text.vocabulary import (
    SPECIAL_TOKENS,
    SpecialTokens,
    Vocabulary,
    encode_masked,
    special_tokens_of,
    text_token_ids,
)

LINES = ["the cat sat on the mat", "the dog sat on the cat", "a cat and a dog"] * 20


def vocabulary(marks: tuple[str, ...] = SPECIAL_TOKENS) -> Vocabulary:
    settings = TokenizerSettings(vocabulary_size=300, user_symbols=marks)
    return Vocabulary(train_model(lambda: LINES, settings, adjust=True))


def test_frame_adds_cls_and_sep_and_truncates_the_text() -> None:
    marks = SpecialTokens(cls=3, sep=4, mask=5)
    assert marks.frame([7, 8], 10) == [3, 7, 8, 4]
    assert marks.frame([7, 8, 9, 10], 5) == [3, 7, 8, 9, 4]


def test_a_mask_stands_for_a_token_with_its_space() -> None:
    made = vocabulary()
    marks = special_tokens_of(made)
    ids = encode_masked(made, "the [MASK] sat on the [MASK]")
    whole = made.encode("the cat sat on the mat")
    places = [place for place, id in enumerate(ids) if id == marks.mask]
    assert places == [1, 5]
    assert [id for id in ids if id != marks.mask] == [*made.encode("the"), *made.encode("sat on the")]
    assert len(ids) == len(made.encode("the")) + 1 + len(made.encode("sat on the")) + 1
    assert whole[0] == ids[0]
    assert encode_masked(made, "[MASK]") == [marks.mask]
    assert encode_masked(made, "") == encode_masked(made, "  ") == []
    inside = encode_masked(made, "the ca[MASK]")
    assert inside[-1] == marks.mask
    assert made.decode(inside[:-1]) == "the ca"


def test_an_unknown_word_before_a_mask_is_kept() -> None:
    """BERT's vocabulary has no token for a space, so looking it up gives the unknown token."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"]
    record = ImportedVocabularyRecord(
        algorithm=WordPieceRecord(),
        ids={piece: id for id, piece in enumerate(pieces)},
        size=6,
        pad_id=0,
        eos_id=3,
        unk_id=1,
        symbols=("[MASK]",),
    )
    made = ImportedVocabulary(record)
    ids = encode_masked(made, "the ☃ [MASK]")
    assert made.tokens(ids) == ["the", "[UNK]", "[MASK]"]
    assert made.token_texts(ids) == ["▁the", "<unk>", "▁[MASK]"]
    assert made.unknown_characters("the ☃ the") == "☃"
    assert made.unknown_characters("the") == ""


def test_ordinary_tokens_are_all_but_the_special_ones() -> None:
    made = vocabulary()
    special = set(range(made.size)) - set(text_token_ids(made))
    assert {made.token(id) for id in special} == {"<pad>", "</s>", "<unk>", *SPECIAL_TOKENS}


def test_a_vocabulary_without_a_mask_token_is_refused() -> None:
    with pytest.raises(TransduceError, match=r"this vocabulary has no \[MASK\]"):
        special_tokens_of(vocabulary(("[CLS]", "[SEP]")))
