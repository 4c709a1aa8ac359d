"""Check whether Triton kernels work on a GPU.

The kernels themselves are imported only for a trial, once everything else is present.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
from functools import cache
from pathlib import Path

import torch

_LEAST_CAPABILITY = (8, 0)  # compute capability of NVIDIA's Ampere, the first with bfloat16


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
    if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return "the kernels need an NVIDIA GPU of the Ampere generation or later"
    from transduce.model.gpu.trial import why_not_right

    return why_not_right(device)
