"""Record and edit a model's activations at named hook points; attention views and causal tools use the recordings.

A hook point is a tensor inside a model, such as `encoder.0.self_attention.heads`. While a recording runs, PyTorch hooks
are registered, and a model with hooks is computed on its reference path: no kernel can skip a hook point.
Legend: B batch, T positions, Q queries, L keys, H query heads, G key/value heads, K width of a key, V width of a value,
D model width, F width of the feed-forward network.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from threading import Lock, get_ident
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from transduce.errors import TransduceError, explain_wrong_types, near_name
from transduce.model.attention import MultiHeadAttention, no_weights
from transduce.model.feed_forward import FeedForward, GatedFeedForward
from transduce.model.layers import Residual
from transduce.model.recurrent import Recurrent, join_step_weights
from transduce.model.series import SeriesTransformer
from transduce.model.transformer import Decoder, Encoder, EncoderDecoderLayers

Edit = Callable[[Tensor], Tensor]
"""A function from an activation (a tensor in a model) to its replacement, of the same shape."""
_Register = Callable[[nn.Module, Edit], Callable[[], object]]


class HookPoint(NamedTuple):
    """A tensor inside a model that can be recorded: its name, its shape, and whether it can be edited."""

    name: str
    """The dotted name, such as `decoder.1.memory_attention.weights`; layers are counted from 0."""
    shape: str
    """The dimensions as letters, such as `B T D` for batch, positions and model width."""
    can_edit: bool = True
    """False for attention weights, which the model reports and does not read back."""


class _Site(NamedTuple):
    """A hook point with the module at which PyTorch hooks record and edit the point's tensor."""

    point: HookPoint
    module: nn.Module
    register: _Register
    """Function that registers an edit as a hook of the module, and returns a function that removes the hook."""
    layer: int = 0
    """Index, from 0, of the call of the module that belongs to the hook point. Layers that share weights share a
    module, which is called several times in a pass.
    """
    calls: int = 1
    """The number of calls of the module in one pass of the model."""


class Recording(Mapping[str, Tensor]):
    """A mapping from names of hook points to activations of a model, filled while `record_activations` runs."""

    def __init__(self) -> None:
        self._calls: dict[str, list[Tensor]] = {}
        self._shapes: dict[str, str] = {}

    def __getitem__(self, name: str) -> Tensor:
        """Return the activation at a hook point; the calls of step-by-step decoding are joined along the positions.

        Raises:
            KeyError: nothing was recorded at this hook point.
            TransduceError: the calls cannot be joined: they belong to batches of several sizes, or have no positions.
        """
        calls = self._calls[name]
        if len(calls) == 1:
            return calls[0]
        if len({len(call) for call in calls}) > 1:
            raise TransduceError(
                f"`{name}` was recorded in {len(calls)} calls for batches of several sizes, such as those of a beam: "
                "use the method `calls`, or record a single pass of the model."
            )
        axes = self._shapes[name].split()
        if axes[-1] == "L":
            return join_step_weights(calls)
        if axes == ["B", "C"]:
            raise TransduceError(
                f"`{name}` was recorded in {len(calls)} calls, each for other texts: use the method `calls`, or record "
                "a single pass of the model."
            )
        return torch.cat(calls, dim=axes.index("T") if "T" in axes else axes.index("Q"))

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def __repr__(self) -> str:
        return f"Recording({', '.join(self._calls)})"

    def calls(self, name: str) -> list[Tensor]:
        """Return a list of the activations at a hook point in every call of the model, in the order of the calls.

        Raises:
            KeyError: nothing was recorded at this hook point.
        """
        return list(self._calls[name])

    def clear(self) -> None:
        """Delete all recorded activations, to record the next pass of the model."""
        self._calls.clear()

    def layers(self, stack: str, part: str) -> list[Tensor]:
        """Return a list with a part's activation in each layer of a stack, in order.

        `part` is such as `self_attention.heads`. Layers without a recording are left out.
        """
        names = [name for name in self._calls if name.startswith(f"{stack}.") and name.endswith(f".{part}")]
        return [self[name] for name in sorted(names, key=_layer_of)]

    def _add(self, point: HookPoint, value: Tensor) -> None:
        self._shapes[point.name] = point.shape
        self._calls.setdefault(point.name, []).append(value)


