"""What is said of a run's text beside what is left out of it: nothing of it is refused, and much of it is a mistake."""

import numpy as np

from transduce.data.holdout import source_keys
from transduce.text.corpus import CorpusFiles, PairReader, read_pairs
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import ids_without_text

_MANY_PIECES = 0.2  # of a side's that spell bytes or are unknown


def overlap_notice(training: CorpusFiles, dev: CorpusFiles) -> str | None:
    """A line about a dev set's sources that stand in the training text too, case, spaces and punctuation aside; None
    where there are none.

    Raises:
        TransduceError: a file is missing, or not what it should be.
    """
    pairs = [pair for pair in read_pairs(dev) if pair.source.strip()]
    keys = source_keys([pair.source for pair in pairs])
    known = np.zeros(len(keys), bool)
    for block in PairReader(training):
        known |= np.isin(keys, source_keys(block.sources))
    if not known.any():
        return None
    first = pairs[int(known.argmax())]
    return (
        f"Of the dev set's {len(keys):,} sources, {known.sum():,} stand in the training text too (first: {first.path}:"
        f"{first.line}): leave them out of one of the two, or its scores say too much."
    )


def vocabulary_notices(tokenizer: Tokenizer, files: CorpusFiles, model: str, *, both: bool) -> list[str]:
    """A line for each side, or for the source, that a model's vocabulary has hardly any pieces for, by the first lines.

    Raises:
        TransduceError: a file is missing, or not what it should be.
    """
    block = next(iter(PairReader(files)))
    notices = []
    sides = ((tokenizer.source, block.sources, "source"), (tokenizer.target, block.targets, "target"))
    for vocabulary, lines, side in sides[: 2 if both and not files.is_text_alone else 1]:
        odd, ids = ids_without_text(vocabulary), [id for line in vocabulary.encode_batch(lines) for id in line]
        share = sum(id in odd for id in ids) / max(1, len(ids))
        if share > _MANY_PIECES:
            notices.append(
                f"{share:.0%} of the {side}'s pieces spell characters in bytes or are unknown, for the vocabulary of "
                f"{model} has none for them: begin with a model of this script, or without --from."
            )
    return notices
