"""Stand-ins for the batches of a corpus that need most memory, without their content."""

import numpy as np

from transduce.data.batches import Batch, Corpus
from transduce.data.order import Blocks, Indices, Lengths, cut_batches, in_length_order


def largest_batches(
    corpus: Corpus, *, batch_tokens: int, seed: int, max_padded_tokens: int | None = None
) -> list[Batch]:
    """Return stand-ins for the largest batches of a ``BatchPlan`` with these arguments, by two measures of size.

    The activations that a Transformer keeps for its gradients grow with the padded tokens (sub-layers) and with the
    products of lengths (attention). One batch is largest by the first measure and one by the second; often they are
    the same. Shapes are equal in all epochs. The ids are arbitrary.
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
    batches = [_stand_in(corpus, source, target) for _, source, target in largest.values()]
    return batches[:1] if _same(*batches) else batches


def _sizes(source: Lengths, target: Lengths, starts: Indices) -> dict[str, Indices]:
    """Return each batch's padded tokens and its number of attention scores in encoder, decoder and cross-attention."""
    rows = np.diff(starts)
    s, t = (np.maximum.reduceat(lengths, starts[:-1]).astype(np.int64) for lengths in (source, target))
    return {"tokens": rows * (s + t), "scores": rows * (s * s + t * t + s * t)}


def _stand_in(corpus: Corpus, source: Lengths, target: Lengths) -> Batch:
    """Return a batch of sentences of these lengths, filled with an id other than padding."""
    source_ids, target_ids = (
        np.where(np.arange(lengths.max()) < lengths[:, None], other_than(pad), pad).astype(np.int64)
        for lengths, pad in ((source, corpus.source_pad_id), (target, corpus.target_pad_id))
    )
    return Batch(source_ids, target_ids, np.full(len(source), -1), int(source.sum()), int(target.sum()))


def other_than(pad_id: int) -> int:
    """Return an id of every vocabulary other than the padding id, which may be the first or the last one."""
    return int(pad_id == 0)


def _same(one: Batch, other: Batch) -> bool:
    return one.source.shape == other.source.shape and one.target.shape == other.target.shape
