"""The marks of encoders that read a text as a whole (Devlin et al. 2019): pieces that stand for no text.

A text is framed as [CLS] text [SEP]; [MASK] stands for a piece that is to be found. Vocabularies that were imported may
spell them otherwise: RoBERTa's are <s>, </s> and <mask>.
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
    """The ids of the marks."""

    cls: int
    """Begins a text; its state stands for the whole of it."""
    sep: int
    """Ends a text."""
    mask: int
    """Stands for a hidden piece."""

    def frame(self, ids: Sequence[int], length: int) -> list[int]:
        """A text's pieces between their marks, `length` of them at most: the end of a longer one is left out."""
        return [self.cls, *ids[: length - 2], self.sep]


def marks_of(vocabulary: Vocabulary) -> Marks:
    """Where a vocabulary has the marks.

    Raises:
        TransduceError: it has none.
    """
    marks = find_marks(vocabulary)
    if marks is None:
        missing = next(mark for mark in vocabulary.mark_pieces if not vocabulary.has_mark(mark))
        raise TransduceError(
            f"An encoder needs the pieces {', '.join(vocabulary.mark_pieces)}, but this vocabulary has no {missing}: "
            "use one that `transduce train --task masked-language-model` or `--task classification` made, or import "
            "the model anew."
        )
    return marks


def find_marks(vocabulary: Vocabulary) -> Marks | None:
    """The same, or None where one is missing."""
    if not all(map(vocabulary.has_mark, vocabulary.mark_pieces)):
        return None
    return Marks(*map(vocabulary.id, vocabulary.mark_pieces))


def encode_with_masks(vocabulary: Vocabulary, text: str) -> list[int]:
    """The pieces of a text that has masks in it. A mask stands for a piece with the space before it, if there is one.

    Our own vocabularies spell that space as a piece of its own, which is left out. Imported ones say themselves whether
    a mask takes it.
    """
    mask, space = vocabulary.id(vocabulary.mark_pieces[2]), vocabulary.id("▁")
    ids = vocabulary.encode(text)
    if vocabulary.piece(space) != "▁":  # no such piece: the id is the unknown one's
        return ids
    return [id for id, after in zip_longest(ids, ids[1:]) if not (id == space and after == mask)]


def ordinary_pieces(vocabulary: Vocabulary) -> list[int]:
    """The ids of all pieces that stand for text: neither marks nor padding, end and unknown."""
    marks = set(map(vocabulary.id, vocabulary.mark_pieces))
    return [id for id in range(vocabulary.size) if id not in marks and vocabulary.stands_for_text(id)]
