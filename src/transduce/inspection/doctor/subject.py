"""A model as the doctor's checks use it: a few functions, its special token ids, and random sentences to test it with.

Shapes: B batch, S source length, T target length, D model width, V target vocabulary.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError


@dataclass(frozen=True, kw_only=True)
class ResidualLayer:
    """An encoder or decoder layer whose residual connections the doctor checks.

    In the check, the sub-layers of the layer return zero.
    """

    name: str
    run: Callable[[Tensor], Tensor]
    """The whole layer as a function without masks, (B, T, D) to (B, T, D); a decoder layer may use any memory."""
    sublayers: tuple[nn.Module, ...]
    """Modules whose outputs are added to the residual stream: each attention, and the feed-forward network."""
    norm_order: Literal["pre", "post"]
    """Order of norm and residual connection; pre: x + f(norm(x)), post: norm(x + f(x))."""
    d_model: int


@dataclass(frozen=True, kw_only=True)
class SplitModel:
    """A model's encoder and decoder as separate functions, to test what the decoder does with the memory."""

    encode: Callable[[Tensor], Tensor]
    """Function from source ids (B, S) to the memory (B, S, D)."""
    decode: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Function from target input ids (B, T), memory (B, S, D) and a mask that is True for valid memory (B, S) to logits
    (B, T, V).
    """


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model for the doctor to examine, as functions, token ids and properties that its checks use.

    Only fields without a default are required; checks that need a missing field are skipped.
    """

    name: str
    module: nn.Module
    """The module with the parameters, which is examined in evaluation mode."""
    logits: Callable[[Tensor, Tensor], Tensor]
    """Function from source ids (B, S) and target input ids (B, T), both padded on the right, to logits (B, T, V).

    The target input is the start symbol, then the target's tokens.
    """
    source_vocabulary_size: int
    target_vocabulary_size: int
    pad_id: int
    start_id: int
    eos_id: int

    uses_positions: bool = True
    """False for a model that is meant to treat its input as a bag of tokens."""
    positions_are_relative: bool = False
    """True if only attention sees positions (rotary, bias), so that outputs for one repeated token are all equal."""
    all_tokens_matter: bool = True
    """False for hard attention, which selects single tokens and gives the others no influence."""
    reserved_ids: tuple[int, ...] = ()
    """Further special token ids that no sentence contains."""
    decode_steps: Callable[[Tensor, Tensor], Tensor] | None = None
    """Function with the arguments and result of `logits` that decodes step by step with a cache; None: unchecked."""
    split: SplitModel | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    """Function from source ids (B, S) and target ids with end symbol (B, T) to mean nats per token; None: unchecked."""
    label_smoothing: float = 0.0
    """The label smoothing ε of `loss`, which gives ε / V to every token."""
    position_table: Callable[[int], Tensor] | None = None
    """Function from a length to the sinusoids (length, D) that the model adds; None if the model adds none."""
    layers: tuple[ResidualLayer, ...] = ()
    fresh: Callable[[], "Subject | nn.Module"] | None = None
    """Function that returns a newly initialized model of the same kind, in float32; None: there is none.

    The function returns a subject, or the new module alone if `logits` is the module itself.
    """
    look_for_mistakes: bool = True
    """False to leave out the search for mistakes of tutorials, as for models of this package, which are tested."""
    learning_rate: float = 1e-3
    """Adam's learning rate at which a new model memorizes one batch."""

    @property
    def device(self) -> torch.device:
        """The device of the model's first parameter."""
        return next(self.module.parameters()).device

    @property
    def tolerance(self) -> float:
        """The largest change of logits that counts as a rounding error, in standard deviations of the logits.

        It is 1e-9 for a model in float64, and 1e-4 for any other.
        """
        return 1e-9 if next(self.module.parameters()).dtype == torch.float64 else 1e-4


# --- random sentences and measurements ---
# Draw random sentences to test a model with, and measure how logits change.
# Shapes: B batch, S source length, T target length, V vocabulary.


_MIN_TOKENS = 4


class Measurement(NamedTuple):
    """A check's measurement: the value, the bound that it must meet, and whether it does so."""

    value: float
    """The measured value, such as the largest change of a logit."""
    bar: str
    """The bound, as text for the report."""
    holds: bool
    """True if the measured value meets the bound, so that the check passes."""
    names: tuple[str, ...] = ()
    """The names of the weights that fail, in a check of single weights; empty in others."""


class Check(NamedTuple):
    """A check of the model doctor: what it measures, and the messages for its two outcomes."""

    name: str
    """Identifier of the check, such as "future", for scripts and tests."""
    tested: str
    """Description of what is changed in the model or its input, and what the figure measures."""
    if_passed: str
    """Message on what a passed check means."""
    if_failed: str
    """Message on what a failed check means, and where to look for the fault."""
    measure: Callable[[Subject], Measurement | None]
    """Function that runs the check on a subject, and returns a `Measurement`, or None if the subject lacks what is
    tested.
    """


