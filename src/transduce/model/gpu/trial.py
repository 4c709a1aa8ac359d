"""Whether a program of Triton's runs on a GPU, and does what it should: tried on a small example."""

import torch
from torch.nn import functional as F

from transduce.model.gpu.norms import add_and_norm


def why_not_right(device: str) -> str | None:
    """What is wrong with it; None where nothing is."""
    x = torch.linspace(-1.0, 1.0, 96, device=device).view(2, 48)
    weight, bias = x[0] + 2.0, x[1]
    try:
        with torch.cuda.device_of(x):
            total, found = add_and_norm(x, x * x, weight, bias, 1e-5)
    except Exception as error:  # noqa: BLE001  (its compiler, the C compiler and the driver have errors of their own)
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"triton fails on it: {reason}"
    expected = F.layer_norm(x + x * x, (48,), weight, bias, 1e-5)
    right = torch.allclose(total, x + x * x) and torch.allclose(found, expected, rtol=1e-4, atol=1e-4)
    return None if right else "triton's programs compute something else on it"
