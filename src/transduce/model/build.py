"""Build the model that a configuration describes, also with components that users register."""

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from transduce.errors import TransduceError, explain_wrong_types, near_name, shown_names
from transduce.model.attention import ATTENTIONS, SCORES, MultiHeadAttention, ScoredAttention
from transduce.model.config import ONLY_WITH, REGISTERED_NAMES, ModelConfig
from transduce.model.feed_forward import ACTIVATIONS, Dropout
from transduce.model.known_classes import HOOKS, is_same_function, replaced_function
from transduce.model.layers import DecoderLayer, EncoderLayer
from transduce.model.norms import NORMS, BatchNorm
from transduce.model.positions import BIASES
from transduce.model.recurrent import Recurrent
from transduce.model.series import SeriesTransformer
from transduce.model.transformer import Decoder, Encoder, Transformer

Model = Transformer | Encoder | Decoder | Recurrent
"""A model that reads tokens: an encoder, a decoder, both, or a recurrent model."""
AnyModel = Model | SeriesTransformer
"""A model that reads tokens or numbers (time series)."""
EncoderDecoder = Transformer | Recurrent
"""A model that reads one text and writes another, a Transformer or a recurrent one."""
Built = TypeVar("Built", bound=AnyModel)
_KINDS: dict[str, type[Transformer] | type[Encoder] | type[Decoder] | type[Recurrent]] = {
    "transformer": Transformer,
    "encoder": Encoder,
    "decoder": Decoder,
    "recurrent": Recurrent,
}


def build_any_model(config: ModelConfig) -> AnyModel:
    """Build a model of any kind, of tokens or numbers, with initial weights.

    Under `torch.device("meta")` the weights have no data.
    """
    return SeriesTransformer(config) if config.kind == "series" else _KINDS[config.kind](config)


def build_model(config: ModelConfig) -> Model:
    """Build the model of a configuration for a task that reads tokens, not numbers (time series).

    Raises:
        TransduceError: the configuration describes a model of numbers.
    """
    model = build_any_model(config)
    if isinstance(model, SeriesTransformer):
        raise TransduceError(f"A model of text is needed, but `model.kind` is {config.kind}: use another model.")
    return model


def compute_unstored_buffers(model: Built, build: Callable[[ModelConfig], Built]) -> None:
    """Fill the buffers of a loaded model that weights files do not store (`persistent=False`), in place.

    A model folder is read into a model that was built on the meta device, where such a buffer has no values. The values
    come from a second model, which the function `build` makes on the CPU; a model without such buffers costs nothing.
    PyTorch's random numbers stay as they are.
    """
    missing = [name for name, buffer in model.named_buffers(remove_duplicate=False) if buffer.is_meta]
    if not missing:
        return
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        computed = dict(build(model.config).named_buffers(remove_duplicate=False))
    for name in missing:
        holder, _, last = name.rpartition(".")
        setattr(model.get_submodule(holder), last, computed[name])


# --- what a configuration does not describe ---


class Difference(NamedTuple):
    """A difference of a model from the one that its configuration describes."""

    what: str
    """A clause that names the module: "`encoder_layers.0.feed_forward` has `activation` tanh, not relu"."""
    remedy: str
    """What a caller can do about the difference, as the end of a sentence."""


_REGISTER = (
    "register a component of your own (`transduce.register`) and name it in the configuration, or keep "
    "`model.state_dict()` by `torch.save`"
)
_COPY = "load its `state_dict()` into a model that `ModelConfig` describes if that computes the same"
_ANEW = "build the model with the new definition, and load the old model's `state_dict()` into it"
_SET_BACK = "set it back, build the model from a configuration that says so, or keep what changes in a buffer"
_BUILD = "load its weights into a model that was built from a configuration with these sizes"
_UNDO = "undo what changed the model, for example by `torch.nn.utils.prune.remove` or `remove_weight_norm`"
_ADMINISTRATION = frozenset(vars(nn.Module()))
# Attributes that change training alone.
_OF_TRAINING: tuple[tuple[tuple[type[nn.Module], ...], tuple[str, ...]], ...] = (
    ((Dropout, nn.Dropout), ("p", "_p", "drop_256ths", "inplace")),
    ((BatchNorm, nn.BatchNorm1d), ("momentum",)),
)


