"""Train on a GPU with Triton kernels: whole layers, recorded losses, optimizer updates, and the backend itself."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from transduce.kernel_interfaces import AdamScalars, TrainingKernels, UpdatedVectors
from transduce.kernels.cuda import Pool, attention, ceil_div, recording, rows
from transduce.kernels.cuda.attention import AttentionNode
from transduce.kernels.cuda.rows import GpuDropNode, add_sum_of_rows
from transduce.kernels.cuda.triton import rows as triton_kernels
from transduce.kernels.training_executor import (
    LinearKernels,
    LinearNode,
    MaskedSublayer,
    NormNode,
    execute,
    is_known,
    linear_sums,
    packed_hidden,
    sublayers_of,
)
from transduce.model.backend import Rows, add_product
from transduce.model.feed_forward import Dropout, Linear
from transduce.model.layer_graph import refusal, table
from transduce.model.masks import PackedBatch, PackedMask
from transduce.model.norms import LayerNorm
from transduce.model.positions import RotaryPositions, Rotation, SinusoidalPositions
from transduce.model.transformer import Transformer

# --- recorded losses ---
# A training step launches some 700 kernels, and for small models the CPU takes longer to launch them than the GPU to
# run them. A CUDA graph reads its batch and dropout seeds at fixed addresses. So batches come in few sizes, and each
# size is recorded when it occurs for the second time.


Compute = Callable[[Tensor], tuple[Tensor, Tensor]]
_MAX_SIZES = 128  # recorded sizes to keep; for the paper's base model each takes 5 MB of the GPU's memory

_LOG = logging.getLogger("transduce.training")


class GpuLossRecorder:
    """A recorder of CUDA graphs for a model's training loss: a forward and a backward graph for each batch size.

    A size is recorded when it occurs for the second time; until then, and after a failure, losses are computed eagerly.
    All graphs share one pool of memory. The class implements `LossRecorder`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._dropouts = [module for module in model.modules() if isinstance(module, Dropout)]
        self._known: OrderedDict[Hashable, _RecordedLoss] = OrderedDict()
        self._pool: Pool = None
        self._can_record = can_record(next(model.parameters()).device)
        self.eager_loss: Tensor | None = None
        """The latest loss that was computed eagerly, kept for its backward pass; None if a graph computes it."""
        self.sequence_number = 0
        """The number of the latest loss, which rises with each loss and each backward pass.

        So a backward pass that comes after another loss is detected.
        """

    def __call__(self, size: Hashable, numbers: NDArray[np.int64], compute: Compute) -> tuple[Tensor, Tensor]:
        """Return a batch's total loss and negative log-likelihood, computed by a CUDA graph if there is one.

        `LossRecorder` describes the arguments. The total can be differentiated once, before the next loss is
        computed.
        """
        drops = tuple(dropout.drop_256ths for dropout in self._dropouts if dropout.training)
        key = size, drops
        if key not in self._known:
            device = next(self._model.parameters()).device
            self._known[key] = _RecordedLoss(self, compute, len(numbers), device)
            if len(self._known) > _MAX_SIZES:
                self._known.popitem(last=False)  # the least recently used one
        self._known.move_to_end(key)
        return self._known[key](numbers)

    def record(self, loss: "_RecordedLoss") -> None:
        """Record the forward and backward passes of the loss of one batch size as CUDA graphs.

        After a failure, or if the graphs would take memory that other work may need, all graphs are dropped and no more
        are recorded.
        """
        if not self._can_record:
            return
        # An eager loss' autograd graph is tied to its stream, which must not meet a recording on another stream.
        self.eager_loss = None
        torch.cuda.empty_cache()  # eager steps need no memory from now on, and graphs have their own pool
        if self._pool is None:
            if not _has_free_memory(next(self._model.parameters()).device):
                self._give_up("CUDA graphs would hold memory that validation may need")
                return
            self._pool = torch.cuda.graph_pool_handle()
        try:
            kinds = SinusoidalPositions | RotaryPositions
            tables = [each.table for each in self._model.modules() if isinstance(each, kinds)]
            loss.record(self._pool, [*self._model.buffers(), *tables])
        except RuntimeError as error:  # includes running out of memory
            self._give_up(str(error).strip().partition("\n")[0])

    def _give_up(self, reason: str) -> None:
        """Drop all CUDA graphs, compute every later loss eagerly, and log a warning with the reason."""
        _LOG.warning("Training steps are not recorded as CUDA graphs from now on, which is slower: %s", reason)
        self._can_record, self._pool = False, None
        self._known.clear()


