"""Compare the generation speed of a GPT with CTranslate2 and Hugging Face's `generate`.

    python benchmarks/generation_speed.py                    # trains two models for ten minutes each first
    python benchmarks/generation_speed.py --quick            # a small model trained for a minute
    python benchmarks/generation_speed.py --isa avx2         # without AVX-512
    python benchmarks/generation_speed.py --json rows.json   # the figures as a list of rows; `-` for standard output

Models have GPT-2's architecture and are trained on novels of Project Gutenberg. The same weights greedily continue the
same prompts of 32 tokens by 128 tokens, one text at a time and in batches of 16. Every engine in each of its forms is a
separate process. Processes alternate; a figure is the median over the rounds, for each engine's best form. Forms that
are much slower in the first round are dropped. Models are kept in models/generation-speed. There is no bar.
"""

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from contenders import Answers, Contender, measure, start_workers
from decoding_speed import ISA, OWN_FORMS, PEERS, best_rate, row_beside, to_ctranslate2, train_once
from decoding_worker import Order, Plan
from environments import peer_python, pinned
from report import REPOSITORY, Row, data_folder, machine, parser, report

from transduce.inference.generator import Generator, load_generator
from transduce.machine import detect_machine
from transduce.text.files import read_lines

SIZES = {
    "6 x 512": {"num_decoder_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8},
    "4 x 128": {"num_decoder_layers": 4, "d_model": 128, "d_ff": 512, "num_heads": 4},
}
TRAINED_ON = ("emma", "pride-and-prejudice", "great-expectations", "middlemarch")
PROMPTS_FROM = "sense-and-sensibility"
PROMPT, NEW, CONTEXT = 32, 128, 256
CONTENDERS = [
    *(Contender("transduce", "generation_ours.py", form) for form in OWN_FORMS),
    *(Contender("CTranslate2", "generation_ctranslate2.py", form) for form in ("float32", "int8", "bfloat16")),
    *(
        Contender("Hugging Face", "generation_transformers.py", f"{precision} {attention}")
        for precision in ("fp32", "bf16")
        for attention in ("sdpa", "eager")
    ),
]


def train(name: str, minutes: float) -> Path:
    """Return the folder of a trained model, which is trained first if it does not exist."""
    folder = REPOSITORY / "models" / "generation-speed" / f"{name.replace(' ', '')}-{minutes:g}min"
    settings = {
        **{f"model.{key}": value for key, value in SIZES[name].items()},
        "tokenizer.vocabulary_size": 8_000,
        "task.context": CONTEXT,
    }
    options = ["--task", "language-model", "--minutes", str(minutes)]
    options += [f"--source={data_folder() / 'gutenberg' / f'{book}.txt.gz'}" for book in TRAINED_ON]
    return train_once(folder, options, settings)


def write_prompts(generator: Generator, count: int, path: Path) -> None:
    """Write ids and tokens of passages, spread over a novel that the model was not trained on."""
    text = " ".join(read_lines(data_folder() / "gutenberg" / f"{PROMPTS_FROM}.txt.gz"))
    vocabulary = generator.vocabulary
    ids = vocabulary.encode_batch([text])[0]
    rows = [ids[first : first + PROMPT] for first in range(1000, len(ids) - PROMPT, len(ids) // (count + 2))][:count]
    path.write_text(json.dumps({"ids": rows, "pieces": [vocabulary.tokens(row) for row in rows]}), encoding="utf-8")


def run_all(folder: Path, python: Path, threads: int, environment: dict[str, str], *, rounds: int) -> Answers:
    """Measure all contenders on one model."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        generator = load_generator(folder, device="cpu", threads=threads)
        prompts = Path(scratch) / "prompts.json"
        write_prompts(generator, 16, prompts)
        converted = to_ctranslate2(folder, Path(scratch) / "ctranslate2", python)
        plan = Plan(str(folder), str(prompts), "", threads, "cpu", NEW, 0.0)
        workers = start_workers(stack, CONTENDERS, plan, converted, python, environment)
        return {
            found: rows
            for order in (Order(1, 1, 4), Order(1, 16, 16))
            for found, rows in measure(workers, [order], rounds).items()
        }


def speed_rows(name: str, answers: Answers) -> list[Row]:
    """Return rows that compare transduce in each form with the best of each peer."""
    rows = []
    for batch, what in ((1, "one text at a time"), (16, "16 texts")):
        own = {key: value for key, value in answers.items() if key[1].batch_size == batch}
        peers = [engine for engine in ("CTranslate2", "Hugging Face") if any(key[0].engine == engine for key in own)]
        for form in OWN_FORMS:
            ours = best_rate(own, "transduce", 1, "", form, least_batch=1)
            for engine in peers:
                peer = best_rate(own, engine, 1, "", least_batch=1)
                rows.append(row_beside(f"{name}, {what}", "tokens/s", ours, peer, None))
    return rows


def main() -> int:
    """Run the benchmark and report."""
    options = parser(__doc__)
    options.add_argument("--size", choices=SIZES, nargs="+", default=list(SIZES))
    options.add_argument("--isa", choices=ISA, nargs="+", default=["all"])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--threads", type=int, help="threads of every engine (default: all cores)")
    options.add_argument("--minutes", type=float, default=10.0, help="training time of each model")
    options.add_argument("--verbose", action="store_true", help="show what the engines print")
    args: Any = options.parse_args()
    print(machine(), file=sys.stderr)
    threads = detect_machine("cpu", args.threads).threads
    python = peer_python("exchange", [pinned(name) for name in PEERS])
    rows: list[Row] = []
    for size in ["4 x 128"] if args.quick else args.size:
        folder = train(size, 1.0 if args.quick else args.minutes)
        for isa in args.isa:
            answers = run_all(folder, python, threads, ISA[isa], rounds=1 if args.quick else args.rounds)
            rows += speed_rows(f"{size}, {isa}", answers)
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
