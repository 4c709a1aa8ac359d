"""Check the residual connections and norms of layers that the subject exposes, and the table of positions.

Shapes: B batch, T length, D model width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from transduce.inspection.doctor.probe import Check, Figure
from transduce.inspection.doctor.subject import ResidualLayer, Subject
from transduce.model.positions import sinusoids

_POSITIONS = 50
_MAX_DEVIATION = 1e-3


def _check_residual(subject: Subject) -> Figure | None:
    if not subject.layers:
        return None
    parameter = next(subject.module.parameters())
    worst = max(_residual_deviation(layer, parameter) for layer in subject.layers)
    return Figure(worst, f"at most {_MAX_DEVIATION:g}", worst <= _MAX_DEVIATION)


def _residual_deviation(layer: ResidualLayer, like: Tensor) -> float:
    """Return how much a layer with zeroed sub-layers deviates from the function that its norm order implies.

    A pre-norm layer must then return its input. A post-norm layer must return the normalized input: doubling the input
    changes nothing, while a different input changes the output.
    """
    generator = torch.Generator().manual_seed(1)
    x, other = (3.0 * torch.randn(2, 5, layer.d_model, generator=generator).to(like) + 1.0 for _ in range(2))
    with _zeroed(layer.sublayers):
        output = layer.run(x)
        if layer.norm_order == "pre":
            return float((output - x).abs().max())
        if torch.allclose(output, layer.run(other)):
            return float("inf")
        return float((layer.run(2.0 * x) - output).abs().max())


@contextmanager
def _zeroed(modules: tuple[nn.Module, ...]) -> Iterator[None]:
    """Replace the outputs of these modules by zeros within a `with` block."""
    handles = [module.register_forward_hook(_zeros) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _zeros(module: nn.Module, inputs: Any, output: Any) -> Any:  # noqa: ARG001
    if isinstance(output, Tensor):
        return torch.zeros_like(output)
    return tuple(_zeros(module, (), part) for part in output) if isinstance(output, tuple) else output


def _check_sinusoids(subject: Subject) -> Figure | None:
    """Check that the model's and the paper's position tables have the same columns, in any order."""
    if subject.position_table is None:
        return None
    table = subject.position_table(_POSITIONS).double().cpu()
    expected = sinusoids(_POSITIONS, table.shape[1]).double()
    distances = torch.cdist(expected.t(), table.t(), p=float("inf"))  # (D, D)
    worst = float(torch.maximum(distances.min(dim=0).values, distances.min(dim=1).values).max())
    return Figure(worst, f"at most {_MAX_DEVIATION:g}", worst <= _MAX_DEVIATION)


CHECKS = (
    Check(
        "residual",
        "each layer with zeroed sub-layers; largest deviation from its input (post-norm: from its normed input)",
        "Every sub-layer adds to the residual stream, and the norms are in the right positions.",
        "The residual stream does not bypass the sub-layers: a residual connection is missing, or has a norm on it.",
        _check_residual,
    ),
    Check(
        "sinusoids",
        "the position table compared with the paper's, column by column; largest difference",
        "The frequencies are those of section 3.5.",
        "The sinusoids are not the paper's: the exponent is 2i / d_model for the pair (2i, 2i + 1), so i counts pairs. "
        "In a well-known tutorial it wrongly counts dimensions.",
        _check_sinusoids,
    ),
)
