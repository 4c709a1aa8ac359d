"""Compare the decoding speed of imported models with CTranslate2 and Hugging Face's `generate`.

    python benchmarks/imported_speed.py                          # the smaller shapes
    python benchmarks/imported_speed.py --shape opus-mt gpt2     # these shapes (imported_shapes.py has them all)
    python benchmarks/imported_speed.py --quick                  # one shape, few sentences
    python benchmarks/imported_speed.py --isa avx2               # without AVX-512 and VNNI
    python benchmarks/imported_speed.py --processor-time         # on a machine with other load
    python benchmarks/imported_speed.py --json rows.json         # the figures as rows; `-` for standard output

Models have the shapes of well-known ones and random weights, and logits that differ as much as trained models' do. All
engines get the same token ids: sources of 8 to 31 tokens, prompts of 32. Every sentence gets the greatest number of
tokens, since the end symbol is forbidden before. Encoder-decoder models translate batches of 32 sentences and
single sentences, greedily and with a beam of 4; language models continue one prompt and eight at once. transduce
applies the rules of the folder's generation_config.json; CTranslate2 does not know them.

Every engine in each of its forms is a separate process, on one thread unless --threads is set. Processes alternate; a
figure is the median over the rounds, for each engine's best form. Models are written to a temporary folder.
"""

import json
import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from contenders import Answers, Contender, measure, start_workers
from decoding_speed import ISA, PEERS, Best, best_latency, best_rate, memory_row, row_beside
from decoding_worker import Order, Plan
from environments import peer_python, pinned
from imported_shapes import LANGUAGE_MODELS, SHAPES
from report import Row, machine, parser, report

SMALLER = ("opus-mt", "t5-small", "flan-t5-base", "bart-base", "gpt2")
LARGE = ("nllb-600m", "m2m100-418m")
OWN_FORMS, CTRANSLATE2_FORMS = ("fp32", "int8"), ("float32", "int8")
SENTENCES, PROMPTS, PROMPT = 64, 8, 32
LONGEST_TRANSLATION, LONGEST_CONTINUATION = 24, 64


def contenders(shape: str) -> list[Contender]:
    """Return all engines in all forms for a shape."""
    kind = "generation" if shape in LANGUAGE_MODELS else "decoding"
    return [
        *(Contender("transduce", "imported_ours.py", form) for form in OWN_FORMS),
        *(Contender("CTranslate2", f"{kind}_ctranslate2.py", form) for form in CTRANSLATE2_FORMS),
        Contender("Hugging Face", f"{kind}_transformers.py", "fp32 sdpa"),
    ]


def write_ids(shape: str, path: Path) -> None:
    """Write random token ids of sources or prompts, and their made-up tokens."""
    settings, draw = SHAPES[shape][1], random.Random(1)
    if shape in LANGUAGE_MODELS:
        rows = [[draw.randrange(100, 20_000) for _ in range(PROMPT)] for _ in range(PROMPTS)]
    else:
        end = settings["eos_token_id"]
        rows = [[*(draw.randrange(100, 20_000) for _ in range(8 + n % 24)), end] for n in range(SENTENCES)]
        rows.sort(key=len)
    path.write_text(json.dumps({"ids": rows, "pieces": [[f"t{id}" for id in row] for row in rows]}), encoding="utf-8")


