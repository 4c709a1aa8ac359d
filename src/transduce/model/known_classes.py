"""List the exact classes that the layer graph knows, and check that a module is unchanged from its class.

The layer graph is the description of a model by which backends decide whether they can compute it. A module is unknown
if its class is a subclass of a known one. It is also unknown if something was added to it: a method, a submodule, a
parameter, a buffer, or a hook or parametrization that is not registered here. Backends register the classes of their
inference copies, and training registers wrappers and parametrizations such as FSDP's and LoRA's.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter, call
from types import FunctionType, MethodType
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
    """A property of a model's component that changes the computed function, such as ("encoder_norm", "norm", "rms")."""

    path: str
    """The component's dotted name; empty for the model or layer itself."""
    aspect: str
    """The name of the property, by which backend tables list it: "norm", "activation", "attention score", …"""
    value: str
    """The value of the property, mostly as settings name it: "layer", "relu", "scaled", …"""


class UnknownError(Exception):
    """An error for a component that the layer graph does not know; its message is a clause that names the component."""


class _KnownClass(NamedTuple):
    """An entry of the registry of known module classes: the reference class, and permitted children and tensors."""

    computes: type[nn.Module]
    """For a known class, the reference class, such as `Linear`, whose function its modules compute."""
    children: frozenset[str] | None
    """For a known class, the names of the submodules that its modules may hold; None: any."""
    tensors: frozenset[str] | None
    """For a known class, the names of the parameters and buffers that its modules may hold; None: any."""


KNOWN: dict[type[nn.Module], _KnownClass] = {}
"""A dict from each class that the layer graph knows to its `_KnownClass`: what modules of the class may hold.

Subclasses are not known.
"""
METHODS: dict[type[nn.Module], frozenset[str]] = {}
"""A dict from each known class to the names of its methods. A module that has one of these names in its `vars` was
changed."""
SIZES: dict[type[nn.Module], tuple[str, str]] = {}
"""A dict from each class of linear layers to the names of two attributes: its numbers of inputs and of outputs."""

# The functions of classes and of Python files when they were registered, by which a replaced function is found.
_NAMES: dict[Any, tuple[str, ...]] = {}  # from each class or file (a module object) to the names of its functions
_READERS: list[Callable[[Any], Any]] = []  # for each entry of `_NAMES`, a function that reads these attributes
_VALUES: list[tuple[Any, ...]] = []  # for each entry of `_NAMES`, what was read first
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
    KNOWN[cls] = _KnownClass(computes or cls, *names)
    METHODS[cls] = frozenset(name for name in dir(cls) if callable(getattr(cls, name)))
    _remember_class(cls)


def _remember_class(cls: type) -> None:
    """Record a class's methods and properties, so that a replacement of one is noticed.

    Only what this package defines is recorded, and for a module also the methods by which PyTorch calls it.
    """
    ours = [holder for holder in cls.__mro__ if holder.__module__.startswith("transduce.")]
    names = [
        name
        for holder in ours
        for name, value in vars(holder).items()
        if callable(value) or isinstance(value, property)
    ]
    called = ("forward", "__call__", "_call_impl") if issubclass(cls, nn.Module) else ()
    _remember(cls, [*names, *called])


def _remember_file(name: str) -> None:
    """Record the model functions and helper classes in a Python module, so that a replacement of one is noticed.

    `name` is the dotted name of the Python module. Components call such functions, for example `attend`, but kernels do
    not.
    """
    values = {
        each: value
        for each, value in vars(sys.modules[name]).items()
        if str(getattr(value, "__module__", "")).startswith("transduce.model.")
    }
    for each in values.values():
        if isinstance(each, type) and not issubclass(each, nn.Module):
            _remember_class(each)
    _remember(sys.modules[name], [each for each, value in values.items() if isinstance(value, FunctionType)])


def _remember(owner: Any, names: Iterable[str]) -> None:
    if owner not in _NAMES:
        # `attrgetter` of one name returns no tuple, so a name that every owner has is read twice.
        _NAMES[owner] = (*dict.fromkeys(names), "__name__", "__name__")
        _READERS.append(attrgetter(*_NAMES[owner]))
        _VALUES.append(_READERS[-1](owner))


