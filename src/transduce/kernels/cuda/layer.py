"""Compute a whole layer of packed batches on a GPU as one autograd node.

Each node takes the CPU some 70 µs, forward and backward, during which the GPU idles if the model is small. An encoder
layer has nine nodes and a decoder layer fourteen. The operations and their order stay the same, and so does each bit of
the result.

Legend: N tokens of the batch, M source tokens, D model width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transduce.kernels.cuda.attention import AttentionNode
from transduce.kernels.cuda.rows import DropNode, NormNode, add_rows_in_place, add_sum_of_rows, mask_and_sum_rows
from transduce.kernels.training_executor import LayerPart, parts_of
from transduce.model.backend import (
    LinearSums,
    Rows,
    RowSums,
    add_product,
    embed_rows,
    in_dtype_of,
    linear_sums,
    sum_of_gradients,
    sum_or_zeros,
)
from transduce.model.feed_forward import Linear
from transduce.model.masks import PackedMask
from transduce.model.norms import LayerNorm

# --- linear layers ---
# Run linear layers on a GPU by cuBLAS, with weight gradients accumulated in float32.
# PyTorch alone rounds each weight gradient to bfloat16, and adds it in a separate pass.
# Legend: N rows, I inputs, O outputs, V vocabulary size, D columns of a matrix.


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, rows: Rows | None, *, activation: str | None = None
) -> Tensor:
    """Return activation(x · weightᵀ + bias); see `backend.TrainingKernels.linear` for the shapes."""
    sums = linear_sums(weight, bias, rows, activation=activation)
    return LinearNode.apply(x, weight, bias, sums)  # type: ignore[no-any-return,no-untyped-call]


class LinearNode(torch.autograd.Function):
    """A linear layer as an autograd function that adds weight and bias gradients to float32 sums where these exist."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: LinearSums) -> Tensor:
        row_slice = slice(*options.rows)
        flat, rows_of_weight = x.reshape(-1, x.shape[-1]), weight[row_slice]
        if bias is None:
            out = flat @ rows_of_weight.t()
            out = out.relu_() if options.activation == "relu" else out
        elif options.activation == "relu":
            out = torch._addmm_activation(bias[row_slice], flat, rows_of_weight.t())
        else:
            out = torch.addmm(bias[row_slice], flat, rows_of_weight.t())
        ctx.options = options
        ctx.save_for_backward(flat, weight, bias, None if options.activation is None else out)
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        flat, weight, bias, out = ctx.saved_tensors
        options: LinearSums = ctx.options
        row_slice, by_out = slice(*options.rows), gradients[0]
        gradient = by_out.reshape(-1, by_out.shape[-1]).contiguous()
        total, by_weight = sum_or_zeros(options.weight_sum, weight) if ctx.needs_input_grad[1] else (None, None)
        bias_total, by_bias = sum_or_zeros(options.bias_sum, bias) if ctx.needs_input_grad[2] else (None, None)
        if out is not None:
            columns = flat.new_zeros(len(out[0]), dtype=torch.float32) if bias_total is None else bias_total[row_slice]
            gradient = mask_and_sum_rows(gradient, out, columns)
        elif bias_total is not None:
            add_sum_of_rows(gradient, bias_total[row_slice])
        by_x = (gradient @ weight[row_slice]).view(*by_out.shape[:-1], -1) if ctx.needs_input_grad[0] else None
        if total is not None:
            add_product(total[row_slice], gradient.t(), flat)
        return by_x, in_dtype_of(weight, by_weight), in_dtype_of(bias, by_bias), None


def embed(ids: Tensor, weight: Tensor, scale: float, frozen_row: int | None) -> Tensor:
    """Return rows of a weight (V, D) times `scale`: ids (…), int64, to (…, D); see `backend.TrainingKernels.embed`."""
    return embed_rows(ids, weight, RowSums(scale, frozen_row, sum_of_gradients(weight), add_rows_in_place))


# --- whole layers ---


def run_layer(layer: nn.Module, x: Tensor, memory: Tensor | None, masks: Sequence[object]) -> Tensor | None:
    """Compute an encoder or decoder layer as one autograd node; return None if the kernels do not support it.

    Args:
        layer: an encoder or decoder layer.
        x: its input, (1, N, D).
        memory: the encoder output, (1, M, D), for a decoder layer.
        masks: the mask of self-attention, then, in a decoder layer, that of cross-attention.
    """
    if not torch.is_grad_enabled() or not all(isinstance(mask, PackedMask) for mask in masks):
        return None
    parts = parts_of(layer, masks)
    if parts is None:
        return None
    parameters = [each for part in parts for each in part.parameters() if each is not None]
    return _Layer.apply(parts, x, memory, *parameters)  # type: ignore[no-any-return,no-untyped-call]


