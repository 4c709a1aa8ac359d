"""What every benchmark has in common: its options, its rows, where the data is."""

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
    """One figure, beside a peer's where there is one, and the bar that it is held against."""

    name: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    bar: str | None = None
    holds: bool | None = None


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark takes."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="less work: done within 5 minutes")
    made.add_argument("--json", metavar="PATH", help="write the rows as JSON; - for standard output")
    return made


def report(rows: Iterable[Row], json_path: str | None) -> int:
    """Prints the rows, writes them as JSON where asked; 1 where a bar does not hold."""
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
    """Where the corpora are: $TRANSDUCE_DATA, or ../shared/data beside the repository."""
    folder = Path(os.environ.get("TRANSDUCE_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        raise SystemExit(f"The corpora are not in {folder}: set TRANSDUCE_DATA to the folder that holds them.")
    return folder


def machine() -> str:
    """The machine and the versions, for the record."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{platform.machine()} {capability}, {os.cpu_count()} cores, {versions}"


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return statistics.fmean(values)
