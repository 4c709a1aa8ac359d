"""Report likely mistakes in a run's text: overlap of training and dev set, and an unsuitable vocabulary."""

import numpy as np

from transduce.data.holdout import source_keys
from transduce.text.corpus import CorpusFiles, PairReader, read_pairs
from transduce.text.tokenizer import Tokenizer
from transduce.text.vocabulary import ids_without_text

_MANY_ODD_TOKENS = 0.2  # share of a side's tokens that are bytes or unknown


def overlap_notice(training: CorpusFiles, dev: CorpusFiles) -> str | None:
    """Return a notice about dev sources that also occur in the training text; None if there are none.

    Case, spaces and punctuation are ignored.

    Raises:
        TransduceError: a file is missing or invalid.
    """
    pairs = [pair for pair in read_pairs(dev) if pair.source.strip()]
    keys = source_keys([pair.source for pair in pairs])
    in_training = np.zeros(len(keys), bool)
    for block in PairReader(training):
        in_training |= np.isin(keys, source_keys(block.sources))
    if not in_training.any():
        return None
    first = pairs[int(in_training.argmax())]
    return (
        f"Of the dev set's {len(keys):,} sources, {in_training.sum():,} also occur in the training text (first: "
        f"{first.path}:{first.line}): leave them out of one of the two, or the dev scores will be too high."
    )


def vocabulary_notices(tokenizer: Tokenizer, files: CorpusFiles, model: str, *, both: bool) -> list[str]:
    """Return a notice for each side whose first lines the vocabulary hardly covers; only the source unless `both`.

    Raises:
        TransduceError: a file is missing or invalid.
    """
    block = next(iter(PairReader(files)))
    notices = []
    sides = ((tokenizer.source, block.sources, "source"), (tokenizer.target, block.targets, "target"))
    for vocabulary, lines, side in sides[: 2 if both and not files.is_text_alone else 1]:
        odd, ids = ids_without_text(vocabulary), [id for line in vocabulary.encode_batch(lines) for id in line]
        share = sum(id in odd for id in ids) / max(1, len(ids))
        if share > _MANY_ODD_TOKENS:
            notices.append(
                f"{share:.0%} of the {side}'s tokens are bytes or unknown, because the vocabulary of {model} lacks "
                "their characters: start from a model of this script, or without --from."
            )
    return notices