_FUNCTIONS = FunctionType | MethodType | BuiltinFunctionType


def difference_from_config(model: AnyModel) -> Difference | None:
    """Return the first `Difference` between a model and the one that its configuration describes, or None.

    Compared are exact classes, methods, attributes, submodules, the names and shapes of tensors, and the values of
    buffers that a state dict does not hold. Values of weights, dropout rates and hooks (`forward_hooks`) are not.
    """
    if (reason := replaced_function()) is not None:
        return Difference(reason, _REGISTER)
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        described = build_any_model(model.config)
    compute_unstored_buffers(described, build_any_model)
    return next(_differences("", model, described), None)


def forward_hooks(model: nn.Module) -> list[str]:
    """Return a list of the dotted names of modules with forward hooks that may change what the modules compute.

    A hook of the whole model is listed as "model". Hooks marked by `only_observes` are left out.
    """
    hooks = [
        (path, hook)
        for path, module in model.named_modules()
        for kind in HOOKS
        if "forward" in kind
        for hook in vars(module)[kind].values()
    ]
    return list(dict.fromkeys(path or "model" for path, hook in hooks if not getattr(hook, "only_observes", False)))


def _differences(path: str, module: nn.Module, described: nn.Module) -> Iterator[Difference]:
    """Yield a `Difference` for each way in which a module, or a submodule, differs from the module `described`.

    `described` is the one that the configuration asks for. `path` is the module's dotted name for messages, empty for
    the whole model.
    """
    where, kind, expected = f"`{path or 'model'}`", type(module), type(described)
    if parametrize.is_parametrized(module):
        (tensor, first), *_ = module.parametrizations.items()  # type: ignore[operator, union-attr]
        remedy = getattr(first[0], "remedy", "call `torch.nn.utils.parametrize.remove_parametrizations` on it first")
        yield Difference(f"{where} has a parametrization of `{tensor}`, {type(first[0]).__name__}", remedy)
    if kind is not expected:
        if kind.__qualname__ == expected.__qualname__:
            yield Difference(f"{where} is of an earlier definition of class {kind.__name__}", _ANEW)
        remedy = _REGISTER if path else _COPY
        yield Difference(f"{where} is of class {kind.__name__}, not {expected.__name__}", remedy)
    for name in sorted(vars(module).keys() - vars(described)):
        if callable(getattr(kind, name, None)):
            yield Difference(f"{where} has a `{name}` of its own", _REGISTER)
    yield from _different_attributes(where, module, described)
    yield from _different_tensors(where, module, described)
    found, wanted = ({name: each for name, each in part._modules.items() if each} for part in (module, described))
    if isinstance(described, nn.ModuleList) and len(found) != len(wanted):
        yield Difference(f"the number of layers in {where} is {len(found)}, not {len(wanted)}", _BUILD)
    yield from _different_names(where, found, wanted, _REGISTER)
    for name, each in wanted.items():
        yield from _differences(f"{path}.{name}" if path else name, found[name], each)


def _different_attributes(where: str, module: nn.Module, described: nn.Module) -> Iterator[Difference]:
    """Yield a `Difference` for each attribute of a module that is not equal to the same attribute of `described`.

    Attributes that cannot be compared, such as tensors, are skipped. In classes that users define, an attribute that is
    None in `described` is skipped too: such a class may set it when it is used. `where` names the module in messages.
    """
    of_training = [name for kinds, names in _OF_TRAINING if isinstance(described, kinds) for name in names]
    is_builtin = type(described).__module__.startswith("transduce.")
    for name in sorted(vars(described).keys() - _ADMINISTRATION - set(of_training)):
        value, found = (getattr(each, name, None) for each in (described, module))
        if (is_builtin or value is not None) and _is_comparable(value) and not _is_equal(found, value):
            shown, expected = (getattr(each, "__name__", each) for each in (found, value))
            yield Difference(f"{where} has `{name}` {shown}, not {expected}", _SET_BACK)


