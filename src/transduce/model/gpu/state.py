"""Decoding on a GPU, where a step takes as long as its operations take to be launched: the same as `MemoryState`.

`TRITON` lists the models.
Legend: B sentences in the rooms, N of them that are still decoded, W hypotheses of each, S source length, D model
width.
"""

from typing import TypeGuard

import torch
from torch import Tensor, nn

from transduce.model.attention import AttentionTrace
from transduce.model.config import ModelConfig
from transduce.model.gpu.recorded import (
    RecordedStep,
    Size,
    as_many,
    as_many_source,
    give_back,
    give_back_after,
    layers_of,
    take_step,
)
from transduce.model.layer_graph import description_of, table
from transduce.model.positions import LearnedPositions
from transduce.model.transformer import Transformer

_KINDS = (torch.bfloat16, torch.float32)
_MOST_COLUMNS = 8192
_FIRST_STEPS, _LARGEST_FIRST_ROOM = 64, 256


TRITON = table(
    "the Triton decoder",
    class_="Transformer",
    linear_layers="Linear",
    output_projection="Linear",
    positions="sinusoidal learned none",
    attention_window="none",
    token_types="none",
    norm="layer rms",
    norm_order="pre post",
    activation="relu gelu gelu-tanh silu swiglu geglu geglu-tanh reglu",
    attention_score="scaled",
    attention_kind="soft",
    attention_scale="default",
    key_value_heads="equal",
    value_width="equal",
)
"""The models that `GpuState` computes."""


def why_not_triton(model: nn.Module) -> str | None:
    """Return a clause that says why `GpuState` cannot decode a model as it is now; None: it can."""
    described = description_of(model)
    if (reason := described.why_not(TRITON)) is not None:
        return reason
    if described.is_training:
        return "the model is in training mode"
    config: ModelConfig = model.config  # type: ignore[assignment]
    dtype = next(model.parameters()).dtype
    if dtype not in _KINDS:
        return f"its weights are {dtype}"
    if config.attention_dropout:
        return "`model.attention_dropout` is set"
    if config.key_width not in (16, 32, 64, 128) or config.d_model > _MOST_COLUMNS:
        return f"the width of a head, {config.key_width}, or of the model, {config.d_model}, has no kernel"
    return None


def supports(model: nn.Module) -> TypeGuard[Transformer]:
    """Return whether `GpuState` can decode a model as it is now."""
    return why_not_triton(model) is None


class GpuState:
    """A batch in the middle of decoding. Implements `DecodingState`; attention weights cannot be traced."""

    def __init__(self, model: Transformer, source_ids: Tensor) -> None:
        """Encodes source_ids (N, S)."""
        self.place = torch.cuda.device_of(source_ids)  # programs are launched on the GPU that is current
        self.model, self.layers = model, layers_of(model)
        memory, mask = model.encode(source_ids)
        self.encoded: tuple[Tensor, Tensor] | None = memory, mask.allowed[:, 0]  # until rooms are found
        self.source_shape = source_ids.shape
        self._held: list[RecordedStep] = []  # a list, for whoever gives it back when this state is gone
        give_back_after(self, model, self._held)
        self._slots = torch.arange(len(source_ids), device=source_ids.device)  # (N,), of those still decoded
        self._length = self._position = 0
        # Which cached positions each hypothesis descends from, where the step's own mask does not say it: (N, W, L), or
        # all.
        self._ancestors: Tensor | None = None
        self._sees_all = True

    def step(self, pieces: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        """The last layer after each hypothesis' newest piece, (N, W) to (N, W, D)."""
        if trace is not None:
            raise ValueError("attention weights are not kept here: use the model's own state")
        if pieces.shape[1] == 1 and not self._sees_all:
            raise ValueError("hypotheses do not become one again here: use the model's own state")
        positions, width = self.model.target_embedding.positions, pieces.shape[1]
        if isinstance(positions, LearnedPositions):
            positions.check(self._position + 1)
        step = self._find_rooms(width)
        step.pieces.index_copy_(0, self._slots, pieces)
        with self.place:
            out = step.run().index_select(0, self._slots)
        self._sees_all = self._sees_all and width == 1
        self._length += width
        self._position += 1
        return out

    def reorder(self, parents: Tensor) -> None:
        """Hypothesis w now continues what was hypothesis parents[b, w]."""
        if self._sees_all:
            return
        allowed = self._held[0].allowed
        assert allowed is not None
        known = self._ancestors
        if known is None:
            known = allowed.index_select(0, self._slots)[:, :, : self._length]
        moved = known.gather(1, parents[..., None].expand(-1, -1, self._length))
        if parents.shape[1] == allowed.shape[1]:
            allowed[self._slots, :, : self._length] = moved
            self._ancestors = None
        else:
            self._ancestors = moved

    def keep_sentences(self, rows: Tensor) -> None:
        """The other sentences leave the batch."""
        self._slots = self._slots.index_select(0, rows)
        if self._ancestors is not None:
            self._ancestors = self._ancestors.index_select(0, rows)

    def _find_rooms(self, width: int) -> RecordedStep:
        """Those at hand, or others that fit: for more hypotheses, more positions, or half as many sentences."""
        if self.encoded is not None:
            count, length = self.source_shape
            size = Size(as_many(count), width, as_many_source(length), first_room(width))
            step = take_step(RecordedStep, self.model, self.layers, size)
            step.settle(*self.encoded)
            self.encoded, self._held[:] = None, [step]
            return step
        step = self._held[0]
        size, needed = step.size, self._length + width
        room = size.room if width == size.hypotheses else max(size.room, first_room(width))
        while room < needed:
            room *= 2
        wanted = Size(as_many(len(self._slots)), width, size.source, room)
        if wanted._replace(sentences=size.sentences) == size and 2 * wanted.sentences > size.sentences:
            return step
        found = take_step(RecordedStep, self.model, self.layers, wanted)
        self._move(step, found)
        self._held[0] = found
        give_back(self.model, step)
        return found

    def _move(self, old: RecordedStep, new: RecordedStep) -> None:
        count, length, slots = len(self._slots), self._length, self._slots
        new.take_over(old, slots, length)
        if new.allowed is not None:
            new.allowed.zero_()
            if self._ancestors is not None:
                new.allowed[:count, :, :length] = self._ancestors
            elif self._sees_all or old.allowed is None:
                new.allowed[:count, :, :length] = True
            else:
                new.allowed[:count, :, :length] = old.allowed.index_select(0, slots)[:, :, :length]
        self._ancestors = None
        self._slots = torch.arange(count, device=slots.device)


def first_room(width: int) -> int:
    """Cached positions that there is room for at first."""
    return max(_FIRST_STEPS, min(_LARGEST_FIRST_ROOM, _FIRST_STEPS * width))
