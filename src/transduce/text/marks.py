"""Special tokens of encoders such as BERT (Devlin et al. 2019), which represent no text.

A text is framed as [CLS] text [SEP]; [MASK] replaces a token to predict. Imported vocabularies may spell them
otherwise: RoBERTa uses <s>, </s> and <mask>.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from transduce.errors import TransduceError
from transduce.text.vocabulary import CLS, MARKS, MASK, SEP, Vocabulary

__all__ = [
    "CLS",
    "MARKS",
    "MASK",
    "SEP",
    "Marks",
    "encode_with_masks",
    "find_marks",
    "marks_of",
    "ordinary_pieces",
]


class Marks(NamedTuple):
    """The ids of the special tokens."""

    cls: int
    """Begins a text; its hidden state represents the whole text."""
    sep: int
    """Ends a text."""
    mask: int
    """Replaces a hidden token."""

    def frame(self, ids: Sequence[int], length: int) -> list[int]:
        """Return a text's tokens between [CLS] and [SEP], truncated at the end to `length` tokens in total."""
        return [self.cls, *ids[: length - 2], self.sep]


def marks_of(vocabulary: Vocabulary) -> Marks:
    """Return the special tokens of a vocabulary.

    Raises:
        TransduceError: the vocabulary lacks one.
    """
    marks = find_marks(vocabulary)
    if marks is None:
        missing = next(mark for mark in vocabulary.mark_pieces if not vocabulary.has_mark(mark))
        raise TransduceError(
            f"An encoder needs the tokens {', '.join(vocabulary.mark_pieces)}, but this vocabulary has no {missing}: "
            "use one that `transduce train --task masked-language-model` or `--task classification` made, or import "
            "the model again."
        )
    return marks


def find_marks(vocabulary: Vocabulary) -> Marks | None:
    """Return the special tokens of a vocabulary; None if it lacks one."""
    if not all(map(vocabulary.has_mark, vocabulary.mark_pieces)):
        return None
    return Marks(*map(vocabulary.id, vocabulary.mark_pieces))


def encode_with_masks(vocabulary: Vocabulary, text: str) -> list[int]:
    """Return the tokens of a text that contains masks; a mask also replaces the space before it, if there is one.

    Our own vocabularies encode that space as a separate token, which is removed here. Imported vocabularies define
    whether a mask includes the space.
    """
    mask, space = vocabulary.id(vocabulary.mark_pieces[2]), vocabulary.id("▁")
    ids = vocabulary.encode(text)
    if vocabulary.piece(space) != "▁":  # no such token: the id is that of the unknown token
        return ids
    return [id for id, after in zip_longest(ids, ids[1:]) if not (id == space and after == mask)]


def ordinary_pieces(vocabulary: Vocabulary) -> list[int]:
    """Return the ids of all tokens that represent text, excluding special tokens, padding, end and unknown."""
    marks = set(map(vocabulary.id, vocabulary.mark_pieces))
    return [id for id in range(vocabulary.size) if id not in marks and vocabulary.stands_for_text(id)]