def _different_tensors(where: str, module: nn.Module, described: nn.Module) -> Iterator[Difference]:
    """Yield a `Difference` for each parameter or buffer that a module has in another form than the module `described`.

    Names and shapes are compared, and the values of buffers that a state dict does not hold. Submodules are not
    searched. `where` names the module in messages.
    """
    found, wanted = (
        {name: each for name, each in (part._parameters | part._buffers).items() if each is not None}
        for part in (module, described)
    )
    yield from _different_names(where, found, wanted, _UNDO)
    for name, tensor in wanted.items():
        is_stored = name not in described._non_persistent_buffers_set
        if is_stored and found[name].shape != tensor.shape:
            shape, expected = (tuple(each.shape) for each in (found[name], tensor))
            yield Difference(f"{where} has the shape {shape} of `{name}`, not {expected}", _BUILD)
        elif not is_stored and found[name].shape == tensor.shape and not _has_values(found[name], tensor):
            yield Difference(f"{where} has other values in `{name}`, a buffer that is not stored", _SET_BACK)


def _different_names(
    where: str, found: Mapping[str, Any], wanted: Mapping[str, Any], remedy: str
) -> Iterator[Difference]:
    """Yield up to two differences between the names of a module's tensors or submodules and the expected names.

    The first `Difference` lists the additional names, the other the missing ones.

    Args:
        where: the module's name in messages.
        found: the module's tensors or submodules by name.
        wanted: the expected ones by name.
        remedy: the remedy in both differences.
    """
    if more := found.keys() - wanted.keys():
        yield Difference(f"{where} has the additional {shown_names(sorted(more))}", remedy)
    if missing := wanted.keys() - found.keys():
        yield Difference(f"{where} is missing its {shown_names(sorted(missing))}", remedy)


def _has_values(tensor: Tensor, expected: Tensor) -> bool:
    """Return whether a tensor equals the tensor `expected`, after `expected` is converted to the first one's dtype."""
    return torch.equal(tensor.cpu(), expected.to(tensor.dtype))


def _is_comparable(value: Any) -> bool:
    """Return whether a value is plain: a number, a name, a class, a function, or a list or dict of plain values."""
    if isinstance(value, list | tuple):
        return all(map(_is_comparable, value))
    if isinstance(value, Mapping):
        return all(map(_is_comparable, value.values()))
    return isinstance(value, bool | int | float | str | bytes | None | msgspec.Struct | type | partial | _FUNCTIONS)


def _is_equal(value: Any, expected: Any) -> bool:
    """Return whether two attributes of modules are equal.

    Functions are equal if `is_same_function` says so. Of values that are not plain, such as tensors, only the types are
    compared.
    """
    if isinstance(expected, partial | _FUNCTIONS):
        return is_same_function(value, expected, _is_equal)
    if isinstance(value, Mapping) and isinstance(expected, Mapping):
        return value.keys() == expected.keys() and all(_is_equal(value[name], expected[name]) for name in expected)
    return type(value) is type(expected) and (not _is_comparable(expected) or bool(value == expected))


# --- registered components ---


_REGISTRIES: dict[str, tuple[dict[str, Any], type | None]] = {
    "activation": (ACTIVATIONS, None),
    "norm": (NORMS, None),
    "attention": (ATTENTIONS, MultiHeadAttention),
    "attention_score": (SCORES, ScoredAttention),
    "positions": (BIASES, None),
}
C = TypeVar("C", bound=Callable[..., Any])


