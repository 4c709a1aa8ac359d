"""What a layer is built of, for kernels that compute all of it at once: its sub-layers, and what is around each."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from transduce.model.attention import MultiHeadAttention
from transduce.model.dropout import Dropout
from transduce.model.feed_forward import FeedForward
from transduce.model.gradient_sums import sum_of_gradients
from transduce.model.layers import DecoderLayer, EncoderLayer, Residual
from transduce.model.linear import Linear
from transduce.model.norms import LayerNorm, RMSNorm


class LayerPart(NamedTuple):
    """A sub-layer and what is around it."""

    residual: Residual
    sublayer: nn.Module
    """`MultiHeadAttention` or `FeedForward`."""
    mask: object = None
    """Of attention."""
    reads_memory: bool = False

    @property
    def attends(self) -> bool:
        """Whether it is attention."""
        return isinstance(self.sublayer, MultiHeadAttention)

    @property
    def norm_is_before(self) -> bool:
        """Whether its input is normalised; else, what the residual connection comes to."""
        return not isinstance(self.residual.norm_before, nn.Identity)

    @property
    def norm(self) -> LayerNorm | RMSNorm:
        """The one that it has."""
        found = self.residual.norm_before if self.norm_is_before else self.residual.norm_after
        assert isinstance(found, LayerNorm | RMSNorm)
        return found

    @property
    def products(self) -> tuple[Linear, Linear]:
        """The first one, and the last."""
        own = self.sublayer
        if isinstance(own, MultiHeadAttention):
            return own.projection, own.output
        assert isinstance(own, FeedForward)
        return own.inner, own.outer

    @property
    def drop_of_256(self) -> int:
        """How many of 256 elements are dropped of what is added to the residual connection."""
        return _drops(self.residual.dropout)

    def parameters(self) -> list[Tensor | None]:
        """Weight and bias of the norm, of the first product and of the last; None where there is no bias."""
        return [getattr(brick, name, None) for brick in (self.norm, *self.products) for name in ("weight", "bias")]


def parts_of(layer: nn.Module, masks: Sequence[object]) -> list[LayerPart] | None:
    """Those of an encoder's or a decoder's layer.

    Args:
        layer: in training.
        masks: of attention to itself, and to the memory.

    Returns:
        None where the layer is of other bricks than these: attention of two products, of which dropout and scores are
        not looked at, a feed-forward network with ReLU, LayerNorm or RMSNorm before or after; or where the gradients by
        what it learns are not all collected by kernels (`gradient_sums.py`).
    """
    if not isinstance(layer, EncoderLayer | DecoderLayer):
        return None
    found = [LayerPart(layer.self_attention_residual, layer.self_attention, masks[0])]
    if isinstance(layer, DecoderLayer):
        found.append(LayerPart(layer.memory_attention_residual, layer.memory_attention, masks[1], reads_memory=True))
    found.append(LayerPart(layer.feed_forward_residual, layer.feed_forward))
    if not all(_is_usual(part.residual, part.sublayer) for part in found):
        return None
    learnt = [each for part in found for each in part.parameters() if each is not None]
    return found if all(sum_of_gradients(each) is not None for each in learnt) else None


def _is_usual(residual: Residual, sublayer: nn.Module) -> bool:
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


def _is_known(norm: nn.Module) -> bool:
    if isinstance(norm, LayerNorm):
        return norm.bias is not None
    return isinstance(norm, RMSNorm) and norm.eps is not None


def _drops(dropout: Dropout) -> int:
    return dropout.drop_of_256 if dropout.training else 0
