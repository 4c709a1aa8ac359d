"""How the layers are wired, where the subject shows them; and the table of positions.

Legend: B batch, T length, D model width.
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
_MOST = 1e-3


def _residual(subject: Subject) -> Figure | None:
    if not subject.layers:
        return None
    parameter = next(subject.module.parameters())
    worst = max(_departure(layer, parameter) for layer in subject.layers)
    return Figure(worst, f"at most {_MOST:g}", worst <= _MOST)


def _departure(layer: ResidualLayer, like: Tensor) -> float:
    """How far a layer with silenced sub-layers is from what its order of norms makes of it.

    Pre-norm lets its input through as it is. Post-norm normalises: twice the input gives the same, and another input
    does not.
    """
    generator = torch.Generator().manual_seed(1)
    x, other = (3.0 * torch.randn(2, 5, layer.d_model, generator=generator).to(like) + 1.0 for _ in range(2))
    with _silenced(layer.sublayers):
        once = layer.run(x)
        if layer.norm_order == "pre":
            return float((once - x).abs().max())
        if torch.allclose(once, layer.run(other)):
            return float("inf")
        return float((layer.run(2.0 * x) - once).abs().max())


@contextmanager
def _silenced(modules: tuple[nn.Module, ...]) -> Iterator[None]:
    """For a while these modules answer with zeros."""
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


def _sinusoids(subject: Subject) -> Figure | None:
    """Each of the paper's columns must be one of the table's; in which order is nothing to the model."""
    if subject.position_table is None:
        return None
    table = subject.position_table(_POSITIONS).double().cpu()
    wanted = sinusoids(_POSITIONS, table.shape[1]).double()
    distances = torch.cdist(wanted.t(), table.t(), p=float("inf"))  # (D, D)
    worst = float(torch.maximum(distances.min(dim=0).values, distances.min(dim=1).values).max())
    return Figure(worst, f"at most {_MOST:g}", worst <= _MOST)


CHECKS = (
    Check(
        "residual",
        "each layer with its sub-layers silenced; largest departure from its input (post-norm: from its normed input)",
        "Every sub-layer adds to the stream, and the norms stand where they should.",
        "The stream does not pass beside the sub-layers: a residual connection is missing, or a norm stands on it.",
        _residual,
    ),
    Check(
        "sinusoids",
        "the table of positions against the paper's, column by column; largest difference",
        "The frequencies are those of section 3.5.",
        "The sinusoids are not the paper's: the exponent is 2i / d_model for the pair (2i, 2i + 1), so i counts pairs. "
        "A well-known tutorial lets it count dimensions.",
        _sinusoids,
    ),
)