@explain_wrong_types
def register(setting: str, name: str) -> Callable[[C], C]:
    """Return a decorator that registers a component of your own, so that a setting of the model can name it.

    A model with such a component trains, translates and is stored like others, computed by PyTorch. Programs that open
    its folder must register the component before (`--plugin FILE.py`, or an import). PyTorch's layers in it keep the
    weights that its constructor gave them; a method `reset_parameters` is called last, after all weights are drawn.

    Args:
        setting: "activation" (a function of a tensor), "norm" (called with width and ε), "attention" (a subclass of
            `MultiHeadAttention`), "attention_score" (a subclass of `ScoredAttention`) or "positions". The last is a
            bias on the scores, not positions that are added to embeddings. It is called with the model's configuration
            and True if the stack is causal.
        name: the value of `model.SETTING` that chooses the component. If you have registered the name before, the new
            component replaces the old one.

    Raises:
        TransduceError: there is no such setting, the name is empty or that of a built-in component, or the component is
            of another kind.
    """
    if setting not in _REGISTRIES:
        raise TransduceError(f"Components can be registered for {', '.join(_REGISTRIES)}, but not for `{setting}`.")
    registry, base = _REGISTRIES[setting]
    if not isinstance(name, str) or not name or (name in registry and name not in REGISTERED_NAMES[setting]):
        raise TransduceError(f"`model.{setting}` = {name!r} is no new name: choose another for your component.")

    def add(component: C) -> C:
        if not callable(component) or (
            base is not None and not (isinstance(component, type) and issubclass(component, base))
        ):
            expected = f"a subclass of {base.__name__}" if base is not None else "callable"
            raise TransduceError(f"A component for `model.{setting}` must be {expected}, but is {component!r}.")
        registry[name] = component
        REGISTERED_NAMES[setting].add(name)
        return component

    return add


_MORE_TOKENS, _ROUNDING = 40, 1e-3  # the latter in standard deviations of a logit


def _difference_from_meta_config(model: AnyModel, named: str) -> Difference | None:
    """Return the first `Difference` between a model and the one that its configuration describes, or None.

    The described model is built on the meta device, so its weights take no memory.

    Raises:
        TransduceError: a component reads the values of tensors while it is built, so that a model folder with it could
            not be opened; `named` names the components in the message.
    """
    try:
        return difference_from_config(model)
    except (RuntimeError, NotImplementedError) as error:
        raise TransduceError(
            f"A model with {named} cannot be built without memory for its weights, as opening its folder does "
            f"({error}): a component must not read the values of tensors while it is built; compute them from numbers."
        ) from error


def check_registered(config: ModelConfig) -> None:
    """Check that components registered by the user work in decoding and follow the other settings.

    A small model of the configuration reads random input. A configuration without registered components is not checked.

    Raises:
        TransduceError: the model has one of these faults. It cannot be built, or fails in decoding. Decoding with a
            cache, or padding, changes its output. It has a value that is neither a parameter nor a stored buffer. Its
            attention or score ignores another setting, such as the positions.
    """
    registered = [name for name, names in REGISTERED_NAMES.items() if getattr(config, name) in names]
    if not registered:
        return
    named = ", ".join(f"`model.{name}` = {getattr(config, name)}" for name in registered)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(1)
        try:
            model = build_any_model(_smaller(config)).eval()
            difference = _difference_from_meta_config(model, named)
            by_cache, by_padding = _largest_changes(model)
            ignored = _ignored_setting(_smaller(config), registered)
        except TransduceError:
            raise
        except Exception as error:
            raise TransduceError(f"A model with {named} fails in decoding: {type(error).__name__}: {error}.") from error
    if difference is not None:
        raise TransduceError(
            f"A model with {named} cannot be stored, because built a second time {difference.what}: keep what is drawn "
            "or counted in a parameter, or in a buffer that is stored."
        )
    if by_cache > _ROUNDING:
        raise TransduceError(
            f"A model with {named} decodes something else than it trains (an output changes by {by_cache:.2g}): in "
            "decoding, a component gets the newest position of each hypothesis, not a sequence, so it must not read "
            "neighbors."
        )
    if by_padding > _ROUNDING:
        raise TransduceError(
            f"A model with {named} depends on the padding of its batch (an output changes by {by_padding:.2g}): a "
            "component must not read what the mask hides."
        )
    if ignored is not None:
        raise TransduceError(
            f"A model with {named} ignores `model.{ignored}` = {getattr(config, ignored)}: pass on `position_effect` "
            "in an attention, and use `mask.bias`, `dropout` and `self.hard` in a score, as their base classes do, or "
            f"leave `model.{ignored}` out."
        )


