"""A model as the checks see it: a few functions, and which ids have a meaning of their own.

Legend: B batch, S source length, T target length, D model width, V target vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError


@dataclass(frozen=True, kw_only=True)
class ResidualLayer:
    """One encoder or decoder layer, to be tried with its sub-layers silenced."""

    name: str
    run: Callable[[Tensor], Tensor]
    """The whole layer, (B, T, D) to (B, T, D), without masks; a decoder layer may be given any memory."""
    sublayers: tuple[nn.Module, ...]
    """The modules whose outputs are added to the stream: each attention, and the feed-forward network."""
    norm_order: Literal["pre", "post"]
    """pre: x + f(norm(x)); post: norm(x + f(x))."""
    d_model: int


@dataclass(frozen=True, kw_only=True)
class SplitModel:
    """Encoder and decoder apart."""

    encode: Callable[[Tensor], Tensor]
    """Source ids (B, S) to the memory (B, S, D)."""
    decode: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Target input ids (B, T), memory (B, S, D) and where it may be attended to (B, S), boolean, to logits."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is examined. Only the first group is needed; a check whose part is missing is left out, and says so."""

    name: str
    module: nn.Module
    """Holds the parameters. It is examined in evaluation mode."""
    logits: Callable[[Tensor, Tensor], Tensor]
    """Source ids (B, S) and target input ids (B, T), both padded at the right, to logits (B, T, V).

    The target input is the start symbol, then the target's pieces.
    """
    source_vocabulary_size: int
    target_vocabulary_size: int
    pad_id: int
    start_id: int
    eos_id: int

    uses_positions: bool = True
    """False for a model that is meant to see a bag of pieces."""
    positions_are_relative: bool = False
    """True where attention alone knows distances (rotation, bias): the same piece everywhere then looks the same."""
    everything_counts: bool = True
    """False for attention that picks single pieces, which leaves others without influence."""
    reserved_ids: tuple[int, ...] = ()
    """Further ids that no sentence has."""
    decode_steps: Callable[[Tensor, Tensor], Tensor] | None = None
    """What `logits` computes, but position by position with the cache that search uses."""
    split: SplitModel | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    """Source ids (B, S) and target ids (B, T), end symbol included, to the mean loss per target token in nats."""
    label_smoothing: float = 0.0
    """What `loss` smooths with: ε / V goes to every piece."""
    position_table: Callable[[int], Tensor] | None = None
    """A length to the table of sinusoids (length, D) that the model adds; for models that have one."""
    layers: tuple[ResidualLayer, ...] = ()
    fresh: Callable[[], "Subject"] | None = None
    """The same model, newly initialised, in float32."""
    learning_rate: float = 1e-3
    """Adam's, with which a fresh model learns one batch by heart."""

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.module.parameters()).device

    @property
    def tolerance(self) -> float:
        """What rounding alone may change, in standard deviations of the logits."""
        return 1e-9 if next(self.module.parameters()).dtype == torch.float64 else 1e-4


# --- probe ---
# Random sentences to try a model on, and how changes of logits are measured.
# Legend: B batch, S source length, T target length, V vocabulary.


_MIN_TOKENS = 4


class Figure(NamedTuple):
    """What a check measured, and whether it is as it must be."""

    value: float
    bar: str
    holds: bool


class Check(NamedTuple):
    """A check, and what it means for the person whose model it is."""

    name: str
    tested: str
    if_passed: str
    if_failed: str
    measure: Callable[[Subject], Figure | None]
    """None where the subject lacks the part that is tested."""


class Tokens:
    """Draws ids that stand in sentences, the same ones each time."""

    def __init__(self, subject: Subject) -> None:
        self._generator = torch.Generator().manual_seed(1)
        self._subject = subject
        reserved = {subject.pad_id, subject.start_id, subject.eos_id, *subject.reserved_ids}
        self._source = _ordinary(subject.source_vocabulary_size, reserved)
        self._target = _ordinary(subject.target_vocabulary_size, reserved)

    def source(self, batch: int, length: int) -> Tensor:
        """Source sentences with the end symbol, (B, S)."""
        return _with_last(self._draw(self._source, batch, length), self._subject.eos_id)

    def target(self, batch: int, length: int) -> Tensor:
        """Target sentences with the end symbol, (B, T)."""
        return _with_last(self._draw(self._target, batch, length), self._subject.eos_id)

    def target_input(self, batch: int, length: int) -> Tensor:
        """What the decoder is fed: the start symbol and pieces, (B, T)."""
        ids = self._draw(self._target, batch, length)
        ids[:, 0] = self._subject.start_id
        return ids

    def other_target(self, ids: Tensor) -> Tensor:
        """Pieces of the target, each another one than stands there, (B, T)."""
        return _differing(ids, self._target.to(ids.device))

    def other_source(self, ids: Tensor) -> Tensor:
        """The same of the source."""
        return _differing(ids, self._source.to(ids.device))

    def _draw(self, ordinary: Tensor, batch: int, length: int) -> Tensor:
        drawn = torch.randint(len(ordinary), (batch, length), generator=self._generator)
        return ordinary[drawn].to(self._subject.device)


def _ordinary(size: int, reserved: set[int]) -> Tensor:
    ids = torch.tensor([id for id in range(size) if id not in reserved])
    if len(ids) < _MIN_TOKENS:
        raise TransduceError(
            f"The doctor needs {_MIN_TOKENS} pieces that may stand in sentences, but of the vocabulary's {size} "
            f"only {len(ids)} may: give it a model with a larger vocabulary."
        )
    return ids


def _differing(ids: Tensor, ordinary: Tensor) -> Tensor:
    place = torch.searchsorted(ordinary, ids.contiguous()).clamp_max(len(ordinary) - 1)
    return ordinary[(place + 1) % len(ordinary)]


def _with_last(ids: Tensor, last: int) -> Tensor:
    ids[:, -1] = last
    return ids


def padded(ids: Tensor, pad_id: int, columns: int) -> Tensor:
    """The ids with so many columns of padding at the right."""
    return torch.nn.functional.pad(ids, (0, columns), value=pad_id)


def change(before: Tensor, after: Tensor) -> float:
    """The largest change of a logit, in standard deviations of the logits; infinite where one is not finite."""
    if not bool(torch.isfinite(before).all() and torch.isfinite(after).all()):
        return float("inf")
    scale = before.double().std().clamp_min(1e-12)
    return float((after.double() - before.double()).abs().max() / scale)


def unchanged(subject: Subject, value: float) -> Figure:
    """A figure that must be zero but for rounding."""
    return Figure(value, f"at most {subject.tolerance:g}", value <= subject.tolerance)


def changed(subject: Subject, value: float) -> Figure:
    """A figure that must be more than rounding."""
    bar = 10 * subject.tolerance
    return Figure(value, f"more than {bar:g}", bar < value < float("inf"))
