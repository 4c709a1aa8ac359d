"""The doctor's checks: cached decoding, dependence on inputs, residual connections, positions, loss and learning."""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError
from transduce.inspection.doctor.subject import (
    Check,
    Measurement,
    RandomTokens,
    ResidualLayer,
    Subject,
    at_most,
    change,
    changed,
    largest,
    padded,
    smallest,
    unchanged,
)
from transduce.model.positions import sinusoids

# Exceptions that a wrongly wired model may raise, mostly because shapes do not match.
MODEL_ERRORS = (RuntimeError, ValueError, IndexError, KeyError, TypeError, AssertionError)


class FastPathError(RuntimeError):
    """An error that PyTorch's fast path of attention raised for input that its ordinary path computes."""


# --- cached decoding ---
# Check that step-by-step decoding with the cache computes the same logits as training.


def _check_cache(subject: Subject) -> Measurement | None:
    if subject.decode_steps is None:
        return None
    samples = RandomTokens(subject)
    source, target = padded(samples.source(3, 6), subject.pad_id, 2), samples.target_input(3, 21)
    # Decoding may set the logits of special tokens to minus infinity, so these are not compared.
    columns = [id for id in (subject.pad_id, subject.start_id, *subject.reserved_ids) if id != subject.eos_id]
    expected = subject.logits(source, target)
    stepwise = subject.decode_steps(source, target).clone()
    stepwise[..., columns] = expected[..., columns]
    return unchanged(subject, change(expected, stepwise))


DECODING_CHECKS = (
    Check(
        "cache",
        "21 positions one by one with the cache, and all at once; largest difference of a logit",
        "Decoding with the cache computes what was trained.",
        "Decoding with the cache computes other logits than training did. Check the position of the newest token, and "
        "when keys and values are appended.",
        _check_cache,
    ),
)


# --- dependence ---
# Check what the logits depend on and what they must not depend on, by changing one input at a time.
# Shapes: B batch, S source length, T target length, V vocabulary.


_BATCH, _SOURCE, _TARGET = 3, 7, 9  # different lengths: a model that adds the memory to the target by position fails


def _random_batch(subject: Subject) -> tuple[RandomTokens, Tensor, Tensor]:
    """Return a random test batch: the generator of tokens, source ids, (B, S), and target input ids, (B, T)."""
    samples = RandomTokens(subject)
    return samples, samples.source(_BATCH, _SOURCE), samples.target_input(_BATCH, _TARGET)


def _check_finite_logits(subject: Subject) -> Measurement:
    """Measure the share of logits that are NaN or infinite, for sentences without padding.

    If the share is 0 on PyTorch's ordinary path of attention, its fast path is measured as well. The `Measurement`
    holds if the share is 0.

    Raises:
        FastPathError: the fast path raised an error, but the ordinary path did not.
    """
    _, source, target = _random_batch(subject)
    enabled = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        share = _share_not_finite(subject.logits(source, target))
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
    if share == 0.0:
        try:
            share = _share_not_finite(subject.logits(source, target))
        except RuntimeError as error:
            raise FastPathError(str(error)) from error
    return Measurement(share, "at most 0", share == 0.0)


def _share_not_finite(logits: Tensor) -> float:
    return float((~logits.isfinite()).double().mean())


def _check_repeatability(subject: Subject) -> Measurement:
    _, source, target = _random_batch(subject)
    return unchanged(subject, change(subject.logits(source, target), subject.logits(source, target)))


def _check_future(subject: Subject) -> Measurement:
    samples, source, target = _random_batch(subject)
    before = subject.logits(source, target)
    changes = []
    for position in range(1, _TARGET):
        changed_target = torch.cat([target[:, :position], samples.other_target(target[:, position:])], dim=1)
        changes.append(change(before[:, :position], subject.logits(source, changed_target)[:, :position]))
    return unchanged(subject, largest(changes))


def _check_past(subject: Subject) -> Measurement | None:
    if not subject.all_tokens_matter:
        return None
    samples, source, target = _random_batch(subject)
    before = subject.logits(source, target)
    changes = []
    for position in range(1, _TARGET - 1):
        changed_target = target.clone()
        changed_target[:, position] = samples.other_target(target)[:, position]
        after = subject.logits(source, changed_target)
        parts = slice(position, position + 1), slice(position + 1, None)
        changes += [change(before[:, part], after[:, part]) for part in parts]
    return changed(subject, smallest(changes))