def _layer_of(name: str) -> int:
    number = name.split(".")[1]
    return int(number) if number.isdigit() else 0


@explain_wrong_types
def hook_points(model: nn.Module) -> tuple[HookPoint, ...]:
    """Return a tuple of a model's `HookPoint`s, at which `record_activations` can record, in the order of computation.

    A stack is `encoder` or `decoder`; a decoder-only model has the stack `decoder`. Layer n of a stack has:

    * `encoder.embedding` (B T D): the input of the stack's first layer;
    * `encoder.n.self_attention.input` (B T D): the residual stream that enters the sub-layer;
    * `….norm_before`, `….norm_after` (B T D): the outputs of the sub-layer's norms, if the order of norms has them;
    * `….queries` (B H T K), `….keys` (B G T K), `….values` (B G T V): the projections, before a rotary embedding;
    * `….weights` (B H Q L): the attention weights; they cannot be edited;
    * `….heads` (B Q H V): the outputs of the heads, before the output projection;
    * `….output` (B T D): what the sub-layer adds to the residual stream;
    * the points of `memory_attention` in a decoder layer have these names, too;
    * the points of `feed_forward` are `….input`, norms, `….neurons` (B T F), the activations of the hidden layer, and
      `….output`;
    * `encoder.n.residual` (B T D): the residual stream after the layer;
    * `encoder.norm` (B T D): the output of the norm after the last layer, if the stack has one.

    `logits` are the outputs of the last linear layer: tokens or numbers (B T V), classes of words (B T C), or classes
    of texts (B C). Besides `logits`, a recurrent model has only `residual`, `decoder.memory_attention.weights` and
    `decoder.n.past_attention.weights`.

    Raises:
        TransduceError: the module is none of the package's models.
    """
    return tuple(site.point for site in _sites(model))


@contextmanager
@explain_wrong_types
def record_activations(
    model: nn.Module, points: str | Iterable[str] | None = None, *, edit: Mapping[str, Edit] | None = None
) -> Iterator[Recording]:
    """Record, and optionally edit, the activations of a model within a `with` block.

    The model's outputs stay what its reference path computes, unless edits change them. Activations are recorded after
    they were edited, with their gradients if the caller computes any. What other threads compute with the model at the
    same time is neither recorded nor edited.

    Args:
        model: any model of the package, such as `translator.model`.
        points: names of hook points (`hook_points`), in which * stands for any characters; None: all.
        edit: replacements of activations by name of the hook point, each a function from the activation to a tensor of
            its shape.

    Yields:
        The recording, which fills while the model computes.

    Raises:
        TransduceError: there is no such hook point, or it cannot be edited, or an edit changed the shape.
    """
    sites = {site.point.name: site for site in _sites(model)}
    patterns = ["*"] if points is None else [points] if isinstance(points, str) else list(points)
    edits = {} if edit is None else dict(edit)
    for pattern in (*patterns, *edits):
        if pattern != "*" and not any(fnmatchcase(name, pattern) for name in sites):
            nearest = near_name(pattern, sites, cutoff=0.0) or ""
            raise TransduceError(
                f"This model has no hook point `{pattern}`: `hook_points` lists them, such as `{nearest}`."
            )
    recording = Recording()
    with ExitStack() as stack:
        for name, site in sites.items():
            change = edits.get(name)
            if change is not None and not site.point.can_edit:
                raise TransduceError(f"The hook point `{name}` can be recorded, but not edited: edit `heads` instead.")
            is_recorded = any(fnmatchcase(name, pattern) for pattern in patterns)
            if is_recorded or change is not None:
                act = _action(site, change, recording if is_recorded else None)
                stack.callback(site.register(site.module, act))
        yield recording


