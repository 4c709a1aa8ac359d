"""Compare the speed and memory of fine-tuning models of Hugging Face's shapes with `transformers` itself.

    python benchmarks/fine_tuning_speed.py                    # all shapes
    python benchmarks/fine_tuning_speed.py --shape bert-base  # one of them
    python benchmarks/fine_tuning_speed.py --processor-time   # on a machine with other load
    python benchmarks/fine_tuning_speed.py --quick

Models have the sizes, activations and dropout rates of the well-known ones and random weights; `qwen2-12x512` and
`llama-12x512` are decoders of 12 layers × 512 of these families. transduce imports the folder that `transformers`
wrote. All get the same batches of random ids, padded at the right: sentences of 8 to 40 tokens batched by length, about
4,096 target tokens a step (OPUS-MT, T5); 32 rows of 96 to 128 tokens, of which 15 % are predicted (BERT-base); 16 rows
of 256 tokens (decoders). All use Adam and clip gradients. `transformers` runs in float32 and with bfloat16 autocast
over float32 weights, each with the attentions `sdpa` and `eager`; transduce as `transduce train` chooses. Every
measurement is a process of its own; processes alternate; figures are medians over the rounds, and memory is the
greatest peak.

Bars: target tokens a second at least 1.5 times the best of `transformers` (2.5 times with AMX), and at most 0.6 times
the least of its peak memory.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from environments import peer_python, pinned
from imported_shapes import FINE_TUNED, FINE_TUNED_DECODERS
from report import Row, machine, parser, report
from training_worker import CHOSEN

from transduce.machine import detect_machine

PEERS = (pinned("transformers"), pinned("safetensors"))
PEER = "transformers"
FORMS = ("fp32 sdpa", "fp32 eager", "bf16 sdpa", "bf16 eager")
OURS_BY_LIBRARY = "kernels=torch"  # `training.kernels`: PyTorch's operations instead of our own kernels
SPEED_BAR, SPEED_BAR_WITH_AMX, MEMORY_BAR = 1.5, 2.5, 0.6
BATCHES, MASKED_SHARE = 12, 0.15


class FineTuning(NamedTuple):
    """The work of one process: a model folder, batches, and how to train."""

    shape: str
    folder: str
    batches: str
    """An .npz file: s0, t0, s1, t1, … of ids padded at the right."""
    form: str
    threads: int
    pad_id: int
    """The id of positions without a target."""


def write_batches(shape: str, path: Path, settings: dict[str, Any]) -> int:
    """Write batches of random ids to a file, and return the id of positions without a target."""
    draw, pad_id = np.random.default_rng(1), settings.get("pad_token_id", -1)
    arrays: dict[str, Any] = {}
    for number in range(BATCHES):
        if shape in FINE_TUNED_DECODERS:
            ids = draw.integers(100, 20_000, (16, 257))
            source, target, pad_id = ids[:, :-1], ids[:, 1:], -1
        elif shape == "bert-base":
            source = padded_rows(draw, draw.integers(96, 129, 32), pad_id)
            is_masked = (draw.random(source.shape) < MASKED_SHARE) & (source != pad_id)
            target = np.where(is_masked, source, pad_id)
            source = np.where(is_masked, 103, source)  # [MASK]
        else:
            longest = 8 + 32 * (number * 5 % BATCHES) // (BATCHES - 1)
            lengths = draw.integers(longest - 2, longest + 1, 4096 // longest)
            source, target = (padded_rows(draw, lengths + draw.integers(0, 3, len(lengths)), pad_id) for _ in range(2))
        arrays |= {f"s{number}": source, f"t{number}": target}
    np.savez(path, **arrays)
    return int(pad_id)


def padded_rows(draw: np.random.Generator, lengths: Any, pad_id: int) -> Any:
    """Return rows of random ids of these lengths, padded at the right."""
    ids = draw.integers(200, 20_000, (len(lengths), int(lengths.max())))
    return np.where(np.arange(ids.shape[1]) < lengths[:, None], ids, pad_id)


def run(work: FineTuning, steps: int, python: Path) -> dict[str, Any]:
    """Run warm-up steps and then `steps` steps in a new process, and return its answer."""
    script = "fine_tuning_ours.py" if work.form in (CHOSEN, OURS_BY_LIBRARY) else "fine_tuning_transformers.py"
    interpreter = sys.executable if script == "fine_tuning_ours.py" else str(python)
    command = [interpreter, str(Path(__file__).with_name(script)), json.dumps(work._asdict())]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if "--verbose" in sys.argv else subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": str(work.threads)},
        text=True,
    ) as process:
        output, _ = process.communicate(f"2\n{steps}\n")
    answers = output.splitlines()
    if process.returncode or len(answers) < 3:
        raise SystemExit(f"{script} {work.form} ended with status {process.returncode}: see --verbose.")
    answer: dict[str, Any] = json.loads(answers[-1])
    return answer


def measure(work: FineTuning, forms: list[str], rounds: int, steps: int, clock: str, python: Path) -> dict[str, Any]:
    """Return the median of target tokens a second, and the peak memory in MiB, of each form."""
    rates: dict[str, list[float]] = {form: [] for form in forms}
    peaks: dict[str, float] = {}
    for _ in range(rounds):
        for form in forms:
            answer = run(work._replace(form=form), steps, python)
            rates[form].append(answer["target_tokens"] / answer[clock])
            peaks[form] = max(peaks.get(form, 0.0), answer["peak_bytes"] / 2**20)
            found = f"{rates[form][-1]:,.0f} target tokens/s, {peaks[form]:,.0f} MiB"
            print(f"... {work.shape}, {form}: {found}", file=sys.stderr, flush=True)
    return {form: (statistics.median(rates[form]), peaks[form]) for form in forms}


def rows_of(shape: str, found: dict[str, Any], *, judged: bool) -> list[Row]:
    """Return rows that compare the speed with each form of the peer, and the memory with its least."""
    rate, peak = found[CHOSEN]
    peers = {form: figures for form, figures in found.items() if form in FORMS}
    best = max(peers, key=lambda form: peers[form][0])
    least = min(peers, key=lambda form: peers[form][1])
    wanted = SPEED_BAR_WITH_AMX if detect_machine("cpu").amx else SPEED_BAR
    rows = []
    for form, (peer_rate, _) in found.items():
        if form == CHOSEN:
            continue
        ratio, is_judged = rate / peer_rate, judged and form == best
        peer = f"{PEER} {form}" if form in FORMS else form
        bar, holds = (f">= {wanted:g} x", ratio >= wanted) if is_judged else (None, None)
        rows.append(Row(f"fine-tuning, {shape}", rate, "target tokens/s", peer, peer_rate, ratio, bar, holds))
    ratio = peak / peers[least][1]
    bar, holds = (f"<= {MEMORY_BAR:g} x", ratio <= MEMORY_BAR) if judged else (None, None)
    rows.append(Row(f"peak memory, {shape}", peak, "MiB", f"{PEER} {least}", peers[least][1], ratio, bar, holds))
    return rows


def main() -> int:
    """Run the benchmark and report."""
    options = parser(__doc__)
    options.add_argument("--shape", choices=FINE_TUNED, nargs="+", default=list(FINE_TUNED))
    options.add_argument("--form", choices=FORMS, nargs="+", default=list(FORMS), help="forms of the peer")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--steps", type=int, default=6, help="steps per process and round, after two more")
    options.add_argument("--threads", type=int, default=detect_machine("cpu").threads)
    options.add_argument("--processor-time", action="store_true", help="divide by processor time, for a busy machine")
    options.add_argument("--library", action="store_true", help="measure transduce without its kernels as well")
    options.add_argument("--verbose", action="store_true", help="show what the workers print")
    args = options.parse_args()
    print(machine(), file=sys.stderr)
    python = peer_python("fine-tuning", PEERS)
    clock = "processor_seconds" if args.processor_time else "seconds"
    rounds, steps = (1, 2) if args.quick else (args.rounds, args.steps)
    forms = [CHOSEN, *([OURS_BY_LIBRARY] if args.library else []), *args.form]
    rows: list[Row] = []
    for shape in args.shape:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            script = Path(__file__).with_name("fine_tuning_transformers.py")
            subprocess.run([str(python), str(script), shape, str(folder)], check=True, stdout=sys.stderr)
            settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            pad_id = write_batches(shape, folder / "batches.npz", settings)
            work = FineTuning(shape, str(folder), str(folder / "batches.npz"), CHOSEN, args.threads, pad_id)
            rows += rows_of(shape, measure(work, forms, rounds, steps, clock, python), judged=not args.quick)
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