def _check_source(subject: Subject) -> Measurement | None:
    if not subject.all_tokens_matter:
        return None
    samples, source, target = _random_batch(subject)
    before = subject.logits(source, target)
    changes = []
    for position in range(_SOURCE - 1):
        changed_source = source.clone()
        changed_source[:, position] = samples.other_source(source)[:, position]
        changes.append(change(before, subject.logits(changed_source, target)))
    return changed(subject, smallest(changes))


def _check_source_padding(subject: Subject) -> Measurement:
    _, source, target = _random_batch(subject)
    before = subject.logits(source, target)
    after = [subject.logits(padded(source, subject.pad_id, columns), target) for columns in (1, 4)]
    return unchanged(subject, largest(change(before, each) for each in after))


def _check_target_padding(subject: Subject) -> Measurement:
    _, source, target = _random_batch(subject)
    before = subject.logits(source, target)
    after = subject.logits(source, padded(target, subject.pad_id, 4))
    return unchanged(subject, change(before, after[:, :_TARGET]))


def _check_batch_mates(subject: Subject) -> Measurement:
    """Measure the largest change of a sentence's logits from being alone to being in a batch with longer sentences.

    The `Measurement` that is returned holds if the change is within rounding errors.
    """
    samples, source, target = _random_batch(subject)
    changes = []
    for row in range(_BATCH):
        alone = subject.logits(source[row : row + 1], target[row : row + 1])
        longer = samples.source(_BATCH, _SOURCE + 2), samples.target_input(_BATCH, _TARGET + 3)
        first = padded(source[row : row + 1], subject.pad_id, 2), padded(target[row : row + 1], subject.pad_id, 3)
        batched = subject.logits(torch.cat([first[0], longer[0]]), torch.cat([first[1], longer[1]]))
        changes.append(change(alone, batched[:1, :_TARGET]))
    return unchanged(subject, largest(changes))


def _check_source_positions(subject: Subject) -> Measurement | None:
    if not subject.uses_positions:
        return None
    _, source, target = _random_batch(subject)
    reversed_source = torch.cat([source[:, :-1].flip(1), source[:, -1:]], dim=1)
    return changed(subject, change(subject.logits(source, target), subject.logits(reversed_source, target)))


def _check_target_positions(subject: Subject) -> Measurement | None:
    """Measure the least change of logits from one position to the next if the target repeats one token.

    A decoder that sees positions must change them. Returns a `Measurement`; None (skipped) if the model has no absolute
    positions.
    """
    if not subject.uses_positions or subject.positions_are_relative:
        return None
    samples, source, target = _random_batch(subject)
    repeated = samples.other_target(target)[:, 1:2].expand(-1, _TARGET)
    logits = subject.logits(source, repeated).unbind(dim=1)
    return changed(subject, smallest(change(*positions) for positions in pairwise(logits)))


def _check_memory_order(subject: Subject) -> Measurement | None:
    """Measure the largest change of a logit if the encoder's output and its mask are permuted alike.

    Attention sums over positions, so that no logit may change. Returns a `Measurement`; None (skipped) without a
    separate encoder and decoder.
    """
    if subject.split is None:
        return None
    _, source, target = _random_batch(subject)
    source[0, -3:] = subject.pad_id
    memory, present = subject.split.encode(source), source != subject.pad_id
    order = torch.randperm(_SOURCE, generator=torch.Generator().manual_seed(1)).to(source.device)
    before = subject.split.decode(target, memory, present)
    after = subject.split.decode(target, memory[:, order], present[:, order])
    return unchanged(subject, change(before, after))


def _check_all_padding(subject: Subject) -> Measurement:
    """Measure the largest logit if one source of a batch is padding only.

    The `Measurement` that is returned holds if all logits are finite.
    """
    _, source, target = _random_batch(subject)
    source[0] = subject.pad_id
    logits = subject.logits(source, target)
    return Measurement(float(logits.abs().max()), "finite", bool(torch.isfinite(logits).all()))


