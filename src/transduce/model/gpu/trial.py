"""Test on a small example whether Triton kernels run on a GPU and give correct results."""

import torch
from torch.nn import functional as F

from transduce.model.gpu.norms import add_and_norm


def why_not_right(device: str) -> str | None:
    """Return what is wrong with Triton on a device, as a phrase for a message; None if nothing is."""
    x = torch.linspace(-1.0, 1.0, 96, device=device).view(2, 48)
    weight, bias = x[0] + 2.0, x[1]
    try:
        with torch.cuda.device_of(x):
            total, normed = add_and_norm(x, x * x, weight, bias, 1e-5)
    except Exception as error:  # noqa: BLE001  (its compiler, the C compiler and the driver have errors of their own)
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return f"triton fails on it: {reason}"
    expected = F.layer_norm(x + x * x, (48,), weight, bias, 1e-5)
    right = torch.allclose(total, x + x * x) and torch.allclose(normed, expected, rtol=1e-4, atol=1e-4)
    return None if right else "triton's kernels give wrong results on it"
