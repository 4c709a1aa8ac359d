"""What the logits may depend on, and what they must depend on: found by changing one thing at a time.

Legend: B batch, S source length, T target length, V vocabulary.
"""

import torch
from torch import Tensor

from transduce.inspection.doctor.probe import Check, Figure, Pieces, change, changed, padded, unchanged
from transduce.inspection.doctor.subject import Subject

_BATCH, _SOURCE, _TARGET = 3, 7, 9  # the target is longer, so that a memory added by position would be missed


def _probe(subject: Subject) -> tuple[Pieces, Tensor, Tensor]:
    pieces = Pieces(subject)
    return pieces, pieces.source(_BATCH, _SOURCE), pieces.target_input(_BATCH, _TARGET)


def _repeatability(subject: Subject) -> Figure:
    _, source, target = _probe(subject)
    return unchanged(subject, change(subject.logits(source, target), subject.logits(source, target)))


def _future(subject: Subject) -> Figure:
    pieces, source, target = _probe(subject)
    before = subject.logits(source, target)
    worst = 0.0
    for place in range(1, _TARGET):
        other = target.clone()
        other[:, place:] = pieces.other_target(target[:, place:])
        worst = max(worst, change(before[:, :place], subject.logits(source, other)[:, :place]))
    return unchanged(subject, worst)


def _past(subject: Subject) -> Figure | None:
    if not subject.everything_counts:
        return None
    pieces, source, target = _probe(subject)
    before = subject.logits(source, target)
    least = float("inf")
    for place in range(1, _TARGET - 1):
        other = target.clone()
        other[:, place] = pieces.other_target(target)[:, place]
        after = subject.logits(source, other)
        at_once = change(before[:, place : place + 1], after[:, place : place + 1])
        least = min(least, at_once, change(before[:, place + 1 :], after[:, place + 1 :]))
    return changed(subject, least)


def _source(subject: Subject) -> Figure | None:
    if not subject.everything_counts:
        return None
    pieces, source, target = _probe(subject)
    before = subject.logits(source, target)
    least = float("inf")
    for place in range(_SOURCE - 1):
        other = source.clone()
        other[:, place] = pieces.other_source(source)[:, place]
        least = min(least, change(before, subject.logits(other, target)))
    return changed(subject, least)


def _source_padding(subject: Subject) -> Figure:
    _, source, target = _probe(subject)
    before = subject.logits(source, target)
    longer = [padded(source, subject.pad_id, columns) for columns in (1, 4)]
    return unchanged(subject, max(change(before, subject.logits(more, target)) for more in longer))


def _target_padding(subject: Subject) -> Figure:
    _, source, target = _probe(subject)
    before = subject.logits(source, target)
    after = subject.logits(source, padded(target, subject.pad_id, 4))
    return unchanged(subject, change(before, after[:, :_TARGET]))


def _batch_mates(subject: Subject) -> Figure:
    """Each sentence by itself, and as the first of a batch with longer ones."""
    pieces, source, target = _probe(subject)
    worst = 0.0
    for row in range(_BATCH):
        alone = subject.logits(source[row : row + 1], target[row : row + 1])
        mates = pieces.source(_BATCH, _SOURCE + 2), pieces.target_input(_BATCH, _TARGET + 3)
        first = padded(source[row : row + 1], subject.pad_id, 2), padded(target[row : row + 1], subject.pad_id, 3)
        together = subject.logits(torch.cat([first[0], mates[0]]), torch.cat([first[1], mates[1]]))
        worst = max(worst, change(alone, together[:1, :_TARGET]))
    return unchanged(subject, worst)


def _source_positions(subject: Subject) -> Figure | None:
    if not subject.uses_positions:
        return None
    _, source, target = _probe(subject)
    reversed_source = torch.cat([source[:, :-1].flip(1), source[:, -1:]], dim=1)
    return changed(subject, change(subject.logits(source, target), subject.logits(reversed_source, target)))


def _target_positions(subject: Subject) -> Figure | None:
    """One piece over and over: without positions the decoder's outputs would be the same everywhere."""
    if not subject.uses_positions or subject.positions_are_relative:
        return None
    pieces, source, target = _probe(subject)
    same = pieces.other_target(target)[:, 1:2].expand(-1, _TARGET)
    logits = subject.logits(source, same)
    return changed(subject, min(change(logits[:, place], logits[:, place + 1]) for place in range(_TARGET - 1)))


def _memory_order(subject: Subject) -> Figure | None:
    """Attention sums over the memory, so its order is nothing to the decoder."""
    if subject.split is None:
        return None
    _, source, target = _probe(subject)
    source[0, -3:] = subject.pad_id
    memory, present = subject.split.encode(source), source != subject.pad_id
    order = torch.randperm(_SOURCE, generator=torch.Generator().manual_seed(1)).to(source.device)
    before = subject.split.decode(target, memory, present)
    after = subject.split.decode(target, memory[:, order], present[:, order])
    return unchanged(subject, change(before, after))


def _all_padding(subject: Subject) -> Figure:
    """A source of padding alone beside ordinary ones; it is the largest logit that must be finite."""
    _, source, target = _probe(subject)
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
        _repeatability,
    ),
    Check(
        "future",
        "later target pieces replaced; largest change of earlier logits",
        "No position sees what it is to predict.",
        "The decoder sees the future: its loss will look splendid and its translations will be noise. Look at the "
        "look-ahead mask, and whether True means what the attention thinks it means.",
        _future,
    ),
    Check(
        "past",
        "each target piece replaced; least change of the logits there and after it",
        "Every earlier piece counts.",
        "The decoder does not see (all of) what it has written. Look at the look-ahead mask's diagonal and at the "
        "decoder's self-attention.",
        _past,
    ),
    Check(
        "source",
        "each source piece replaced; least change of the logits",
        "Every source piece counts.",
        "The decoder does not see (all of) the source. Look at the attention to the memory and its mask.",
        _source,
    ),
    Check(
        "source padding",
        "padding added to the source; largest change of a logit",
        "Source padding changes nothing.",
        "Padding is attended to. The mask must hide keys: its padding belongs to the last axis.",
        _source_padding,
    ),
    Check(
        "target padding",
        "padding added to the target; largest change of a real position's logits",
        "Target padding changes nothing.",
        "Padding behind a sentence changes its logits.",
        _target_padding,
    ),
    Check(
        "batch-mates",
        "a sentence alone and beside longer ones; largest change of its logits",
        "What stands beside a sentence in a batch changes nothing.",
        "A sentence's logits depend on the sentences beside it. Look for a norm or a softmax over the wrong axis, and "
        "for masks that are shared by the batch.",
        _batch_mates,
    ),
    Check(
        "source positions",
        "the source reversed; change of the logits",
        "The encoder sees the order of the source.",
        "The source is a bag of pieces to the model: positions are not added, or are lost.",
        _source_positions,
    ),
    Check(
        "target positions",
        "one target piece over and over; least change from a position to the next",
        "The decoder sees its positions.",
        "The decoder cannot tell its positions apart: they are not added, or are lost.",
        _target_positions,
    ),
    Check(
        "memory order",
        "the memory shuffled with its mask; largest change of a logit",
        "The memory reaches the decoder through attention alone.",
        "The decoder uses the memory by its place: it is added to something, or its mask lies on another axis.",
        _memory_order,
    ),
    Check(
        "all padding",
        "a source of nothing but padding; largest logit",
        "An empty row stays finite, and so does the batch that it stands in.",
        "A row without anything to attend to becomes NaN, and with it the gradient of the whole batch. Masked scores "
        "must be a large finite number, not minus infinity.",
        _all_padding,
    ),
)