def _ignored_setting(config: ModelConfig, registered: Sequence[str]) -> str | None:
    """Return the name of a setting that the user's attention or score ignores; None if there is none.

    A setting is ignored if it has no effect on a small model, but has one if built-in attention and score replace the
    user's. `registered` holds the settings that name components of the user, such as "attention".
    """
    defaults = {field.name: field.default for field in msgspec.structs.fields(ModelConfig)}
    if config.positions not in ("sinusoidal", "learned"):  # which are added to embeddings, whatever the attention
        defaults["positions"] = "none"
    replaced = {name: defaults[name] for name in ("attention", "attention_score") if name in registered}
    config = msgspec.structs.replace(config, dropout=0.0, activation_dropout=0.0)
    for name in ("positions", "attention_kind", "attention_score", "attention_scale", "attention_dropout"):
        if not replaced or name in replaced or getattr(config, name) == defaults[name]:
            continue
        changes = {each: defaults[each] for each in (name, *(ONLY_WITH if name == "positions" else ()))}
        has_effect = partial(_has_effect, changes=changes, training=name == "attention_dropout")
        if not has_effect(config) and has_effect(msgspec.structs.replace(config, **replaced)):
            return name
    return None


def _has_effect(config: ModelConfig, changes: Mapping[str, Any], *, training: bool) -> bool:
    """Return whether new values of settings change a model's output, at the same weights.

    `changes` maps each setting to its new value.
    """
    model = build_any_model(config).train(training)
    _randomize_constants(model)
    other = build_any_model(msgspec.structs.replace(config, **changes)).train(training)
    other.load_state_dict(model.state_dict(), strict=False)
    outputs = []
    for each in (model, other):
        torch.manual_seed(1)
        outputs.append(_output(each))
    return not torch.equal(*outputs)


def _output(model: AnyModel) -> Tensor:
    """Return the output of a model for random input without padding."""
    if isinstance(model, SeriesTransformer):
        past = torch.randn(2, 5, model.config.num_series)
        return model(past, past).means  # type: ignore[no-any-return]
    ids = _random_ids(model.config)
    if isinstance(model, Encoder):
        return model.encode(ids)[0]
    return model(ids) if isinstance(model, Decoder) else model(ids, ids)  # type: ignore[no-any-return]


def _randomize_constants(model: AnyModel) -> None:
    """Add small random numbers to parameters with equal elements, such as a gate that is closed at first."""
    for parameter in model.parameters():
        if bool((parameter == parameter.flatten()[0]).all()):
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


def _random_ids(config: ModelConfig) -> Tensor:
    """Return two rows of eight token ids, none of them a special one."""
    size = min(config.source_vocabulary_size, config.target_vocabulary_size)
    return torch.randint(min(max(config.pad_id, config.eos_id, config.start_id), size - 2) + 1, size, (2, 8))


def _smaller(config: ModelConfig) -> ModelConfig:
    """Return a copy of a configuration with at most two layers in each stack, a small vocabulary and a small d_ff.

    A check of registered components builds this small model.
    """
    size = max(config.pad_id, config.eos_id, config.start_id) + _MORE_TOKENS
    return msgspec.structs.replace(
        config,
        source_vocabulary_size=min(size, config.source_vocabulary_size),
        target_vocabulary_size=min(size, config.target_vocabulary_size),
        num_encoder_layers=min(2, config.num_encoder_layers),
        num_decoder_layers=min(2, config.num_decoder_layers),
        d_ff=min(config.d_ff, config.d_model),
    )


