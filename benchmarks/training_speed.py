"""Compare training speed with JoeyNMT 2.3.0 and Hugging Face's Marian: non-padding target tokens per second.

    python benchmarks/training_speed.py                       # both sizes, the ceiling, the memory
    python benchmarks/training_speed.py --size 512            # one of them
    python benchmarks/training_speed.py --isa avx512          # restricted to AVX-512
    python benchmarks/training_speed.py --isa avx2 --skip bf16    # restricted to AVX2, without bf16, which is very slow
    python benchmarks/training_speed.py --skip speed          # only the memory
    python benchmarks/training_speed.py --device cuda         # base and big, 25,000 target tokens a step
    python benchmarks/training_speed.py --quick

All have the same batches of ids: Tatoeba German to English with its real lengths, a joint vocabulary of 8,000 tokens,
about 4,096 target tokens per step, batched by length; and Adam. Two more rows are for transduce without its own kernels
(`training.kernels` = torch), and with Muon, the default of `transduce train`. Every toolkit is a separate process.
Processes alternate on the otherwise idle machine; figures are medians over the rounds. The first run creates the peers'
environments. On a GPU the peer is Marian, the vocabulary has 32,000 tokens, and the duration of the paper's steps is
derived. `SIZES` has the bars.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from environments import peer_python
from report import Row, data_folder, machine, parser, report
from training_worker import CHOSEN, Work

from transduce.data.batches import BatchPlan
from transduce.data.prepared import prepare
from transduce.machine import Machine, detect_machine
from transduce.text.corpus import CorpusFiles, read_pairs
from transduce.text.filters import FilterSettings
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer

MARIAN = ("transformers==5.23.0", "sentencepiece==0.2.1")
JOEYNMT = ("joeynmt==2.3.0", "importlib_metadata", "setuptools", "sentencepiece==0.2.0")
OURS_BY_MUON = "transduce, muon"  # the default optimizer of `transduce train`: fewer steps, each with more work
OURS_BY_LIBRARY = "transduce, kernels=torch"  # `training.kernels`: PyTorch's operations instead of own kernels
OURS_LAUNCHED = "transduce, cuda_graphs=false"  # each operation of a step is launched separately
# Environment variables that restrict the three libraries to an instruction set.
ISA: dict[str, dict[str, str]] = {
    "all": {},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}


class Size(NamedTuple):
    """A model size and its bars."""

    name: str
    num_layers: int
    d_model: int
    d_ff: int
    num_heads: int
    dropout: float
    batch_tokens: int = 4096
    vocabulary_size: int = 8_000
    joeynmt_bar: float | None = None
    ceiling_bar: float | None = None
    paper_steps: int | None = None


SIZES = {
    "512": Size("6+6 x 512", 6, 512, 2048, 8, 0.1, joeynmt_bar=12.0, ceiling_bar=0.4),
    "128": Size("4+4 x 128", 4, 128, 256, 4, 0.3, joeynmt_bar=8.0),
    "base": Size("base", 6, 512, 2048, 8, 0.1, 25_000, 32_000, paper_steps=100_000),
    "big": Size("big", 6, 1024, 4096, 16, 0.3, 25_000, 32_000, ceiling_bar=0.5, paper_steps=300_000),
}
GPU_BATCHES = 16
BEHIND = 1.4  # a form slower than the best by more than this factor is dropped
SIZES_OF = {"cpu": ("512", "128"), "cuda": ("base", "big")}


class Contender(NamedTuple):
    """A toolkit with one precision, attention, optimizer and kernel setting."""

    name: str
    script: str
    precision: str
    attention: str = "sdpa"
    optimizer: Literal["adam", "muon"] = "adam"
    kernels: Literal["native", "torch"] | None = None
    record: bool | None = None


def contenders(*, joeynmt: bool, kernels: bool = False, bf16: bool = True, fp32: bool = True) -> list[Contender]:
    """Return transduce with default settings except for the peers' optimizer, and the peers in every form."""
    found = [
        Contender("transduce", "training_ours.py", CHOSEN),
        Contender(OURS_BY_MUON, "training_ours.py", CHOSEN, optimizer="muon"),
    ]
    if kernels:
        found.append(Contender(OURS_BY_LIBRARY, "training_ours.py", CHOSEN, kernels="torch"))
    if joeynmt:
        found.append(Contender("JoeyNMT", "training_joeynmt.py", "fp32"))
    precisions = [name for name, wanted in (("fp32", fp32), ("bf16", bf16)) if wanted]
    forms = [(precision, attention) for precision in precisions for attention in ("sdpa", "eager")]
    forms += [("pure-bf16", "eager")] if bf16 else []
    return [*found, *(Contender(f"Marian {p} {a}", "training_marian.py", p, a) for p, a in forms)]


