"""Draw initial weights from PyTorch's random generator, and list the matrices of a model."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from transduce.model.attention import MultiHeadAttention, ScoredAttention
from transduce.model.embedding import Embedding, VocabularyModel
from transduce.model.feed_forward import FeedForward, GatedFeedForward
from transduce.model.positions import LearnedPositions, RelativePositions

# --- matrices of layers ---


def layer_matrices(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the row counts of the matrices in each attention and feed-forward weight of a model.

    The keys of the dict are dotted names of weights. One weight may hold several matrices: queries, keys and values are
    three, and the halves of a gated layer are two. Embeddings, output projections, heads and recurrent cells are not
    included.
    """
    return {
        f"{path}.{name}": rows
        for path, module in model.named_modules()
        for name, rows in module_matrices(module).items()
    }


def module_matrices(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the row counts of the matrices in each weight of an attention or feed-forward module.

    The keys of the dict are names of weights. One weight may hold several matrices, such as those of queries, keys and
    values. For other modules the dict is empty.
    """
    if isinstance(module, MultiHeadAttention):
        return {"projection.weight": module.widths, "output.weight": (module.output.out_features,)}
    if isinstance(module, FeedForward | GatedFeedForward):
        halves = 2 if isinstance(module, GatedFeedForward) else 1
        inner = (module.inner.out_features // halves,) * halves
        return {"inner.weight": inner, "outer.weight": (module.outer.out_features,)}
    return {}


# --- initial weights ---


def initialize(model: VocabularyModel) -> None:
    """Initialize all weights of a model, unless it is on the meta device.

    Embeddings have variance 1 / d_model (or 1 / `embedding_size`), so that they have variance 1 once scaled, and logits
    of a tied output have variance 1: the first loss is near ln V. Every projection is Xavier-uniform by its own shape.
    Projections that share one matrix (queries, keys and values; the two halves of a gated layer; the gates of a
    recurrent cell) are drawn one by one. Biases are zero, except those of an LSTM's forget gates. Learned positions and
    token types have the variance of the embeddings that they are added to. The padding id's row is zero unless
    `zero_padding_row` is false.
    """
    if model.source_weight.is_meta:
        return
    config = model.config
    weights = {id(w): w for w in (model.source_weight, model.target_weight, model.output_weight)}
    for weight in weights.values():
        nn.init.normal_(weight, std=1.0 / math.sqrt(config.embedding_width))
    initialize_layers(model)
    if config.zero_padding_row:
        with torch.no_grad():
            for weight in weights.values():
                weight[config.pad_id].zero_()


def initialize_layers(model: nn.Module) -> None:
    """Initialize all weights of a model except the embedding matrices and an output projection of their shape.

    PyTorch's layers inside a component that a user registered keep the weights that its constructor gave them. A
    component's own `reset_parameters` is called last.
    """
    user_layers = set(_user_layers(model, is_registered=not _is_of(model, "transduce", "torch")))
    for module in model.modules():
        if isinstance(module, nn.Linear) and id(module) not in user_layers:
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        _initialize_module(module)
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        is_initialized = isinstance(module, ScoredAttention) or _is_of(module, "torch")
        if callable(reset) and not is_initialized and not _comes_from_torch(type(module)):
            reset()


def _user_layers(module: nn.Module, *, is_registered: bool) -> Iterator[int]:
    """Yield the `id` of each PyTorch layer inside a component that a user registered.

    Such a layer keeps the weights that its constructor gave it.

    Args:
        module: the module to search.
        is_registered: True if the module is such a component, or is inside one.
    """
    for child in module.children():
        if _is_of(child, "torch"):
            if is_registered:
                yield id(child)
            yield from _user_layers(child, is_registered=is_registered)
        else:
            yield from _user_layers(child, is_registered=not _is_of(child, "transduce"))


def _is_of(module: nn.Module, *packages: str) -> bool:
    """Return whether a module's class is defined in one of these Python packages, such as "torch"."""
    return type(module).__module__.partition(".")[0] in packages


def _comes_from_torch(cls: type) -> bool:
    """Return whether a class inherits its method `reset_parameters` from PyTorch instead of defining one."""
    definer = next(base for base in cls.__mro__ if "reset_parameters" in vars(base))
    return definer.__module__.partition(".")[0] == "torch"


def _initialize_module(module: nn.Module) -> None:
    """Initialize the weights that are a module's own parameters, not those of its submodules.

    Only kinds with a rule of their own are changed: attention, gated feed-forward networks, attention scores, relative
    positions, embeddings and recurrent cells. Others, such as a single linear layer, stay as they are.
    """
    for name, rows in module_matrices(module).items():
        if len(rows) > 1:
            _xavier_by_parts(module.get_parameter(name).detach().split(rows))
    if isinstance(module, ScoredAttention):
        module.reset_parameters()
    elif isinstance(module, RelativePositions):
        nn.init.normal_(module.weight, std=1.0 / math.sqrt(module.weight.shape[1]))
    elif isinstance(module, Embedding):
        _initialize_additions(module)
    elif isinstance(module, nn.LSTM | nn.GRU):
        _initialize_cells(module)


def _xavier_by_parts(parts: tuple[Tensor, ...]) -> None:
    for part in parts:
        nn.init.xavier_uniform_(part)


def _initialize_additions(embedding: Embedding) -> None:
    tables = [embedding.token_types]
    if isinstance(embedding.positions, LearnedPositions):
        tables.append(embedding.positions.weight)
    for table in tables:
        if table is not None:
            nn.init.normal_(table, std=embedding.scale / math.sqrt(table.shape[1]))


def _initialize_cells(cells: nn.LSTM | nn.GRU) -> None:
    """Initialize recurrent cells: Xavier-uniform for the input weights, orthogonal for the recurrent weights.

    The bias of an LSTM's forget gates is 1, so that it keeps its state at first (Jozefowicz et al. 2015).
    """
    width = cells.hidden_size
    for name, parameter in cells.named_parameters():
        parts = parameter.detach().split(width)
        if name.startswith("weight_ih"):
            _xavier_by_parts(parts)
        elif name.startswith("weight_hh"):
            for part in parts:
                nn.init.orthogonal_(part)
        else:
            nn.init.zeros_(parameter)
            if isinstance(cells, nn.LSTM) and name.startswith("bias_ih"):
                nn.init.ones_(parts[1])
