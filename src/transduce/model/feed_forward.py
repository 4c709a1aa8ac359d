"""Define the position-wise feed-forward network (section 3.3), its gated variants, and their linear layers and dropout.

Legend: B batch, T positions, D model width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from transduce.errors import TransduceError
from transduce.model.backend import Component, Rows
from transduce.model.config import ModelConfig

# --- linear layers ---


class Linear(Component, nn.Linear):
    """A linear layer, x · weightᵀ + bias, that can also compute only a range of its outputs."""

    def forward(self, input: Tensor, rows: Rows | None = None) -> Tensor:  # noqa: A002 -- the name it has in PyTorch
        """Return x · weightᵀ + bias, (…, inputs) to (…, outputs).

        If `rows` is a range of the weight's rows, only the outputs of these rows are computed.
        """
        if rows is None:
            return F.linear(input, self.weight, self.bias)
        part = (0, rows.start, rows.stop - rows.start)
        return F.linear(input, self.weight.narrow(*part), None if self.bias is None else self.bias.narrow(*part))


# --- dropout (section 5.4; Srivastava et al. 2014) ---
# On a CPU, PyTorch draws a random number per element in one thread, which takes 12 ms for 4,096 × 512 elements. Here
# each element takes one random byte, in 1.2 ms. The probability is rounded to a multiple of 1/256, and the elements
# that stay are scaled by 1 / (1 - the rounded probability). Masks are made by integer arithmetic on whole words,
# because conversions from bytes are not vectorized.


_LOWEST = -(2**63)
# Per dtype: the integer of the same width, its sign bit, and the bits of 1.0.
_WORDS = {torch.bfloat16: (torch.int16, 15, 0x3F80), torch.float32: (torch.int32, 31, 0x3F800000)}


def keep_mask(x: Tensor, drop_256ths: int) -> Tensor:
    """Return a random dropout mask in x's shape and dtype: 0 with probability drop_256ths / 256, otherwise 1."""
    word, sign_bit, one = _WORDS[x.dtype]
    lanes = x.element_size()
    count = (x.numel() + lanes - 1) // lanes
    random = torch.empty((count * lanes + 7) // 8, dtype=torch.int64, device=x.device).random_(_LOWEST, None)
    words = random.view(word)[:count]
    mask = torch.empty(lanes, count, dtype=word, device=x.device)
    for lane in range(lanes):
        torch.bitwise_right_shift(words, 8 * lane, out=mask[lane])
    # A byte below drop_256ths turns negative: its sign, spread over the word and inverted, selects the bits of 1.0.
    mask.bitwise_and_(255).sub_(drop_256ths).bitwise_right_shift_(sign_bit).bitwise_not_().bitwise_and_(one)
    return mask.view(x.dtype).view(-1)[: x.numel()].view(x.shape)


class _DropoutAdd(torch.autograd.Function):
    """The function residual + dropout(x) as one node of the autograd graph; without a residual, dropout(x) alone."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor | None, x: Tensor, drop_256ths: int) -> Tensor:
        ctx.scale = 256.0 / (256 - drop_256ths)
        keep = keep_mask(x, drop_256ths)
        ctx.save_for_backward(keep)
        if residual is None:
            return (x * keep).mul_(ctx.scale)
        return torch.addcmul(residual, x, keep, value=ctx.scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (keep,) = ctx.saved_tensors
        gradient = gradients[0]
        return (gradient if ctx.needs_input_grad[0] else None), (gradient * keep).mul_(ctx.scale), None


class Dropout(Component, nn.Dropout):
    """A module that in training drops elements with probability p and scales the others by 1 / (1 - p).

    In evaluation it changes nothing.
    """

    def __init__(self, p: float) -> None:
        super().__init__(p)

    @property
    def p(self) -> float:
        """The dropout probability, below 1; with random bytes (on a CPU) it is rounded to 256ths, at most 255/256.

        A probability that rounds to zero drops nothing on any device.
        """
        return self._p

    @p.setter
    def p(self, p: float) -> None:
        if not 0.0 <= p < 1.0:
            raise TransduceError(f"`p`, the probability of dropout, must be at least 0 and below 1, but is {p}.")
        self._p = p
        self.drop_256ths = min(255, round(p * 256))

    @property
    def drops(self) -> bool:
        """True if the module is in training and its probability, rounded to 256ths, is not zero."""
        return self.training and self.drop_256ths > 0

    def _draws_bytes(self, x: Tensor) -> bool:
        return x.device.type == "cpu" and x.dtype in _WORDS

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return dropout(x) or, with a residual, residual + dropout(x), in the shape of x."""
        if self.drops:
            if self._draws_bytes(x):
                return _DropoutAdd.apply(residual, x, self.drop_256ths)  # type: ignore[no-any-return,no-untyped-call]
            x = F.dropout(x, self.p)
        return x if residual is None else residual + x

    @override
    def extra_repr(self) -> str:
        return f"p={self.p}"


# --- feed-forward networks ---


_gelu_tanh = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": _gelu_tanh,
    "silu": F.silu,
}
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu-tanh": _gelu_tanh,
    "reglu": F.relu,
}


class FeedForward(Component):
    """The network max(0, x W1 + b1) W2 + b2, equation (2), or the same network with another activation."""

    def __init__(
        self, *, d_model: int, d_ff: int, activation: str = "relu", bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.inner = Linear(d_model, d_ff, bias=bias)
        self.outer = Linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to each position, (B, T, D) to (B, T, D), with dropout after the activation."""
        hidden = self.activation(self.inner(x))  # (B, T, d_ff)
        return self.outer(self.dropout(hidden))  # type: ignore[no-any-return]

    @override
    def _check_call(self, x: Tensor) -> None:
        self._check_input(x, self.inner.in_features, self.inner.weight)


class GatedFeedForward(Component):
    """The gated network (gate(x W) ⊙ x V) W2; with SiLU as the gate it is SwiGLU.

    Shazeer 2020, "GLU Variants Improve Transformer".
    """

    def __init__(
        self, *, d_model: int, d_ff: int, activation: str = "swiglu", bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.gate = GATES[activation]
        self.inner = Linear(d_model, 2 * d_ff, bias=bias)  # rows [gate; linear half]
        self.outer = Linear(d_ff, d_model, bias=bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to each position, (B, T, D) to (B, T, D), with dropout after the gate."""
        gate, linear = self.inner(x).chunk(2, dim=-1)
        return self.outer(self.dropout(self.gate(gate) * linear))  # type: ignore[no-any-return]

    @override
    def _check_call(self, x: Tensor) -> None:
        self._check_input(x, self.inner.in_features, self.inner.weight)


def build_feed_forward(config: ModelConfig) -> FeedForward | GatedFeedForward:
    """Build the feed-forward network that a configuration describes."""
    kind = GatedFeedForward if config.activation in GATES else FeedForward
    return kind(
        d_model=config.d_model,
        d_ff=config.d_ff,
        activation=config.activation,
        bias=config.has_feed_forward_bias,
        dropout=config.activation_dropout,
    )
