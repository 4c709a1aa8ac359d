"""Common parts of all benchmarks: command-line options, rows of figures, and the data folder."""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent


class Row(NamedTuple):
    """A measured figure, optionally with a peer's figure and a bar (a target)."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    bar: str | None = None
    holds: bool | None = None


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="less work: done within 5 minutes")
    made.add_argument("--json", metavar="PATH", help="write the rows as JSON; - for standard output")
    return made


def report(rows: Iterable[Row], json_path: str | None) -> int:
    """Print the rows, write them as JSON if requested, and return 1 if a bar is missed."""
    rows = list(rows)
    content = json.dumps([row._asdict() for row in rows], indent=1, ensure_ascii=False) + "\n"
    if json_path == "-":
        sys.stdout.write(content)
    elif json_path:
        Path(json_path).write_text(content, encoding="utf-8")
    out = sys.stderr if json_path == "-" else sys.stdout
    for row in rows:
        peer = f" · {row.peer} {row.peer_value:,.2f}" if row.peer_value is not None else ""
        ratio = f" · ratio {row.ratio:.2f}" if row.ratio is not None else ""
        bar = f" · bar {row.bar}: {'holds' if row.holds else 'DOES NOT HOLD'}" if row.bar else ""
        out.write(f"{row.name}: {row.value:,.2f} {row.unit}{peer}{ratio}{bar}\n")
    return int(any(row.holds is False for row in rows))


def data_folder() -> Path:
    """Return the folder of the corpora: $TRANSDUCE_DATA, or ../shared/data next to the repository.

    Raises:
        SystemExit: the folder does not exist.
    """
    folder = Path(os.environ.get("TRANSDUCE_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        raise SystemExit(f"The corpora are not in {folder}: set TRANSDUCE_DATA to the folder that holds them.")
    return folder


def machine() -> str:
    """Return a description of the machine and the versions."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{platform.machine()} {capability}, {os.cpu_count()} cores, {versions}"


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean."""
    return statistics.fmean(values)