DEPENDENCE_CHECKS = (
    Check(
        "finite logits",
        "sentences without padding; share of the logits that are NaN or infinite",
        "The logits of ordinary input are finite.",
        "Logits of ordinary input are NaN or infinite. Most likely a row of a mask hides every position. In "
        "`nn.Transformer`, True in a mask means hidden: perhaps `~mask` was meant. If the masks are right, look for "
        "weights that are NaN.",
        _check_finite_logits,
    ),
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


# --- structure ---
# Check the residual connections and norms of layers that the subject exposes, and the table of positions.
# Shapes: B batch, T length, D model width.


_POSITIONS = 50
_MAX_DEVIATION = 1e-3


def _check_residual(subject: Subject) -> Measurement | None:
    if not subject.layers:
        return None
    parameter = next(subject.module.parameters())
    worst = largest(_residual_deviation(layer, parameter) for layer in subject.layers)
    return at_most(worst, _MAX_DEVIATION)


def _residual_deviation(layer: ResidualLayer, like: Tensor) -> float:
    """Return the largest deviation of a layer from its residual stream when its sub-layers return zeros.

    A pre-norm layer must return its input. A post-norm layer must return its normalized input, so that doubling the
    input changes nothing. If the output of a post-norm layer does not depend on the input at all, the result is
    infinity. `like` has the input's dtype and device.
    """
    generator = torch.Generator().manual_seed(1)
    x, other = (3.0 * torch.randn(2, 5, layer.d_model, generator=generator).to(like) + 1.0 for _ in range(2))
    with _zeroed(layer.sublayers):
        output = layer.run(x)
        if layer.norm_order == "pre":
            return float((output - x).abs().max())
        if torch.allclose(output, layer.run(other)):
            return float("inf")
        return float((layer.run(2.0 * x) - output).abs().max())


@contextmanager
def _zeroed(modules: tuple[nn.Module, ...]) -> Iterator[None]:
    """Replace the outputs of `modules` by zeros within a `with` block, to test a layer's residual stream."""
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(_zeros).remove)
        yield


def _zeros(module: nn.Module, inputs: Any, output: Any) -> Any:  # noqa: ARG001
    if isinstance(output, Tensor):
        return torch.zeros_like(output)
    return tuple(_zeros(module, (), part) for part in output) if isinstance(output, tuple) else output


def _check_sinusoids(subject: Subject) -> Measurement | None:
    """Measure the largest distance of a position table's columns from the nearest columns of the paper's sinusoids.

    The columns may be in any order. The paper's columns are compared with the model's columns in the same way. Returns
    a `Measurement`; None (skipped) if the model has no sinusoids.
    """
    if subject.position_table is None:
        return None
    table = subject.position_table(_POSITIONS).double().cpu()
    expected = sinusoids(_POSITIONS, table.shape[1]).double()
    distances = torch.cdist(expected.t(), table.t(), p=float("inf"))  # (D, D)
    worst = float(torch.maximum(distances.min(dim=0).values, distances.min(dim=1).values).max())
    return at_most(worst, _MAX_DEVIATION)


STRUCTURE_CHECKS = (
    Check(
        "residual",
        "each layer with zeroed sub-layers; largest deviation from its input (post-norm: from its normed input)",
        "Every sub-layer adds to the residual stream, and the norms are in the right positions.",
        "The residual stream does not bypass the sub-layers: a residual connection is missing, or has a norm on it.",
        _check_residual,
    ),
    Check(
        "sinusoids",
        "the position table compared with the paper's, column by column; largest difference",
        "The frequencies are those of section 3.5.",
        "The sinusoids are not the paper's: the exponent is 2i / d_model for the pair (2i, 2i + 1), so i counts pairs. "
        "In a well-known tutorial it wrongly counts dimensions.",
        _check_sinusoids,
    ),
)


# --- loss and learning ---
# Check the training loss, and that a model can learn with it.
# Shapes: B batch, S source length, T target length, V vocabulary.

_MAX_STEPS = 200
_WARMUP_STEPS = 10
_GOAL_SHARE = 0.1  # of ln V, the loss of a uniform guess
_INITIAL_TOLERANCE_NATS = 1.5


