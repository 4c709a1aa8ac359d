"""Which weights of a model are matrices that its layers multiply by."""

from torch import nn

from transduce.model.attention import MultiHeadAttention
from transduce.model.feed_forward import FeedForward, GatedFeedForward


def layer_matrices(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The weights of attention and feed-forward layers by name, and the rows of each matrix that stands in one.

    Queries, keys and values are three matrices in one weight, the halves of a gated layer two. Embeddings, the output
    projection and heads are not among them, nor recurrent cells.
    """
    return {
        f"{place}.{name}": rows
        for place, module in model.named_modules()
        for name, rows in brick_matrices(module).items()
    }


def brick_matrices(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """The same of one attention or feed-forward layer; nothing of other modules."""
    if isinstance(module, MultiHeadAttention):
        return {"projection.weight": module.widths, "output.weight": (module.output.out_features,)}
    if isinstance(module, FeedForward | GatedFeedForward):
        halves = 2 if isinstance(module, GatedFeedForward) else 1
        inner = (module.inner.out_features // halves,) * halves
        return {"inner.weight": inner, "outer.weight": (module.outer.out_features,)}
    return {}
