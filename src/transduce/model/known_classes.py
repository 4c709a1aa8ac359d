"""List the exact classes that the layer graph knows, and check that a module is unchanged from its class.

The layer graph is the description of a model by which backends decide whether they can compute it. A module is unknown
if its class is a subclass of a known one. It is also unknown if something was added to it: a method, a submodule, a
parameter, a buffer, or a hook or parametrization that is not registered here. Backends register the classes of their
inference copies, and training registers wrappers and parametrizations such as FSDP's and LoRA's.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrize

from transduce.model.attention import MultiHeadAttention, QueryKeyNormAttention, ScoredAttention
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import Dropout, FeedForward, GatedFeedForward
from transduce.model.feed_forward import Linear as LinearModule
from transduce.model.layers import DecoderLayer, EncoderLayer, Residual, StackPositions
from transduce.model.norms import BatchNorm, LayerNorm, RMSNorm
from transduce.model.positions import (
    LearnedPositions,
    NoPositions,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
)
from transduce.model.recurrent import (
    MemoryAttention,
    PastAttention,
    Recurrent,
    RecurrentDecoderLayer,
    RecurrentEncoderLayer,
)
from transduce.model.transformer import Decoder, Encoder, MaskedLanguageHead, Transformer

HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
GLOBAL_HOOKS: tuple[dict[Any, Any], ...] = tuple(getattr(torch_module, f"_global{name}") for name in HOOKS)


class Fact(NamedTuple):
    """A property of a model's component that changes the computed function: ("encoder_norm", "norm", "layer")."""

    path: str
    """The component's dotted name; empty for the model or layer itself."""
    aspect: str
    """The name of the property, by which backend tables list it: "norm", "activation", "attention score", …"""
    value: str
    """The value of the property, mostly as settings name it: "layer", "relu", "scaled", …"""


class UnknownError(Exception):
    """An error for a component that the layer graph does not know; its message is a clause that names the component."""


class _Entry(NamedTuple):
    """An entry of the registry of known module classes: the reference class, and permitted children and tensors."""

    computes: type[nn.Module]
    """For a known class, the reference class, such as `Linear`, whose function its modules compute."""
    children: frozenset[str] | None
    """For a known class, the names of the submodules that its modules may hold; None: any."""
    tensors: frozenset[str] | None
    """For a known class, the names of the parameters and buffers that its modules may hold; None: any."""


KNOWN: dict[type[nn.Module], _Entry] = {}
"""A dict from each class that the layer graph knows to its `_Entry`: what modules of the class may hold. Subclasses are
not known.
"""
_METHODS: dict[type[nn.Module], frozenset[str]] = {}  # names of the methods of each known class
SIZES: dict[type[nn.Module], tuple[str, str]] = {}
"""A dict from each class of linear layers to the names of two attributes: its numbers of inputs and of outputs."""
# The methods of known classes when they were registered, by which a replaced method is found.
_FORWARDS: list[tuple[type[nn.Module], Callable[..., Any]]] = []
_OTHER_METHODS: list[tuple[type[nn.Module], str, Any]] = []
_PARAMETRIZATIONS: set[type[nn.Module]] = set()
_WRAPPERS: dict[type, str] = {}  # the package of the hooks that each wrapper adds


def register_class(
    cls: type[nn.Module],
    *,
    computes: type[nn.Module] | None = None,
    children: Iterable[str] | None = (),
    tensors: Iterable[str] | None = (),
    sizes: tuple[str, str] | None = None,
) -> None:
    """Register a module class, with its current methods, as known to the layer graph.

    Args:
        cls: the exact class; subclasses stay unknown.
        computes: the reference class whose function `cls` computes in another number format; None: `cls` itself.
        children: names of the submodules that a module of the class may hold; None: any.
        tensors: names of the parameters and buffers that a module of the class may hold; None: any.
        sizes: for a linear layer, the attributes with the numbers of inputs and outputs, if the class has any.
    """
    if sizes is not None:
        SIZES[cls] = sizes
    names = [None if each is None else frozenset(each) for each in (children, tensors)]
    KNOWN[cls] = _Entry(computes or cls, *names)
    _METHODS[cls] = frozenset(name for name in dir(cls) if callable(getattr(cls, name)))
    _FORWARDS.append((cls, cls.forward))
    for holder in cls.__mro__:
        if holder.__module__.startswith("transduce."):
            names_of_methods = [name for name, value in vars(holder).items() if callable(value)]
            _OTHER_METHODS.extend((cls, name, getattr(cls, name)) for name in names_of_methods)


