"""Decode on a GPU by replaying recorded CUDA graphs, since launching a step's operations takes most of its time.

`TRITON` lists the components that a model may have. `GpuState` computes the same function as `MemoryState`.

Legend: B sentences in the buffers, N of them that are still decoded, W hypotheses of each, S source length, D model
width.
"""

import contextlib
import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from transduce.kernels.cuda import recording
from transduce.kernels.cuda.attention import AttendedPositions, attend_cached
from transduce.kernels.cuda.rows import add_and_norm, embed_step
from transduce.model.attention import AttentionTrace
from transduce.model.config import ModelConfig
from transduce.model.feed_forward import FeedForward
from transduce.model.layer_graph import description_of, table
from transduce.model.layers import DecoderLayer, Residual, each_layer
from transduce.model.norms import LayerNorm, RMSNorm
from transduce.model.positions import LearnedPositions
from transduce.model.transformer import DecodingState, Transformer

# --- operations of a step ---
# The modules of a decoder layer are written out with few operations. Legend: B sentences, W hypotheses of each, S
# source length, D model width, H heads, K width of a head.


class StepLayer:
    """The modules of a decoder layer, taken apart for a recorded decoding step.

    The projection of cross-attention is split into that of queries and that of keys and values.
    """

    def __init__(self, layer: DecoderLayer) -> None:
        self_attention, memory = layer.self_attention, layer.memory_attention
        self.heads = self_attention.num_heads
        self.project, self.output = self_attention.projection, self_attention.output
        rows = (memory.widths[0], sum(memory.widths[1:]))
        weight, bias = memory.projection.weight, memory.projection.bias
        self.query, self.key_value = weight.split(rows)
        self.query_bias, self.key_value_bias = (None, None) if bias is None else bias.split(rows)
        self.memory_output = memory.output
        self.feed_forward = layer.feed_forward
        self.residuals = (layer.self_attention_residual, layer.memory_attention_residual, layer.feed_forward_residual)

    def keys_and_values(self, memory: Tensor) -> Tensor:
        """Return the keys and values of cross-attention for encoder outputs, (B, S, D) to (B, S, 2 × H × K)."""
        return F.linear(memory, self.key_value, self.key_value_bias)


def run_layers(step: "RecordedStep", last_norm: nn.Module, x: Tensor) -> Tensor:
    """Run the decoder layers of a step and the last norm on embedded tokens, (B, W, D); return the output, (B, W, D).

    The newest keys and values are appended to the step's caches.
    """
    chain = _Chain(x, [residual for layer in step.layers for residual in layer.residuals], last_norm)
    seen_past, seen_memory = step.attended_past, step.attended_memory
    for layer, past, memory in zip(step.layers, step.past, step.memory, strict=True):
        projected = layer.project(chain.next)
        chain.add(layer.output(attend_cached(projected, past, step.length, seen_past, layer.heads)))
        query = F.linear(chain.next, layer.query, layer.query_bias)
        chain.add(layer.memory_output(attend_cached(query, memory, memory.shape[1], seen_memory, layer.heads)))
        chain.add(_feed_forward(layer.feed_forward, chain.next))
    return chain.next


class _Chain:
    """The residual stream of a decoding step, whose additions are fused with the norms that follow them."""

    def __init__(self, x: Tensor, residuals: Sequence[Residual], last: nn.Module) -> None:
        befores = [*(residual.norm_before for residual in residuals), last]
        self._norms = iter(zip((residual.norm_after for residual in residuals), befores[1:], strict=True))
        self._sum = x
        self.next: Tensor = befores[0](x)  # the input of the next sub-layer

    def add(self, y: Tensor) -> None:
        """Add a sub-layer's output to the residual stream, and apply the norms before the next sub-layer.

        The next sub-layer's input becomes the attribute `next`.
        """
        after, before = next(self._norms)
        if isinstance(after, LayerNorm | RMSNorm):  # post-norm
            _, self._sum = _add_and_norm(self._sum, y, after)
            self.next = before(self._sum)
        elif isinstance(before, LayerNorm | RMSNorm):
            self._sum, self.next = _add_and_norm(self._sum, y, before)
        else:
            self._sum = after(self._sum + y)
            self.next = before(self._sum)


