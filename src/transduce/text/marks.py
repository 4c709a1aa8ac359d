"""The marks of encoders that read a text as a whole (Devlin et al. 2019): pieces that stand for no text.

A text is framed as [CLS] text [SEP]; [MASK] stands for a piece that is to be found.
"""

from collections.abc import Sequence
from typing import NamedTuple

from transduce.errors import TransduceError
from transduce.text.vocabulary import Vocabulary

CLS, SEP, MASK = "[CLS]", "[SEP]", "[MASK]"
MARKS = (CLS, SEP, MASK)


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
    ids = [vocabulary.id(mark) for mark in MARKS]
    missing = [mark for mark, id in zip(MARKS, ids, strict=True) if vocabulary.piece(id) != mark]
    if missing:
        raise TransduceError(
            f"An encoder needs the pieces {', '.join(MARKS)}, but this vocabulary has no {missing[0]}: use one that "
            "`transduce train --task masked-language-model` or `--task classification` made."
        )
    return Marks(*ids)


def encode_with_masks(vocabulary: Vocabulary, text: str) -> list[int]:
    """The pieces of a text that has [MASK] in it. A mask stands for a piece with the space before it, if there is one.

    The vocabulary spells that space as a piece of its own, which is left out.
    """
    mask, space = vocabulary.id(MASK), vocabulary.id("▁")
    ids = vocabulary.encode(text)
    if vocabulary.piece(space) != "▁":  # no such piece: the id is the unknown one's
        return ids
    return [id for id, after in zip(ids, [*ids[1:], None], strict=True) if not (id == space and after == mask)]


def ordinary_pieces(vocabulary: Vocabulary) -> list[int]:
    """The ids of all pieces that stand for text: neither marks nor padding, end and unknown."""
    special = {vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id, *(vocabulary.id(mark) for mark in MARKS)}
    return [id for id in range(vocabulary.size) if id not in special]
