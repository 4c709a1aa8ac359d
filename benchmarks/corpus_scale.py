"""A corpus of ten million pairs: how long it takes to prepare, and what it costs to train from.

    python benchmarks/corpus_scale.py                 # 1 M and 10 M pairs: about 2 GB in a scratch folder, half an hour
    python benchmarks/corpus_scale.py --quick         # 0.1 M and 1 M pairs
    python benchmarks/corpus_scale.py --json rows.json

The pairs are Tatoeba's German-English ones, again and again, each time with another number behind both sides, so that
no two are alike. Each step runs in a process of its own: `transduce prepare` with a vocabulary of 8,000 pieces; the
same with the tokenizer given, which leaves the learning of the vocabulary out; and a training of the tiny preset on one
thread, whose memory is read after its last step. The exit status is 1 where a bar is missed.
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
MOST_SECONDS_TO_FIRST_BATCH, MOST_SECONDS_OF_SEEK = 5.0, 0.1


class Measured(NamedTuple):
    """What was found for one size of the corpus; times in seconds."""

    pairs: int
    whole: float
    """Preparation with the learning of the vocabulary."""
    cutting: float
    """Preparation with a tokenizer that is given, in one process."""
    preparing_mebibytes: float
    """The most memory that preparing took."""
    training: dict[str, float]


def write_corpus(folder: Path, pairs: int) -> tuple[Path, Path]:
    """Both sides of so many pairs."""
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
    """Seconds, the most memory in MiB, and the standard output of a program."""
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
    """All figures of one size."""
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
    """The figures of both sizes against the bars."""
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
    limit, seek_limit = MOST_SECONDS_TO_FIRST_BATCH, MOST_SECONDS_OF_SEEK
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
    """Measures, prints and writes; 1 where a bar is missed."""
    options = parser(__doc__)
    options.add_argument("--folder", metavar="DIR", help="for scratch files; the system's place where nothing is said")
    said = options.parse_args()
    print(machine(), file=sys.stderr)
    factor = 10 if said.quick else 1
    steps = STEPS // factor
    with tempfile.TemporaryDirectory(dir=said.folder) as folder:
        small, large = (measure(Path(folder), pairs // factor, steps=steps, seeks=50) for pairs in (SMALL, LARGE))
    return report(rows(small, large, steps), said.json)


if __name__ == "__main__":
    sys.exit(main())