def run_all(
    shape: str, args: Any, python: Path, environment: dict[str, str]
) -> tuple[Answers, dict[str, list[dict[str, float]]]]:
    """Measure all contenders on one shape: decoding, and opening the model."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        script = Path(__file__).with_name("imported_shapes.py")
        subprocess.run([str(python), str(script), shape, str(folder)], check=True, stdout=sys.stderr)
        ours = Path(__file__).with_name("imported_ours.py")
        folders = str(folder / "hugging-face"), str(folder / "transduce")
        subprocess.run([sys.executable, str(ours), "import", *folders], check=True, stdout=sys.stderr)
        write_ids(shape, folder / "ids.json")
        is_generator = shape in LANGUAGE_MODELS
        longest = LONGEST_CONTINUATION if is_generator else LONGEST_TRANSLATION
        shared = str(folder / "hugging-face"), str(folder / "ids.json"), "", args.threads, "cpu"
        plan = Plan(*shared, longest, length_penalty=1.0, shortest=longest - 1)
        rounds = 1 if args.quick else args.rounds
        opened = measure_opening(shape, plan, python, environment, rounds)
        workers = start_workers(stack, contenders(shape), plan, folder / "ctranslate2", python, environment)
        if is_generator:
            return {
                found: rows
                for order in (Order(1, 1, 2), Order(1, PROMPTS, PROMPTS))
                for found, rows in measure(workers, [order], rounds).items()
            }, opened
        many = SENTENCES // 2 if args.quick else SENTENCES
        orders = [Order(beam, batch, count) for beam in (1, 4) for batch, count in ((32, many), (1, 6))]
        return measure(workers, orders, rounds), opened


def measure_opening(
    shape: str, plan: Plan, python: Path, environment: dict[str, str], rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Return the seconds that transduce and CTranslate2 take to open a model in int8, not counting the first time."""
    opened: dict[str, list[dict[str, float]]] = {}
    chosen = [each for each in contenders(shape) if each.form == "int8"]
    for number in range(rounds + 1):
        for contender in chosen:
            with ExitStack() as stack:
                converted = Path(plan.folder).with_name("ctranslate2")
                (worker,) = start_workers(stack, [contender], plan, converted, python, environment)
                if number and worker.opening is not None:
                    opened.setdefault(contender.engine, []).append(worker.opening)
    return opened


def rows_of(name: str, shape: str, answers: Answers, clock: str, *, judged: bool) -> list[Row]:
    """Return rows that compare transduce in its best form with the best of each peer."""
    rows: list[Row] = []
    peers = [engine for engine in ("CTranslate2", "Hugging Face") if any(one.engine == engine for one, _ in answers)]
    if shape in LANGUAGE_MODELS:
        for batch, what, bar in ((1, "one prompt", 2.0), (PROMPTS, f"{PROMPTS} prompts", 1.5)):
            own = {key: value for key, value in answers.items() if key[1].batch_size == batch}
            ours = best_rate(own, "transduce", 1, clock, least_batch=1)
            for engine in peers:
                peer = best_rate(own, engine, 1, clock, least_batch=1)
                bound = (">=", bar) if judged and engine == "CTranslate2" else None
                rows.append(row_beside(f"{name}, {what}", "tokens/s", ours, peer, bound))
    else:
        for beam, what in ((1, "greedy"), (4, "beam 4")):
            ours = best_rate(answers, "transduce", beam, clock)
            for engine in peers:
                bound = (">=", 1.3 if shape in LARGE else 1.5) if judged and engine == "CTranslate2" else None
                peer = best_rate(answers, engine, beam, clock)
                rows.append(row_beside(f"{name}, {what}", "tokens/s", ours, peer, bound))
            latencies = [best_latency(answers, engine, beam, clock, 0.5) for engine in ("transduce", "CTranslate2")]
            bound = ("<=", 0.45) if judged else None
            rows.append(row_beside(f"{name}, {what}, one sentence", "ms", latencies[0], latencies[1], bound))
    return [*rows, memory_row(name, answers, judged=judged)]


def main() -> int:
    """Run the benchmark and report."""
    options = parser(__doc__)
    options.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SMALLER))
    options.add_argument("--isa", choices=ISA, nargs="+", default=["all"])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", type=int, default=1, help="threads of every engine (default: 1)")
    options.add_argument("--processor-time", action="store_true", help="measure processor time instead of wall time")
    options.add_argument("--verbose", action="store_true", help="show what the engines print")
    args: Any = options.parse_args()
    print(machine(), file=sys.stderr)
    python = peer_python("exchange", [pinned(name) for name in PEERS])
    clock, rows = "processor_" if args.processor_time else "", []
    for shape in ["opus-mt"] if args.quick else args.shape:
        for isa in args.isa:
            answers, opened = run_all(shape, args, python, ISA[isa])
            rows += rows_of(f"{shape}, {isa}", shape, answers, clock, judged=not args.quick)
            ours, peer = (
                Best(f"{engine} int8", median(each[f"{clock}seconds"] for each in opened[engine]))
                for engine in ("transduce", "CTranslate2")
            )
            bound = None if args.quick else ("<=", 1.0)
            rows.append(row_beside(f"{shape}, {isa}, opening again, without imports", "s", ours, peer, bound))
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
