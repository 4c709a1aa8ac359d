"""Check what the logits depend on and what they must not depend on, by changing one input at a time.

Shapes: B batch, S source length, T target length, V vocabulary.
"""

import torch
from torch import Tensor

from transduce.inspection.doctor.probe import Check, Figure, Pieces, change, changed, padded, unchanged
from transduce.inspection.doctor.subject import Subject

_BATCH, _SOURCE, _TARGET = 3, 7, 9  # different lengths: a model that adds the memory to the target by position fails


def _random_batch(subject: Subject) -> tuple[Pieces, Tensor, Tensor]:
    """Return the generator of random tokens, and a batch of source and target input ids."""
    samples = Pieces(subject)
    return samples, samples.source(_BATCH, _SOURCE), samples.target_input(_BATCH, _TARGET)


def _check_repeatability(subject: Subject) -> Figure:
    _, source, target = _random_batch(subject)
    return unchanged(subject, change(subject.logits(source, target), subject.logits(source, target)))


def _check_future(subject: Subject) -> Figure:
    samples, source, target = _random_batch(subject)
    before = subject.logits(source, target)
    worst = 0.0
    for position in range(1, _TARGET):
        changed_target = target.clone()
        changed_target[:, position:] = samples.other_target(target[:, position:])
        worst = max(worst, change(before[:, :position], subject.logits(source, changed_target)[:, :position]))
    return unchanged(subject, worst)


def _check_past(subject: Subject) -> Figure | None:
    if not subject.everything_counts:
        return None
    samples, source, target = _random_batch(subject)
    before = subject.logits(source, target)
    smallest = float("inf")
    for position in range(1, _TARGET - 1):
        changed_target = target.clone()
        changed_target[:, position] = samples.other_target(target)[:, position]
        after = subject.logits(source, changed_target)
        change_here = change(before[:, position : position + 1], after[:, position : position + 1])
        smallest = min(smallest, change_here, change(before[:, position + 1 :], after[:, position + 1 :]))
    return changed(subject, smallest)


def _check_source(subject: Subject) -> Figure | None:
    if not subject.everything_counts:
        return None
    samples, source, target = _random_batch(subject)
    before = subject.logits(source, target)
    smallest = float("inf")
    for position in range(_SOURCE - 1):
        changed_source = source.clone()
        changed_source[:, position] = samples.other_source(source)[:, position]
        smallest = min(smallest, change(before, subject.logits(changed_source, target)))
    return changed(subject, smallest)


def _check_source_padding(subject: Subject) -> Figure:
    _, source, target = _random_batch(subject)
    before = subject.logits(source, target)
    padded_sources = [padded(source, subject.pad_id, columns) for columns in (1, 4)]
    return unchanged(
        subject, max(change(before, subject.logits(padded_source, target)) for padded_source in padded_sources)
    )


def _check_target_padding(subject: Subject) -> Figure:
    _, source, target = _random_batch(subject)
    before = subject.logits(source, target)
    after = subject.logits(source, padded(target, subject.pad_id, 4))
    return unchanged(subject, change(before, after[:, :_TARGET]))


def _check_batch_mates(subject: Subject) -> Figure:
    """Compare each sentence's logits alone with those as the first of a batch with longer sentences."""
    samples, source, target = _random_batch(subject)
    worst = 0.0
    for row in range(_BATCH):
        alone = subject.logits(source[row : row + 1], target[row : row + 1])
        longer = samples.source(_BATCH, _SOURCE + 2), samples.target_input(_BATCH, _TARGET + 3)
        first = padded(source[row : row + 1], subject.pad_id, 2), padded(target[row : row + 1], subject.pad_id, 3)
        batched = subject.logits(torch.cat([first[0], longer[0]]), torch.cat([first[1], longer[1]]))
        worst = max(worst, change(alone, batched[:1, :_TARGET]))
    return unchanged(subject, worst)


def _check_source_positions(subject: Subject) -> Figure | None:
    if not subject.uses_positions:
        return None
    _, source, target = _random_batch(subject)
    reversed_source = torch.cat([source[:, :-1].flip(1), source[:, -1:]], dim=1)
    return changed(subject, change(subject.logits(source, target), subject.logits(reversed_source, target)))


