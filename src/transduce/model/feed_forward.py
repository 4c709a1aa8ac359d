"""The position-wise feed-forward network (section 3.3) and its gated variants.

Legend: B batch, T positions, D model width.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from transduce.model.backend import Component
from transduce.model.config import ModelConfig
from transduce.model.dropout import Dropout
from transduce.model.linear import Linear

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
        """Apply the network to each position: (B, T, D) to (B, T, D)."""
        hidden = self.activation(self.inner(x))  # (B, T, d_ff)
        return self.outer(self.dropout(hidden))  # type: ignore[no-any-return]


class GatedFeedForward(nn.Module):
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
        """Apply the network to each position: (B, T, D) to (B, T, D)."""
        gate, linear = self.inner(x).chunk(2, dim=-1)
        return self.outer(self.dropout(self.gate(gate) * linear))  # type: ignore[no-any-return]


def build_feed_forward(config: ModelConfig) -> FeedForward | GatedFeedForward:
    """Build the feed-forward network that a configuration describes."""
    kind = GatedFeedForward if config.activation in GATES else FeedForward
    return kind(
        d_model=config.d_model,
        d_ff=config.d_ff,
        activation=config.activation,
        bias=config.bias if config.feed_forward_bias is None else config.feed_forward_bias,
        dropout=config.activation_dropout,
    )
