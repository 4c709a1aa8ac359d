"""The weights of a model that are matrices of its layers, as the optimizer Muon updates them."""

from torch import nn

from transduce.model.attention import MultiHeadAttention
from transduce.model.feed_forward import FeedForward, GatedFeedForward


def layer_matrices(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the weights of attention and feed-forward layers by name, with the row counts of their matrices.

    Queries, keys and values are three matrices in one weight, and the halves of a gated layer are two. Embeddings,
    output projections, heads and recurrent cells are not included.
    """
    return {
        f"{path}.{name}": rows
        for path, module in model.named_modules()
        for name, rows in brick_matrices(module).items()
    }


def brick_matrices(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the weights of one attention or feed-forward layer like `layer_matrices`; nothing for others."""
    if isinstance(module, MultiHeadAttention):
        return {"projection.weight": module.widths, "output.weight": (module.output.out_features,)}
    if isinstance(module, FeedForward | GatedFeedForward):
        halves = 2 if isinstance(module, GatedFeedForward) else 1
        inner = (module.inner.out_features // halves,) * halves
        return {"inner.weight": inner, "outer.weight": (module.outer.out_features,)}
    return {}