def _action(site: _Site, change: Edit | None, recording: Recording | None) -> Edit:
    """Return a function, for a hook, that edits and records the activation of a hook point.

    Nothing is edited if `change` is None, and nothing is recorded if `recording` is None. If layers share the module,
    calls by other layers are ignored. The returned function raises a TransduceError if an edit changes the shape.
    """
    count = 0

    def act(value: Tensor) -> Tensor:
        nonlocal count
        is_layer, count = count % site.calls == site.layer, count + 1
        if not is_layer:
            return value
        if change is not None:
            changed = change(value)
            if not isinstance(changed, Tensor) or changed.shape != value.shape:
                actual = tuple(changed.shape) if isinstance(changed, Tensor) else type(changed).__name__
                raise TransduceError(
                    f"An edit returns a tensor of the activation's shape, but that of `{site.point.name}` returned "
                    f"{actual} for {tuple(value.shape)}."
                )
            value = changed.to(value.dtype)
        if recording is not None:
            recording._add(site.point, value)
        return value

    return act


# --- hooks of PyTorch ---


def of_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a PyTorch hook that calls `hook` only in the current thread.

    The hook does nothing in other threads, which may use the same model at the same time.
    """
    owner = get_ident()

    def call(*args: Any) -> Any:
        return hook(*args) if get_ident() == owner else None

    return call


def _at_input(module: nn.Module, act: Edit) -> Callable[[], object]:
    """Apply `act` to a module's first argument in every call, by a hook; return the function that removes the hook."""

    def hook(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (act(args[0]), *args[1:])

    return module.register_forward_pre_hook(of_this_thread(hook)).remove


def _at_output(module: nn.Module, act: Edit) -> Callable[[], object]:
    """Apply `act` to a module's (first) output in every call, by a hook; return the function that removes the hook."""

    def hook(_: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        return (act(output[0]), *output[1:]) if isinstance(output, tuple) else act(output)

    return module.register_forward_hook(of_this_thread(hook)).remove


def _at_heads(num_heads: int) -> _Register:
    """Return a function that registers an edit of the outputs of attention heads.

    The edit is a function from the outputs, (B, Q, heads, width), to new outputs. The outputs are found at the input of
    the output projection, where all heads are joined in one dimension.
    """

    def register(module: nn.Module, act: Edit) -> Callable[[], object]:
        return _at_input(module, lambda joined: act(joined.unflatten(-1, (num_heads, -1))).flatten(-2))

    return register


def _at_projection(attention: MultiHeadAttention, part: int) -> _Register:
    """Return a function that registers an edit of queries, keys or values.

    The edit is a function from a tensor (B, heads, T, width) to a new one of the same shape.

    Args:
        attention: the attention module, which computes queries, keys and values by one joint projection.
        part: 0 for queries, 1 for keys, 2 for values.
    """
    first, last = sum(attention.widths[:part]), sum(attention.widths[: part + 1])
    width = attention.d_v if part == 2 else attention.d_k

    def register(module: nn.Module, act: Edit) -> Callable[[], object]:
        def hook(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            start, stop = args[1] if len(args) > 1 and args[1] is not None else (0, sum(attention.widths))
            if not start <= first < stop:
                return output  # queries and keys of cross-attention are projected by two calls
            rows = slice(first - start, last - start)
            shown = output[..., rows].unflatten(-1, (-1, width)).transpose(-2, -3)  # (B, H, T, K)
            changed = act(shown)
            if changed is shown:
                return output
            edited = output.clone()
            edited[..., rows] = changed.transpose(-2, -3).flatten(-2)
            return edited

        return module.register_forward_hook(of_this_thread(hook)).remove

    return register


_WEIGHTS_ARGUMENT = 4  # the index of `weights_out` in the calls of recurrent attention


def _at_weights(module: nn.Module, act: Edit) -> Callable[[], object]:
    """Call `act` with an attention module's weights in every call, by hooks; return the function that removes these.

    The weights are only recorded: what `act` returns is ignored.
    """

    def ask(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if len(args) > _WEIGHTS_ARGUMENT:
            return ((*args[:_WEIGHTS_ARGUMENT], []), named) if args[_WEIGHTS_ARGUMENT] is None else (args, named)
        return (args, {**named, "weights_out": []}) if named.get("weights_out") is None else (args, named)

    def take(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any], _output: Tensor) -> None:
        received = args[_WEIGHTS_ARGUMENT] if len(args) > _WEIGHTS_ARGUMENT else named["weights_out"]
        if not received:
            raise no_weights(f"`{type(module).__name__}`")
        act(received[-1])

    hooks = ExitStack()
    hooks.callback(module.register_forward_pre_hook(of_this_thread(ask), with_kwargs=True).remove)
    hooks.callback(module.register_forward_hook(of_this_thread(take), with_kwargs=True).remove)
    return hooks.close


_EDITED_PROJECT_LOCK = Lock()


class _EditedProject:
    """A replacement of a model's method `project` that also edits the logits.

    Each edit applies in one thread only.
    """

    def __init__(self, project: Callable[[Tensor], Tensor], replaced: object) -> None:
        self.project = project
        self.replaced = replaced
        """The model's own attribute `project` before, to be set again; None: it had none."""
        self.edits: tuple[tuple[int, Edit], ...] = ()
        """Pairs of a thread's identifier and an edit, in the order in which they were added."""

    def __call__(self, hidden: Tensor) -> Tensor:
        logits = self.project(hidden)
        for owner, act in self.edits:
            if owner == get_ident():
                logits = act(logits.clone())  # search changes logits in place
        return logits


def _at_projected_logits(module: nn.Module, act: Edit) -> Callable[[], object]:
    """Apply `act` to the logits of a model by wrapping its method `project`; return the function that undoes this.

    Models with a wrapped method are computed on the reference path, so that no kernel bypasses `act`.
    """
    attributes, edit = vars(module), (get_ident(), act)
    with _EDITED_PROJECT_LOCK:
        own, project = attributes.get("project"), cast(Any, module.project)
        edited = own if isinstance(own, _EditedProject) else _EditedProject(project, own)
        attributes["project"] = edited
        edited.edits = (*edited.edits, edit)

    def remove() -> None:
        with _EDITED_PROJECT_LOCK:
            edited.edits = tuple(each for each in edited.edits if each is not edit)
            if edited.edits or attributes.get("project") is not edited:
                return
            if edited.replaced is None:
                del attributes["project"]
            else:
                attributes["project"] = edited.replaced

    return remove


# --- where the hook points of a model are ---


def _sites(model: nn.Module) -> list[_Site]:
    """Return a list of a model's hook points, each with its module (`_Site`), in the order of computation.

    Raises:
        TransduceError: the module is none of the package's models.
    """
    if isinstance(model, EncoderDecoderLayers):
        config = model.config
        found = [
            *_stack("encoder", model.encoder_layers, config.num_encoder_layers, model.encoder_norm),
            *_stack("decoder", model.decoder_layers, config.num_decoder_layers, model.decoder_norm),
        ]
    elif isinstance(model, Encoder):
        found = [*_stack("encoder", model.layers, model.config.num_encoder_layers, model.norm)]
    elif isinstance(model, Decoder):
        found = [*_stack("decoder", model.layers, model.config.num_decoder_layers, model.norm)]
    elif isinstance(model, Recurrent):
        found = [*_recurrent(model)]
    else:
        raise TransduceError(
            f"Activations are recorded in the models of this package, but this is a {type(model).__name__}: pass the "
            "attribute `model` of what `transduce.load` returns."
        )
    logits = HookPoint("logits", "B T V")
    if isinstance(model, SeriesTransformer):
        return [*found, _Site(logits, model.head, _at_output)]
    if isinstance(model, Encoder) and model.classifier is not None:
        shape = "B T C" if model.config.token_labels else "B C"
        return [*found, _Site(HookPoint("logits", shape), model.classifier, _at_output)]
    return [*found, _Site(logits, model, _at_projected_logits)]


def _stack(stack: str, layers: nn.ModuleList, count: int, norm: nn.Module) -> Iterator[_Site]:
    """Yield the hook points of a Transformer's encoder or decoder, each with its module (`_Site`).

    Args:
        stack: "encoder" or "decoder".
        layers: the layer modules.
        count: the number of layers that are computed. If layers share their weights, it is more than the number of
            modules.
        norm: the norm after the last layer.
    """
    if not count:
        return
    calls = count if len(layers) < count else 1  # layers that share their weights are one module
    first = HookPoint(f"{stack}.embedding", "B T D")
    yield _Site(first, layers[0], _at_input, 0, calls)
    for number in range(count):
        layer, turn = layers[number % len(layers)], number if calls > 1 else 0
        for name in ("self_attention", "memory_attention", "feed_forward"):
            if hasattr(layer, name):
                residual, part = getattr(layer, f"{name}_residual"), getattr(layer, name)
                for point, module, register in _sublayer(f"{stack}.{number}.{name}", residual, part):
                    yield _Site(point, module, register, turn, calls)
        after = HookPoint(f"{stack}.{number}.residual", "B T D")
        yield _Site(after, layer, _at_output, turn, calls)
    if not isinstance(norm, nn.Identity):
        yield _Site(HookPoint(f"{stack}.norm", "B T D"), norm, _at_output)


def _sublayer(name: str, residual: Residual, part: nn.Module) -> Iterator[tuple[HookPoint, nn.Module, _Register]]:
    """Yield the hook points of a sub-layer and its residual connection.

    Each hook point comes with its module and a function that registers a hook there.
    """

    def point(last: str, shape: str, *, can_edit: bool = True) -> HookPoint:
        return HookPoint(f"{name}.{last}", shape, can_edit)

    yield point("input", "B T D"), residual, _at_input
    if not isinstance(residual.norm_before, nn.Identity):
        yield point("norm_before", "B T D"), residual.norm_before, _at_output
    if isinstance(part, MultiHeadAttention):
        # An inference copy with prepacked weights has other projections, whose layout is the kernels' own.
        if type(part) is MultiHeadAttention:
            for number, (values, shape) in enumerate(
                (("queries", "B H T K"), ("keys", "B G T K"), ("values", "B G T V"))
            ):
                yield point(values, shape), part.projection, _at_projection(part, number)
        yield point("weights", "B H Q L", can_edit=False), part, _at_weights
        yield point("heads", "B Q H V"), part.output, _at_heads(part.num_heads)
    elif isinstance(part, FeedForward | GatedFeedForward):
        yield point("neurons", "B T F"), part.outer, _at_input
    yield point("output", "B T D"), part, _at_output
    if not isinstance(residual.norm_after, nn.Identity):
        yield point("norm_after", "B T D"), residual.norm_after, _at_output


def _recurrent(model: Recurrent) -> Iterator[_Site]:
    """Yield a recurrent model's hook points with their modules (`_Site`): states of layers, and attention weights."""
    for stack, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        for number, layer in enumerate(layers):
            attention = getattr(layer, "past_attention", None)
            if attention is not None:
                weights = HookPoint(f"{stack}.{number}.past_attention.weights", "B H Q L", can_edit=False)
                yield _Site(weights, attention, _at_weights)
            yield _Site(HookPoint(f"{stack}.{number}.residual", "B T D"), layer, _at_output)
    if model.memory_attention is not None:
        weights = HookPoint("decoder.memory_attention.weights", "B H Q L", can_edit=False)
        yield _Site(weights, model.memory_attention, _at_weights)
