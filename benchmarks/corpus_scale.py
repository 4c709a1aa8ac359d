"""Measure preparation and training with a corpus of ten million pairs: time, memory and access times.

    python benchmarks/corpus_scale.py                 # 1 M and 10 M pairs: about 2 GB in a scratch folder, half an hour
    python benchmarks/corpus_scale.py --quick         # 0.1 M and 1 M pairs
    python benchmarks/corpus_scale.py --json rows.json

The pairs are Tatoeba's German-English ones, repeated with a different number appended to both sides each time, so that
all are different. Each step runs in a separate process: `transduce prepare` with a vocabulary of 8,000 tokens; the same
with an existing tokenizer, without learning a vocabulary; and training of the tiny preset on one thread, whose memory
is measured after its last step. The peer of 10 M pairs is 1 M pairs. The exit status is 1 if a bar is missed.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from report import Row, data_folder, machine, parser, report

from transduce.text.corpus import CorpusFiles, read_pairs

BENCHMARKS = Path(__file__).resolve().parent
LARGE, SMALL = 10_000_000, 1_000_000
STEPS = 200
MAX_SECONDS_TO_FIRST_BATCH, MAX_SECONDS_OF_SEEK = 5.0, 0.1


class Measured(NamedTuple):
    """The figures for one corpus size; times in seconds."""

    pairs: int
    whole: float
    """Time of the preparation, including learning the vocabulary."""
    cutting: float
    """Time of the preparation with an existing tokenizer, in one process."""
    preparing_mebibytes: float
    """Peak memory of the preparation."""
    training: dict[str, float]


def write_corpus(folder: Path, pairs: int) -> tuple[Path, Path]:
    """Write a corpus of `pairs` pairs, and return its source and target files."""
    data = data_folder() / "tatoeba-de-en"
    files = CorpusFiles(source=(str(data / "train.de.gz"),), target=(str(data / "train.en.gz"),))
    originals = list(read_pairs(files))
    source, target = folder / f"{pairs}.de", folder / f"{pairs}.en"
    with (
        source.open("w", encoding="utf-8", newline="\n") as left,
        target.open("w", encoding="utf-8", newline="\n") as right,
    ):
        for first in range(0, pairs, len(originals)):
            for number, pair in enumerate(islice(originals, pairs - first), first):
                left.write(f"{pair.source} {number}\n")
                right.write(f"{pair.target} {number}\n")
    return source, target


def run_timed(arguments: list[str]) -> tuple[float, float, str]:
    """Run Python with these arguments, and return seconds, peak memory in MiB, and standard output."""
    started_at = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([sys.executable, *arguments], stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)} ended with status {process.returncode}")
        output.seek(0)
        return time.monotonic() - started_at, usage.ru_maxrss / 1024, output.read().decode("utf-8")


def measure(folder: Path, pairs: int, *, steps: int, seeks: int) -> Measured:
    """Return all figures for one corpus size."""
    source, target = write_corpus(folder, pairs)
    prepared, again = folder / f"prepared-{pairs}", folder / "again"
    prepare = ["-m", "transduce", "prepare", "--source", str(source), "--target", str(target), "--json", "-"]
    vocabulary = ["--set", "tokenizer.vocabulary_size=8000"]
    whole, memory, _ = run_timed([*prepare, *vocabulary, "--out", str(prepared)])
    cutting, _, _ = run_timed([*prepare, "--tokenizer", str(prepared), "--workers", "1", "--out", str(again)])
    worker = [str(BENCHMARKS / "corpus_scale_worker.py"), str(prepared), str(steps), str(seeks)]
    _, _, output = run_timed(worker)
    training: dict[str, Any] = json.loads(output.strip().split("\n")[-1])
    source.unlink()
    target.unlink()
    return Measured(pairs, whole, cutting, memory, training)


def rows(small: Measured, large: Measured, steps: int) -> list[Row]:
    """Return rows that compare the figures of both sizes with the bars."""
    most_times = 1.1 * large.pairs / small.pairs
    times = large.whole / small.whole
    found = [
        Row(
            f"preparing {large.pairs:,} pairs, against {small.pairs:,}",
            large.whole,
            "s",
            peer=f"{small.pairs:,} pairs",
            peer_value=small.whole,
            ratio=times,
            bar=f"at most {most_times:g} times as long",
            holds=times <= most_times,
        )
    ]
    memory = large.training["memory_mebibytes"] / small.training["memory_mebibytes"]
    found.append(
        Row(
            f"memory after {steps} steps of the tiny preset, {large.pairs:,} pairs",
            large.training["memory_mebibytes"],
            "MiB",
            peer=f"{small.pairs:,} pairs",
            peer_value=small.training["memory_mebibytes"],
            ratio=memory,
            bar="within 5 %",
            holds=abs(memory - 1) <= 0.05,
        )
    )
    first, seek = large.training["first_batch_seconds"], large.training["slowest_seek_seconds"]
    limit, seek_limit = MAX_SECONDS_TO_FIRST_BATCH, MAX_SECONDS_OF_SEEK
    name = f"{large.pairs:,} prepared pairs"
    found.append(Row(f"{name}: first batch", first, "s", bar=f"at most {limit:g} s", holds=first <= limit))
    found.append(Row(f"{name}: slowest seek", seek, "s", bar=f"at most {seek_limit:g} s", holds=seek <= seek_limit))
    found.append(Row(f"{name}: median seek", large.training["median_seek_seconds"], "s"))
    for size in (small, large):
        rate = size.pairs / size.cutting
        found.append(Row(f"{size.pairs:,} pairs: one process, tokenizer given", rate, "pairs/s"))
        found.append(Row(f"{size.pairs:,} pairs: most memory while preparing", size.preparing_mebibytes, "MiB"))
    return found


def main() -> int:
    """Run the benchmark, report its rows, and return 1 if a bar is missed."""
    options = parser(__doc__)
    options.add_argument("--folder", metavar="DIR", help="folder for scratch files (default: the system's)")
    args = options.parse_args()
    print(machine(), file=sys.stderr)
    factor = 10 if args.quick else 1
    steps = STEPS // factor
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        small, large = (measure(Path(folder), pairs // factor, steps=steps, seeks=50) for pairs in (SMALL, LARGE))
    return report(rows(small, large, steps), args.json)


if __name__ == "__main__":
    sys.exit(main())
