"""Fine-tune by LoRA: the trained matrix is the stored one plus the product of two narrow matrices (Hu et al. 2022).

Only the narrow matrices are trained. Their product is added to the weight where the weight is used, so every module
works unchanged, and merging leaves an ordinary model.
Legend: O outputs, I inputs, R rank.
"""

from collections.abc import Iterator, Mapping

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from transduce.errors import TransduceError, explain_wrong_types
from transduce.model.known_classes import register_parametrization
from transduce.training.choices import Choice
from transduce.training.settings import PROJECTIONS, ResolvedTraining, check_projections

_NAMES: dict[str, str] = {
    "queries-keys-values": "projection",
    "attention-output": "output",
    "feed-forward-inner": "inner",
    "feed-forward-outer": "outer",
}
"""A dict from each kind of projection that LoRA adapts to the name of the attribute of a layer's module that holds it.
"""
_ADAPTED = "parametrizations.weight.0."
_ORIGINAL = "parametrizations.weight.original"


class LowRankSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of LoRA: rank, alpha and the projections to adapt."""

    rank: int = 8
    """The rank R: the width of the narrow matrices."""
    alpha: float = 16.0
    """The product of the narrow matrices is multiplied by alpha / rank."""
    projections: tuple[str, ...] = PROJECTIONS
    """The projections of each layer to adapt; a model need not have all of them."""
    seed: int = 1
    """The random seed of the initial values of the narrow matrices."""

    @explain_wrong_types
    def __post_init__(self) -> None:
        if self.rank < 1:
            raise TransduceError(f"`training.lora_rank` must be at least 1 to adapt a model, but is {self.rank}.")
        if not self.alpha > 0.0:
            raise TransduceError(f"`training.lora_alpha` must be greater than 0, but is {self.alpha}.")
        check_projections(self.projections)


def low_rank_settings(training: ResolvedTraining) -> LowRankSettings | None:
    """Return the LoRA settings of a run; None if the whole model is trained (`lora_rank` is 0)."""
    if not training.lora_rank:
        return None
    alpha = choose_lora_alpha(training.lora_rank).value if training.lora_alpha is None else training.lora_alpha
    return LowRankSettings(
        rank=training.lora_rank, alpha=alpha, projections=training.lora_projections, seed=training.seed
    )


def choose_lora_alpha(rank: int) -> Choice[float]:
    """Choose alpha as twice the rank, so that updates have the same weight for every rank.

    Returns:
        A `Choice`: alpha and the reason.
    """
    return Choice(2.0 * rank, f"twice the rank ({rank})")


class LowRankUpdate(nn.Module):
    """A parametrization of a weight W as W + (alpha / R) · up · down; `up` is initially 0, so W is unchanged."""

    remedy = "call `transduce.merge_lora` on the model, or on a deep copy of it, first"

    def __init__(self, weight: Tensor, settings: LowRankSettings, generator: torch.Generator) -> None:
        """Create the low-rank update of a weight matrix (O, I)."""
        super().__init__()
        outputs, inputs = weight.shape
        self.scale = settings.alpha / settings.rank
        first = torch.randn(settings.rank, inputs, generator=generator) / inputs**0.5
        self.down = nn.Parameter(first.to(weight))  # (R, I)
        self.up = nn.Parameter(weight.new_zeros(outputs, settings.rank))  # (O, R)

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight plus its low-rank update, (O, I)."""
        return weight + self.scale * (self.up @ self.down)


register_parametrization(LowRankUpdate)


@explain_wrong_types
def adapt(model: nn.Module, settings: LowRankSettings, *, fresh: tuple[str, ...] = ()) -> list[nn.Parameter]:
    """Freeze a model and add trainable low-rank updates (LoRA) to its layers' projections.

    Args:
        model: a model of this package, changed in place.
        settings: the rank, and which projections to adapt.
        fresh: prefixes of the names of parameters that are trained fully, such as a new output head.

    Returns:
        A list of the trainable parameters.

    Raises:
        TransduceError: the model has none of the requested projections, is adapted already, or has a projection that is
            narrower than the rank.
    """
    names = {_NAMES[name] for name in settings.projections}
    layers = [(name, module) for name, module in model.named_modules() if _is_projection(name, module, names)]
    if not layers and tuple(settings.projections) == PROJECTIONS:
        raise TransduceError("The model has no projections that LoRA adapts: leave `training.lora_rank` out.")
    if not layers:
        raise TransduceError(
            f"The model has no {' or '.join(settings.projections)} to adapt: set other `training.lora_projections`."
        )
    if any(parametrize.is_parametrized(module) for _, module in layers):
        raise TransduceError("The model is adapted already: merge its updates before you adapt it again.")
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith(fresh)
    narrowest = min(min(module.weight.shape) for _, module in layers if isinstance(module, nn.Linear))
    if settings.rank > narrowest:
        raise TransduceError(
            f"`training.lora_rank` is {settings.rank}, but it must not exceed the width of the "
            f"narrowest projection, {narrowest}: lower it."
        )
    generator = torch.Generator().manual_seed(settings.seed)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for _, module in layers:
        assert isinstance(module, nn.Linear)
        update = LowRankUpdate(module.weight.detach(), settings, generator)
        parametrize.register_parametrization(module, "weight", update)
        learning += [update.down, update.up]
    return learning