def _check_target_positions(subject: Subject) -> Figure | None:
    """Feed one repeated token: without positions, the decoder's outputs would be equal at all positions."""
    if not subject.uses_positions or subject.positions_are_relative:
        return None
    samples, source, target = _random_batch(subject)
    repeated = samples.other_target(target)[:, 1:2].expand(-1, _TARGET)
    logits = subject.logits(source, repeated)
    return changed(
        subject, min(change(logits[:, position], logits[:, position + 1]) for position in range(_TARGET - 1))
    )


def _check_memory_order(subject: Subject) -> Figure | None:
    """Permute the memory with its mask, which must not change the logits because attention sums over it."""
    if subject.split is None:
        return None
    _, source, target = _random_batch(subject)
    source[0, -3:] = subject.pad_id
    memory, present = subject.split.encode(source), source != subject.pad_id
    order = torch.randperm(_SOURCE, generator=torch.Generator().manual_seed(1)).to(source.device)
    before = subject.split.decode(target, memory, present)
    after = subject.split.decode(target, memory[:, order], present[:, order])
    return unchanged(subject, change(before, after))


def _check_all_padding(subject: Subject) -> Figure:
    """Check that the largest logit is finite when one source of the batch consists of padding only."""
    _, source, target = _random_batch(subject)
    source[0] = subject.pad_id
    logits = subject.logits(source, target)
    largest = float(logits.abs().max())
    finite = bool(torch.isfinite(logits).all())
    return Figure(largest if finite else float("nan"), "finite", finite)


CHECKS = (
    Check(
        "repeatability",
        "the same batch twice; largest change of a logit",
        "Evaluation mode is deterministic.",
        "Something random runs in evaluation mode, most likely dropout that ignores `eval()`.",
        _check_repeatability,
    ),
    Check(
        "future",
        "later target tokens replaced; largest change of earlier logits",
        "No position sees the token that it predicts.",
        "The decoder sees the future: its loss will be very low and its translations will be noise. Check the "
        "look-ahead mask, and whether the attention reads True in it as intended.",
        _check_future,
    ),
    Check(
        "past",
        "each target token replaced; least change of the logits there and after it",
        "Every earlier token has an effect.",
        "The decoder does not see (all of) its earlier tokens. Check the look-ahead mask's diagonal and the decoder's "
        "self-attention.",
        _check_past,
    ),
    Check(
        "source",
        "each source token replaced; least change of the logits",
        "Every source token has an effect.",
        "The decoder does not see (all of) the source. Check the cross-attention and its mask.",
        _check_source,
    ),
    Check(
        "source padding",
        "padding added to the source; largest change of a logit",
        "Source padding changes nothing.",
        "Padding is attended to. The mask must hide keys: it belongs on the last axis of the scores.",
        _check_source_padding,
    ),
    Check(
        "target padding",
        "padding added to the target; largest change of a real position's logits",
        "Target padding changes nothing.",
        "Padding after a sentence changes its logits.",
        _check_target_padding,
    ),
    Check(
        "batch-mates",
        "a sentence alone and in a batch with longer ones; largest change of its logits",
        "The other sentences of a batch change nothing.",
        "A sentence's logits depend on the other sentences of its batch. Look for a norm or a softmax over the wrong "
        "axis, and for masks that the batch shares.",
        _check_batch_mates,
    ),
    Check(
        "source positions",
        "the source reversed; change of the logits",
        "The encoder sees the order of the source.",
        "The model sees the source as a bag of tokens: positions are not added, or are lost.",
        _check_source_positions,
    ),
    Check(
        "target positions",
        "one target token repeated; least change from a position to the next",
        "The decoder sees its positions.",
        "The decoder cannot distinguish positions: they are not added, or are lost.",
        _check_target_positions,
    ),
    Check(
        "memory order",
        "the memory shuffled with its mask; largest change of a logit",
        "The memory reaches the decoder through attention only.",
        "The decoder depends on the memory's order: the memory is added to something, or its mask is on a wrong axis.",
        _check_memory_order,
    ),
    Check(
        "all padding",
        "a source of padding only; largest logit",
        "A row without keys stays finite, and so does its batch.",
        "A row with nothing to attend to becomes NaN, and so does the gradient of the whole batch. Masked scores must "
        "be a large negative finite number, not minus infinity.",
        _check_all_padding,
    ),
)
