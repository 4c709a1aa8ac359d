"""Which weights of a model are matrices that its layers multiply by."""

from torch import nn

from transduce.model.attention import MultiHeadAttention
from transduce.model.feed_forward import FeedForward, GatedFeedForward


def layer_matrices(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The weights of attention and feed-forward layers by name, and the rows of each matrix that stands in one.

    Queries, keys and values are three matrices in one weight, the halves of a gated layer two. Embeddings, the output
    projection and heads are not among them, nor recurrent cells.
    """
    found: dict[str, tuple[int, ...]] = {}
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            found[f"{name}.projection.weight"] = tuple(module.widths)
            found[f"{name}.output.weight"] = (module.output.out_features,)
        elif isinstance(module, FeedForward | GatedFeedForward):
            halves = 2 if isinstance(module, GatedFeedForward) else 1
            found[f"{name}.inner.weight"] = (module.inner.out_features // halves,) * halves
            found[f"{name}.outer.weight"] = (module.outer.out_features,)
    return found
