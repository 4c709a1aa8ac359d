"""A model as the checks see it: a few functions, and which ids have a meaning of their own.

Legend: B batch, S source length, T target length, D model width, V target vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn


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