def _add_and_norm(x: Tensor, y: Tensor, norm: LayerNorm | RMSNorm) -> tuple[Tensor, Tensor]:
    """Return x + y, for the residual connection, and the normalized x + y; one kernel computes both if possible."""
    bias = norm.bias if isinstance(norm, LayerNorm) else None
    if norm.eps is None or (isinstance(norm, LayerNorm) and bias is None):
        total = x + y
        return total, norm(total)
    return add_and_norm(x, y, norm.weight, bias, norm.eps)


def _feed_forward(layer: nn.Module, x: Tensor) -> Tensor:
    """Return a feed-forward network's output for x, (B, W, D); one operation computes a linear layer and its ReLU.

    Networks with another activation, or without biases, run as modules.
    """
    if not isinstance(layer, FeedForward) or layer.activation is not F.relu or layer.inner.bias is None:
        return layer(x)  # type: ignore[no-any-return]
    hidden = torch._addmm_activation(layer.inner.bias, x.flatten(0, 1), layer.inner.weight.t())
    return layer.outer(hidden).view_as(x)  # type: ignore[no-any-return]


# --- recorded steps ---
# A graph reads and writes fixed addresses, for a fixed number of sentences and hypotheses. So a step owns its
# buffers, which later batches of similar size reuse.
# Legend: B sentences, W hypotheses of each, S source length, D model width.


_MAX_SHARE = 0.1  # greatest share of the GPU's memory for unused steps of a model
_MAX_FREE_STEPS = 32  # greatest number of unused steps of a model
_MIN_SOURCE = 8  # smallest source length to allocate


class StepSize(NamedTuple):
    """The buffer sizes of a recorded decoding step: sentences, hypotheses, source length and cached positions."""

    sentences: int
    """The number of sentences B that the buffers hold."""
    hypotheses: int
    """The number of hypotheses W of each sentence."""
    source: int
    """The source length S in tokens."""
    capacity: int
    """The maximum number of cached target positions of a sentence; a step takes one for each hypothesis."""
    finished: int = 0
    """The number of finished hypotheses to keep of each sentence in a search step; 0: the step does not search."""


