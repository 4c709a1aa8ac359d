"""The loss, and whether anything can be learnt by it.

Legend: B batch, S source length, T target length, V vocabulary.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from transduce.inspection.doctor.subject import (
    Check,
    Figure,
    ResidualLayer,
    Subject,
    Tokens,
    change,
    changed,
    padded,
    unchanged,
)
from transduce.model.positions import sinusoids

# --- decoding ---
# Search's view of the model against training's.


def _cache(subject: Subject) -> Figure | None:
    if subject.decode_steps is None:
        return None
    tokens = Tokens(subject)
    source, target = padded(tokens.source(3, 6), subject.pad_id, 2), tokens.target_input(3, 21)
    # Search may forbid the ids that no sentence has.
    columns = [id for id in (subject.pad_id, subject.start_id, *subject.reserved_ids) if id != subject.eos_id]
    at_once = subject.logits(source, target)
    one_by_one = subject.decode_steps(source, target).clone()
    one_by_one[..., columns] = at_once[..., columns]
    return unchanged(subject, change(at_once, one_by_one))


DECODING_CHECKS = (
    Check(
        "cache",
        "21 positions one by one with the cache, and all at once; largest difference of a logit",
        "Search computes what training trained.",
        "Decoding with the cache is another function than the one that was trained. Look at the position of the newest "
        "piece, and at what is appended when.",
        _cache,
    ),
)


# --- dependence ---
# What the logits may depend on, and what they must depend on: found by changing one thing at a time.
# Legend: B batch, S source length, T target length, V vocabulary.


_BATCH, _SOURCE, _TARGET = 3, 7, 9  # the target is longer, so that a memory added by position would be missed


def _probe(subject: Subject) -> tuple[Tokens, Tensor, Tensor]:
    tokens = Tokens(subject)
    return tokens, tokens.source(_BATCH, _SOURCE), tokens.target_input(_BATCH, _TARGET)


def _repeatability(subject: Subject) -> Figure:
    _, source, target = _probe(subject)
    return unchanged(subject, change(subject.logits(source, target), subject.logits(source, target)))


def _future(subject: Subject) -> Figure:
    tokens, source, target = _probe(subject)
    before = subject.logits(source, target)
    worst = 0.0
    for place in range(1, _TARGET):
        other = target.clone()
        other[:, place:] = tokens.other_target(target[:, place:])
        worst = max(worst, change(before[:, :place], subject.logits(source, other)[:, :place]))
    return unchanged(subject, worst)


def _past(subject: Subject) -> Figure | None:
    if not subject.everything_counts:
        return None
    tokens, source, target = _probe(subject)
    before = subject.logits(source, target)
    least = float("inf")
    for place in range(1, _TARGET - 1):
        other = target.clone()
        other[:, place] = tokens.other_target(target)[:, place]
        after = subject.logits(source, other)
        at_once = change(before[:, place : place + 1], after[:, place : place + 1])
        least = min(least, at_once, change(before[:, place + 1 :], after[:, place + 1 :]))
    return changed(subject, least)


def _source(subject: Subject) -> Figure | None:
    if not subject.everything_counts:
        return None
    tokens, source, target = _probe(subject)
    before = subject.logits(source, target)
    least = float("inf")
    for place in range(_SOURCE - 1):
        other = source.clone()
        other[:, place] = tokens.other_source(source)[:, place]
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
    tokens, source, target = _probe(subject)
    worst = 0.0
    for row in range(_BATCH):
        alone = subject.logits(source[row : row + 1], target[row : row + 1])
        mates = tokens.source(_BATCH, _SOURCE + 2), tokens.target_input(_BATCH, _TARGET + 3)
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
    tokens, source, target = _probe(subject)
    same = tokens.other_target(target)[:, 1:2].expand(-1, _TARGET)
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


DEPENDENCE_CHECKS = (
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


# --- structure ---
# How the layers are wired, where the subject shows them; and the table of positions.
# Legend: B batch, T length, D model width.


_POSITIONS = 50
_MOST = 1e-3


def _residual(subject: Subject) -> Figure | None:
    if not subject.layers:
        return None
    parameter = next(subject.module.parameters())
    worst = max(_departure(layer, parameter) for layer in subject.layers)
    return Figure(worst, f"at most {_MOST:g}", worst <= _MOST)


def _departure(layer: ResidualLayer, like: Tensor) -> float:
    """How far a layer with silenced sub-layers is from what its order of norms makes of it.

    Pre-norm lets its input through as it is. Post-norm normalises: twice the input gives the same, and another input
    does not.
    """
    generator = torch.Generator().manual_seed(1)
    x, other = (3.0 * torch.randn(2, 5, layer.d_model, generator=generator).to(like) + 1.0 for _ in range(2))
    with _silenced(layer.sublayers):
        once = layer.run(x)
        if layer.norm_order == "pre":
            return float((once - x).abs().max())
        if torch.allclose(once, layer.run(other)):
            return float("inf")
        return float((layer.run(2.0 * x) - once).abs().max())


@contextmanager
def _silenced(modules: tuple[nn.Module, ...]) -> Iterator[None]:
    """For a while these modules answer with zeros."""
    handles = [module.register_forward_hook(_zeros) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _zeros(module: nn.Module, inputs: Any, output: Any) -> Any:  # noqa: ARG001
    if isinstance(output, Tensor):
        return torch.zeros_like(output)
    return tuple(_zeros(module, (), part) for part in output) if isinstance(output, tuple) else output


def _sinusoids(subject: Subject) -> Figure | None:
    """Each of the paper's columns must be one of the table's; in which order is nothing to the model."""
    if subject.position_table is None:
        return None
    table = subject.position_table(_POSITIONS).double().cpu()
    wanted = sinusoids(_POSITIONS, table.shape[1]).double()
    distances = torch.cdist(wanted.t(), table.t(), p=float("inf"))  # (D, D)
    worst = float(torch.maximum(distances.min(dim=0).values, distances.min(dim=1).values).max())
    return Figure(worst, f"at most {_MOST:g}", worst <= _MOST)


STRUCTURE_CHECKS = (
    Check(
        "residual",
        "each layer with its sub-layers silenced; largest departure from its input (post-norm: from its normed input)",
        "Every sub-layer adds to the stream, and the norms stand where they should.",
        "The stream does not pass beside the sub-layers: a residual connection is missing, or a norm stands on it.",
        _residual,
    ),
    Check(
        "sinusoids",
        "the table of positions against the paper's, column by column; largest difference",
        "The frequencies are those of section 3.5.",
        "The sinusoids are not the paper's: the exponent is 2i / d_model for the pair (2i, 2i + 1), so i counts pairs. "
        "A well-known tutorial lets it count dimensions.",
        _sinusoids,
    ),
)


# --- checks ---


_MOST_STEPS = 200
_WARMUP_STEPS = 10
_LEARNT = 0.1  # of ln V
_NEAR_NATS = 1.5


def defined_loss(subject: Subject, source: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy per target token in nats, by its definition and in float64.

    The decoder is fed the target shifted right by the start symbol; padding does not count. With smoothing, the label
    has 1 - ε and every piece, the label too, ε / V (section 5.4).

    Args:
        subject: the model.
        source: source ids, (B, S).
        target: target ids with the end symbol, (B, T).
        label_smoothing: ε.
    """
    start = torch.full_like(target[:, :1], subject.start_id)
    logits = subject.logits(source, torch.cat([start, target[:, :-1]], dim=1))
    log_probability = logits.double().log_softmax(dim=-1)  # (B, T, V)
    at_label = log_probability.gather(-1, target[..., None])[..., 0]  # (B, T)
    losses = -(1.0 - label_smoothing) * at_label - label_smoothing * log_probability.mean(dim=-1)
    present = target != subject.pad_id
    return losses[present].mean()


