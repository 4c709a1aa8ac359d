"""Whether kernels of our own can be had on a GPU here. Imports none of them."""

import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path


def why_no_triton() -> str | None:
    """What keeps Triton, which writes a GPU's kernels, from working here; None where nothing does."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if sys.platform == "linux":  # elsewhere Triton brings its own
        if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
            return "there is no C compiler for triton: install gcc"
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            return "there is no Python.h for triton: install Python's headers"
    return None