class RecordedStep:
    """A decoding step on a GPU with buffers of fixed size and, once recorded, a CUDA graph.

    A search owns the step; later searches of similar size use it again.
    """

    def __init__(self, model: Transformer, layers: Sequence[StepLayer], size: StepSize) -> None:
        """Allocate a decoding step's buffers, filled with zeros, since masked elements are read and must be finite."""
        weight = model.target_weight
        columns = 2 * model.config.num_heads * model.config.key_width
        device, needs_mask = weight.device, size.hypotheses > 1 and not size.finished
        # A step does not keep the model alive.
        self.size, self._model, self.layers = size, weakref.ref(model), layers
        self.past = weight.new_zeros(len(layers), size.sentences, size.capacity, columns)
        """The keys and values of the tokens so far, (layers, B, capacity, 2 × H × K)."""
        self.memory = weight.new_zeros(len(layers), size.sentences, size.source, columns)
        """The keys and values of the encoder output, (layers, B, S, 2 × H × K)."""
        self.present = torch.zeros(size.sentences, 1, size.source, dtype=torch.bool, device=device)
        mask_shape = (size.sentences, size.hypotheses, size.capacity)
        self.allowed = torch.zeros(mask_shape, dtype=torch.bool, device=device) if needs_mask else None
        self.length = torch.zeros(1, dtype=torch.int64, device=device)
        """The number of cached positions in `past`, (1,)."""
        self.sources = torch.zeros(size.sentences, dtype=torch.int32, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(size.sentences, size.hypotheses, dtype=torch.int64, device=device)
        self._columns = torch.arange(size.hypotheses, device=device)
        self._itself = torch.eye(size.hypotheses, dtype=torch.bool, device=device)
        self._out: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ran = False
        self._table: Tensor | None = None

    @property
    def attended_past(self) -> AttendedPositions:
        """The cached target positions to which each hypothesis attends, an `AttendedPositions`.

        With a mask, hypotheses attend to their own past; without a mask, to all cached positions.
        """
        return AttendedPositions(self.allowed)

    @property
    def attended_memory(self) -> AttendedPositions:
        """The source positions to which hypotheses attend, an `AttendedPositions`: those that are not padding."""
        return AttendedPositions(self.present, self.sources)

    @property
    def bytes(self) -> int:
        """The size of the step's key/value caches in bytes."""
        return self.past.nbytes + self.memory.nbytes

    def run(self) -> Tensor:
        """Run the decoding step on the tokens in the buffer `tokens`; return the output (B, W, D).

        The next step overwrites the output. The first run is eager, the second is recorded as a CUDA graph, and later
        ones replay the graph. On a CPU all are eager.
        """
        if self._graph is not None:
            self._graph.replay()
        elif not self._ran or self.past.device.type != "cuda":
            self._compute()  # the first step runs eagerly: recording needs initialized libraries and compiled kernels
            self._ran = True
        else:
            with recording(self.past.device) as graph:
                self._compute()
            graph.replay()
            self._graph = graph
        assert self._out is not None
        return self._out

    def start_batch(self, memory: Tensor, present: Tensor) -> None:
        """Load a batch into the buffers, and set the decoding position to 0.

        Args:
            memory: the encoder's output, (N, S, D), of which each layer's keys and values are stored.
            present: the mask of the tokens that are not padding, (N, 1, S).
        """
        count, length = memory.shape[:2]
        for layer, layer_memory in zip(self.layers, self.memory, strict=True):
            layer_memory[:count, :length] = layer.keys_and_values(memory)
        self.present.zero_()
        self.present[:count, :, :length] = present
        positions = torch.arange(1, length + 1, dtype=torch.int32, device=memory.device)
        # Everything behind the last present position is padding.
        self.sources.zero_()[:count] = (present[:, 0] * positions).amax(dim=1)
        self.length.zero_()
        self.position.zero_()

    def copy_sentences_from(self, old: "RecordedStep", slots: Tensor, length: int) -> None:
        """Copy the sentences in rows `slots` (N,) of another step's buffers to the first rows of this step's buffers.

        `length` is the number of cached target positions.
        """
        count = len(slots)
        self.past[:, :count, :length] = old.past[:, :, :length].index_select(1, slots)
        self.memory[:, :count] = old.memory.index_select(1, slots)
        self.present.zero_()
        self.present[:count] = old.present.index_select(0, slots)
        self.sources.zero_()[:count] = old.sources.index_select(0, slots)
        self.length.copy_(old.length)
        self.position.copy_(old.position)

    def decode(self, model: Transformer) -> Tensor:
        """Return the last layer's output, (B, W, D), for the newest token of each hypothesis, which `tokens` holds."""
        embedding = model.target_embedding
        x = embed_step(embedding, self.tokens, model.target_weight, self.position, self.size.capacity)
        # A growing table is replaced by a new tensor; the recorded graph still reads this one.
        self._table = getattr(embedding.positions, "table", None)
        return model.scale_output(run_layers(self, model.decoder_norm, x))

    def _compute(self) -> None:
        """Run the operations of a decoding step, eagerly or while a graph is recorded.

        The output becomes the attribute `_out`. The step's position and number of cached positions are advanced.
        """
        model = self._model()
        assert model is not None
        self._out = self.decode(model)
        if self.allowed is not None:
            columns = self.length + self._columns
            self.allowed.index_copy_(2, columns, self._itself.expand(self.size.sentences, -1, -1))
        self.length.add_(self.size.hypotheses)
        self.position.add_(1)


class _FreeSteps:
    """The pool of one model's recorded decoding steps (CUDA graphs) that no search uses, the newest at the end."""

    def __init__(self) -> None:
        self.layers: list[StepLayer] = []
        """The decoder's layers, whose parameters the graphs read."""
        self.addresses: tuple[int, ...] = ()
        """The addresses of the model's parameters when `layers` was made."""
        self.free: list[RecordedStep] = []
        """The unused steps, newest last."""


_FREE_STEPS: WeakKeyDictionary[Transformer, _FreeSteps] = WeakKeyDictionary()
_LOCK = threading.Lock()


def layers_of(model: Transformer) -> list[StepLayer]:
    """Return a list of the decoder's layers for recorded steps.

    Calls return the same list until a parameter moves in memory. Then a new list is made, and the model's unused steps
    are dropped, since their graphs read the old addresses.
    """
    addresses = tuple(parameter.data_ptr() for parameter in model.parameters())
    with _LOCK:
        pool = _FREE_STEPS.setdefault(model, _FreeSteps())
        if pool.addresses != addresses:
            layers = each_layer(model.decoder_layers, model.config.num_decoder_layers)
            pool.layers = [StepLayer(layer) for layer in layers if isinstance(layer, DecoderLayer)]
            pool.addresses, pool.free = addresses, []
        return pool.layers


def release_after(owner: object, model: Transformer, held: Sequence[RecordedStep]) -> None:
    """Arrange that recorded decoding steps return to the model's pool of unused steps when `owner` is deleted.

    `held` is a list that `owner` may change: the steps that are in the list at the time of deletion return to the pool.
    """
    model_reference = weakref.ref(model)

    def give_back_all() -> None:
        """Return all held decoding steps to the model's pool of unused steps, if the model still exists."""
        if (model := model_reference()) is not None:
            for step in held:
                release_step(model, step)

    weakref.finalize(owner, give_back_all).atexit = False


_Step = TypeVar("_Step", bound=RecordedStep)


def acquire_step(kind: type[_Step], model: Transformer, layers: Sequence[StepLayer], size: StepSize) -> _Step:
    """Return a recorded decoding step of class `kind` and size `size`: an unused step of the model, or a new one.

    No other search uses the step until it is passed to `release_step`.
    """
    with _LOCK:
        free = _FREE_STEPS[model].free if model in _FREE_STEPS else []
        for number, step in enumerate(free):
            if isinstance(step, kind) and step.size == size and step.layers is layers:
                del free[number]
                return step
    # Tensors made in inference mode could not be used outside of it.
    with torch.inference_mode(mode=False), torch.no_grad():
        return kind(model, layers, size)


def release_step(model: Transformer, step: RecordedStep) -> None:
    """Add a recorded decoding step to the model's pool of unused steps, and drop steps beyond the pool's limits.

    A step is dropped if the model's parameters have moved in memory.
    """
    with _LOCK, contextlib.suppress(KeyError):
        pool = _FREE_STEPS[model]
        if step.layers is not pool.layers:
            return
        pool.free.append(step)
        limit = _free_bytes_limit(step.past.device)
        while len(pool.free) > _MAX_FREE_STEPS or sum(each.bytes for each in pool.free) > limit:
            pool.free.pop(0)


def round_up_size(count: int) -> int:
    """Return a count rounded up to a power of two, or to 1.5 times a power of two, so that few graphs are recorded."""
    power = 1 << max(0, count - 1).bit_length()
    return power * 3 // 4 if count <= power * 3 // 4 and power >= 4 else power


def round_up_source(positions: int) -> int:
    """Return a source length rounded up as by `round_up_size`, at least 8, so that few graphs are recorded."""
    return max(_MIN_SOURCE, round_up_size(positions))


def _free_bytes_limit(device: torch.device) -> float:
    """Return the maximum memory in bytes of all unused recorded steps of a model: a tenth of the GPU's memory.

    For a CPU, the result is 256 MiB.
    """
    if device.type != "cuda":
        return float(1 << 28)
    return _MAX_SHARE * torch.cuda.get_device_properties(device).total_memory


# --- decoding state ---


_KINDS = (torch.bfloat16, torch.float32)
_MAX_COLUMNS = 8192
_INITIAL_CAPACITY, _MAX_INITIAL_CAPACITY = 64, 256


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
"""The `Table` of components and options that a model may have for `GpuState`."""


def why_not_triton(model: nn.Module) -> str | None:
    """Return a clause that says why `GpuState` cannot decode a model on a GPU in its present state; None if it can."""
    described = description_of(model)
    if (reason := described.refusal(TRITON)) is not None:
        return reason
    if described.is_training:
        return "the model is in training mode"
    config: ModelConfig = model.config  # type: ignore[assignment]
    dtype = next(model.parameters()).dtype
    if dtype not in _KINDS:
        return f"its weights are {dtype}"
    if config.attention_dropout:
        return "`model.attention_dropout` is set"
    if config.key_width not in (16, 32, 64, 128) or config.d_model > _MAX_COLUMNS:
        return f"the width of a head, {config.key_width}, or of the model, {config.d_model}, has no kernel"
    return None


class GpuState(DecodingState):
    """A decoding state of an encoder-decoder model on a GPU, whose steps are recorded as CUDA graphs.

    Attention weights cannot be traced.
    """

    def __init__(self, model: Transformer, source_ids: Tensor) -> None:
        """Create a decoding state by encoding source ids (N, S), padded."""
        self.device_guard = torch.cuda.device_of(source_ids)  # kernels run on the current GPU
        self.model, self.layers = model, layers_of(model)
        memory, mask = model.encode(source_ids)
        self.encoded: tuple[Tensor, Tensor] | None = memory, mask.allowed[:, 0]  # until the first step
        self.source_shape = source_ids.shape
        self._held: list[RecordedStep] = []  # a list that `release_after` can share
        release_after(self, model, self._held)
        # The slots of the sentences that are still decoded, (N,).
        self._slots = torch.arange(len(source_ids), device=source_ids.device)
        self._length = self._position = 0
        # The cached positions that each hypothesis descends from, (N, W, L), if the step's mask does not have them.
        self._ancestors: Tensor | None = None
        self._sees_all = True

    @override
    def step(self, tokens: Tensor, *, trace: AttentionTrace | None = None) -> Tensor:
        if trace is not None:
            raise ValueError("attention weights are not kept here: use the model's own state")
        if tokens.shape[1] == 1 and not self._sees_all:
            raise ValueError("hypotheses do not become one again here: use the model's own state")
        positions, width = self.model.target_embedding.positions, tokens.shape[1]
        if isinstance(positions, LearnedPositions):
            positions.check(self._position + 1)
        step = self._find_step(width)
        step.tokens.index_copy_(0, self._slots, tokens)
        with self.device_guard:
            out = step.run().index_select(0, self._slots)
        self._sees_all = self._sees_all and width == 1
        self._length += width
        self._position += 1
        return out

    @override
    def reorder(self, parents: Tensor) -> None:
        if self._sees_all:
            return
        allowed = self._held[0].allowed
        assert allowed is not None
        ancestors = self._ancestors
        if ancestors is None:
            ancestors = allowed.index_select(0, self._slots)[:, :, : self._length]
        moved = ancestors.gather(1, parents[..., None].expand(-1, -1, self._length))
        if parents.shape[1] == allowed.shape[1]:
            allowed[self._slots, :, : self._length] = moved
            self._ancestors = None
        else:
            self._ancestors = moved

    @override
    def keep_sentences(self, rows: Tensor) -> None:
        self._slots = self._slots.index_select(0, rows)
        if self._ancestors is not None:
            self._ancestors = self._ancestors.index_select(0, rows)

    def _find_step(self, width: int) -> RecordedStep:
        """Return a recorded step with capacity for `width` more positions.

        The first call loads the encoded batch into the buffers of a step. Later calls return the current step if its
        size is right. Otherwise the sentences move to the buffers of a step of another size, which is returned.
        """
        if self.encoded is not None:
            count, length = self.source_shape
            size = StepSize(round_up_size(count), width, round_up_source(length), initial_capacity(width))
            step = acquire_step(RecordedStep, self.model, self.layers, size)
            step.start_batch(*self.encoded)
            self.encoded, self._held[:] = None, [step]
            return step
        step = self._held[0]
        size, needed = step.size, self._length + width
        capacity = size.capacity if width == size.hypotheses else max(size.capacity, initial_capacity(width))
        while capacity < needed:
            capacity *= 2
        new_size = StepSize(round_up_size(len(self._slots)), width, size.source, capacity)
        if new_size._replace(sentences=size.sentences) == size and 2 * new_size.sentences > size.sentences:
            return step
        finished = acquire_step(RecordedStep, self.model, self.layers, new_size)
        self._move(step, finished)
        self._held[0] = finished
        release_step(self.model, step)
        return finished

    def _move(self, old: RecordedStep, new: RecordedStep) -> None:
        """Copy the unfinished sentences from the buffers of one recorded step to those of a step of another size."""
        count, length, slots = len(self._slots), self._length, self._slots
        new.copy_sentences_from(old, slots, length)
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


def initial_capacity(width: int) -> int:
    """Return the initial capacity of a step's cache in target positions per sentence, 64 to 256.

    Each of `width` hypotheses takes a position at each step.
    """
    return max(_INITIAL_CAPACITY, min(_MAX_INITIAL_CAPACITY, _INITIAL_CAPACITY * width))
