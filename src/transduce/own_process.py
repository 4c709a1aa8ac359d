"""Start child processes that run this package from the location it was imported from."""

import os
import sys
from pathlib import Path

_PACKAGES = Path(__file__).resolve().parents[1]


def run_module(name: str) -> list[str]:
    """Return the start of a command line that runs a module.

    The option -P keeps modules of the current folder from being imported.
    """
    return [sys.executable, "-P", "-m", name]


def own_environment() -> dict[str, str]:
    """Return the environment for such a command, in which Python finds this package before any other of its name."""
    paths = [str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
