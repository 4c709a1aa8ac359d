"""A whole layer as one node of PyTorch's graph, for packed batches on a GPU.

Each node costs the processor some 70 µs, forward and back, in which a GPU does nothing where the model is small: the
nine operations of an encoder's layer, and the fourteen of a decoder's, are one here. They are the same operations in
the same order, so what comes out is the same to the last bit.
Legend: N pieces of the batch, M of its sources, D model width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transduce.model.attention import MultiHeadAttention
from transduce.model.dropout import Dropout
from transduce.model.feed_forward import FeedForward
from transduce.model.fused import Rows
from transduce.model.gpu.attention import AttentionNode
from transduce.model.gpu.norms import NormNode
from transduce.model.gpu.products import LinearNode
from transduce.model.gpu.rows import DropNode
from transduce.model.gradient_sums import linear_sums, sum_of_gradients
from transduce.model.layers import DecoderLayer, EncoderLayer, Residual
from transduce.model.linear import Linear
from transduce.model.norms import LayerNorm, RMSNorm
from transduce.model.packing import PackedMask


def run_layer(layer: nn.Module, x: Tensor, memory: Tensor | None, masks: Sequence[PackedMask]) -> Tensor | None:
    """A layer of an encoder or a decoder, (1, N, D) to (1, N, D).

    Args:
        layer: in training.
        x: its input, which `GpuTraining.suits_rows` takes.
        memory: of a decoder's layer, (1, M, D).
        masks: of attention to itself, and to the memory.

    Returns:
        None where the layer is of other bricks, or its gradients are not collected by kernels (`gradient_sums.py`).
    """
    if not torch.is_grad_enabled() or not isinstance(layer, EncoderLayer | DecoderLayer):
        return None
    parts = [_Part(layer.self_attention_residual, layer.self_attention, masks[0])]
    if isinstance(layer, DecoderLayer):
        parts.append(_Part(layer.memory_attention_residual, layer.memory_attention, masks[1], reads_memory=True))
    parts.append(_Part(layer.feed_forward_residual, layer.feed_forward))
    if not all(part.is_plain for part in parts):
        return None
    parameters = [parameter for part in parts for parameter in part.parameters()]
    if any(sum_of_gradients(parameter) is None for parameter in parameters):
        return None
    return _Layer.apply(parts, x, memory, *parameters)  # type: ignore[no-any-return,no-untyped-call]


class _Part(NamedTuple):
    """A sub-layer and what is around it."""

    residual: Residual
    sublayer: nn.Module
    mask: PackedMask | None = None
    """Of attention."""
    reads_memory: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is of the bricks that are written out here."""
        residual, sublayer = self.residual, self.sublayer
        norms = residual.norm_before, residual.norm_after
        if residual.is_sandwich or sum(map(_is_known, norms)) != 1:
            return False
        if isinstance(sublayer, MultiHeadAttention):
            return type(sublayer.projection) is Linear and type(sublayer.output) is Linear
        return (
            isinstance(sublayer, FeedForward)
            and sublayer.activation is nn.functional.relu
            and not _drops(sublayer.dropout)
            and type(sublayer.inner) is Linear
            and type(sublayer.outer) is Linear
        )

    @property
    def norm_is_before(self) -> bool:
        """Whether its input is normalised; else, what the residual connection comes to."""
        return not isinstance(self.residual.norm_before, nn.Identity)

    @property
    def norm(self) -> nn.Module:
        """The one that it has."""
        return self.residual.norm_before if self.norm_is_before else self.residual.norm_after

    def parameters(self) -> list[Tensor]:
        """All that it learns."""
        sublayer = self.sublayer
        attends = isinstance(sublayer, MultiHeadAttention)
        products = (sublayer.projection, sublayer.output) if attends else (sublayer.inner, sublayer.outer)
        found = [getattr(brick, name, None) for brick in (self.norm, *products) for name in ("weight", "bias")]
        return [parameter for parameter in found if parameter is not None]


def _is_known(norm: nn.Module) -> bool:
    if isinstance(norm, LayerNorm):
        return norm.bias is not None
    return isinstance(norm, RMSNorm) and norm.eps is not None


def _drops(dropout: Dropout) -> int:
    return dropout.drop_of_256 if dropout.training else 0


