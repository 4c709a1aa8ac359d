"""Describe models as layer graphs, which backends compare with their tables before they compute a model.

A backend lists the components that it computes in a `SupportTable`. `refusal(table, model)` compares the model's
description with the table and returns the first difference, or None. For example, a decoder with RMSNorm has the fact
`Fact("decoder_norm", "norm", "rms")`, and a table without `norm="… rms"` refuses it.

A description is made from exact types only. A model is `Unsupported` if it has a subclass, an overridden method, an
additional or replaced submodule, or an unknown hook or parametrization (`known_classes`). So is a model with a setting
or function that has no entry here. Unsupported models take the reference path, and exporters refuse them. A new
component is therefore unknown to every backend until a backend lists it.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import nn
from torch.utils.hooks import RemovableHandle

from transduce.model.attention import MultiHeadAttention, QueryKeyNormAttention, ScoredAttention
from transduce.model.config import ModelConfig
from transduce.model.embedding import Embedding
from transduce.model.feed_forward import ACTIVATIONS, GATES, Dropout, FeedForward, GatedFeedForward
from transduce.model.feed_forward import Linear as LinearModule
from transduce.model.known_classes import (
    HOOKS,
    KNOWN,
    QUERY_KEY_NORMS,
    SIZES,
    Fact,
    UnknownError,
    check_module,
    global_change,
    is_same_function,
    unwrapped_class,
)
from transduce.model.layers import DecoderLayer, EncoderLayer, Residual, StackPositions
from transduce.model.norms import BatchNorm, LayerNorm, RMSNorm
from transduce.model.positions import (
    LearnedPositions,
    NoPositions,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
)
from transduce.model.recurrent import Recurrent
from transduce.model.transformer import Decoder, Encoder, Transformer

# --- operations ---


class Norm(NamedTuple):
    """A normalization over the model width, in a layer graph (the operations of a model's layers, read by backends)."""

    module: nn.Module
    kind: str
    """The kind of norm, `layer`, `rms` or `batch`, as the setting `model.norm` names them."""
    epsilon: float


class LinearOperation(NamedTuple):
    """A linear layer in a layer graph (the operations of a model's layers), whatever number format its weights have."""

    module: nn.Module


class Attend(NamedTuple):
    """An operation of a layer graph: multi-head attention without the projections before and after it."""

    module: MultiHeadAttention
    score: str
    """The name of the score function, as in the setting `model.attention_score`."""
    is_hard: bool
    """True if each query takes only the value of its best key, instead of an average of values."""
    scale: float | None
    """The factor of a scaled dot product; None stands for 1 / √d_k."""
    reads_memory: bool
    """True if keys and values come from the encoder's output (cross-attention)."""


class Activate(NamedTuple):
    """An operation of a layer graph: the nonlinear function inside a feed-forward network, and the dropout after it."""

    name: str
    """The name of the function, as in the setting `model.activation`."""
    is_gated: bool
    dropout: Dropout


class DropoutAdd(NamedTuple):
    """An operation of a layer graph: dropout of a sub-layer's output, and its addition to the residual connection."""

    module: Dropout


Operation = Norm | LinearOperation | Attend | Activate | DropoutAdd


class Sublayer(NamedTuple):
    """A part of a layer in a layer graph: attention or a feed-forward network, with its residual connection."""

    path: str
    """The module's dotted name inside the layer or model that was described."""
    module: nn.Module
    residual: Residual
    order: str
    """`pre`, `post` or `sandwich`, as `model.norm_order` names them."""
    operations: tuple[Operation, ...]
    """Norms, linear layers, attention or activation, and dropout in the order of computation."""

    @property
    def norms(self) -> list[Norm]:
        """A list of the sub-layer's normalizations: one, or two if norms surround the sub-layer (sandwich norm)."""
        return [operation for operation in self.operations if isinstance(operation, Norm)]

    @property
    def linears(self) -> list[LinearOperation]:
        """A list of the linear layers of the sub-layer, in the order of computation."""
        return [operation for operation in self.operations if isinstance(operation, LinearOperation)]

    @property
    def attention(self) -> Attend | None:
        """The attention of the sub-layer; None for a feed-forward network."""
        return next((operation for operation in self.operations if isinstance(operation, Attend)), None)

    @property
    def activation(self) -> Activate | None:
        """The activation of a feed-forward network; None for attention."""
        return next((operation for operation in self.operations if isinstance(operation, Activate)), None)


class LayerGraph(NamedTuple):
    """The operations and properties of an encoder or decoder layer, by which backends decide if they can compute it."""

    sublayers: tuple[Sublayer, ...]
    facts: tuple[Fact, ...]
    """The layer's properties, such as its norm, which a backend compares with the values that it supports."""


class ModelGraph(NamedTuple):
    """The layers and properties of a whole model, which backends check before they compute it."""

    layers: Mapping[str, LayerGraph]
    """The layers by dotted name, such as `decoder_layers.0`; empty for a recurrent model."""
    facts: tuple[Fact, ...]
    """The properties of all layers, embeddings, positions, final norms and the output projection. A backend compares
    them with the values that it supports.
    """


class Unsupported(NamedTuple):
    """A result in place of a layer graph: the reason why a model cannot be described, so no backend computes it."""

    reason: str
    """A clause that names the component, such as `decoder_layers.0.self_attention is of class Gated`."""


Graph = ModelGraph | LayerGraph | Unsupported


_NORMS: dict[type[nn.Module], str] = {LayerNorm: "layer", RMSNorm: "rms", BatchNorm: "batch"}
_EMBEDDED_POSITIONS: dict[type[nn.Module], str] = {
    SinusoidalPositions: "sinusoidal",
    LearnedPositions: "learned",
    NoPositions: "none",
}
# The attributes of each kind of positions, and the settings of `ModelConfig` that they must equal.
_POSITION_SETTINGS: dict[str, dict[str, str]] = {
    "sinusoidal": {"offset": "position_offset", "to_end": "sinusoids_to_end"},
    "learned": {"offset": "position_offset", "length": "max_positions"},
    "none": {},
    "rotary": {"base": "rotary_base", "scaling": "rotary_scaling"},
    "relative": {"num_buckets": "relative_buckets", "max_distance": "relative_max_distance"},
}
# Copies, so that a function that a user adds to the originals stays unknown to backends.
_ACTIVATIONS, _GATES = dict(ACTIVATIONS), dict(GATES)

SETTINGS = frozenset(
    (
        *("kind", "num_encoder_layers", "num_decoder_layers", "d_model", "embedding_size", "d_ff", "num_heads"),
        *("num_key_value_heads", "d_k", "d_v", "share_layers", "dropout", "attention_dropout", "activation_dropout"),
        *("activation", "norm", "norm_order", "norm_epsilon", "final_norm", "bias", "projection_bias"),
        *("attention_output_bias", "feed_forward_bias", "positions", "max_positions", "position_offset"),
        *("sinusoids_to_end", "rotary_base", "rotary_scaling", "relative_bias", "relative_buckets"),
        *("relative_max_distance", "attention_score", "attention_kind", "attention_scale", "attention_window"),
        *("tie_source_target", "tie_output", "scale_embeddings", "embedding_norm", "zero_padding_row", "output_bias"),
        *("output_scale", "pad_id", "eos_id", "start_id", "token_types", "masked_language_head", "pooler"),
        *("pooler_activation", "num_labels", "token_labels", "attention", "recurrent_cell", "bidirectional"),
        *("recurrent_attention", "input_feeding", "recurrent_self_attention", "recurrent_context"),
        *("recurrent_context_to", "num_series", "predicts_deviations"),
    )
)
"""The settings of `ModelConfig` that layer graphs cover; a model that changes another setting is unsupported."""


def unknown_settings(config: ModelConfig) -> list[str]:
    """Return a list of the names of a model's settings that have non-default values and that no layer graph describes.

    A model with such a setting is unsupported.
    """
    return [name for name in config.changed() if name not in SETTINGS]


def unsupported_settings(table: "SupportTable", config: ModelConfig) -> list[str]:
    """Return a list of the names of a model's settings that a backend does not support.

    Either the backend's table does not list the value, or no layer graph describes the setting. Only the configuration
    is needed, so this check precedes the building of a model.
    """
    actual = {
        "kind": ("class", config.kind.capitalize()),
        "norm": ("norm", config.norm),
        "norm_order": ("norm order", config.norm_order),
        "activation": ("activation", config.activation),
        "positions": ("positions", config.positions),
        "attention_score": ("attention score", config.attention_score),
        "attention_kind": ("attention kind", config.attention_kind),
        "attention_window": (
            "attention window",
            _window(config.attention_window, causal=config.kind == "decoder"),
        ),
        **({} if config.attention == "multi-head" else {"attention": ("attention", config.attention)}),
        **({"relative_bias": ("position bias", "relative")} if config.relative_bias else {}),
        **({} if config.embedding_size is None else {"embedding_size": ("embedding projection", "some")}),
        "d_v": ("value width", "equal" if config.value_width == config.key_width else "other"),
    }
    outside = [name for name, (aspect, value) in actual.items() if value not in table.values.get(aspect, ())]
    return [*outside, *unknown_settings(config)]


def _window(radius: int | None, *, causal: bool) -> str:
    """Return the name of an attention window in layer graphs: "none", "past" or "some".

    "past" is a window of positions before the query, and "some" a window on both sides of it.
    """
    return "none" if radius is None else "past" if causal else "some"


# --- from modules to a description ---


def graph_of(module: nn.Module) -> Graph:
    """Return the layer graph of a model or layer: a description of its operations, by which backends are chosen.

    The graph describes the current state: a `ModelGraph` for a model, a `LayerGraph` for an `EncoderLayer` or
    `DecoderLayer`, or `Unsupported` if a component is unknown or was changed.
    """
    return description_of(module).graph


def refusal(table: "SupportTable", module: nn.Module) -> str | None:
    """Return why a backend cannot compute a model or layer in its current state, as a clause; None: the backend can.

    `table` lists what the backend supports.
    """
    return description_of(module).refusal(table)


def description_of(module: nn.Module) -> "Description":
    """Return the `Description` of a model or layer in its current state: a layer graph, with a snapshot.

    The description is cached until the module differs from the snapshot. Callers ask at the start of each batch,
    because hooks may be added after a backend was selected.
    """
    change = global_change()
    cached = _DESCRIPTIONS.get(module)
    if cached is None or cached.global_change != change or not cached.is_current(module):
        cached = _DESCRIPTIONS[module] = Description(module, change)
    return cached


_Reading = tuple[dict[str, Any], str, Any]
"""An attribute that a description of a module depends on: the `vars` of its owner, its name, and its value."""


class Description:
    """The layer graph of a module, with a snapshot that shows within microseconds whether the module has changed since.

    The snapshot holds the attribute dictionaries (`vars`) of the module and its submodules, but not the module itself.
    A cached description therefore does not keep the module alive.
    """

    def __init__(self, module: nn.Module, change: str | None) -> None:
        """Describe a module as a layer graph.

        `change`, if not None, is a change to modules throughout the process: it makes the module unsupported.
        """
        self.global_change = change
        readings: list[_Reading] = []
        self.graph = _describe(module, readings) if change is None else Unsupported(change)
        self._refusals: dict[int, tuple[SupportTable, str | None]] = {}
        namespaces = [vars(each) for each in module.modules()]
        with_modes = [module, *(each for each in module.modules() if isinstance(each, Dropout | BatchNorm))]
        self._with_modes = [vars(each) for each in with_modes]
        # The snapshot, as flat lists that are compared without Python loops.
        self._owners, self._names, self._values = ([reading[part] for reading in readings] for part in range(3))
        self._children = [each["_modules"] for each in namespaces]
        self._submodules = self._current_submodules()
        self._types = [type(module), *map(type, self._submodules)]
        self._hooks = [each[kind] for each in namespaces for kind in HOOKS]
        self._hook_ids, self._next_hook_id = list(map(tuple, self._hooks)), RemovableHandle.next_id
        self._namespaces, self._sizes = namespaces, list(map(len, namespaces))

    def refusal(self, table: "SupportTable") -> str | None:
        """Return why a backend cannot compute the described module, as a clause; None: the backend can.

        `table` lists what the backend supports. The answer is cached.
        """
        if id(table) not in self._refusals:
            self._refusals[id(table)] = table, table.refusal(self.graph)
        return self._refusals[id(table)][1]

    @property
    def is_training(self) -> bool:
        """True if the module, or dropout or a BatchNorm inside it, is in training mode."""
        return any(map(itemgetter("training"), self._with_modes))

    def is_current(self, module: nn.Module) -> bool:
        """Return whether `module`, which must be the described module, has not changed since it was described."""
        submodules = self._current_submodules()
        return (
            submodules == self._submodules
            and self._has_same_hooks()
            and list(map(len, self._namespaces)) == self._sizes
            and [type(module), *map(type, submodules)] == self._types
            and list(map(dict.get, self._owners, self._names)) == self._values  # type: ignore[arg-type]
        )

    def _current_submodules(self) -> list[nn.Module | None]:
        return list(chain.from_iterable(map(dict.values, self._children)))

    def _has_same_hooks(self) -> bool:
        """Return whether the described module has the same hooks as when it was described.

        PyTorch numbers hooks. While the next number is the same, no hook was added anywhere in the process.
        """
        next_id = RemovableHandle.next_id
        if next_id == self._next_hook_id and not isinstance(self.graph, Unsupported):
            return True
        self._next_hook_id = next_id
        return list(map(tuple, self._hooks)) == self._hook_ids


_DESCRIPTIONS: WeakKeyDictionary[nn.Module, Description] = WeakKeyDictionary()


def _describe(module: nn.Module, readings: list[_Reading]) -> Graph:
    """Return the layer graph of a model or layer, or `Unsupported` if a component is unknown or changed.

    The attributes that the graph depends on are appended to `readings`.
    """
    try:
        facts = [fact for path, part in module.named_modules() for fact in check_module(path, part)]
        describer = _Describer(module, readings)
        if _computed_class(module) in (EncoderLayer, DecoderLayer):
            layer = describer.layer("", module)
            return layer._replace(facts=(*facts, *layer.facts))
        return describer.model(module, facts)
    except UnknownError as error:
        return Unsupported(str(error))


def known_class(module: nn.Module) -> type[nn.Module] | None:
    """Return the class of a module that is of a known class and unmodified; None for any other module.

    The class is the one before wrappers such as FSDP.
    """
    try:
        for _ in check_module("", module):
            pass
    except UnknownError:
        return None
    return unwrapped_class(module)


def _is_norm(norm: nn.Module | None) -> bool:
    return norm is not None and type(norm) is not nn.Identity


def _computed_class(module: nn.Module) -> type[nn.Module]:
    """Return the reference class whose function a module computes.

    For an inference copy in another number format, this is the class of the original module.

    Raises:
        UnknownError: the module's class is not known.
    """
    entry = KNOWN.get(unwrapped_class(module))
    if entry is None:
        raise UnknownError(f"the model is of class {type(module).__name__}")
    return entry.computes


class _Describer:
    """A builder of layer graphs, which checks each part of one model or layer and returns its description.

    Backends read sizes from the configuration, so each part of a model must agree with it. A layer without a model has
    no configuration, and is only checked for known classes. Methods raise an `UnknownError` at the first difference.
    """

    def __init__(self, root: nn.Module, readings: list[_Reading]) -> None:
        self.config: ModelConfig | None = getattr(root, "config", None)
        self._readings = readings

    def get(self, module: nn.Module, name: str) -> Any:
        """Return an attribute of a module, and record its value if the attribute lies in `vars(module)`.

        If a recorded value has changed later, the module is described again.
        """
        value = getattr(module, name)
        if name in vars(module):
            self._readings.append((vars(module), name, value))
        return value

    def must_be(self, path: str, quantity: str, actual: object, setting: str, expected: object = None) -> None:
        """Check that a property of a module agrees with the configuration.

        Without a configuration, nothing is checked.

        Args:
            path: the module's dotted name.
            quantity: the name of the property in a message, such as "norm".
            actual: the property that the module has.
            setting: the setting's name.
            expected: what the property must be; None: the value of the setting.

        Raises:
            UnknownError: the property differs.
        """
        if self.config is None:
            return
        expected = getattr(self.config, setting) if expected is None else expected
        if actual != expected:
            raise UnknownError(f"{path} has the {quantity} {actual}, but `model.{setting}` is {expected}")

    def class_of(self, path: str, module: nn.Module, *classes: type[nn.Module]) -> type[nn.Module]:
        """Return which of the reference classes `classes` a module computes the same function as.

        Raises:
            UnknownError: it is none of them; `path` names the module.
        """
        found = _computed_class(module)
        if found not in classes:
            raise UnknownError(f"{path} is of class {type(module).__name__}")
        return found

    def model(self, model: nn.Module, facts: list[Fact]) -> ModelGraph:
        """Return the `ModelGraph` of a model: its layers and properties, by which backends are chosen.

        `facts` is a list of the properties of its modules, such as wrappers. More properties are appended to it.

        Raises:
            UnknownError: a class or setting is unknown, or a component does not agree with the configuration.
        """
        model_class, config = _computed_class(model), self.get(model, "config")
        if model_class not in _STACKS_OF:
            raise UnknownError(f"the model is of class {type(model).__name__}")
        if unknown := unknown_settings(config):
            raise UnknownError(f"the model has the setting `model.{unknown[0]}`")
        output = getattr(model, "prepacked_output", None)
        facts.append(Fact("", "class", unwrapped_class(model).__name__))
        facts.append(Fact("", "output projection", "Linear" if output is None else unwrapped_class(output).__name__))
        layers: dict[str, LayerGraph] = {}
        if model_class is not Recurrent:
            for prefix, embedding, count in _STACKS_OF[model_class]:
                facts += self.around(model, prefix, embedding)
                layers |= self.stack(f"{prefix}layers", getattr(model, f"{prefix}layers"), getattr(config, count))
        head = getattr(model, "masked_language_head", None)
        activation = (_ACTIVATIONS | _GATES).get(config.activation)
        if head is not None and not is_same_function(self.get(head, "activation"), activation):
            raise UnknownError("masked_language_head has another activation than `model.activation`")
        return ModelGraph(layers, (*facts, *(fact for layer in layers.values() for fact in layer.facts)))

    def around(self, model: nn.Module, prefix: str, name: str) -> list[Fact]:
        """Check the modules around a stack's layers, and return a list of facts about them.

        The modules are the embedding, the positions and the final norm.

        Args:
            model: the model.
            prefix: the beginning of the attributes' names, such as "encoder_".
            name: the name of the embedding's attribute.

        Raises:
            UnknownError: a class or setting is unknown, a module does not agree with the configuration, or both the
                embedding and the layers add positions.
        """
        config = self.config
        assert config is not None
        embedding, stack, final = (getattr(model, each) for each in (name, f"{prefix}positions", f"{prefix}norm"))
        in_attention = self.stack_positions(f"{prefix}positions", stack)
        in_embedding = self.embedding(name, embedding)
        more = []
        if config.relative_bias:
            self.must_be(f"{prefix}positions", "positions", in_attention, "relative_bias", "relative")
            more, in_attention = [Fact(f"{prefix}positions", "position bias", "relative")], "none"
        if config.embedding_size is not None:
            more.append(Fact(name, "embedding projection", "some"))
        if "none" not in (in_attention, in_embedding):
            raise UnknownError(f"{name} and {prefix}positions both add positions")
        positions = in_embedding if in_attention == "none" else in_attention
        self.must_be(name, "positions", positions, "positions")
        self.must_be(name, "embedding norm", embedding.norm is not None, "embedding_norm")
        self.must_be(f"{prefix}norm", "final norm", type(final) is not nn.Identity, "final_norm", config.has_final_norm)
        norms = [(f"{name}.norm", embedding.norm), (f"{prefix}norm", final)]
        return [
            Fact(name, "positions", positions),
            Fact(name, "token types", "none" if self.get(embedding, "token_types") is None else "some"),
            Fact(
                f"{prefix}positions",
                "attention window",
                _window(self.get(stack, "radius"), causal=self.get(stack, "causal")),
            ),
            *more,
            *(Fact(path, "norm", self.norm(path, norm).kind) for path, norm in norms if _is_norm(norm)),
        ]

    def embedding(self, path: str, module: Any) -> str:
        """Return the name of the position encoding that an embedding module adds: "sinusoidal", "learned" or "none"."""
        self.class_of(path, module, Embedding)
        if self.config is not None:
            scale = math.sqrt(self.config.embedding_width) if self.config.scale_embeddings else 1.0
            self.must_be(path, "scale", self.get(module, "scale"), "scale_embeddings", scale)
            size = self.config.embedding_size
            self.must_be(path, "projection", module.projection is not None, "embedding_size", size is not None)
            if size is not None:
                self.linear(f"{path}.projection", module.projection, size, None)
        positions = module.positions
        name = _EMBEDDED_POSITIONS[self.class_of(f"{path}.positions", positions, *_EMBEDDED_POSITIONS)]
        self.attributes_must_be(f"{path}.positions", positions, _POSITION_SETTINGS[name])
        return name

    def stack_positions(self, path: str, module: Any) -> str:
        """Return the name of the position encoding in a stack's self-attention: a rotary kind, "relative" or "none".

        Rotary and relative positions together are "several kinds", which no backend supports.
        """
        self.class_of(path, module, StackPositions)
        self.attributes_must_be(path, module, {"radius": "attention_window"})
        name = "none"
        if module.rotary is not None:
            self.class_of(f"{path}.rotary", module.rotary, RotaryPositions)
            self.attributes_must_be(f"{path}.rotary", module.rotary, _POSITION_SETTINGS["rotary"])
            name = "rotary-interleaved" if self.get(module.rotary, "interleaved") else "rotary"
        if module.relative is not None:
            self.class_of(f"{path}.relative", module.relative, RelativePositions)
            self.attributes_must_be(f"{path}.relative", module.relative, _POSITION_SETTINGS["relative"])
            name = "relative" if name == "none" else "several kinds"
        return name

    def attributes_must_be(self, path: str, module: nn.Module, settings: Mapping[str, str]) -> None:
        """Check that attributes of a module equal settings of the configuration; `settings` maps attribute to setting.

        Raises:
            UnknownError: an attribute differs; `path` names the module.
        """
        for attribute, setting in settings.items():
            self.must_be(path, attribute, self.get(module, attribute), setting)

    def stack(self, path: str, layers: nn.ModuleList, count: int) -> dict[str, LayerGraph]:
        """Return the layer graphs of a stack's layers, a dict by dotted name such as `decoder_layers.0`.

        `count` is the number of layers in the configuration; layers with shared weights are one.
        """
        assert self.config is not None
        expected = 1 if self.config.share_layers else count
        self.must_be(path, "number of layers", len(layers), "share_layers", expected)
        return {f"{path}.{number}": self.layer(f"{path}.{number}.", layer) for number, layer in enumerate(layers)}

    def layer(self, prefix: str, layer: nn.Module) -> LayerGraph:
        """Return the `LayerGraph` of an encoder or decoder layer: the operations of its sub-layers.

        `prefix`, such as "decoder_layers.0.", begins the dotted names of its submodules.
        """
        layer_class = self.class_of(prefix[:-1], layer, EncoderLayer, DecoderLayer)
        names = ["self_attention", *(["memory_attention"] if layer_class is DecoderLayer else []), "feed_forward"]
        sublayers = tuple(self.sublayer(f"{prefix}{name}", name, layer) for name in names)
        return LayerGraph(sublayers, tuple(fact for sublayer in sublayers for fact in _facts(sublayer)))

    def sublayer(self, path: str, name: str, layer: nn.Module) -> Sublayer:
        """Return the `Sublayer` description of a layer's attention or feed-forward network and its residual.

        `name` is the attribute in the layer, such as `self_attention`, and `path` its dotted name.
        """
        module, residual = getattr(layer, name), getattr(layer, f"{name}_residual")
        self.class_of(f"{path}_residual", residual, Residual)
        before, after = (
            None if type(norm) is nn.Identity else self.norm(f"{path}_residual", norm)
            for norm in (residual.norm_before, residual.norm_after)
        )
        is_sandwich = self.get(residual, "is_sandwich")
        order = {(True, False): "pre", (False, True): "post", (True, True): "sandwich"}.get(
            (before is not None, after is not None)
        )
        if order is None or is_sandwich != (order == "sandwich"):
            raise UnknownError(f"{path}_residual has another number of norms than one, or a sandwich's two")
        self.must_be(f"{path}_residual", "norm order", order, "norm_order")
        inside = self.feed_forward(path, module) if name == "feed_forward" else self.attention(path, module, name)
        add, norm_after = (DropoutAdd(residual.dropout),), () if after is None else (after,)
        ending = (*norm_after, *add) if is_sandwich else (*add, *norm_after)
        return Sublayer(path, module, residual, order, (*(() if before is None else (before,)), *inside, *ending))

    def norm(self, path: str, norm: nn.Module) -> Norm:
        """Return the `Norm` description of a normalization: its module, kind and epsilon.

        Raises:
            UnknownError: the module's class is unknown; it has no weight, epsilon or, for LayerNorm, bias; or its kind
                or epsilon is not that of the configuration.
        """
        kind = _NORMS[self.class_of(path, norm, *_NORMS)]
        epsilon = self.get(norm, "epsilon" if kind == "batch" else "eps")
        if norm.weight is None or epsilon is None or (kind == "layer" and norm.bias is None):
            raise UnknownError(f"{path} has a norm without weights or epsilon")
        self.must_be(path, "norm", kind, "norm")
        self.must_be(path, "epsilon", epsilon, "norm_epsilon")
        return Norm(norm, kind, epsilon)

    def attention(self, path: str, module: Any, name: str) -> list[Operation]:
        """Return a list of the operations of multi-head attention in order: projections, attention, output projection.

        The module's sizes and score must agree with the configuration.
        """
        has_norms = self.class_of(path, module, MultiHeadAttention, QueryKeyNormAttention) is QueryKeyNormAttention
        self.must_be(path, "class", "query-key-norm" if has_norms else "multi-head", "attention")
        if has_norms:
            self.query_key_norms(path, module)
        names = ("num_heads", "num_key_value_heads", "d_k", "d_v")
        heads, shared, d_k, d_v = (self.get(module, each) for each in names)
        widths = (heads * d_k, shared * d_k, shared * d_v)
        if self.get(module, "widths") != widths:
            raise UnknownError(f"{path} has other widths than those of its heads")
        if self.config is not None:
            config = self.config
            expected = (config.num_heads, config.key_value_heads, config.key_width, config.value_width)
            for size, *values in zip(names, (heads, shared, d_k, d_v), expected, strict=True):
                self.must_be(path, size, values[0], size, values[1])
        score, is_hard, scale = self.score(path, self.get(module, "score") if "score" in vars(module) else module.score)
        attend = Attend(module, score, is_hard, scale, name == "memory_attention")
        sizes = {"projection": sum(widths), "query": widths[0], "key_value": sum(widths[1:])}
        before = [
            self.linear(f"{path}.{child}", getattr(module, child), None, size)
            for child, size in sizes.items()
            if child in module._modules
        ]
        return [*before, attend, self.linear(f"{path}.output", module.output, heads * d_v, None)]

    def query_key_norms(self, path: str, module: QueryKeyNormAttention) -> None:
        """Check that the norms of an attention's queries and keys are as the configuration describes them."""
        for name in QUERY_KEY_NORMS:
            norm = getattr(module, name)
            self.class_of(f"{path}.{name}", norm, RMSNorm)
            if norm.weight is None or self.get(norm, "normalized_shape") != (module.d_k,):
                raise UnknownError(f"{path}.{name} has no weight for each of the head's {module.d_k} dimensions")
            self.must_be(f"{path}.{name}", "epsilon", self.get(norm, "eps"), "norm_epsilon")

    def score(self, path: str, score: Any) -> tuple[str, bool, float | None]:
        """Return a tuple that describes an attention score: its name, True if attention is hard, and its scale.

        A scale of None is the default. A `score` of None stands for the scaled dot product.

        Raises:
            UnknownError: the score's class is not registered, or a property differs from the model's configuration.
        """
        if score is None:
            self.must_be(path, "score", "scaled", "attention_score")
            if self.config is not None and (self.config.attention_kind, self.config.attention_scale) != ("soft", None):
                raise UnknownError(f"{path} has no score, but `model.attention_kind` or `model.attention_scale` is set")
            return "scaled", False, None
        self.class_of(f"{path}.score", score, ScoredAttention)
        hard, factor = self.get(score, "hard"), self.get(score, "factor")
        if score.vector is not None or score.matrix is not None:
            name, scale = ("additive" if score.matrix is None else "general"), None
        elif self.config is None:
            name, scale = "scaled", factor
        else:
            name, scale = self.config.attention_score, self.config.attention_scale
            root = math.sqrt(self.config.key_width)
            expected = (1.0 if scale is None else scale * root) if name == "scaled" else root
            self.must_be(f"{path}.score", "factor", factor, "attention_scale", expected)
        self.must_be(path, "score", name, "attention_score")
        self.must_be(path, "kind", "hard" if hard else "soft", "attention_kind")
        return name, hard, scale

    def feed_forward(self, path: str, module: Any) -> list[Operation]:
        """Return the operations of a feed-forward network, a list in order: linear layer, activation, linear layer."""
        is_gated = self.class_of(path, module, FeedForward, GatedFeedForward) is GatedFeedForward
        functions = _GATES if is_gated else _ACTIVATIONS
        function = self.get(module, "gate" if is_gated else "activation")
        name = next((name for name, listed in functions.items() if is_same_function(listed, function)), None)
        if name is None:
            raise UnknownError(f"{path} has the activation {getattr(function, '__name__', function)!s}")
        self.must_be(path, "activation", name, "activation")
        d_ff = None if self.config is None else self.config.d_ff
        inner = self.linear(f"{path}.inner", module.inner, None, d_ff and d_ff * (2 if is_gated else 1))
        return [inner, Activate(name, is_gated, module.dropout), self.linear(f"{path}.outer", module.outer, d_ff, None)]

    def linear(self, path: str, module: nn.Module, inputs: int | None, outputs: int | None) -> LinearOperation:
        """Return the `LinearOperation` of a linear layer.

        The numbers of inputs and outputs are checked, unless the class records none. None stands for the model width.

        Raises:
            UnknownError: the class is unknown, or the numbers differ.
        """
        self.class_of(path, module, LinearModule)
        if self.config is not None and (sizes := SIZES.get(unwrapped_class(module))) is not None:
            actual = tuple(self.get(module, name) for name in sizes)
            if actual != (expected := (inputs or self.config.d_model, outputs or self.config.d_model)):
                raise UnknownError(f"{path} has the sizes {actual}, but the configuration has {expected}")
        return LinearOperation(module)


# For each class of models: the prefix of each stack's names, its embedding, and the setting with its number of layers.
_STACKS_OF: dict[type[nn.Module], tuple[tuple[str, str, str], ...]] = {
    Transformer: (
        ("encoder_", "source_embedding", "num_encoder_layers"),
        ("decoder_", "target_embedding", "num_decoder_layers"),
    ),
    Encoder: (("", "embedding", "num_encoder_layers"),),
    Decoder: (("", "embedding", "num_decoder_layers"),),
    Recurrent: (),
}


def _facts(sublayer: Sublayer) -> Iterator[Fact]:
    """Yield the properties of a sub-layer, such as its norm and activation, that backends compare with tables."""
    path = sublayer.path
    yield Fact(path, "norm order", sublayer.order)
    for norm in sublayer.norms:
        yield Fact(path, "norm", norm.kind)
    for linear in sublayer.linears:
        yield Fact(path, "linear layers", unwrapped_class(linear.module).__name__)
    if (activation := sublayer.activation) is not None:
        yield Fact(path, "activation", activation.name)
    if (attend := sublayer.attention) is not None:
        module = attend.module
        if isinstance(module, QueryKeyNormAttention):
            yield Fact(path, "attention", "query-key-norm")
        yield Fact(path, "attention score", attend.score)
        yield Fact(path, "attention kind", "hard" if attend.is_hard else "soft")
        yield Fact(path, "attention scale", "default" if attend.scale is None else "other")
        shared = module.num_key_value_heads != module.num_heads
        yield Fact(path, "key value heads", "shared" if shared else "equal")
        yield Fact(path, "value width", "equal" if module.d_k == module.d_v else "other")


# --- backend tables ---


class SupportTable(NamedTuple):
    """A list of what a backend computes: for each aspect of a model, such as its norm, the values that are allowed.

    For example, `{"norm": {"layer", "rms"}, "norm order": {"pre"}}` allows pre-norm layers with LayerNorm or RMSNorm.
    An aspect that is not listed has no allowed value.
    """

    title: str
    """The backend's name, for messages."""
    values: Mapping[str, frozenset[str]]
    """The allowed values of each aspect, a dict from an aspect such as "norm" (as in `Fact`) to a set of values."""

    def refusal(self, graph: Graph) -> str | None:
        """Return why the backend cannot compute a described model or layer, as a clause; None: the backend can.

        The reason names the first property that the table does not list.
        """
        if isinstance(graph, Unsupported):
            return f"{graph.reason}, which {self.title} does not know"
        for path, aspect, value in graph.facts:
            if value not in self.values.get(aspect, ()):
                return f"{path or 'the model'} has {aspect} `{value}`, which {self.title} does not know"
        return None


def table(title: str, **values: str) -> SupportTable:
    """Return a backend's table, for example `table("the kernels", norm="layer rms", norm_order="pre")`.

    Args:
        title: the backend's name in messages.
        values: allowed values, separated by spaces, by aspect; `attention_score` stands for the aspect
            `attention score`, and `class_` for `class`.
    """
    return SupportTable(
        title, {aspect.replace("_", " ").rstrip(): frozenset(listed.split()) for aspect, listed in values.items()}
    )