def _largest_changes(model: AnyModel) -> tuple[float, float]:
    """Return how much decoding with a cache changes a model's output, and how much padding does.

    Both are the largest change, in standard deviations of the output. The first is 0 for an encoder-only model, which
    does not decode. The second is 0 for a model of time series, which has no padding. Parameters with equal elements,
    such as closed gates, first get random numbers added.
    """
    _randomize_constants(model)
    config = model.config
    if isinstance(model, SeriesTransformer):
        past = torch.randn(2, 5, config.num_series)
        means = model.roll_out(past, 4).means
        return _change(model(past, torch.cat([past[:, -1:], means[:, :-1]], dim=1)).means, means), 0.0
    ids = _random_ids(config)
    padded = ids.clone()
    padded[:, -2:] = config.pad_id
    if isinstance(model, Encoder):
        return 0.0, _change(model.encode(ids[:, :-2])[0], model.encode(padded)[0][:, :-2])
    if isinstance(model, Decoder):
        whole, state, first = model(ids), model.start(ids[:, :3]), 2
        by_padding = _change(whole[:, :-2], model(padded)[:, :-2])
    else:
        whole, state, first = model(padded, ids), model.start(padded), 0
        by_padding = _change(model(ids[:, :-2], ids), whole)
    # Another hypothesis is beside each text, and the two change places after every step.
    steps = [state.step(ids[:, :1])[:, 0]]
    swap = torch.tensor([[1, 0]]).expand(2, -1)
    state.reorder(torch.zeros_like(swap))
    for position in range(first + 1, ids.shape[1]):
        row = (position - first + 1) % 2
        rows = torch.stack([ids[:, position], ids.flip(1)[:, position]], dim=1)
        steps.append(state.step(rows.flip(1) if row else rows)[:, row])
        state.reorder(swap)
    return _change(whole[:, first:], model.project(torch.stack(steps, dim=1))), by_padding


def _change(expected: Tensor, found: Tensor) -> float:
    """Return the largest difference of two outputs, in standard deviations of the expected output.

    The result is 0 if the expected output is not finite.
    """
    if not bool(expected.isfinite().all()):
        return 0.0
    return float((found - expected).abs().nan_to_num(torch.inf).max() / expected.std())


def load_plugin(path: str | Path) -> None:
    """Run a Python file that registers components; only a file that the user names is ever run.

    The file becomes the module `transduce_plugin_NAME`; a module of this name that was loaded before is replaced.

    Raises:
        TransduceError: the file is missing or no Python file, or running it fails.
    """
    path = Path(path)
    name = f"transduce_plugin_{path.stem}"
    if not path.is_file():
        near = near_name(path.name, (each.name for each in path.absolute().parent.glob("*.py")))
        hint = f"did you mean {path.with_name(near)}?" if near else "name the Python file that registers components."
        raise TransduceError(f"The plugin {path} is no file: {hint}")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TransduceError(f"A plugin is a Python file that registers components, but {path} is none: name another.")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except TransduceError:
        raise
    except Exception as error:
        del sys.modules[name]
        raise TransduceError(f"The plugin {path} fails: {type(error).__name__}: {error}.") from error


# --- compilation by torch.compile ---
# Compilation takes about a minute at the start. It pays off on a GPU, where a step otherwise waits for the many small
# operations between matrix multiplications.


_MAX_RECOMPILATIONS = 64


def compile_layers(model: nn.Module, device: str, *, backend: str = "inductor") -> int:
    """Compile each encoder and decoder layer in place, for batches of any shape.

    Parameters and their names stay. Layers share compiled code, so six layers take as long as one.

    Returns:
        The number of compiled layers; 0 for a model without such layers, such as a recurrent one.

    Raises:
        TransduceError: `backend` is "inductor" and the device is not a CUDA GPU.
    """
    if backend == "inductor" and not device.startswith("cuda"):
        raise TransduceError(
            f"`training.compile` is true, but the device is {device}: it is for GPUs only. Leave it out."
        )
    # Inputs of one row, inputs of equal lengths and disabled dropout are compiled separately. PyTorch's default limit
    # of 8 would end the run.
    from torch._dynamo import config  # takes seconds to import

    config.recompile_limit = max(config.recompile_limit, _MAX_RECOMPILATIONS)
    layers = [module for module in model.modules() if isinstance(module, EncoderLayer | DecoderLayer)]
    for layer in layers:
        layer.compile(dynamic=True, fullgraph=True, backend=backend)
    return len(layers)
