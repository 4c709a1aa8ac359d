"""Create virtual environments for the toolkits that benchmarks compare with, and reuse them in later runs.

They are in ~/.cache/transduce-benchmarks or $TRANSDUCE_BENCHMARK_ENVIRONMENTS, one folder per peer. If nothing can be
installed, set $TRANSDUCE_BENCHMARK_PYTHON to an interpreter that has the peers already.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

from report import REPOSITORY

STAMP = "installed.txt"


def peer_python(name: str, requirements: Iterable[str]) -> Path:
    """Return the Python of an environment with these requirements, which is created if it does not exist.

    torch is pinned to transduce's version, so that the toolkits are comparable. The environment is recreated when the
    requirements change, or when its creation was interrupted.
    """
    if path := os.environ.get("TRANSDUCE_BENCHMARK_PYTHON"):
        return Path(path)
    folder = environments_folder() / name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = _stamp([*requirements, pinned("torch")])
    if _read(folder / STAMP) == wanted and python.exists():
        return python
    print(f"Making the environment of {name} in {folder} ...", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False)
    installed = wanted.splitlines()[1:]
    # This interpreter's pip installs into the environment, which then needs no pip.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", *installed], check=True, stdout=sys.stderr)
    (folder / STAMP).write_text(wanted, encoding="utf-8", newline="\n")
    return python


def environments_folder() -> Path:
    """Return $TRANSDUCE_BENCHMARK_ENVIRONMENTS, or a folder in the user's cache."""
    path = os.environ.get("TRANSDUCE_BENCHMARK_ENVIRONMENTS")
    return Path(path).absolute() if path else Path.home() / ".cache" / "transduce-benchmarks"


def pinned(package: str) -> str:
    """Return the requirement for a package from constraints.txt, such as torch==2.13.0."""
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").split("\n")
    return next(line for line in lines if line.startswith(f"{package}=="))


def _stamp(requirements: list[str]) -> str:
    """Return the text that identifies an environment: the interpreter, then the requirements, one per line."""
    interpreter = hashlib.sha256(f"{sys.base_prefix} {sys.version}".encode()).hexdigest()[:16]
    return "\n".join([interpreter, *requirements]) + "\n"


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