def register_parametrization(cls: type[nn.Module]) -> None:
    """Register a parametrization, such as LoRA's, as known, so that the layer graph describes modules that have it.

    It may change only weights; backends read the resulting weights.
    """
    _PARAMETRIZATIONS.add(cls)
    register_class(cls, children=None, tensors=None)


def register_wrapper(mixin: type, hooks_from: str) -> None:
    """Register a wrapper that replaces a module's class by a subclass `(mixin, class)`, as PyTorch's FSDP does.

    Args:
        mixin: the first base of the subclasses that the wrapper creates.
        hooks_from: the Python package that the wrapper's hooks are defined in.
    """
    _WRAPPERS[mixin] = hooks_from


def only_observes(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a forward hook as one that changes nothing, and return the hook.

    A module with such a hook stays known to the layer graph, so that kernels may compute it; a kernel that computes a
    whole layer may skip the hook.
    """
    hook.only_observes = True  # type: ignore[attr-defined]
    return hook


_LAYER = ("self_attention", "self_attention_residual", "feed_forward", "feed_forward_residual")
_MEMORY = ("memory_attention", "memory_attention_residual")
VOCABULARY_WEIGHTS = ("source_weight", "own_target_weight", "own_output_weight", "output_bias")
_EMBEDDINGS = ("source_embedding", "target_embedding")
TRANSFORMER_PARTS = (
    *_EMBEDDINGS,
    *("encoder_positions", "encoder_layers", "encoder_norm", "decoder_positions", "decoder_layers", "decoder_norm"),
)
DECODER_PARTS = ("embedding", "positions", "layers", "norm")
ENCODER_PARTS = (*DECODER_PARTS, "masked_language_head", "pooler", "classifier")
QUERY_KEY_NORMS = ("query_norm", "key_norm")
_SCORED = ("score", "dropout")
# Each class, with the names of its submodules and of its parameters and buffers; None: any.
_CLASSES: tuple[tuple[type[nn.Module], tuple[str, ...] | None, tuple[str, ...] | None], ...] = (
    (Transformer, TRANSFORMER_PARTS, VOCABULARY_WEIGHTS),
    (Decoder, DECODER_PARTS, VOCABULARY_WEIGHTS),
    (Encoder, ENCODER_PARTS, VOCABULARY_WEIGHTS),
    (MaskedLanguageHead, ("dense", "norm"), ()),
    (EncoderLayer, _LAYER, ()),
    (DecoderLayer, (*_LAYER, *_MEMORY), ()),
    (Residual, ("norm_before", "norm_after", "dropout"), ()),
    (MultiHeadAttention, ("projection", "output", *_SCORED), ()),
    (QueryKeyNormAttention, ("projection", "output", *_SCORED, *QUERY_KEY_NORMS), ()),
    (ScoredAttention, (), ("matrix", "vector")),
    (FeedForward, ("inner", "outer", "dropout"), ()),
    (GatedFeedForward, ("inner", "outer", "dropout"), ()),
    (nn.Linear, ("parametrizations",), ("weight", "bias")),
    (Dropout, (), ()),
    (LayerNorm, (), ("weight", "bias")),
    (RMSNorm, (), ("weight",)),
    (BatchNorm, (), ("weight", "bias", "running_mean", "running_variance")),
    (nn.Identity, (), ()),
    (Embedding, ("positions", "norm", "dropout"), ("token_types",)),
    (SinusoidalPositions, (), ()),
    (LearnedPositions, (), ("weight",)),
    (NoPositions, (), ()),
    (StackPositions, ("rotary", "relative"), ()),
    (RotaryPositions, (), ()),
    (RelativePositions, (), ("weight",)),
    (nn.ModuleList, None, ()),
    (nn.ModuleDict, None, ()),
    (parametrize.ParametrizationList, None, None),
    (
        Recurrent,
        (*_EMBEDDINGS, "encoder_layers", "decoder_layers", "bridge", "memory_attention", "attentional", "dropout"),
        VOCABULARY_WEIGHTS,
    ),
    (RecurrentEncoderLayer, ("ahead", "back"), ()),
    (RecurrentDecoderLayer, ("cells", "past_attention"), ()),
    (MemoryAttention, ("query", "key", *_SCORED), ()),
    (PastAttention, ("from_input", "from_average", "key", *_SCORED), ()),
    (nn.LSTM, (), None),
    (nn.GRU, (), None),
)
for _kind, _children, _tensors in _CLASSES:
    register_class(_kind, children=_children, tensors=_tensors)
register_class(
    LinearModule,
    children=("parametrizations",),
    tensors=("weight", "bias"),
    sizes=("in_features", "out_features"),
)


# --- checks ---


def global_change() -> str | None:
    """Return a description, for a message, of a change to modules throughout the process; None without a change.

    Such a change is a global hook, or a replaced `forward` of a known class. This cheap check runs at every batch;
    `replaced_method` runs only when a module is described.
    """
    if any(GLOBAL_HOOKS):
        return "a global hook is registered for all modules"
    for kind, forward in _FORWARDS:
        if kind.forward is not forward:
            return f"{kind.__name__}.forward was replaced"
    return None


def replaced_method() -> str | None:
    """Return a clause that names a replaced method of a known class; None if no method was replaced."""
    for kind, name, method in _OTHER_METHODS:
        if getattr(kind, name, None) is not method:
            return f"{kind.__name__}.{name} was replaced"
    return None


def check_module(path: str, module: nn.Module) -> Iterator[Fact]:
    """Check that a module's class is known and unchanged, and yield facts about its wrapper and parametrizations.

    Args:
        path: the module's dotted name, for facts and errors; empty: the model itself.
        module: the module.

    Raises:
        UnknownError: the module's class is unknown, or something was added to the module.
    """
    where, namespace = path or "the model", vars(module)
    exact = type(module)
    if _is_wrapped(exact):
        yield Fact(path, "wrapper", exact.__bases__[0].__name__)
    for tensor, parametrizations in _parametrizations(module):
        for each in parametrizations:
            if type(each) not in _PARAMETRIZATIONS:
                raise UnknownError(f"{where}.{tensor} is parametrized by {type(each).__name__}")
            yield Fact(path, "parametrization", type(each).__name__)
    entry = KNOWN.get(unwrapped_class(module))
    if entry is None:
        raise UnknownError(f"{where} is of class {exact.__name__}")
    if changed := namespace.keys() & _METHODS[unwrapped_class(module)]:
        raise UnknownError(f"{where} has a `{min(changed)}` of its own")
    for kind in HOOKS:
        for hook in namespace[kind].values():
            if not _is_known_hook(hook):
                raise UnknownError(f"{where} has a {kind[1:-1].replace('_', ' ')}")
    for kind, names in (("_modules", entry.children), ("_parameters", entry.tensors), ("_buffers", entry.tensors)):
        if names is not None and (more := namespace[kind].keys() - names):
            raise UnknownError(f"{where} holds `{min(more)}`, which its class does not have")


def _parametrizations(module: nn.Module) -> Iterable[tuple[str, Iterable[nn.Module]]]:
    return module.parametrizations.items() if parametrize.is_parametrized(module) else ()  # type: ignore[operator, union-attr]


def _is_known_hook(hook: Any) -> bool:
    if getattr(hook, "only_observes", False):
        return True
    origin = type(getattr(hook, "__self__", None)).__module__
    return any(origin.startswith(package) for package in _WRAPPERS.values())


def unwrapped_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of a module as it was before a wrapper such as FSDP or a parametrization replaced it."""
    kind = type(module)
    if _is_wrapped(kind):
        kind = kind.__bases__[1]
    return kind.__bases__[0] if parametrize.is_parametrized(module) else kind


def _is_wrapped(cls: type) -> bool:
    return cls.__bases__[0] in _WRAPPERS and len(cls.__bases__) == 2 and "forward" not in vars(cls)