class Worker:
    """A process that runs one contender."""

    def __init__(self, contender: Contender, work: Work, environment: dict[str, str]) -> None:
        self.contender = contender
        python = sys.executable
        if contender.script == "training_joeynmt.py":
            python = str(peer_python("joeynmt", JOEYNMT))
        elif contender.script == "training_marian.py":
            python = str(peer_python("marian", MARIAN))
        plan = work._replace(
            precision=contender.precision,
            attention=contender.attention,
            optimizer=contender.optimizer,
            kernels=contender.kernels,
            record=contender.record,
        )
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name(contender.script)), json.dumps(plan._asdict())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if "--verbose" not in sys.argv else None,
            env={**os.environ, **environment},
            text=True,
        )

    def wait(self) -> None:
        """Wait until the process has built its model."""
        self._read()

    def run(self, steps: int) -> dict[str, Any]:
        """Run this number of steps, and return seconds, tokens and memory."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.contender.name} ended with status {self.process.wait()}: see --verbose.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def write_batches(folder: Path, count: int, vocabulary_size: int, batch_tokens: int) -> Path:
    """Write batches of Tatoeba German to English to a file, and return its path."""
    path = folder / f"batches-{vocabulary_size}-{batch_tokens}.npz"
    if path.exists():
        return path
    tatoeba = data_folder() / "tatoeba-de-en"
    files = CorpusFiles(source=(str(tatoeba / "train.de.gz"),), target=(str(tatoeba / "train.en.gz"),))
    settings = TokenizerSettings(vocabulary_size=vocabulary_size, joint=True)
    tokenizer = Tokenizer.train(lambda: read_pairs(files), settings)
    corpus = prepare(files, tokenizer, FilterSettings(), folder / f"corpus-{vocabulary_size}")
    plan = BatchPlan(corpus, batch_tokens=batch_tokens, seed=1)
    arrays: dict[str, Any] = {}
    for number in range(min(count, len(plan))):
        batch = plan.batch(0, number)
        arrays |= {f"s{number}": batch.source, f"t{number}": batch.target}
    np.savez(path, **arrays)
    return path


def make_work(size: Size, batches: Path, vocabulary_size: int, machine_here: Machine) -> Work:
    """Return the plan that all workers get."""
    return Work(
        batches=str(batches),
        vocabulary_size=vocabulary_size,
        num_layers=size.num_layers,
        d_model=size.d_model,
        d_ff=size.d_ff,
        num_heads=size.num_heads,
        dropout=size.dropout,
        label_smoothing=0.1,
        pad_id=0,
        eos_id=1,
        threads=machine_here.threads,
        device=machine_here.device,
        precision="",
        attention="",
        optimizer="adam",
        kernels=None,
        record=None,
    )


class Measured(NamedTuple):
    """Medians of a contender's figures over the rounds."""

    target_rate: float  # non-padding tokens per second
    source_rate: float
    peak_bytes: int


def measure(
    found: Sequence[Contender], work: Work, rounds: int, seconds: float, environment: dict[str, str]
) -> dict[str, Measured]:
    """Measure all contenders alternately, each for about this many seconds per round.

    Each measurement starts a new process, because several models with their optimizers would not fit into memory
    together.
    """
    answers: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for contender in found:
            worker = Worker(contender, work, environment)
            worker.wait()
            answers.setdefault(contender.name, []).append(_measure_steps(worker, seconds, warm=1))
            _log(contender, answers[contender.name][-1])
            worker.close()
    return {name: _medians(rows) for name, rows in answers.items()}


