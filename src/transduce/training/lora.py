"""LoRA: a trained matrix is the stored one plus a product of two narrow ones (Hu et al. 2022).

Only the narrow ones learn. The product is added into the weight where the weight is used, so every brick works as it
is, and merging leaves an ordinary model.
Legend: O outputs, I inputs, R rank.
"""

from collections.abc import Iterator, Mapping

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from transduce.errors import TransduceError
from transduce.model.layer_graph import register_parametrization
from transduce.training.choices import Choice
from transduce.training.settings import PROJECTIONS, ResolvedTraining

_NAMES: dict[str, str] = {
    "queries-keys-values": "projection",
    "attention-output": "output",
    "feed-forward-inner": "inner",
    "feed-forward-outer": "outer",
}
"""What a projection is called in a layer."""
_ADAPTED = "parametrizations.weight.0."
_ORIGINAL = "parametrizations.weight.original"


class LowRankSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a model is adapted."""

    rank: int = 8
    """R: the width of the narrow matrices."""
    alpha: float = 16.0
    """The product is multiplied by alpha / rank."""
    projections: tuple[str, ...] = PROJECTIONS
    """Which matrices of each layer; a model need not have all of them."""
    seed: int = 1
    """Of the first values."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise TransduceError(f"`training.lora_rank` must be at least 1 to adapt a model, but is {self.rank}.")
        if not self.alpha > 0.0:
            raise TransduceError(f"`training.lora_alpha` must be greater than 0, but is {self.alpha}.")
        unknown = next((name for name in self.projections if name not in PROJECTIONS), None)
        if unknown is not None or not self.projections:
            raise TransduceError(
                f"`training.lora_projections` must name some of {', '.join(PROJECTIONS)}, but names {unknown!r}."
            )


def low_rank_settings(training: ResolvedTraining) -> LowRankSettings | None:
    """How a run adapts its model; None where the whole model learns."""
    if not training.lora_rank:
        return None
    alpha = usual_alpha(training.lora_rank).value if training.lora_alpha is None else training.lora_alpha
    return LowRankSettings(
        rank=training.lora_rank, alpha=alpha, projections=training.lora_projections, seed=training.seed
    )


def usual_alpha(rank: int) -> Choice[float]:
    """The updates count twice, whatever their rank."""
    return Choice(2.0 * rank, f"twice the rank ({rank})")


class LowRankUpdate(nn.Module):
    """W to W + (alpha / R) · up · down. At first `up` is zero, so the model is what it was."""

    def __init__(self, weight: Tensor, settings: LowRankSettings, generator: torch.Generator) -> None:
        """For a weight (O, I)."""
        super().__init__()
        outputs, inputs = weight.shape
        self.scale = settings.alpha / settings.rank
        first = torch.randn(settings.rank, inputs, generator=generator) / inputs**0.5
        self.down = nn.Parameter(first.to(weight))  # (R, I)
        self.up = nn.Parameter(weight.new_zeros(outputs, settings.rank))  # (O, R)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight in use, (O, I)."""
        return weight + self.scale * (self.up @ self.down)


register_parametrization(LowRankUpdate)


def adapt(model: nn.Module, settings: LowRankSettings, *, fresh: tuple[str, ...] = ()) -> list[nn.Parameter]:
    """Freezes a model and puts low-rank updates on its layers.

    Args:
        model: any of ours; it is changed.
        settings: the rank, and where.
        fresh: what the names of parameters begin with that learn as a whole: a head that the model did not have.

    Returns:
        The parameters that learn.

    Raises:
        TransduceError: the model has none of the layers that were asked for, or is adapted already.
    """
    names = {_NAMES[name] for name in settings.projections}
    layers = [(name, module) for name, module in model.named_modules() if _is_projection(name, module, names)]
    if not layers and tuple(settings.projections) == PROJECTIONS:
        raise TransduceError("The model has no projections that LoRA adapts: leave `training.lora_rank` out.")
    if not layers:
        raise TransduceError(
            f"The model has no {' or '.join(settings.projections)} to adapt: choose other `training.lora_projections`."
        )
    if any(parametrize.is_parametrized(module) for _, module in layers):
        raise TransduceError("The model is adapted already: merge its updates before you adapt it again.")
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith(fresh)
    narrowest = min(min(module.weight.shape) for _, module in layers if isinstance(module, nn.Linear))
    if settings.rank > narrowest:
        raise TransduceError(
            f"`training.lora_rank` is {settings.rank}, but a product of two matrices can have no higher rank than the "
            f"narrowest projection is wide, {narrowest}: make it smaller."
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
    """Parameters that learn, and all that the model has without its updates."""
    parameters = dict(model.named_parameters())
    learning = sum(parameter.numel() for parameter in parameters.values() if parameter.requires_grad)
    return learning, sum(parameter.numel() for name, parameter in parameters.items() if _ADAPTED not in name)


def merge(model: nn.Module) -> None:
    """Adds the updates to the weights for good: what remains is an ordinary model, which learns as a whole again."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    for parameter in model.parameters():
        parameter.requires_grad = True


def merged_weights(model: nn.Module, weights: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The weights with the updates added, by the names of the ordinary model; the model stays adapted.

    Args:
        model: where it has updates, and how much they count.
        weights: by the names of the adapted model; None: its own.
    """
    found = dict(model.state_dict() if weights is None else weights)
    for name, module in _adapted(model):
        update = module.parametrizations["weight"][0]  # type: ignore[index]
        assert isinstance(update, LowRankUpdate)
        down, up = (found.pop(f"{name}.{_ADAPTED}{side}") for side in ("down", "up"))
        original = found.pop(f"{name}.{_ORIGINAL}")
        found[f"{name}.weight"] = original + update.scale * (up @ down)
    return {name: tensor.detach().clone() for name, tensor in found.items()}


def update_weights(model: nn.Module) -> dict[str, Tensor]:
    """The updates apart: small enough to keep one for each use of a model."""
    return {
        name.replace(_ADAPTED, ""): tensor.detach().clone()
        for name, tensor in model.state_dict().items()
        if _ADAPTED in name
    }


def load_updates(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Puts stored updates in the place of those of an adapted model.

    Raises:
        TransduceError: they are of a model that was adapted otherwise.
    """
    own = {name.replace(_ADAPTED, ""): tensor for name, tensor in model.state_dict().items() if _ADAPTED in name}
    if not own:
        raise TransduceError("The model has no updates yet: call `adapt` with the settings that these were made by.")
    differing = sorted(
        name
        for name in {*own, *weights}
        if name not in own or name not in weights or own[name].shape != weights[name].shape
    )
    if differing:
        raise TransduceError(
            f"The updates must be of this model and these settings, but "
            f"{len(differing):,} tensors differ, {differing[0]} first."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def _is_projection(name: str, module: nn.Module, names: set[str]) -> bool:
    place = name.split(".")
    return isinstance(module, nn.Linear) and len(place) > 2 and place[-1] in names


def _adapted(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and parametrize.is_parametrized(module):
            yield name, module
