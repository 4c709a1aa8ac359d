"""The batches of a corpus that need most memory, without their content."""

import numpy as np

from transduce.data.batches import Batch, Corpus
from transduce.data.order import Blocks, Indices, Lengths, cut_batches, in_length_order


def largest_batches(
    corpus: Corpus, *, batch_tokens: int, seed: int, max_padded_tokens: int | None = None
) -> list[Batch]:
    """Stand-ins for the batches of a ``BatchPlan`` with these arguments that are largest in either of two ways.

    What a Transformer keeps for its gradients grows with the padded tokens (sub-layers) and with the products of
    lengths (attention). One batch has most of the first, one of the second; often it is the same. Shapes are the same
    in all epochs. Their ids are arbitrary.
    """
    limits = (batch_tokens, max_padded_tokens or 2 * batch_tokens)
    blocks = Blocks(corpus.pairs, seed)
    largest: dict[str, tuple[int, Lengths, Lengths]] = {}
    for number in range(blocks.count):
        source, target = in_length_order(*corpus.read_run_lengths(blocks.runs(number)))
        starts = cut_batches(source, target, *limits)
        for name, sizes in _sizes(source, target, starts).items():
            batch = int(sizes.argmax())
            rows = slice(starts[batch], starts[batch + 1])
            if name not in largest or sizes[batch] > largest[name][0]:
                largest[name] = int(sizes[batch]), source[rows], target[rows]
    found = [_stand_in(corpus, source, target) for _, source, target in largest.values()]
    return found[:1] if _same(*found) else found


def _sizes(source: Lengths, target: Lengths, starts: Indices) -> dict[str, Indices]:
    """For each batch its padded tokens, and its attention scores: of the encoder, the decoder, and between them."""
    rows = np.diff(starts)
    s, t = (np.maximum.reduceat(lengths, starts[:-1]).astype(np.int64) for lengths in (source, target))
    return {"tokens": rows * (s + t), "scores": rows * (s * s + t * t + s * t)}


def _stand_in(corpus: Corpus, source: Lengths, target: Lengths) -> Batch:
    """A batch of sentences of these lengths, of an id that every vocabulary has and that is not padding's."""
    source_ids, target_ids = (
        np.where(np.arange(lengths.max()) < lengths[:, None], other_than(pad), pad).astype(np.int64)
        for lengths, pad in ((source, corpus.source_pad_id), (target, corpus.target_pad_id))
    )
    return Batch(source_ids, target_ids, np.full(len(source), -1), int(source.sum()), int(target.sum()))


def other_than(pad_id: int) -> int:
    """An id that is not padding's, which may be a vocabulary's first one or its last."""
    return int(pad_id == 0)


def _same(one: Batch, other: Batch) -> bool:
    return one.source.shape == other.source.shape and one.target.shape == other.target.shape