def _has_free_memory(device: torch.device) -> bool:
    """Return whether a GPU has at least twice as much free memory as the temporary tensors of eager steps took.

    Graphs hold their memory, which other work such as validation then lacks.
    """
    step = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] >= 2 * step


def can_record(device: torch.device) -> bool:
    """Return whether a device can record CUDA graphs (a GPU); on other devices every batch is computed eagerly."""
    return device.type == "cuda"


class _RecordedLoss:
    """The loss of batches of one size, with an input buffer and, once recorded, forward and backward CUDA graphs."""

    def __init__(self, recorder: GpuLossRecorder, compute: Compute, count: int, device: torch.device) -> None:
        self._recorder, self._compute = recorder, compute
        self._inputs = torch.zeros(count + rows.MAX_SEEDS, dtype=torch.int64, device=device)
        self._slope = torch.ones((), device=device)
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None
        self._out: tuple[Tensor, Tensor] | None = None
        self._read: list[Tensor] = []

    def __call__(self, numbers: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Copy a batch and new dropout seeds to the input buffer; return the total and the negative log-likelihood.

        The loss is recorded at the second call.
        """
        inputs = torch.cat([torch.from_numpy(numbers), rows.draw_seeds(rows.MAX_SEEDS)])
        self._inputs.copy_(inputs.pin_memory() if self._inputs.is_cuda else inputs, non_blocking=True)
        if self._graphs is None and self._out is not None:
            self._recorder.record(self)
        return _ReplayedLoss.apply(self, self._anchor)  # type: ignore[no-any-return,no-untyped-call]

    def launch(self) -> tuple[Tensor, Tensor]:
        """Compute the loss of the batch in the input buffer, eagerly or while a graph is recorded.

        Return two scalars: the total, and the negative log-likelihood.
        """
        count = len(self._inputs) - rows.MAX_SEEDS
        with torch.enable_grad(), rows.seeds_from_buffer(self._inputs[count:]):
            return self._compute(self._inputs[:count])

    def record(self, pool: Pool, read: list[Tensor]) -> None:
        """Record the forward and backward passes of the loss as CUDA graphs.

        The loss keeps references to the tensors `read`, such as the model's buffers, because the graphs read their
        memory.
        """
        device = self._inputs.device
        with recording(device, pool) as forward:
            total, negative_log_likelihood = self.launch()
        with recording(device, pool) as backward:
            total.backward(self._slope)
        self._out, self._read = (total.detach(), negative_log_likelihood.detach()), read
        self._graphs = forward, backward

    def run_forward(self) -> tuple[int, tuple[Tensor, Tensor]]:
        """Run the forward pass, by its CUDA graph if recorded; return the loss's sequence number and a pair of scalars.

        The scalars are the total, whose gradients are computed, and the negative log-likelihood.
        """
        if self._graphs is not None:
            self._graphs[0].replay()
        else:  # the first batch of a size runs eagerly: recording needs initialized libraries and compiled kernels
            self._recorder.eager_loss, negative_log_likelihood = self.launch()
            self._out = self._recorder.eager_loss.detach(), negative_log_likelihood.detach()
        assert self._out is not None
        self._recorder.sequence_number += 1
        return self._recorder.sequence_number, (self._out[0].clone(), self._out[1].clone())

    def run_backward(self, replay: int, slope: Tensor) -> None:
        """Run the backward pass of the loss for which `run_forward` returned the sequence number `replay`.

        `slope` is the gradient of the total. Only the newest loss can be differentiated, and only once; otherwise
        RuntimeError is raised.
        """
        if replay != self._recorder.sequence_number:
            raise RuntimeError(
                "the gradients of this batch are gone: they were computed before, or another batch's loss was computed"
            )
        self._recorder.sequence_number += 1  # a second backward pass of this loss must fail
        if self._graphs is not None:
            self._slope.copy_(slope)
            self._graphs[1].replay()
        elif self._recorder.eager_loss is not None:
            self._recorder.eager_loss.backward(slope)
            self._recorder.eager_loss = None


class _ReplayedLoss(torch.autograd.Function):
    """Both passes of a recorded loss as an autograd function; gradients go to the parameters' float32 sums."""

    @staticmethod
    def forward(ctx: Any, loss: _RecordedLoss, anchor: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG004
        ctx.loss = loss
        ctx.replay, (total, negative_log_likelihood) = loss.run_forward()
        ctx.mark_non_differentiable(negative_log_likelihood)
        return total, negative_log_likelihood

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.loss.run_backward(ctx.replay, gradients[0])
        return None, None


# --- linear layers ---
# Run linear layers on a GPU by cuBLAS, with weight gradients accumulated in float32.
# PyTorch alone rounds each weight gradient to bfloat16, and adds it in a separate pass.
# Legend: N rows, I inputs, O outputs, V vocabulary size, D columns of a matrix.


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows | None, *, activation: str | None = None
) -> Tensor:
    """Return activation(x · weightᵀ + bias) for the weight's rows in `rows` (None: all), as a differentiable function.

    The function runs on a GPU by cuBLAS. `TrainingKernels.linear` describes the arguments.
    """
    sums = linear_sums(_LINEAR, weight, bias, rows, activation)
    return LinearNode.apply(x, weight, bias, sums)  # type: ignore[no-any-return,no-untyped-call]


def _linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Return activation(x · weightᵀ + bias), for `LinearKernels.forward`."""
    if bias is None:
        out = x @ weight.t()
        return out.relu_() if activation == "relu" else out
    return (torch._addmm_activation if activation == "relu" else torch.addmm)(bias, x, weight.t())


def _linear_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, out: Tensor | None, sums: Sequence[Tensor | None], needs_x: bool
) -> Tensor | None:
    """Add the gradients of weight and bias to `sums`, and return the gradient of x; for `LinearKernels.backward`.

    A sum that is None is left out. The result is None unless `needs_x`. `out` is the layer's output if the layer
    applies a ReLU, else None.
    """
    weight_sum, bias_sum = sums
    if out is not None:
        columns = x.new_zeros(len(weight), dtype=torch.float32) if bias_sum is None else bias_sum
        gradient = add_sum_of_rows(gradient, columns, out)
    elif bias_sum is not None:
        add_sum_of_rows(gradient, bias_sum)
    grad_x = gradient @ weight if needs_x else None
    if weight_sum is not None:
        add_product(weight_sum, gradient.t(), x)
    return grad_x


_LINEAR = LinearKernels(_linear_forward, _linear_backward)


# --- whole layers ---
# Each node of PyTorch's graph takes the CPU some 70 µs, forward and backward, during which the GPU idles if the model
# is small. An encoder layer has nine nodes and a decoder layer fourteen. As one node, a layer runs the same operations
# in the same order, so each bit of the result stays the same.
# Legend: N tokens of the batch, M source tokens, D model width.


_WHOLE_LAYERS = table(
    "the layer kernel on a GPU",
    norm_order="pre post",
    norm="layer rms",
    linear_layers="Linear",
    activation="relu",
    attention_score="scaled",
    attention_kind="soft",
    attention_scale="default",
    key_value_heads="equal",
    value_width="equal",
)


def why_not_whole(layer: nn.Module, dtype: torch.dtype) -> str | None:  # noqa: ARG001
    """Return a clause that says why a layer is trained component by component; None if kernels compute it as a whole.

    The layer may be on the meta device.
    """
    return refusal(_WHOLE_LAYERS, layer)


def run_layer(
    layer: nn.Module, x: Tensor, memory: Tensor | None, masks: Sequence[object], rotation: Rotation | None = None
) -> Tensor | None:
    """Compute an encoder or decoder layer as one autograd node; return its output, (1, N, D), or None.

    The result is None if gradients are disabled, if there is a rotary embedding or dropout inside of a sub-layer, or if
    the kernels do not support the layer. It is also None for batches that are not packed (without padding).

    Args:
        layer: an encoder or decoder layer.
        x: its input, (1, N, D).
        memory: the encoder output, (1, M, D), for a decoder layer.
        masks: the mask of self-attention, then, in a decoder layer, that of cross-attention.
        rotation: a rotary embedding, or None.
    """
    if rotation is not None or not torch.is_grad_enabled() or not all(isinstance(mask, PackedMask) for mask in masks):
        return None
    sublayers = sublayers_of(layer, masks, _WHOLE_LAYERS)
    if sublayers is None or any(sublayer.inner_drop_256ths for sublayer in sublayers):
        return None
    parameters = [each for sublayer in sublayers for each in sublayer.parameters() if each is not None]
    return _GpuLayer.apply(sublayers, x, memory, *parameters)  # type: ignore[no-any-return,no-untyped-call]


class _GpuLayer(torch.autograd.Function):
    """A whole encoder or decoder layer as one autograd function, which takes less CPU time than a node per operation.

    Parameter gradients are added to their float32 sums. The parameters are arguments only so that autograd runs their
    hooks.
    """

    @staticmethod
    def forward(
        ctx: Any, sublayers: Sequence[MaskedSublayer], x: Tensor, memory: Tensor | None, *parameters: Tensor
    ) -> Tensor:
        ctx.computed, ctx.parameters = [], len(parameters)
        for sublayer in sublayers:
            nodes = _SublayerNodes(sublayer, memory if sublayer.reads_memory else None)
            x = nodes.forward(x)
            ctx.computed.append(nodes)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.computed:
            raise RuntimeError("the backward pass of a layer of packed sentences was taken before: compute it again")
        grad_x, grad_memory = gradients[0], None
        while ctx.computed:  # frees what each sub-layer saved
            last: _SublayerNodes = ctx.computed.pop()
            grad_x = last.backward(grad_x)
            grad_memory = last.grad_memory if grad_memory is None else grad_memory
        return None, grad_x, grad_memory, *[None] * ctx.parameters


class _SublayerNodes:
    """A sub-layer (attention or feed-forward network), computed by several autograd functions without PyTorch's graph.

    `forward` runs the functions, and `backward` runs their backward functions in reverse order.
    """

    def __init__(self, sublayer: MaskedSublayer, memory: Tensor | None) -> None:
        self.sublayer = sublayer
        self._memory = memory
        self._attends, self._dropped = sublayer.attention is not None, sublayer.drop_256ths
        self.grad_memory: Tensor | None = None
        self._done: list[tuple[Any, _Context]] = []

    def forward(self, x: Tensor) -> Tensor:
        """Compute the sub-layer with its norm and residual connection, (1, N, D) to (1, N, D)."""
        y = self._norm(x) if self.sublayer.norm_is_before else x
        y = self._attend(y) if self._attends else self._feed_forward(y)
        x = self._run(GpuDropNode, x, y, self._dropped) if self._dropped else x + y
        return x if self.sublayer.norm_is_before else self._norm(x)

    def backward(self, grad_out: Tensor) -> Tensor:
        """Return the gradient of the sub-layer's input from that of its output, both (1, N, D).

        The gradient of the encoder output is stored in the attribute `grad_memory`.
        """
        grad_sum = grad_out if self.sublayer.norm_is_before else self._backward(None, grad_out)[0]
        grad_kept, grad_y = self._backward(grad_sum)[:2] if self._dropped else (grad_sum, grad_sum)
        grad_y = self._attend_backward(grad_y) if self._attends else self._backward(self._backward(grad_y)[0])[0]
        return self._backward(grad_kept, grad_y)[0] if self.sublayer.norm_is_before else grad_kept + grad_y

    def _run(self, node: Any, *arguments: Any) -> Any:
        """Run the forward function of an autograd node; return its result, and keep what `backward` needs."""
        context = _Context(arguments)
        self._done.append((node, context))
        return node.forward(context, *arguments)

    def _backward(self, *gradients: Tensor | None) -> Any:
        """Run the backward function of the newest autograd node that has not been run backward yet.

        Return the gradients of the node's arguments, in their order.
        """
        node, context = self._done.pop()
        return node.backward(context, *gradients)

    def _norm(self, x: Tensor) -> Tensor:
        norm = self.sublayer.norm
        bias = norm.bias if isinstance(norm, LayerNorm) else None
        return self._run(NormNode, x, norm.weight, bias, norm.eps, rows.NORM)[1]  # type: ignore[no-any-return]

    def _linear(self, x: Tensor, module: Linear, rows: Rows | None = None, *, activation: str | None = None) -> Tensor:
        weight, bias = module.weight, module.bias
        sums = linear_sums(_LINEAR, weight, bias, rows, activation)
        return self._run(LinearNode, x, weight, bias, sums)  # type: ignore[no-any-return]

    def _feed_forward(self, x: Tensor) -> Tensor:
        inner, outer = self.sublayer.linears
        return self._linear(self._linear(x, inner, activation=self.sublayer.activation), outer)

    def _attend(self, x: Tensor) -> Tensor:
        attention, memory = self.sublayer.attention, self._memory
        assert attention is not None
        if memory is None:
            projected = self._linear(x, attention.projection)
        else:
            projected = self._linear(x, attention.projection, Rows(0, attention.widths[0]))
            rows = Rows(attention.widths[0], sum(attention.widths))
            memory = self._linear(memory, attention.projection, rows)
        heads = self._run(AttentionNode, projected, memory, self.sublayer.mask, attention.num_heads)
        return self._linear(heads, attention.output)

    def _attend_backward(self, grad_out: Tensor) -> Tensor:
        grad_projected, grad_memory = self._backward(self._backward(grad_out)[0])[:2]
        if self._memory is not None:
            self.grad_memory = self._backward(grad_memory)[0]
        return self._backward(grad_projected)[0]  # type: ignore[no-any-return]


class _Context:
    """A substitute for the `ctx` argument of an autograd function, which keeps tensors for the backward function.

    So autograd functions can be run without PyTorch's graph.
    """

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.saved_tensors: tuple[Tensor | None, ...] = ()
        self.needs_input_grad = [isinstance(each, Tensor) for each in arguments]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors of an autograd node's forward pass for its backward pass."""
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Do nothing: gradients that do not exist are None here, whatever PyTorch's setting `value`."""


# --- optimizer updates ---


_BLOCK = 1024


def update_by_adam(
    vectors: UpdatedVectors, moments: tuple[Tensor, Tensor], scalars: AdamScalars, average_decay: float
) -> None:
    """Update parameters by Adam in place, zero their gradients, and refresh their moving average and bfloat16 copy.

    This function implements `TrainingKernels.update_by_adam`, which describes the arguments.
    """
    triton_kernels.adam[_grid(vectors.master)](
        *_pointers(vectors), *moments, vectors.master.numel(), *scalars, average_decay, *_has(vectors), _BLOCK
    )


def update_momentum(gradient: Tensor, momentum: Tensor, out: Tensor, factor: float, decay: float) -> None:
    """Update Nesterov momentum in place from gradients, and write the update's direction to `out`.

    This function implements `TrainingKernels.update_momentum`, which describes the arguments.
    """
    triton_kernels.update_momentum[_grid(gradient)](gradient, momentum, out, gradient.numel(), factor, decay, _BLOCK)


def apply_update(vectors: UpdatedVectors, average_decay: float, direction: Tensor, rate: float, shrink: float) -> None:
    """Replace parameters by parameters × shrink - rate × direction, in place.

    The moving average and the bfloat16 copy of the parameters are refreshed, and the gradients are set to zero. This
    function implements `TrainingKernels.apply_update`.
    """
    if shrink != 1.0:
        vectors.master.mul_(shrink)
    triton_kernels.apply_update[_grid(vectors.master)](
        *_pointers(vectors), direction, vectors.master.numel(), rate, average_decay, *_has(vectors), _BLOCK
    )


def _grid(vector: Tensor) -> tuple[int]:
    """Return the launch grid of a Triton kernel that processes a vector in blocks of 1024 elements.

    The grid is a tuple of one number, that of blocks.
    """
    return (ceil_div(vector.numel(), _BLOCK),)


def _pointers(vectors: UpdatedVectors) -> list[Tensor]:
    """Return a list of an optimizer update's vectors as kernel arguments; the master weights stand in for None."""
    return [vectors.master if vector is None else vector for vector in vectors]


def _has(vectors: UpdatedVectors) -> tuple[bool, bool]:
    """Return two flags for kernels: whether an update has a moving average, and whether it has a bfloat16 copy."""
    return vectors.average is not None, vectors.working is not None


# --- backend ---


_KINDS = (torch.bfloat16, torch.float32)
_MAX_COLUMNS = 8192  # a row is held in registers


class _PackedBatches:
    """Attention and losses of training batches without padding on a GPU.

    The class implements `PackedAttention`.
    """

    record_losses = staticmethod(GpuLossRecorder)
    attend = staticmethod(attention.attend)

    def supports(self, model: nn.Module, max_length: int) -> bool:
        """Return whether the kernels can train a model on packed batches with sentences of at most `max_length` tokens.

        Packed batches have no padding. The layer graph must know every component of the model.
        """
        return (
            isinstance(model, Transformer)
            and model.config.can_be_packed
            and attention.supports_heads(model.config, max_length, model.source_weight)
            and is_known(model)
        )

    def hidden(self, model: nn.Module, batch: PackedBatch) -> Tensor:
        """Return the decoder's output for a packed batch (without padding), (1, target tokens, D)."""
        return packed_hidden(model, batch)


def _no_kernel(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise NotImplementedError; it stands for methods of the backend whose `supports_…` returns False."""
    raise NotImplementedError


class GpuTraining(TrainingKernels):
    """A training backend of Triton kernels for one GPU, which implements `TrainingKernels`.

    PyTorch computes what has no kernel in this package, and is as fast: attention to padded sentences, the output
    projection (which sums in float32), and Muon by cuBLAS.
    """

    def __init__(self, device: str) -> None:
        """Create a backend for a device such as "cuda:1", which becomes PyTorch's current GPU if it has an index."""
        gpu = torch.device(device)
        self._device_type = gpu.type
        if gpu.type == "cuda" and gpu.index is not None:
            torch.cuda.set_device(gpu)

    packed = _PackedBatches()
    linear_activations = frozenset(("relu",))
    run_layer = staticmethod(run_layer)
    dropout_add = staticmethod(rows.drop_and_add)
    residual_norm = staticmethod(rows.residual_norm)
    sum_rows = staticmethod(rows.sum_rows)
    add_rows_in_place = staticmethod(rows.add_rows_in_place)
    linear = staticmethod(linear)
    update_by_adam = staticmethod(update_by_adam)
    update_momentum = staticmethod(update_momentum)
    apply_update = staticmethod(apply_update)
    softmax_ = staticmethod(rows.softmax_)
    attend = apply_rotary = activate = orthogonalize_in_place = staticmethod(_no_kernel)

    @override
    def execute(self, component: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return execute(self, component, *args, **kwargs)

    def _has(self, *tensors: Tensor) -> bool:
        """Return whether all tensors are on the backend's type of device and in float32 or bfloat16."""
        return all(each.device.type == self._device_type and each.dtype in _KINDS for each in tensors)

    @override
    def supports_rows(self, x: Tensor) -> bool:
        return self._has(x) and 0 < x.shape[-1] <= _MAX_COLUMNS and x.numel() > 0

    @override
    def supports_linear(self, x: Tensor, weight: Tensor, rows: Rows | None) -> bool:
        return self._has(x, weight) and x.dtype == weight.dtype and x.numel() > 0

    @override
    def supports_logits(self, logits: Tensor) -> bool:
        return self._has(logits) and logits.is_contiguous()

    @override
    def supports_update(self, vectors: UpdatedVectors) -> bool:
        return self._has(vectors.master) and (vectors.working is None or vectors.working.dtype == torch.bfloat16)

    @override
    def add_in_place(self, total: Tensor, part: Tensor) -> None:
        total += part
