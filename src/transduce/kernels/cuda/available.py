"""Check whether the Triton kernels work on a GPU."""

import importlib.util
import os
import shutil
import sys
import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch.nn import functional as F


def why_triton_fails(device: str) -> str | None:
    """Return why Triton does not work on a device, as a phrase for a message; None if it works."""
    # The kernels are imported only for the trial, once everything else is present.
    from transduce.kernels.cuda.rows import add_and_norm

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


_MIN_CAPABILITY = (8, 0)  # compute capability of NVIDIA's Ampere, the first with bfloat16


@cache
def why_no_triton(device: str) -> str | None:
    """Return why Triton kernels do not work on a GPU, as a phrase for a message; None if they do."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if sys.platform == "linux":  # Triton for other systems ships a compiler
        if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
            return "there is no C compiler for triton: install gcc"
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            return "there is no Python.h for triton: install Python's headers"
    if torch.cuda.get_device_capability(device) < _MIN_CAPABILITY:
        return "the kernels need an NVIDIA GPU of the Ampere generation or later"
    return why_triton_fails(device)