def reference_loss(subject: Subject, source: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean cross-entropy per target token in nats, computed from its definition in float64.

    The decoder's input is the target shifted right by the start symbol; padding does not count. With label smoothing,
    the target distribution is 1 - ε on the label plus ε / V on every token, the label included (section 5.4).

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
    """Return random source ids, (4, 6), and target ids, (4, 7), of sentence pairs of two lengths, with padding."""
    samples = RandomTokens(subject)
    sources = [padded(samples.source(2, 4), subject.pad_id, 2), samples.source(2, 6)]
    targets = [samples.target(2, 7), padded(samples.target(2, 5), subject.pad_id, 2)]
    return torch.cat(sources), torch.cat(targets)


def _check_loss(subject: Subject) -> Measurement | None:
    if subject.loss is None:
        return None
    source, target = _batch(subject)
    expected = float(reference_loss(subject, source, target, subject.label_smoothing))
    difference = abs(float(subject.loss(source, target)) - expected) / max(1.0, abs(expected))
    return at_most(difference, subject.tolerance)


def _new_model(subject: Subject) -> Subject | None:
    """Return a subject with a new model, built by the subject's `fresh`, in evaluation mode; None without `fresh`."""
    if subject.fresh is None:
        return None
    fresh = subject.fresh()
    if isinstance(fresh, nn.Module):
        fresh = dataclasses.replace(subject, module=fresh, logits=fresh)
    fresh.module.eval()
    return fresh


def refuse_wrong_fresh(subject: Subject) -> None:
    """Check that a subject's function `fresh` builds a new model that the learning checks can train.

    A subject without `fresh` passes. So does one whose `fresh` raises an error, which the learning checks report.

    Raises:
        TransduceError: `fresh` does not return a subject or a module. Or it returns the examined module, whose weights
            would change. Or it returns a module, but the subject's `logits` is not the examined module itself.
    """
    if subject.fresh is None:
        return
    try:
        made: object = None if isinstance(subject.fresh, nn.Module) else subject.fresh()
    except MODEL_ERRORS:
        return  # the checks report it
    kind = type(subject.fresh if made is None else made).__name__
    if not isinstance(made, (Subject, nn.Module)):
        raise TransduceError(
            f"`fresh` must be a function that returns a new `nn.Module` or a `DoctorSubject`, not {kind}: write "
            "`fresh=lambda: MyModel(...)`."
        )
    if (made.module if isinstance(made, Subject) else made) is subject.module:
        raise TransduceError(
            "`fresh` returns the examined model itself, whose weights the checks would change: build a new one in it."
        )
    if isinstance(made, nn.Module) and subject.logits is not subject.module:
        raise TransduceError(
            f"`fresh` returns a module ({kind}), but `logits` is a function of another module: return a "
            "`DoctorSubject` of the new module with its own `logits`."
        )


def _check_first_loss(subject: Subject) -> Measurement | None:
    if (fresh := _new_model(subject)) is None:
        return None
    nats = float(reference_loss(fresh, *_batch(fresh)))
    uniform_nats = math.log(subject.target_vocabulary_size)
    bar = f"ln V = {uniform_nats:.2f} ± {_INITIAL_TOLERANCE_NATS:g}"
    return Measurement(nats, bar, abs(nats - uniform_nats) <= _INITIAL_TOLERANCE_NATS)


def _check_gradient(subject: Subject) -> Measurement | None:
    if (fresh := _new_model(subject)) is None:
        return None
    with torch.enable_grad():
        reference_loss(fresh, *_batch(fresh)).backward()
    # Vectors may have a zero gradient: a bias of the keys shifts all scores of a query equally.
    weights = fresh.module.named_parameters()
    names = tuple(name for name, weight in weights if weight.requires_grad and not _has_gradient(weight))
    return Measurement(float(len(names)), "none", not names, names)


def _has_gradient(parameter: Tensor) -> bool:
    gradient = parameter.grad
    if gradient is None or not bool(torch.isfinite(gradient).all()):
        return False
    return parameter.dim() < 2 or bool(gradient.any())


def _check_overfit(subject: Subject) -> Measurement | None:
    """Train a new model on one batch without dropout, for at most 200 steps, and measure its last loss.

    Returns a `Measurement`; None (skipped) if the subject cannot make a new model.
    """
    if (fresh := _new_model(subject)) is None:
        return None
    source, target = _batch(fresh)
    goal = _GOAL_SHARE * math.log(subject.target_vocabulary_size)
    optimizer = torch.optim.Adam(fresh.module.parameters(), lr=fresh.learning_rate, betas=(0.9, 0.98), eps=1e-9)
    nats = float("inf")
    with torch.enable_grad():
        for step in range(1, _MAX_STEPS + 1):
            loss = reference_loss(fresh, source, target)
            nats = float(loss.detach())
            if nats <= goal or not math.isfinite(nats):
                break
            for group in optimizer.param_groups:
                group["lr"] = fresh.learning_rate * min(1.0, step / _WARMUP_STEPS)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(fresh.module.parameters(), 1.0)
            optimizer.step()
    return Measurement(nats, f"at most {goal:.2f}, a tenth of ln V", nats <= goal)


LEARNING_CHECKS = (
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