def measure_on_gpu(found: Sequence[Contender], work: Work, rounds: int, seconds: float) -> dict[str, Measured]:
    """Measure all contenders alternately in processes that run all the time, as their weights fit into GPU memory
    together.

    Each process releases its cached memory after a measurement, so it first sees all batches again before it is timed.
    The first round is a warm-up, in which kernels are compiled. Forms of Marian that are much slower than its best in
    the second round are dropped.
    """
    answers: dict[str, list[dict[str, Any]]] = {}
    workers = [Worker(contender, work, {}) for contender in found]
    for worker in workers:
        worker.wait()
    running = workers
    for number in range(rounds + 1):
        for worker in running:
            answer = _measure_steps(worker, seconds, warm=GPU_BATCHES // 2)
            _log(worker.contender, answer)
            if number:
                answers.setdefault(worker.contender.name, []).append(answer)
        if not number:
            continue
        rates = {name: _medians(rows).target_rate for name, rows in answers.items()}
        least = max(rate for name, rate in rates.items() if name.startswith("Marian")) / BEHIND
        running = [
            worker
            for worker in running
            if worker.contender.script == "training_ours.py" or rates[worker.contender.name] >= least
        ]
    for worker in workers:
        worker.close()
    return {name: _medians(rows) for name, rows in answers.items()}


def _log(contender: Contender, answer: dict[str, Any]) -> None:
    rate = answer["target_tokens"] / answer["seconds"]
    print(f"... {contender.name}: {rate:,.0f} target tokens/s", file=sys.stderr, flush=True)


def _measure_steps(worker: Worker, seconds: float, *, warm: int) -> dict[str, Any]:
    """Return the result of about `seconds` seconds of steps, after warm-up steps."""
    each = min(worker.run(warm)["seconds"] / warm for _ in range(2))
    return worker.run(max(1, round(seconds / each)))


def _medians(rows: list[dict[str, Any]]) -> Measured:
    return Measured(
        statistics.median(row["target_tokens"] / row["seconds"] for row in rows),
        statistics.median(row["source_tokens"] / row["seconds"] for row in rows),
        max(row["peak_bytes"] for row in rows),
    )


def speed_rows(size: Size, isa: str, measured: dict[str, Measured], *, on_gpu: bool, judged: bool) -> list[Row]:
    """Return rows that compare transduce with each peer; bars are against JoeyNMT (with AMX), and against the best
    Marian.
    """
    ours = measured["transduce"].target_rate
    rows = []
    eligible = {name: m for name, m in measured.items() if name.startswith("Marian") and "pure" not in name}
    best = max(eligible, key=lambda name: eligible[name].target_rate)
    has_amx = isa == "all" and detect_machine("cpu").amx
    marian_bar = 2.0 if on_gpu or has_amx else 1.15
    for name, peer in measured.items():
        if name == "transduce":
            continue
        bar = marian_bar if name == best else size.joeynmt_bar if name == "JoeyNMT" and has_amx else None
        ratio = ours / peer.target_rate
        rows.append(
            Row(
                f"training, {_where(size, isa)}",
                ours,
                "target tokens/s",
                peer=name,
                peer_value=peer.target_rate,
                ratio=ratio,
                bar=f">= {bar:g} x" if bar and judged else None,
                holds=ratio >= bar if bar and judged else None,
            )
        )
    return rows


def _where(size: Size, isa: str) -> str:
    return size.name if isa == "all" else f"{size.name}, {isa}"


def measure_ceiling(size: Size, isa: str, device: str) -> float:
    """Return the operations per second of the fastest matrix multiplication with this size's shapes and instruction
    set.
    """
    shape = (size.d_model, size.d_ff, size.vocabulary_size, size.batch_tokens)
    command = [sys.executable, str(Path(__file__).with_name("training_ceiling.py")), device, *map(str, shape)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **ISA[isa]})
    return float(found.stdout)


def ceiling_row(size: Size, isa: str, work: Work, ours: Measured, best: float, *, judged: bool) -> Row:
    """Return a row with the fraction of the fastest matrix multiplication's speed that a whole step reaches.

    A step has 6 operations per parameter and token: the encoder's with source tokens, the decoder's and the
    projection's with target tokens. The decoder's key and value projections of the encoder output count with source
    tokens.
    """
    square, wide = size.d_model * size.d_model, size.d_model * size.d_ff
    on_source = size.num_layers * (4 * square + 2 * wide + 2 * square)
    on_target = size.num_layers * (6 * square + 2 * wide) + work.vocabulary_size * size.d_model
    done = 6 * (on_source * ours.source_rate + on_target * ours.target_rate)
    share = done / best
    bar = size.ceiling_bar if judged and isa == "all" else None
    return Row(
        f"training, {_where(size, isa)}, arithmetic",
        done / 1e12,
        "TFLOP/s",
        peer="the best matrix product among the model's shapes",
        peer_value=best / 1e12,
        ratio=share,
        bar=f">= {bar}" if bar else None,
        holds=share >= bar if bar else None,
    )


def hours_rows(size: Size, ours: Measured) -> list[Row]:
    """Return a row with the duration of the paper's steps at this rate on one device; its batches had 25,000 target
    tokens.
    """
    if size.paper_steps is None:
        return []
    hours = size.paper_steps * size.batch_tokens / ours.target_rate / 3600
    return [Row(f"training, {size.name}, the paper's {size.paper_steps:,} steps", hours, "hours")]