def register_parametrization(cls: type[nn.Module]) -> None:
    """Register a class of parametrizations, such as LoRA's, as known to the layer graph.

    It may change only weights, because backends read the resulting weights.
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
    (Embedding, ("positions", "norm", "dropout", "projection"), ("token_types",)),
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
for _file in sorted({_kind.__module__ for _kind in KNOWN if _kind.__module__.startswith("transduce.model.")}):
    _remember_file(_file)


# --- checks ---


class GlobalChangeCheck:
    """A process-wide record of the check for replaced functions that `checked_once` makes.

    The class is not instantiated. `global_change` reads the record.
    """

    is_open = False
    """True in the body of `checked_once`."""
    found: str | None = None
    """The clause that names the replaced function; None if there is none."""


@contextmanager
def checked_once() -> Iterator[None]:
    """Check for replaced functions once, for all calls of `global_change` in the body of the `with` statement.

    The body computes a batch, or a component for a batch. Bodies of several threads may overlap. When one of them ends,
    the record is no longer used, and `global_change` checks at each call again.
    """
    GlobalChangeCheck.found, GlobalChangeCheck.is_open = replaced_function(), True
    try:
        yield
    finally:
        GlobalChangeCheck.is_open = False


def global_change() -> str | None:
    """Return a description, for a message, of a change to modules throughout the process; None without a change.

    Such a change is a global hook, or a replaced method or function. This cheap check runs at every batch.
    """
    if any(GLOBAL_HOOKS):
        return "a global hook is registered for all modules"
    return GlobalChangeCheck.found if GlobalChangeCheck.is_open else replaced_function()


def replaced_function() -> str | None:
    """Return a clause that names a replaced method of a known class, or a replaced function; None if there is none.

    Functions are those of the files that define the known classes, such as `attend`. The check takes microseconds.
    """
    try:
        if list(map(call, _READERS, _NAMES)) == _VALUES:
            return None
    except AttributeError:  # one was deleted
        pass
    for (owner, names), values in zip(_NAMES.items(), _VALUES, strict=True):
        for name, value in zip(names, values, strict=True):
            if getattr(owner, name, None) is not value:
                owner_name = owner.__name__.removeprefix("transduce.")
                return f"{owner_name}.{name} was replaced"
    return None


def is_same_function(function: object, other: object, is_equal: Callable[[Any, Any], bool] | None = None) -> bool:
    """Return whether two functions compute the same: equal code, defaults, and variables of enclosing functions.

    Copying a model copies a `partial` object, so identity is too strict for it. Its arguments are compared too.

    Args:
        function: a function, method or `partial` object; anything else is equal only to itself.
        other: another one.
        is_equal: compares arguments, defaults and variables; None: they are functions, or equal in type and value.
    """
    if function is other:
        return True
    if isinstance(function, MethodType) and isinstance(other, MethodType):
        return function.__func__ is other.__func__
    if isinstance(function, partial) and isinstance(other, partial):
        values, others = ([each.func, *each.args, each.keywords] for each in (function, other))
    elif isinstance(function, FunctionType) and isinstance(other, FunctionType):
        if function.__code__ is not other.__code__:
            return False
        values, others = (
            [
                *(each.__defaults__ or ()),
                each.__kwdefaults__ or {},
                *(cell.cell_contents for cell in each.__closure__ or ()),
            ]
            for each in (function, other)
        )
    else:
        return False
    return len(values) == len(others) and all(map(is_equal or _is_equal, values, others))


def _is_equal(value: Any, other: Any) -> bool:
    """Return whether two values are the same object or function, or plain and equal in type and value."""
    if is_same_function(value, other):
        return True
    if type(value) is not type(other) or not isinstance(value, bool | int | float | str | dict | type(None)):
        return False
    if not isinstance(value, dict):
        return bool(value == other)
    return value.keys() == other.keys() and all(_is_equal(value[name], other[name]) for name in value)


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
    if changed := namespace.keys() & METHODS[unwrapped_class(module)]:
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
