"""Compare the speed of encoding texts by BERT with CTranslate2, onnxruntime and transformers.

    python benchmarks/encoder_speed.py                     # BERT-base and MiniLM, 32 texts of 64 tokens and of 8 to 64
    python benchmarks/encoder_speed.py --quick             # a small model
    python benchmarks/encoder_speed.py --isa avx2          # without AVX-512; onnxruntime cannot be restricted
    python benchmarks/encoder_speed.py --json rows.json    # the figures as a list of rows; `-` for standard output

Models have random weights in the shapes of `bert-base-uncased` and `all-MiniLM-L6-v2`. Each engine in each of its forms
is a process. Processes alternate; a figure is the median over the rounds of the time of the process' own threads, so
that other processes disturb less. The cosine is the least one between a token's state and transformers' in float32. The
bar is 1.3 times the speed of the best peer in 8 bits, at a cosine of at least 0.999.
"""

import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from contenders import Answers, Contender, measure, start_workers
from decoding_speed import ISA, PEERS
from decoding_worker import Order, Plan
from environments import peer_python, pinned
from report import Row, machine, parser, report

from transduce.machine import detect_machine

SIZES: dict[str, dict[str, Any]] = {
    "BERT-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "MiniLM-L6": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "tiny": {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512},
}
OWN_FORMS = ("transduce int8", "transduce fp32", "transduce bf16")
FORMS = (
    *OWN_FORMS,
    *("ctranslate2 int8", "ctranslate2 float32", "onnxruntime int8", "onnxruntime float32", "transformers float32"),
)
VOCABULARY, TEXTS, LONGEST = 30_522, 32, 64
BAR, COSINE = 1.3, 0.999


def make_model(size: str, folder: Path) -> None:
    """Write a model with random weights and a vocabulary of made-up words, as a Hugging Face folder."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    torch.manual_seed(1)
    folder.mkdir()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [*special, *(f"w{number}" for number in range(VOCABULARY - len(special)))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    BertModel(BertConfig(vocab_size=VOCABULARY, **SIZES[size])).save_pretrained(folder)


def write_texts(path: Path, *, are_mixed: bool) -> None:
    """Write the ids of random texts, shortest first: all of the greatest length, or of mixed lengths."""
    chance = random.Random(1)
    lengths = sorted(chance.randint(8, LONGEST) if are_mixed else LONGEST for _ in range(TEXTS))
    ids = [[chance.randrange(5, VOCABULARY) for _ in range(length)] for length in lengths]
    path.write_text(json.dumps({"ids": ids, "pieces": []}), encoding="utf-8")


def run_all(plan: Plan, forms: list[str], python: Path, environment: dict[str, str], rounds: int) -> Answers:
    """Measure these forms of engines on one model and one set of texts."""
    contenders = [Contender(form.split()[0], "encoder_worker.py", form) for form in forms]
    with ExitStack() as stack:
        workers = start_workers(stack, contenders, plan, None, python, environment)
        return measure(workers, [Order(1, TEXTS, TEXTS)], rounds)


def least_cosine(folder: Path, form: str) -> float:
    """Return the least cosine between the states of a token by an engine and by transformers in float32."""
    ours, exact = (np.load(folder / f"{each.replace(' ', '-')}.npy") for each in (form, "transformers float32"))
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(exact, axis=1)
    return float(((ours * exact).sum(axis=1) / norms).min())


def rows_of(what: str, answers: Answers, folder: Path) -> Iterator[Row]:
    """Yield a row with the speed of each form, and one that compares our best form with the best peer in 8 bits."""
    rates = {
        contender.form: statistics.median(each["pieces"] / each["processor_seconds"] for each in rows)
        for (contender, _), rows in answers.items()
    }
    cosines = {form: least_cosine(folder, form) for form in rates}
    peers = {form: rate for form, rate in rates.items() if form not in OWN_FORMS and form.endswith("int8")}
    best_peer = max(peers, key=lambda form: peers[form])
    good = {form: rate for form, rate in rates.items() if form in OWN_FORMS and cosines[form] >= COSINE}
    best = max(good, key=lambda form: good[form])
    for form, rate in rates.items():
        yield Row(f"{what}, {form}, cosine {cosines[form]:.4f}", rate, "tokens/s")
    ratio = good[best] / peers[best_peer]
    yield Row(
        f"{what} ({best})",
        good[best],
        "tokens/s",
        peer=best_peer,
        peer_value=peers[best_peer],
        ratio=ratio,
        bar=f">= {BAR:g} x",
        holds=ratio >= BAR,
    )


def main() -> int:
    """Run the benchmark and report."""
    options = parser(__doc__)
    options.add_argument("--size", choices=SIZES, nargs="+", default=["BERT-base", "MiniLM-L6"])
    options.add_argument("--isa", choices=ISA, nargs="+", default=["all"])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--form", choices=FORMS, nargs="+", default=list(FORMS), help="engines and precisions")
    options.add_argument("--threads", type=int, default=1, help="threads of every engine (default: 1)")
    options.add_argument("--verbose", action="store_true", help="show what the engines print")
    args: Any = options.parse_args()
    print(machine(), file=sys.stderr)
    threads = detect_machine("cpu", args.threads).threads
    python = peer_python("exchange", [pinned(name) for name in PEERS])
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for size in ["tiny"] if args.quick else args.size:
            folder = Path(scratch) / size
            make_model(size, folder)
            for isa in args.isa:
                for are_mixed in (False, True):
                    place = Path(scratch) / f"{size}-{isa}-{are_mixed}"
                    place.mkdir()
                    write_texts(place / "texts.json", are_mixed=are_mixed)
                    plan = Plan(str(folder), str(place / "texts.json"), "", threads, "cpu", 0, 0.0)
                    answers = run_all(plan, args.form, python, ISA[isa], args.rounds)
                    what = f"{size}, {TEXTS} texts of {'8 to ' if are_mixed else ''}{LONGEST} tokens, {isa}"
                    rows += rows_of(what, answers, place)
    return report(rows, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