def peak_row(size: Size, measured: dict[str, Measured]) -> Row:
    """Return a row that compares peak GPU memory with that of Marian's leanest form with float32 weights."""
    peaks = {name: m.peak_bytes / 2**30 for name, m in measured.items() if "pure" not in name}
    least = min((name for name in peaks if name.startswith("Marian")), key=lambda name: peaks[name])
    ours = peaks["transduce"]
    name = f"peak memory of the GPU, {size.name}"
    return Row(name, ours, "GiB", peer=least, peer_value=peaks[least], ratio=ours / peaks[least])


def memory_rows(folder: Path, machine_here: Machine, *, bf16: bool, quick: bool) -> list[Row]:
    """Return a row with the peak memory with a vocabulary of 32,000."""
    vocabulary_size = 8_000 if quick else 32_000
    size = SIZES["512"]
    batches = write_batches(folder, 8, vocabulary_size, size.batch_tokens)
    work = make_work(size, batches, vocabulary_size, machine_here)
    found = [c for c in contenders(joeynmt=False, bf16=bf16) if c.name != OURS_BY_MUON and "pure" not in c.name]
    peaks: dict[str, int] = {}
    for contender in found:
        worker = Worker(contender, work, {})
        worker.wait()
        peaks[contender.name] = worker.run(1 if quick else 8)["peak_bytes"]
        worker.close()
    least = min((name for name in peaks if name.startswith("Marian")), key=lambda name: peaks[name])
    ratio = peaks["transduce"] / peaks[least]
    row = Row(
        f"peak memory, 6+6 x 512, vocabulary {vocabulary_size:,}",
        peaks["transduce"] / 2**20,
        "MiB",
        peer=least,
        peer_value=peaks[least] / 2**20,
        ratio=ratio,
        bar=None if quick else "<= 0.5 x",
        holds=None if quick else ratio <= 0.5,
    )
    return [row]


def measure_size(args: Any, size: Size, work: Work, isa: str, turns: tuple[int, float]) -> dict[str, Measured]:
    """Measure all selected contenders, in `turns` = (rounds, seconds per round)."""
    if args.device == "cuda":
        # Tensor cores do not support plain float32.
        launched = Contender(OURS_LAUNCHED, "training_ours.py", CHOSEN, record=False)
        return measure_on_gpu([launched, *contenders(joeynmt=False, fp32=False)], work, *turns)
    joeynmt = size.joeynmt_bar is not None and "joeynmt" not in args.skip and isa == "all"
    found = contenders(joeynmt=joeynmt, kernels=True, bf16="bf16" not in args.skip)
    return measure(found, work, *turns, ISA[isa])


def main() -> int:
    """Run the benchmark and report."""
    options = parser(__doc__)
    options.add_argument("--device", choices=SIZES_OF, default="cpu")
    options.add_argument("--size", choices=SIZES, nargs="+", help="model sizes (default: by device)")
    options.add_argument("--isa", choices=ISA, nargs="+", default=["all"])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=12.0, help="approximate time per contender and round")
    options.add_argument("--skip", nargs="*", choices=("speed", "joeynmt", "bf16", "memory", "ceiling"), default=[])
    options.add_argument("--keep", type=Path, help="a folder that keeps the batches for other runs")
    options.add_argument("--verbose", action="store_true", help="show what the toolkits print")
    args = options.parse_args()
    print(machine(), file=sys.stderr)
    here = detect_machine(args.device)
    turns = (2, 2.0) if args.quick else (args.rounds, args.seconds)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        sizes = [] if "speed" in args.skip else args.size or SIZES_OF[args.device]
        for isa, name in itertools.product(args.isa, sizes):
            size = SIZES[name]
            count = GPU_BATCHES if args.device == "cuda" else 24 if args.quick else 64
            batches = write_batches(folder, count, size.vocabulary_size, size.batch_tokens)
            work = make_work(size, batches, size.vocabulary_size, here)
            asks_ceiling = "ceiling" not in args.skip
            best = measure_ceiling(size, isa, args.device) if asks_ceiling else 0.0
            measured = measure_size(args, size, work, isa, turns)
            rows += speed_rows(size, isa, measured, on_gpu=args.device == "cuda", judged=not args.quick)
            if asks_ceiling:  # measured before and after, because a machine's speed varies
                best = max(best, measure_ceiling(size, isa, args.device))
                rows.append(ceiling_row(size, isa, work, measured["transduce"], best, judged=not args.quick))
            rows += hours_rows(size, measured["transduce"])
            if args.device == "cuda":
                rows.append(peak_row(size, measured))
        if args.device == "cpu" and "memory" not in args.skip:
            rows += memory_rows(folder, here, bf16="bf16" not in args.skip, quick=args.quick)
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
