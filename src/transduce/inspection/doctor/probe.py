"""Draw random sentences to test a model with, and measure how logits change.

Shapes: B batch, S source length, T target length, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from transduce.errors import TransduceError
from transduce.inspection.doctor.subject import Subject

_MIN_TOKENS = 4


class Figure(NamedTuple):
    """The value that a check measured, the bound it must meet, and whether it does."""

    value: float
    """The measured value."""
    bar: str
    """The bound, as text for the report."""
    holds: bool
    """True if the value meets the bound."""


class Check(NamedTuple):
    """A check of the doctor, with the messages for its two outcomes."""

    name: str
    """Identifies the check in scripts and tests."""
    tested: str
    """What is changed in the model or its input, and what the figure measures."""
    if_passed: str
    """What it means if the check passes."""
    if_failed: str
    """What it means if the check fails, and where to look for the fault."""
    measure: Callable[[Subject], Figure | None]
    """Runs the check; returns None if the subject lacks the part to test."""


class Pieces:
    """A generator of random token ids without special tokens; the sequence of draws is always the same."""

    def __init__(self, subject: Subject) -> None:
        self._generator = torch.Generator().manual_seed(1)
        self._subject = subject
        reserved = {subject.pad_id, subject.start_id, subject.eos_id, *subject.reserved_ids}
        self._source = _ordinary_ids(subject.source_vocabulary_size, reserved)
        self._target = _ordinary_ids(subject.target_vocabulary_size, reserved)

    def source(self, batch: int, length: int) -> Tensor:
        """Return random source sentences with the end symbol, (B, S)."""
        return _with_last(self._draw(self._source, batch, length), self._subject.eos_id)

    def target(self, batch: int, length: int) -> Tensor:
        """Return random target sentences with the end symbol, (B, T)."""
        return _with_last(self._draw(self._target, batch, length), self._subject.eos_id)

    def target_input(self, batch: int, length: int) -> Tensor:
        """Return random decoder inputs: the start symbol, then tokens, (B, T)."""
        ids = self._draw(self._target, batch, length)
        ids[:, 0] = self._subject.start_id
        return ids

    def other_target(self, ids: Tensor) -> Tensor:
        """Return target tokens that differ from the given ones at every position, (B, T)."""
        return _next_ids(ids, self._target.to(ids.device))

    def other_source(self, ids: Tensor) -> Tensor:
        """Return source tokens that differ from the given ones at every position, (B, S)."""
        return _next_ids(ids, self._source.to(ids.device))

    def _draw(self, ordinary: Tensor, batch: int, length: int) -> Tensor:
        drawn = torch.randint(len(ordinary), (batch, length), generator=self._generator)
        return ordinary[drawn].to(self._subject.device)


def _ordinary_ids(size: int, reserved: set[int]) -> Tensor:
    """Return the ids of the vocabulary that are not reserved."""
    ids = torch.tensor([id for id in range(size) if id not in reserved])
    if len(ids) < _MIN_TOKENS:
        raise TransduceError(
            f"The doctor needs {_MIN_TOKENS} ordinary tokens, but only {len(ids)} of the vocabulary's {size} are: "
            "pass a model with a larger vocabulary."
        )
    return ids


def _next_ids(ids: Tensor, ordinary: Tensor) -> Tensor:
    """Return ordinary ids that differ from the given ones at every position."""
    index = torch.searchsorted(ordinary, ids.contiguous()).clamp_max(len(ordinary) - 1)
    return ordinary[(index + 1) % len(ordinary)]


def _with_last(ids: Tensor, last: int) -> Tensor:
    ids[:, -1] = last
    return ids


def padded(ids: Tensor, pad_id: int, columns: int) -> Tensor:
    """Return the ids with this number of padding columns appended."""
    return torch.nn.functional.pad(ids, (0, columns), value=pad_id)


def change(before: Tensor, after: Tensor) -> float:
    """Return the largest change of a logit in standard deviations of `before`; infinity if any logit is not finite."""
    if not bool(torch.isfinite(before).all() and torch.isfinite(after).all()):
        return float("inf")
    scale = before.double().std().clamp_min(1e-12)
    return float((after.double() - before.double()).abs().max() / scale)


def unchanged(subject: Subject, value: float) -> Figure:
    """Return a figure that must be zero except for rounding errors."""
    return Figure(value, f"at most {subject.tolerance:g}", value <= subject.tolerance)


def changed(subject: Subject, value: float) -> Figure:
    """Return a figure that must be clearly larger than rounding errors."""
    bar = 10 * subject.tolerance
    return Figure(value, f"more than {bar:g}", bar < value < float("inf"))