class _Layer(torch.autograd.Function):
    """Gradients by parameters, which are arguments for their hooks alone, go where they are summed."""

    @staticmethod
    def forward(ctx: Any, parts: Sequence[_Part], x: Tensor, memory: Tensor | None, *parameters: Tensor) -> Tensor:
        ctx.passes, ctx.parameters = [], len(parameters)
        for part in parts:
            done = _Pass(part, memory if part.reads_memory else None)
            x = done.forward(x)
            ctx.passes.append(done)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.passes:
            raise RuntimeError("the backward pass of a layer of packed sentences was taken before: compute it again")
        by_x, by_memory = gradients[0], None
        while ctx.passes:  # each gives up what it kept
            done: _Pass = ctx.passes.pop()
            by_x = done.backward(by_x)
            by_memory = done.by_memory if by_memory is None else by_memory
        return None, by_x, by_memory, *[None] * ctx.parameters


class _Pass:
    """Through one sub-layer, and back: node by node, the last one first."""

    def __init__(self, part: _Part, memory: Tensor | None) -> None:
        self.part = part
        self._memory = memory
        self._attends, self._dropped = isinstance(part.sublayer, MultiHeadAttention), _drops(part.residual.dropout)
        self.by_memory: Tensor | None = None
        self._done: list[tuple[Any, _Kept]] = []

    def forward(self, x: Tensor) -> Tensor:
        """(1, N, D) to (1, N, D)."""
        y = self._norm(x) if self.part.norm_is_before else x
        y = self._attend(y) if self._attends else self._feed_forward(y)
        x = self._run(DropNode, x, y, self._dropped) if self._dropped else x + y
        return x if self.part.norm_is_before else self._norm(x)

    def backward(self, by_out: Tensor) -> Tensor:
        """Gradients, likewise."""
        by_sum = by_out if self.part.norm_is_before else self._back(None, by_out)[0]
        by_kept, by_y = self._back(by_sum)[:2] if self._dropped else (by_sum, by_sum)
        by_y = self._attend_back(by_y) if self._attends else self._back(self._back(by_y)[0])[0]
        return self._back(by_kept, by_y)[0] if self.part.norm_is_before else by_kept + by_y

    def _run(self, node: Any, *arguments: Any) -> Any:
        kept = _Kept(arguments)
        self._done.append((node, kept))
        return node.forward(kept, *arguments)

    def _back(self, *gradients: Tensor | None) -> Any:
        node, kept = self._done.pop()
        return node.backward(kept, *gradients)

    def _norm(self, x: Tensor) -> Tensor:
        norm = self.part.norm
        assert isinstance(norm, LayerNorm | RMSNorm)
        bias = norm.bias if isinstance(norm, LayerNorm) else None
        return self._run(NormNode, x, norm.weight, bias, norm.eps)[1]  # type: ignore[no-any-return]

    def _linear(self, x: Tensor, product: Linear, rows: Rows | None = None, *, relu: bool = False) -> Tensor:
        weight, bias = product.weight, product.bias
        return self._run(LinearNode, x, weight, bias, linear_sums(weight, bias, rows, relu=relu))  # type: ignore[no-any-return]

    def _feed_forward(self, x: Tensor) -> Tensor:
        sublayer = self.part.sublayer
        assert isinstance(sublayer, FeedForward)
        return self._linear(self._linear(x, sublayer.inner, relu=True), sublayer.outer)

    def _attend(self, x: Tensor) -> Tensor:
        attention, memory = self.part.sublayer, self._memory
        assert isinstance(attention, MultiHeadAttention)
        if memory is None:
            own = self._linear(x, attention.projection)
        else:
            own = self._linear(x, attention.projection, Rows(0, attention.widths[0]))
            rows = Rows(attention.widths[0], sum(attention.widths))
            memory = self._linear(memory, attention.projection, rows)
        heads = self._run(AttentionNode, own, memory, self.part.mask, attention.num_heads)
        return self._linear(heads, attention.output)

    def _attend_back(self, by_out: Tensor) -> Tensor:
        by_own, by_others = self._back(self._back(by_out)[0])[:2]
        if self._memory is not None:
            self.by_memory = self._back(by_others)[0]
        return self._back(by_own)[0]  # type: ignore[no-any-return]


class _Kept:
    """What a node of the graph keeps for its backward pass, where it is none: its `ctx`."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.saved_tensors: tuple[Tensor | None, ...] = ()
        self.needs_input_grad = [isinstance(each, Tensor) for each in arguments]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Until then."""
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Gradients that there are none of are None here."""