def _batch(subject: Subject) -> tuple[Tensor, Tensor]:
    """Four pairs of two lengths, so that there is padding."""
    tokens = Tokens(subject)
    sources = [padded(tokens.source(2, 4), subject.pad_id, 2), tokens.source(2, 6)]
    targets = [tokens.target(2, 7), padded(tokens.target(2, 5), subject.pad_id, 2)]
    return torch.cat(sources), torch.cat(targets)


def _loss(subject: Subject) -> Figure | None:
    if subject.loss is None:
        return None
    source, target = _batch(subject)
    wanted = float(defined_loss(subject, source, target, subject.label_smoothing))
    difference = abs(float(subject.loss(source, target)) - wanted) / max(1.0, abs(wanted))
    if math.isnan(difference):
        difference = float("inf")
    return Figure(difference, f"at most {subject.tolerance:g}", difference <= subject.tolerance)


def _first_loss(subject: Subject) -> Figure | None:
    if subject.fresh is None:
        return None
    fresh = subject.fresh()
    fresh.module.eval()
    nats = float(defined_loss(fresh, *_batch(fresh)))
    blind = math.log(subject.target_vocabulary_size)
    return Figure(nats, f"ln V = {blind:.2f}, {_NEAR_NATS:g} more or less", abs(nats - blind) <= _NEAR_NATS)


