"""Record a decoding step as a CUDA graph and replay it, so that single operations are not launched one by one.

A graph reads and writes fixed addresses, for a fixed number of sentences and hypotheses. So a step owns its buffers,
which later batches of similar size reuse.

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

_MOST_SHARE = 0.1  # greatest share of the GPU's memory for unused steps of a model
_MOST_FREE_STEPS = 32  # greatest number of unused steps of a model
_LEAST_SOURCE = 8  # smallest source length to allocate


class Size(NamedTuple):
    """The buffer sizes of a recorded step."""

    sentences: int
    """The number of sentences B."""
    hypotheses: int
    """The number of hypotheses of each sentence W."""
    source: int
    """The source length S."""
    room: int
    """The greatest number of cached positions, W per step."""
    found: int = 0
    """The number of finished hypotheses to keep of each sentence (`search_step.py`)."""


class RecordedStep(Caches):
    """A decoding step with its buffers and, once recorded, its CUDA graph."""

    def __init__(self, model: Transformer, layers: Sequence[StepLayer], size: Size) -> None:
        """Allocate zeroed buffers: masked elements are multiplied by zero, so they must be finite."""
        weight = model.target_weight
        columns = 2 * model.config.num_heads * model.config.key_width
        device, needs_mask = weight.device, size.hypotheses > 1 and not size.found
        # A step does not keep the model alive.
        self.size, self._model, self.layers = size, weakref.ref(model), layers
        self.past = weight.new_zeros(len(layers), size.sentences, size.room, columns)
        self.memory = weight.new_zeros(len(layers), size.sentences, size.source, columns)
        self.present = torch.zeros(size.sentences, 1, size.source, dtype=torch.bool, device=device)
        mask_shape = (size.sentences, size.hypotheses, size.room)
        self.allowed = torch.zeros(mask_shape, dtype=torch.bool, device=device) if needs_mask else None
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
        """Positions that the hypotheses descend from."""
        return Seen(self.allowed)

    @property
    def seen_memory(self) -> Seen:
        """Source positions that are not padding."""
        return Seen(self.present, self.sources)

    @property
    def bytes(self) -> int:
        """The size of the caches in bytes."""
        return self.past.nbytes + self.memory.nbytes

    def run(self) -> Tensor:
        """Run one step for `pieces`; returns the output (B, W, D), which the next step overwrites."""
        if self._graph is not None:
            self._graph.replay()
        elif not self._ran or self.past.device.type != "cuda":
            self._compute()  # the first step runs eagerly: recording needs initialized libraries and compiled kernels
            self._ran = True
        else:
            self._record()
        assert self._out is not None
        return self._out

    def _record(self) -> None:
        """Record the step as a CUDA graph, and replay it once."""
        with recording(self.past.device) as graph:
            self._compute()
        graph.replay()
        self._graph = graph

    def settle(self, memory: Tensor, present: Tensor) -> None:
        """Start a batch with encoder outputs (N, S, D), of which the positions `present` (N, 1, S) are not padding."""
        count, length = memory.shape[:2]
        for layer, layer_memory in zip(self.layers, self.memory, strict=True):
            layer_memory[:count, :length] = layer.keys_and_values(memory)
        self.present.zero_()
        self.present[:count, :, :length] = present
        positions = torch.arange(1, length + 1, dtype=torch.int32, device=memory.device)
        self.sources.zero_()[:count] = (present[:, 0] * positions).amax(
            dim=1
        )  # everything behind the last one is padding
        self.length.zero_()
        self.position.zero_()

    def take_over(self, old: "RecordedStep", slots: Tensor, length: int) -> None:
        """Copy the sentences at slots (N,) from another step's buffers, with `length` cached positions."""
        count = len(slots)
        self.past[:, :count, :length] = old.past[:, :, :length].index_select(1, slots)
        self.memory[:, :count] = old.memory.index_select(1, slots)
        self.present.zero_()
        self.present[:count] = old.present.index_select(0, slots)
        self.sources.zero_()[:count] = old.sources.index_select(0, slots)
        self.length.copy_(old.length)
        self.position.copy_(old.position)

    def decode(self, model: Transformer) -> Tensor:
        """Return the last layer's output after each hypothesis' newest token, (B, W, D)."""
        embedding = model.target_embedding
        x = embed_step(embedding, self.pieces, model.target_weight, self.position, self.size.room)
        # A growing table is replaced by a new tensor; the recorded graph still reads this one.
        self._table = getattr(embedding.positions, "table", None)
        return model.finish(run_layers(self.layers, model.decoder_norm, x, self))

    def _compute(self) -> None:
        """Run the operations of a step."""
        model = self._model()
        assert model is not None
        self._out = self.decode(model)
        if self.allowed is not None:
            columns = self.length + self._columns
            self.allowed.index_copy_(2, columns, self._itself.expand(self.size.sentences, -1, -1))
        self.length.add_(self.size.hypotheses)
        self.position.add_(1)


