"""Virtual environments for the toolkits that benchmarks compare with: made once, used by every run after that.

They are below ~/.cache/transduce-benchmarks, or where $TRANSDUCE_BENCHMARK_ENVIRONMENTS says, a folder a peer. Where
nothing can be installed, $TRANSDUCE_BENCHMARK_PYTHON names an interpreter that has the peers already.
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
    """The python of an environment with these requirements, which is made first where there is none.

    torch is pinned to our own version, so that a comparison is of toolkits. The environment is made again when the
    requirements change, or when making it was interrupted.
    """
    if said := os.environ.get("TRANSDUCE_BENCHMARK_PYTHON"):
        return Path(said)
    folder = environments_folder() / name
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    wanted = _stamp([*requirements, pinned("torch")])
    if _read(folder / STAMP) == wanted and python.exists():
        return python
    print(f"Making the environment of {name} in {folder} ...", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False)
    installed = wanted.splitlines()[1:]
    # Our own pip installs into the other environment, which then needs none.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", *installed], check=True, stdout=sys.stderr)
    (folder / STAMP).write_text(wanted, encoding="utf-8", newline="\n")
    return python


def environments_folder() -> Path:
    """$TRANSDUCE_BENCHMARK_ENVIRONMENTS, or a folder in the user's cache."""
    said = os.environ.get("TRANSDUCE_BENCHMARK_ENVIRONMENTS")
    return Path(said).absolute() if said else Path.home() / ".cache" / "transduce-benchmarks"


def pinned(package: str) -> str:
    """The requirement that our own constraints file has for a package, such as torch==2.13.0."""
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").split("\n")
    return next(line for line in lines if line.startswith(f"{package}=="))


def _stamp(requirements: list[str]) -> str:
    """What tells one environment from another: the interpreter, then the requirements, a line each."""
    interpreter = hashlib.sha256(f"{sys.base_prefix} {sys.version}".encode()).hexdigest()[:16]
    return "\n".join([interpreter, *requirements]) + "\n"


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
