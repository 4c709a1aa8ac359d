"""The interface through which the doctor's checks use a model: a few functions and its special token ids.

Shapes: B batch, S source length, T target length, D model width, V target vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class ResidualLayer:
    """An encoder or decoder layer, to be tested with its sub-layers' outputs set to zero."""

    name: str
    run: Callable[[Tensor], Tensor]
    """The whole layer, (B, T, D) to (B, T, D), without masks; a decoder layer may use any memory."""
    sublayers: tuple[nn.Module, ...]
    """Modules whose outputs are added to the residual stream: each attention, and the feed-forward network."""
    norm_order: Literal["pre", "post"]
    """pre: x + f(norm(x)); post: norm(x + f(x))."""
    d_model: int


@dataclass(frozen=True, kw_only=True)
class SplitModel:
    """A model's encoder and decoder as separate functions."""

    encode: Callable[[Tensor], Tensor]
    """Maps source ids (B, S) to the memory (B, S, D)."""
    decode: Callable[[Tensor, Tensor, Tensor], Tensor]
    """Maps target input ids (B, T), the memory (B, S, D) and a boolean mask of valid memory (B, S) to logits."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model to examine. Only fields without a default are required; checks that need a missing part are skipped."""

    name: str
    module: nn.Module
    """The module with the parameters. It is examined in evaluation mode."""
    logits: Callable[[Tensor, Tensor], Tensor]
    """Maps source ids (B, S) and target input ids (B, T), both padded on the right, to logits (B, T, V).

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
    everything_counts: bool = True
    """False for hard attention, which selects single tokens and gives the others no influence."""
    reserved_ids: tuple[int, ...] = ()
    """Further special ids that no sentence contains."""
    decode_steps: Callable[[Tensor, Tensor], Tensor] | None = None
    """Computes the same as `logits`, but position by position with the cache that decoding uses."""
    split: SplitModel | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    """Maps source ids (B, S) and target ids with the end symbol (B, T) to the mean loss per target token in nats."""
    label_smoothing: float = 0.0
    """The label smoothing ε of `loss`, which gives ε / V to every token."""
    position_table: Callable[[int], Tensor] | None = None
    """Maps a length to the sinusoids (length, D) that the model adds; None if it adds none."""
    layers: tuple[ResidualLayer, ...] = ()
    fresh: Callable[[], "Subject"] | None = None
    """Returns the same model, newly initialized, in float32."""
    learning_rate: float = 1e-3
    """Adam's learning rate at which a new model memorizes one batch."""

    @property
    def device(self) -> torch.device:
        """Return the device of the model's parameters."""
        return next(self.module.parameters()).device

    @property
    def tolerance(self) -> float:
        """Return the largest change that rounding errors may cause, in standard deviations of the logits."""
        return 1e-9 if next(self.module.parameters()).dtype == torch.float64 else 1e-4