class _FreeSteps:
    """The unused recorded steps of one model, the most recently used last."""

    def __init__(self) -> None:
        self.layers: list[StepLayer] = []
        self.places: tuple[int, ...] = ()
        self.free: list[RecordedStep] = []


_FREE_STEPS: WeakKeyDictionary[Transformer, _FreeSteps] = WeakKeyDictionary()
_LOCK = threading.Lock()


def layers_of(model: Transformer) -> list[StepLayer]:
    """Return the decoder's layers; drops recorded steps if the model's parameters have moved to other addresses."""
    addresses = tuple(parameter.data_ptr() for parameter in model.parameters())
    with _LOCK:
        pool = _FREE_STEPS.setdefault(model, _FreeSteps())
        if pool.places != addresses:
            layers = each_layer(model.decoder_layers, model.config.num_decoder_layers)
            pool.layers = [StepLayer(layer) for layer in layers if isinstance(layer, DecoderLayer)]
            pool.places, pool.free = addresses, []
        return pool.layers


def give_back_after(owner: object, model: Transformer, held: Sequence[RecordedStep]) -> None:
    """Return steps to the pool of unused ones once `owner` is garbage-collected."""
    model_reference = weakref.ref(model)

    def give_back_all() -> None:
        """Return all held steps, if the model still exists."""
        if (model := model_reference()) is not None:
            for step in held:
                give_back(model, step)

    weakref.finalize(owner, give_back_all).atexit = False


_Step = TypeVar("_Step", bound=RecordedStep)


def take_step(kind: type[_Step], model: Transformer, layers: Sequence[StepLayer], size: Size) -> _Step:
    """Return a step of this class and size: an unused one if there is any, else a new one."""
    with _LOCK:
        free = _FREE_STEPS[model].free if model in _FREE_STEPS else []
        for number, step in enumerate(free):
            if isinstance(step, kind) and step.size == size and step.layers is layers:
                del free[number]
                return step
    with (
        torch.inference_mode(mode=False),
        torch.no_grad(),
    ):  # tensors made in inference mode could not be used outside of it
        return kind(model, layers, size)


def give_back(model: Transformer, step: RecordedStep) -> None:
    """Return a step to the model's unused ones; the oldest are dropped beyond the limits."""
    with _LOCK, contextlib.suppress(KeyError):
        pool = _FREE_STEPS[model]
        if step.layers is not pool.layers:
            return
        pool.free.append(step)
        limit = _free_bytes_limit(step.past.device)
        while len(pool.free) > _MOST_FREE_STEPS or sum(each.bytes for each in pool.free) > limit:
            pool.free.pop(0)


def as_many(count: int) -> int:
    """Round a count up to a power of two or 1.5 times one, so that few sizes are recorded."""
    power = 1 << max(0, count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 and power >= 4 else power


def as_many_source(positions: int) -> int:
    """Round a source length up to one of few lengths."""
    return max(_LEAST_SOURCE, as_many(positions))


def _free_bytes_limit(device: torch.device) -> float:
    """Return the limit in bytes on unused steps."""
    if device.type != "cuda":
        return float(1 << 28)
    return _MOST_SHARE * torch.cuda.get_device_properties(device).total_memory
