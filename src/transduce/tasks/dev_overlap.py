"""How much of a dev set stands in the text that is learnt from."""

import numpy as np

from transduce.data.holdout import source_keys
from transduce.text.corpus import CorpusFiles, PairReader, read_pairs


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
