"""Whether kernels of our own can be had on a GPU. Imports them only to try one, where all else is there."""

import importlib.util
import os
import shutil
import sys
import sysconfig
from functools import cache
from pathlib import Path

import torch

_LEAST_CAPABILITY = (8, 0)  # NVIDIA's since Ampere, which multiply bfloat16


@cache
def why_no_triton(device: str) -> str | None:
    """What keeps Triton, which writes a GPU's kernels, from working on this one; None where nothing does."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if sys.platform == "linux":  # elsewhere Triton brings its own
        if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
            return "there is no C compiler for triton: install gcc"
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            return "there is no Python.h for triton: install Python's headers"
    if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return "ours are for GPUs since NVIDIA's Ampere"
    from transduce.model.gpu.trial import why_not_right

    return why_not_right(device)
