"""Starting processes that run this package: the one that runs here, wherever it was imported from."""

import os
import sys
from pathlib import Path

_PACKAGES = Path(__file__).resolve().parents[1]


def run_module(name: str) -> list[str]:
    """The beginning of a command that runs a module; modules of the current folder are not ours."""
    return [sys.executable, "-P", "-m", name]


def own_environment() -> dict[str, str]:
    """The environment in which such a command finds this package before any other."""
    paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