class RandomTokens:
    """A generator of random token ids to test a subject.

    Special tokens are never drawn. Every new generator has the same seed, and so draws the same ids.
    """

    def __init__(self, subject: Subject) -> None:
        self._generator = torch.Generator().manual_seed(1)
        self._subject = subject
        reserved = {subject.pad_id, subject.start_id, subject.eos_id, *subject.reserved_ids}
        self._source = _ordinary_ids(subject.source_vocabulary_size, reserved)
        self._target = _ordinary_ids(subject.target_vocabulary_size, reserved)

    def source(self, batch: int, length: int) -> Tensor:
        """Return ids of `batch` random source sentences of this length, (B, S), which end with the end symbol."""
        return _with_last(self._draw(self._source, batch, length), self._subject.eos_id)

    def target(self, batch: int, length: int) -> Tensor:
        """Return ids of `batch` random target sentences of this length, (B, T), which end with the end symbol."""
        return _with_last(self._draw(self._target, batch, length), self._subject.eos_id)

    def target_input(self, batch: int, length: int) -> Tensor:
        """Return ids of `batch` random decoder inputs of this length, (B, T): the start symbol, then tokens."""
        ids = self._draw(self._target, batch, length)
        ids[:, 0] = self._subject.start_id
        return ids

    def other_target(self, ids: Tensor) -> Tensor:
        """Return target token ids that differ from `ids` at every position, (B, T), without special tokens."""
        return _next_ids(ids, self._target.to(ids.device))

    def other_source(self, ids: Tensor) -> Tensor:
        """Return source token ids that differ from `ids` at every position, (B, S), without special tokens."""
        return _next_ids(ids, self._source.to(ids.device))

    def _draw(self, ordinary: Tensor, batch: int, length: int) -> Tensor:
        drawn = torch.randint(len(ordinary), (batch, length), generator=self._generator)
        return ordinary[drawn].to(self._subject.device)


def _ordinary_ids(size: int, reserved: set[int]) -> Tensor:
    """Return the token ids of a vocabulary of size `size`, (tokens,), except `reserved` ones, such as special tokens.

    Raises:
        TransduceError: fewer than 4 tokens are left, too few to draw sentences from.
    """
    ids = torch.tensor([id for id in range(size) if id not in reserved])
    if len(ids) < _MIN_TOKENS:
        raise TransduceError(
            f"The doctor needs {_MIN_TOKENS} ordinary tokens, but only {len(ids)} of the vocabulary's {size} are: "
            "pass a model with a larger vocabulary."
        )
    return ids


def _next_ids(ids: Tensor, ordinary: Tensor) -> Tensor:
    """Return a tensor of the shape of `ids`, which has another id at every position.

    Each id is replaced by the next one in `ordinary`, a sorted tensor of ids. After the last id comes the first.
    """
    index = torch.searchsorted(ordinary, ids.contiguous()).clamp_max(len(ordinary) - 1)
    return ordinary[(index + 1) % len(ordinary)]


def _with_last(ids: Tensor, last: int) -> Tensor:
    ids[:, -1] = last
    return ids


def padded(ids: Tensor, pad_id: int, columns: int) -> Tensor:
    """Return token ids, (B, T), with `columns` columns of padding appended on the right."""
    return torch.nn.functional.pad(ids, (0, columns), value=pad_id)


def change(before: Tensor, after: Tensor) -> float:
    """Return the largest difference between two tensors of logits, in standard deviations of `before`.

    The result is NaN if a logit is NaN. Otherwise it is infinite if a logit is infinite.
    """
    if bool(before.isnan().any() or after.isnan().any()):
        return float("nan")
    if not bool(torch.isfinite(before).all() and torch.isfinite(after).all()):
        return float("inf")
    scale = before.double().std().clamp_min(1e-12)
    return float((after.double() - before.double()).abs().max() / scale)


def largest(values: Iterable[float]) -> float:
    """Return the largest of some values; NaN if one of them is NaN, which Python's `max` may overlook."""
    return float(torch.tensor(list(values), dtype=torch.float64).max())


def smallest(values: Iterable[float]) -> float:
    """Return the smallest of some values; NaN if one of them is NaN, which Python's `min` may overlook."""
    return float(torch.tensor(list(values), dtype=torch.float64).min())


def at_most(value: float, bar: float) -> Measurement:
    """Return a `Measurement` that holds if `value` is at most `bar`."""
    return Measurement(value, f"at most {bar:g}", value <= bar)


def unchanged(subject: Subject, value: float) -> Measurement:
    """Return a `Measurement` that holds if `value`, the largest change of a logit, is within rounding errors."""
    return at_most(value, subject.tolerance)


def changed(subject: Subject, value: float) -> Measurement:
    """Return a `Measurement` that holds if `value`, a change of logits, is finite and clearly above rounding errors."""
    bar = 10 * subject.tolerance
    return Measurement(value, f"more than {bar:g}", bar < value < float("inf"))