def count_parameters(model: nn.Module) -> tuple[int, int]:
    """Return two counts: a model's trainable parameters, and all of its parameters except low-rank updates."""
    parameters = dict(model.named_parameters())
    learning = sum(parameter.numel() for parameter in parameters.values() if parameter.requires_grad)
    return learning, sum(parameter.numel() for name, parameter in parameters.items() if _ADAPTED not in name)


@explain_wrong_types
def merge(model: nn.Module) -> None:
    """Add a model's low-rank updates to its weights, in place; all parameters of the model are trainable afterwards."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    for parameter in model.parameters():
        parameter.requires_grad = True


def merged_weights(model: nn.Module, weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return a dict of a model's weights with the low-rank updates added, by the original model's names.

    The model is unchanged.

    Args:
        model: the adapted model, which defines where updates are and how they are scaled.
        weights: weights by the names of the adapted model; None for the model's current ones.
    """
    merged = dict(model.state_dict() if weights is None else weights)
    for name, module in _adapted(model):
        update = module.parametrizations["weight"][0]  # type: ignore[index]
        assert isinstance(update, LowRankUpdate)
        down, up = (merged.pop(f"{name}.{_ADAPTED}{side}") for side in ("down", "up"))
        original = merged.pop(f"{name}.{_ORIGINAL}")
        merged[f"{name}.weight"] = original + update.scale * (up @ down)
    return {name: tensor.detach().clone() for name, tensor in merged.items()}


def low_rank_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's low-rank updates, a dict by name.

    They are small, so that many can be stored for one model.
    """
    return {name: tensor.detach().clone() for name, tensor in _updates(model).items()}


def _updates(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's low-rank updates, not copied, a dict by the names that `low_rank_weights` uses."""
    state = model.state_dict()
    return {name.replace(_ADAPTED, ""): tensor for name, tensor in state.items() if _ADAPTED in name}


def load_updates(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Replace the low-rank updates of an adapted model, in place, by stored ones of equal names and shapes.

    Raises:
        TransduceError: the updates belong to another model or to other settings.
    """
    current = _updates(model)
    if not current:
        raise TransduceError("The model has no updates yet: call `adapt` with the settings of the stored updates.")
    shapes, stored = ({name: tensor.shape for name, tensor in each.items()} for each in (current, weights))
    differing = sorted(name for name in {*shapes, *stored} if shapes.get(name) != stored.get(name))
    if differing:
        raise TransduceError(
            f"The updates must be of this model and these settings, but "
            f"{len(differing):,} tensors differ, {differing[0]} first."
        )
    with torch.no_grad():
        for name, tensor in current.items():
            tensor.copy_(weights[name])


def _is_projection(name: str, module: nn.Module, names: set[str]) -> bool:
    parts = name.split(".")
    return isinstance(module, nn.Linear) and len(parts) > 2 and parts[-1] in names


def _adapted(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module):
            yield name, module


# --- frozen weights ---


class FrozenWeights:
    """The frozen parameters of a model, in float32; with the trained ones, they are all weights of the model.

    A run's optimizer and checkpoints hold only the trained parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        """Store references to a model's frozen parameters.

        The model must still be in float32; its later conversion to another precision does not affect them.
        """
        self._model = model
        self._values = {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}

    @torch.no_grad()
    def complete(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all weights, a dict by the original model's names: frozen and trained ones, with updates merged.

        If nothing is frozen, the result equals `trained`.
        """
        return merged_weights(self._model, self._values | dict(trained)) if self._values else dict(trained)


def freeze_rows(weight: nn.Parameter, rows: Tensor) -> None:
    """Freeze the rows with these indices of a matrix (V, D), by zeroing their gradients.

    The matrix must have no weight decay, which would change the rows all the same.
    """
    learns = torch.ones(len(weight), 1, dtype=torch.bool, device=weight.device)
    learns[rows.to(weight.device)] = False
    weight.register_hook(lambda gradient: gradient * learns)