def _gradient(subject: Subject) -> Figure | None:
    if subject.fresh is None:
        return None
    fresh = subject.fresh()
    fresh.module.eval()
    with torch.enable_grad():
        defined_loss(fresh, *_batch(fresh)).backward()
    # A vector may have no gradient: the bias of keys shifts all scores of a query alike.
    unreached = [p for p in fresh.module.parameters() if p.requires_grad and not _reached(p)]
    return Figure(float(len(unreached)), "none", not unreached)


def _reached(parameter: Tensor) -> bool:
    gradient = parameter.grad
    if gradient is None or not bool(torch.isfinite(gradient).all()):
        return False
    return parameter.dim() < 2 or bool(gradient.any())


def _overfit(subject: Subject) -> Figure | None:
    """Without dropout: the model stays in evaluation mode."""
    if subject.fresh is None:
        return None
    fresh = subject.fresh()
    fresh.module.eval()
    source, target = _batch(fresh)
    goal = _LEARNT * math.log(subject.target_vocabulary_size)
    optimizer = torch.optim.Adam(fresh.module.parameters(), lr=fresh.learning_rate, betas=(0.9, 0.98), eps=1e-9)
    nats = float("inf")
    with torch.enable_grad():
        for step in range(1, _MOST_STEPS + 1):
            loss = defined_loss(fresh, source, target)
            nats = float(loss.detach())
            if nats <= goal or not math.isfinite(nats):
                break
            for group in optimizer.param_groups:
                group["lr"] = fresh.learning_rate * min(1.0, step / _WARMUP_STEPS)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(fresh.module.parameters(), 1.0)
            optimizer.step()
    return Figure(nats, f"at most {goal:.2f}, a tenth of ln V", nats <= goal)


LEARNING_CHECKS = (
    Check(
        "loss",
        "the training loss against its definition in float64; relative difference",
        "Shift, padding and smoothing of the loss are right.",
        "The loss is not the cross-entropy of the next piece. Look at the shift between input and labels, at padding "
        "in the mean, and at how the smoothing is spread.",
        _loss,
    ),
    Check(
        "first loss",
        "the loss of the newly initialised model, nats a piece",
        "An untrained model guesses evenly.",
        "An untrained model is not near guessing: its logits begin too large or uneven. Look at the initialisation "
        "of the embeddings, which are multiplied by √d_model, and of the output.",
        _first_loss,
    ),
    Check(
        "gradient",
        "one backward pass; weights without a (finite) gradient",
        "The gradient reaches every weight.",
        "Some weights cannot learn: they are cut off from the loss, or their gradient is not finite.",
        _gradient,
    ),
    Check(
        "overfit",
        f"a new model on one batch of four pairs, {_MOST_STEPS} steps at most; the loss, nats a piece",
        "The model can learn.",
        "The model cannot even learn four pairs by heart: somewhere the gradient or the signal is lost.",
        _overfit,
    ),
)
