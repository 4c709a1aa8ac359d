"""Decoding on a GPU, where a step takes as long as its operations take to be launched: the same as `MemoryState`.

`supports` says for which models.
Legend: B sentences in the rooms, N of them that are still decoded, W hypotheses of each, S source length, D model
width.
"""

import weakref
from typing import TypeGuard

import torch
from torch import Tensor, nn

from transduce.model.attention import AttentionTrace
from transduce.model.gpu.recorded import RecordedStep, Size, give_back, layers_of, take_step
from transduce.model.positions import LearnedPositions
from transduce.model.transformer import Transformer

_KINDS = (torch.bfloat16, torch.float32)
_MOST_COLUMNS = 8192
_FIRST_STEPS, _LARGEST_FIRST_ROOM = 64, 256
_SOURCE_MULTIPLE = 8


def supports(model: nn.Module) -> TypeGuard[Transformer]:
    """Whether a model's decoder is of the bricks that `step.py` writes out."""
    if not isinstance(model, Transformer) or model.training or not model.can_be_packed:
        return False
    config = model.config
    width = config.key_width
    return (
        model.source_weight.dtype in _KINDS
        and config.norm_order != "sandwich"
        and width == config.value_width
        and config.num_key_value_heads in (None, config.num_heads)
        and width in (16, 32, 64, 128)
        and config.d_model <= _MOST_COLUMNS
    )


class GpuState:
    """A batch in the middle of decoding. Implements `DecodingState`; attention weights cannot be traced."""

    def __init__(self, model: Transformer, source_ids: Tensor) -> None:
        """Encodes source_ids (N, S)."""
        self._place = torch.cuda.device_of(source_ids)  # programs are launched on the GPU that is current
        memory, mask = model.encode(source_ids)
        count, length = source_ids.shape
        self._model, self._layers = model, layers_of(model)
        source = -(-length // _SOURCE_MULTIPLE) * _SOURCE_MULTIPLE
        size = Size(_as_many(count), 1, source, _FIRST_STEPS)
        step = take_step(model, self._layers, size)
        for layer, room in zip(self._layers, step.memory, strict=True):
            room[:count, :length] = layer.keys_and_values(memory)
        step.present.zero_()
        step.present[:count, :, :length] = mask.allowed[:, 0]
        step.length.zero_()
        step.position.zero_()
        self._held = [step]  # a list, for whoever gives it back when this state is gone
        weakref.finalize(self, _give_back, weakref.ref(model), self._held).atexit = False
        self._slots = torch.arange(count, device=source_ids.device)  # (N,), of those still decoded
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
        positions, width = self._model.target_embedding.positions, pieces.shape[1]
        if isinstance(positions, LearnedPositions):
            positions.check(self._position + 1)
        step = self._find_rooms(width)
        step.pieces.index_copy_(0, self._slots, pieces)
        with self._place:
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
        step = self._held[0]
        size, needed = step.size, self._length + width
        room = size.room if width == size.hypotheses else max(size.room, min(_LARGEST_FIRST_ROOM, _FIRST_STEPS * width))
        while room < needed:
            room *= 2
        wanted = Size(_as_many(len(self._slots)), width, size.source, room)
        if wanted._replace(sentences=size.sentences) == size and 2 * wanted.sentences > size.sentences:
            return step
        found = take_step(self._model, self._layers, wanted)
        self._move(step, found)
        self._held[0] = found
        give_back(self._model, step)
        return found

    def _move(self, old: RecordedStep, new: RecordedStep) -> None:
        count, length, slots = len(self._slots), self._length, self._slots
        new.past[:, :count, :length] = old.past[:, :, :length].index_select(1, slots)
        new.memory[:, :count] = old.memory.index_select(1, slots)
        new.present.zero_()
        new.present[:count] = old.present.index_select(0, slots)
        new.length.copy_(old.length)
        new.position.copy_(old.position)
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


def _as_many(sentences: int) -> int:
    """Rooms for so many: a power of two, or one and a half times one, so that few sizes are recorded."""
    power = 1 << max(0, sentences - 1).bit_length()
    return power * 3 // 4 if sentences <= power * 3 // 4 and power >= 4 else power


def _give_back(model: "weakref.ref[Transformer]", held: list[RecordedStep]) -> None:
    known = model()
    if known is not None:
        give_back(known, held[0])
