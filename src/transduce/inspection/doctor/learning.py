"""Check the training loss, and that a model can learn with it.

Shapes: B batch, S source length, T target length, V vocabulary.
"""

import math

import torch
from torch import Tensor

from transduce.inspection.doctor.probe import Check, Figure, Pieces, padded
from transduce.inspection.doctor.subject import Subject

_MAX_STEPS = 200
_WARMUP_STEPS = 10
_GOAL_SHARE = 0.1  # of ln V, the loss of a uniform guess
_INITIAL_TOLERANCE_NATS = 1.5


def defined_loss(subject: Subject, source: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean cross-entropy per target token in nats, computed from its definition in float64.

    The decoder's input is the target shifted right by the start symbol; padding does not count. With label smoothing,
    the
    target distribution is 1 - ε on the label plus ε / V on every token, the label included (section 5.4).

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
    """Return four sentence pairs of two different lengths, so that the batch contains padding."""
    samples = Pieces(subject)
    sources = [padded(samples.source(2, 4), subject.pad_id, 2), samples.source(2, 6)]
    targets = [samples.target(2, 7), padded(samples.target(2, 5), subject.pad_id, 2)]
    return torch.cat(sources), torch.cat(targets)


def _check_loss(subject: Subject) -> Figure | None:
    if subject.loss is None:
        return None
    source, target = _batch(subject)
    expected = float(defined_loss(subject, source, target, subject.label_smoothing))
    difference = abs(float(subject.loss(source, target)) - expected) / max(1.0, abs(expected))
    if math.isnan(difference):
        difference = float("inf")
    return Figure(difference, f"at most {subject.tolerance:g}", difference <= subject.tolerance)


def _check_first_loss(subject: Subject) -> Figure | None:
    if subject.fresh is None:
        return None
    fresh = subject.fresh()
    fresh.module.eval()
    nats = float(defined_loss(fresh, *_batch(fresh)))
    uniform_nats = math.log(subject.target_vocabulary_size)
    bar = f"ln V = {uniform_nats:.2f} ± {_INITIAL_TOLERANCE_NATS:g}"
    return Figure(nats, bar, abs(nats - uniform_nats) <= _INITIAL_TOLERANCE_NATS)


def _check_gradient(subject: Subject) -> Figure | None:
    if subject.fresh is None:
        return None
    fresh = subject.fresh()
    fresh.module.eval()
    with torch.enable_grad():
        defined_loss(fresh, *_batch(fresh)).backward()
    # Vectors may have a zero gradient: a bias of the keys shifts all scores of a query equally.
    without_gradient = [p for p in fresh.module.parameters() if p.requires_grad and not _has_gradient(p)]
    return Figure(float(len(without_gradient)), "none", not without_gradient)


def _has_gradient(parameter: Tensor) -> bool:
    gradient = parameter.grad
    if gradient is None or not bool(torch.isfinite(gradient).all()):
        return False
    return parameter.dim() < 2 or bool(gradient.any())


def _check_overfit(subject: Subject) -> Figure | None:
    """Train a new model on one batch in evaluation mode, so without dropout, and measure its final loss."""
    if subject.fresh is None:
        return None
    fresh = subject.fresh()
    fresh.module.eval()
    source, target = _batch(fresh)
    goal = _GOAL_SHARE * math.log(subject.target_vocabulary_size)
    optimizer = torch.optim.Adam(fresh.module.parameters(), lr=fresh.learning_rate, betas=(0.9, 0.98), eps=1e-9)
    nats = float("inf")
    with torch.enable_grad():
        for step in range(1, _MAX_STEPS + 1):
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
        "The loss is not the cross-entropy of the next token. Check the shift between input and labels, the padding in "
        "the mean, and how label smoothing spreads probability.",
        _check_loss,
    ),
    Check(
        "first loss",
        "the loss of the newly initialized model, nats per token",
        "An untrained model predicts about uniformly.",
        "An untrained model is far from uniform predictions: its logits are too large. Check the initialization of "
        "the embeddings, which are multiplied by √d_model, and of the output projection.",
        _check_first_loss,
    ),
    Check(
        "gradient",
        "one backward pass; weights without a (finite) gradient",
        "The gradient reaches every weight.",
        "Some weights cannot learn: they are not connected to the loss, or their gradient is not finite.",
        _check_gradient,
    ),
    Check(
        "overfit",
        f"a new model trained on one batch of four pairs, at most {_MAX_STEPS} steps; the loss, nats per token",
        "The model can learn.",
        "The model cannot even memorize four pairs: somewhere the gradient or the signal is lost.",
        _check_overfit,
    ),
)
