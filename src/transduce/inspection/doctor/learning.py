"""The loss, and whether anything can be learnt by it.

Legend: B batch, S source length, T target length, V vocabulary.
"""

import math

import torch
from torch import Tensor

from transduce.inspection.doctor.probe import Check, Figure, Pieces, padded
from transduce.inspection.doctor.subject import Subject

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
    pieces = Pieces(subject)
    sources = [padded(pieces.source(2, 4), subject.pad_id, 2), pieces.source(2, 6)]
    targets = [pieces.target(2, 7), padded(pieces.target(2, 5), subject.pad_id, 2)]
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


CHECKS = (
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
