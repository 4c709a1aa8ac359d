"""A step of decoding that was recorded once and is played again, as a GPU does it: no operation is launched by itself.

What is recorded reads and writes at fixed places, for a fixed number of sentences and hypotheses. So a step has rooms
of its own, which the next batch of like size moves into.
Legend: B sentences, W hypotheses of each, S source length, D model width.
"""

import contextlib
import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from transduce.model.gpu.cached_attention import Seen
from transduce.model.gpu.embedding import embed_step
from transduce.model.gpu.recording import recording
from transduce.model.gpu.step import Caches, StepLayer, run_layers
from transduce.model.layers import DecoderLayer
from transduce.model.stack import each_layer
from transduce.model.transformer import Transformer

_MOST_SHARE = 0.1  # of the GPU's memory, for rooms that nobody is in
_MOST_ROOMS = 32
_LEAST_SOURCE = 8


class Size(NamedTuple):
    """Of a recorded step."""

    sentences: int
    hypotheses: int
    source: int
    room: int
    """Cached positions at most, W of them a step."""
    found: int = 0
    """Hypotheses that are kept of each sentence when they have ended: `search_step.py`."""


class RecordedStep(Caches):
    """Its rooms, and what happens in them."""

    def __init__(self, model: Transformer, layers: Sequence[StepLayer], size: Size) -> None:
        """Empty rooms; all that is in them is finite, for what is hidden counts nothing times it."""
        weight = model.target_weight
        columns = 2 * model.config.num_heads * model.config.key_width
        device, several = weight.device, size.hypotheses > 1 and not size.found
        # Rooms do not keep the model alive.
        self.size, self._model, self.layers = size, weakref.ref(model), layers
        self.past = weight.new_zeros(len(layers), size.sentences, size.room, columns)
        self.memory = weight.new_zeros(len(layers), size.sentences, size.source, columns)
        self.present = torch.zeros(size.sentences, 1, size.source, dtype=torch.bool, device=device)
        rooms = (size.sentences, size.hypotheses, size.room)
        self.allowed = torch.zeros(rooms, dtype=torch.bool, device=device) if several else None
        self.length = torch.zeros(1, dtype=torch.int64, device=device)
        self.sources = torch.zeros(size.sentences, dtype=torch.int32, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.pieces = torch.zeros(size.sentences, size.hypotheses, dtype=torch.int64, device=device)
        self._columns = torch.arange(size.hypotheses, device=device)
        self._itself = torch.eye(size.hypotheses, dtype=torch.bool, device=device)
        self._out: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ran = False
        self._table: Tensor | None = None

    @property
    def seen_past(self) -> Seen:
        """Positions that hypotheses descend from."""
        return Seen(self.allowed)

    @property
    def seen_memory(self) -> Seen:
        """Source positions that there are."""
        return Seen(self.present, self.sources)

    @property
    def bytes(self) -> int:
        """Of its rooms."""
        return self.past.nbytes + self.memory.nbytes

    def run(self) -> Tensor:
        """One step for `pieces`, (B, W, D); it stands where the next step's will."""
        if self._graph is not None:
            self._graph.replay()
        elif not self._ran or self.past.device.type != "cuda":
            self._compute()  # a step like any other; the recording then finds everything ready
            self._ran = True
        else:
            self._record()
        assert self._out is not None
        return self._out

    def _record(self) -> None:
        with recording(self.past.device) as graph:
            self._compute()
        graph.replay()
        self._graph = graph

    def settle(self, memory: Tensor, present: Tensor) -> None:
        """A batch moves in that has encoded its sentences, (N, S, D), of which these positions exist, (N, 1, S)."""
        count, length = memory.shape[:2]
        for layer, room in zip(self.layers, self.memory, strict=True):
            room[:count, :length] = layer.keys_and_values(memory)
        self.present.zero_()
        self.present[:count, :, :length] = present
        places = torch.arange(1, length + 1, dtype=torch.int32, device=memory.device)
        self.sources.zero_()[:count] = (present[:, 0] * places).amax(dim=1)  # what comes after is padding
        self.length.zero_()
        self.position.zero_()

    def take_over(self, old: "RecordedStep", slots: Tensor, length: int) -> None:
        """The sentences at these places (N,) come from other rooms, with so many cached positions."""
        count = len(slots)
        self.past[:, :count, :length] = old.past[:, :, :length].index_select(1, slots)
        self.memory[:, :count] = old.memory.index_select(1, slots)
        self.present.zero_()
        self.present[:count] = old.present.index_select(0, slots)
        self.sources.zero_()[:count] = old.sources.index_select(0, slots)
        self.length.copy_(old.length)
        self.position.copy_(old.position)

    def decode(self, model: Transformer) -> Tensor:
        """The last layer after each hypothesis' newest piece, (B, W, D)."""
        embedding = model.target_embedding
        x = embed_step(embedding, self.pieces, model.target_weight, self.position, self.size.room)
        # One that grows is made anew; what was recorded goes on reading this one.
        self._table = getattr(embedding.positions, "table", None)
        return model.finish(run_layers(self.layers, model.decoder_norm, x, self))

    def _compute(self) -> None:
        model = self._model()
        assert model is not None
        self._out = self.decode(model)
        if self.allowed is not None:
            columns = self.length + self._columns
            self.allowed.index_copy_(2, columns, self._itself.expand(self.size.sentences, -1, -1))
        self.length.add_(self.size.hypotheses)
        self.position.add_(1)


class _Rooms:
    """Of one model, those that nobody is in; the ones used last stand last."""

    def __init__(self) -> None:
        self.layers: list[StepLayer] = []
        self.places: tuple[int, ...] = ()
        self.free: list[RecordedStep] = []


_ROOMS: WeakKeyDictionary[Transformer, _Rooms] = WeakKeyDictionary()
_LOCK = threading.Lock()


def layers_of(model: Transformer) -> list[StepLayer]:
    """The decoder's layers; rooms in which weights were recorded that stand elsewhere now are given up."""
    places = tuple(parameter.data_ptr() for parameter in model.parameters())
    with _LOCK:
        rooms = _ROOMS.setdefault(model, _Rooms())
        if rooms.places != places:
            layers = each_layer(model.decoder_layers, model.config.num_decoder_layers)
            rooms.layers = [StepLayer(layer) for layer in layers if isinstance(layer, DecoderLayer)]
            rooms.places, rooms.free = places, []
        return rooms.layers


def give_back_after(owner: object, model: Transformer, held: Sequence[RecordedStep]) -> None:
    """When the owner is gone, nobody is in what it held."""
    known = weakref.ref(model)

    def go() -> None:
        if (model := known()) is not None:
            for step in held:
                give_back(model, step)

    weakref.finalize(owner, go).atexit = False


_Step = TypeVar("_Step", bound=RecordedStep)


def take_step(kind: type[_Step], model: Transformer, layers: Sequence[StepLayer], size: Size) -> _Step:
    """Rooms of this kind and size: used ones, if any are free."""
    with _LOCK:
        free = _ROOMS[model].free if model in _ROOMS else []
        for number, step in enumerate(free):
            if isinstance(step, kind) and step.size == size and step.layers is layers:
                del free[number]
                return step
    with torch.inference_mode(mode=False), torch.no_grad():  # for whatever mode comes next
        return kind(model, layers, size)


def give_back(model: Transformer, step: RecordedStep) -> None:
    """Nobody is in these any more."""
    with _LOCK, contextlib.suppress(KeyError):
        rooms = _ROOMS[model]
        if step.layers is not rooms.layers:
            return
        rooms.free.append(step)
        most = _most_bytes(step.past.device)
        while len(rooms.free) > _MOST_ROOMS or sum(each.bytes for each in rooms.free) > most:
            rooms.free.pop(0)


def as_many(count: int) -> int:
    """Rooms for so many: a power of two, or one and a half times one, so that few sizes are recorded."""
    power = 1 << max(0, count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 and power >= 4 else power


def as_many_source(positions: int) -> int:
    """The same of source positions."""
    return max(_LEAST_SOURCE, as_many(positions))


def _most_bytes(device: torch.device) -> float:
    if device.type != "cuda":
        return float(1 << 28)
    return _MOST_SHARE * torch.cuda.get_device_properties(device).total_memory