class _Layer(torch.autograd.Function):
    """A whole layer as an autograd function.

    Parameter gradients are added to their float32 sums. The parameters are arguments only so that their hooks run.
    """

    @staticmethod
    def forward(ctx: Any, parts: Sequence[LayerPart], x: Tensor, memory: Tensor | None, *parameters: Tensor) -> Tensor:
        ctx.sublayers, ctx.parameters = [], len(parameters)
        for part in parts:
            sublayer = _Sublayer(part, memory if part.reads_memory else None)
            x = sublayer.forward(x)
            ctx.sublayers.append(sublayer)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.sublayers:
            raise RuntimeError("the backward pass of a layer of packed sentences was taken before: compute it again")
        by_x, by_memory = gradients[0], None
        while ctx.sublayers:  # frees what each sub-layer saved
            sublayer: _Sublayer = ctx.sublayers.pop()
            by_x = sublayer.backward(by_x)
            by_memory = sublayer.by_memory if by_memory is None else by_memory
        return None, by_x, by_memory, *[None] * ctx.parameters


class _Sublayer:
    """The forward pass of one sub-layer, and its backward pass, which runs the nodes in reverse order."""

    def __init__(self, part: LayerPart, memory: Tensor | None) -> None:
        self.part = part
        self._memory = memory
        self._attends, self._dropped = part.attention is not None, part.drop_of_256
        self.by_memory: Tensor | None = None
        self._done: list[tuple[Any, _Context]] = []

    def forward(self, x: Tensor) -> Tensor:
        """Compute the sub-layer with its norm and residual connection, (1, N, D) to (1, N, D)."""
        y = self._norm(x) if self.part.norm_is_before else x
        y = self._attend(y) if self._attends else self._feed_forward(y)
        x = self._run(DropNode, x, y, self._dropped) if self._dropped else x + y
        return x if self.part.norm_is_before else self._norm(x)

    def backward(self, by_out: Tensor) -> Tensor:
        """Compute the gradient of the input from the gradient of the output, both (1, N, D)."""
        by_sum = by_out if self.part.norm_is_before else self._backward(None, by_out)[0]
        by_kept, by_y = self._backward(by_sum)[:2] if self._dropped else (by_sum, by_sum)
        by_y = self._attend_backward(by_y) if self._attends else self._backward(self._backward(by_y)[0])[0]
        return self._backward(by_kept, by_y)[0] if self.part.norm_is_before else by_kept + by_y

    def _run(self, node: Any, *arguments: Any) -> Any:
        """Run the forward function of an autograd node, and keep its context for the backward pass."""
        context = _Context(arguments)
        self._done.append((node, context))
        return node.forward(context, *arguments)

    def _backward(self, *gradients: Tensor | None) -> Any:
        """Run the backward function of the newest autograd node that has not been run backward yet."""
        node, context = self._done.pop()
        return node.backward(context, *gradients)

    def _norm(self, x: Tensor) -> Tensor:
        norm = self.part.norm
        bias = norm.bias if isinstance(norm, LayerNorm) else None
        return self._run(NormNode, x, norm.weight, bias, norm.eps)[1]  # type: ignore[no-any-return]

    def _linear(self, x: Tensor, module: Linear, rows: Rows | None = None, *, activation: str | None = None) -> Tensor:
        weight, bias = module.weight, module.bias
        sums = linear_sums(weight, bias, rows, activation=activation)
        return self._run(LinearNode, x, weight, bias, sums)  # type: ignore[no-any-return]

    def _feed_forward(self, x: Tensor) -> Tensor:
        inner, outer = self.part.linears
        return self._linear(self._linear(x, inner, activation=self.part.activation), outer)

    def _attend(self, x: Tensor) -> Tensor:
        attention, memory = self.part.attention, self._memory
        assert attention is not None
        if memory is None:
            projected = self._linear(x, attention.projection)
        else:
            projected = self._linear(x, attention.projection, Rows(0, attention.widths[0]))
            rows = Rows(attention.widths[0], sum(attention.widths))
            memory = self._linear(memory, attention.projection, rows)
        heads = self._run(AttentionNode, projected, memory, self.part.mask, attention.num_heads)
        return self._linear(heads, attention.output)

    def _attend_backward(self, by_out: Tensor) -> Tensor:
        by_projected, by_memory = self._backward(self._backward(by_out)[0])[:2]
        if self._memory is not None:
            self.by_memory = self._backward(by_memory)[0]
        return self._backward(by_projected)[0]  # type: ignore[no-any-return]


class _Context:
    """A stand-in for PyTorch's `ctx`, which saves what a node needs for its backward pass."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.saved_tensors: tuple[Tensor | None, ...] = ()
        self.needs_input_grad = [isinstance(each, Tensor) for each in arguments]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors of a node's forward pass for its backward pass."""
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Ignore the setting: gradients that do not exist are None here."""
