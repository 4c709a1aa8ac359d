"""Check that a translation does not depend on its batch: translate sentences in batches of several sizes and orders.

    python benchmarks/batch_invariance.py --model models/zh-en --source test.zh   # 1,000 sentences of a file
    python benchmarks/batch_invariance.py              # with the demonstration's model, which is trained first
    python benchmarks/batch_invariance.py --quick      # 200 sentences, fewer training steps
    python benchmarks/batch_invariance.py --emulate    # emulated bfloat16 (emulated_bf16.py), without times
    python benchmarks/batch_invariance.py --json rows.json  # the rows; `-` for standard output

Greedy search and a beam of 4; batches of 1, 8 and 64 in the file's order, of 64 shuffled and of 64 sorted by length.
Bars: in float32 no translation differs from that of the sentence alone. In bfloat16 at most 2 % differ, and each is a
near-tie in float32: the first tokens that differ by greedy search are less than 0.05 nats apart, or the beam's scores
at most 0.01 nats per token. Strict search gives bit-equal scores in every batch, in at most twice the time of plain
search at the same precision. One thread. The exit status is 1 if a bar is missed.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
import torch
from emulated_bf16 import Emulation
from report import Row, machine, parser, report

from transduce.demonstration.run import demo
from transduce.inference.load import open_translator
from transduce.inference.scorers import padded_length
from transduce.inference.translator import Translator
from transduce.search.scorer import Hypothesis
from transduce.search.settings import SearchSettings
from transduce.text.files import read_lines

SEARCHES = {"greedy": SearchSettings(beam_size=1, length_penalty=0.0), "beam 4": SearchSettings()}
NEAR_TIE_NATS, NEAR_TIE_NATS_A_PIECE, MOST_PERCENT_IN_BF16, MAX_SLOWDOWN = 0.05, 0.01, 2.0, 2.0
LONGEST = 256  # tokens; longer sentences are omitted, because they would be truncated

Order = Callable[[list[list[int]]], list[int]]


def orders() -> dict[str, tuple[int, Order]]:
    """Return the batch size and the order of the sentences of each setup, by name."""

    def shuffled(sources: list[list[int]]) -> list[int]:
        return random.Random(1).sample(range(len(sources)), len(sources))

    def by_length(sources: list[list[int]]) -> list[int]:
        return sorted(range(len(sources)), key=lambda number: len(sources[number]))

    def unchanged(sources: list[list[int]]) -> list[int]:
        return list(range(len(sources)))

    return {
        "batches of 8": (8, unchanged),
        "batches of 64": (64, unchanged),
        "batches of 64, shuffled": (64, shuffled),
        "batches of 64, sorted": (64, by_length),
    }


def decode(
    translator: Translator, sources: list[list[int]], search: SearchSettings, size: int, numbers: list[int]
) -> list[Hypothesis]:
    """Return the best hypothesis of each sentence, decoded in batches of this size in this order."""
    queues: dict[int, list[int]] = {}
    for number in numbers:  # strict search batches only sources with equal padded length
        queues.setdefault(padded_length(len(sources[number])) if search.batch_invariant else 0, []).append(number)
    found: dict[int, Hypothesis] = {}
    for queue in queues.values():
        for start in range(0, len(queue), size):
            batch = queue[start : start + size]
            hypotheses = translator.search_ids([sources[number] for number in batch], search)
            found |= {number: best[0] for number, best in zip(batch, hypotheses, strict=True)}
    return [found[number] for number in range(len(sources))]


def measure(
    translator: Translator, exact: Translator, sources: list[list[int]], name: str, *, timed: bool
) -> list[Row]:
    """Compare batch setups by one search at the translator's precision, and return rows for plain and strict search."""
    search, rows = SEARCHES[name], []
    title = f"{name}, {translator.precision}"
    percent = 0.0 if translator.precision == "fp32" else MOST_PERCENT_IN_BF16
    alone = decode(translator, sources, search, 1, list(range(len(sources))))
    strict = msgspec.structs.replace(search, batch_invariant=True)
    strict_alone = decode(translator, sources, strict, 1, list(range(len(sources))))
    for order, (size, arrange) in orders().items():
        numbers = arrange(sources)
        found = decode(translator, sources, search, size, numbers)
        different = [number for number, best in enumerate(found) if best.ids != alone[number].ids]
        near = sum(is_near_tie(exact, sources[n], alone[n], found[n], search) for n in different)
        most = int(len(sources) * percent / 100.0)
        holds = len(different) <= most and near == len(different)
        bar = "0" if percent == 0.0 else f"at most {most}, all of them near-ties (here {near})"
        rows.append(Row(f"{title}, {order}: translations that differ", len(different), "", bar=bar, holds=holds))
        unequal = sum(
            one != two
            for one, two in zip(decode(translator, sources, strict, size, numbers), strict_alone, strict=True)
        )
        rows.append(Row(f"{title}, {order}: strict scores that differ", unequal, "", bar="0", holds=unequal == 0))
    return [*rows, slowdown(translator, sources, search, title)] if timed else rows


def is_near_tie(exact: Translator, source: list[int], one: Hypothesis, two: Hypothesis, search: SearchSettings) -> bool:
    """Return whether two translations have almost the same probability in float32."""
    if search.beam_size == 1:
        shared = next(
            (n for n, (a, b) in enumerate(zip(one.ids, two.ids, strict=False)) if a != b),
            min(len(one.ids), len(two.ids)),
        )
        eos_id = exact.model.config.eos_id
        scores = next_scores(exact, source, list(one.ids[:shared]))
        pieces = [hypothesis.ids[shared] if shared < len(hypothesis.ids) else eos_id for hypothesis in (one, two)]
        return abs(float(scores[pieces[0]] - scores[pieces[1]])) < NEAR_TIE_NATS
    means = []
    for hypothesis in (one, two):
        ids = [*hypothesis.ids, exact.model.config.eos_id]
        values = [float(next_scores(exact, source, ids[:n])[piece]) for n, piece in enumerate(ids)]
        means.append(sum(values) / len(values))
    return abs(means[0] - means[1]) <= NEAR_TIE_NATS_A_PIECE


@torch.inference_mode()
def next_scores(exact: Translator, source: list[int], prefix: list[int]) -> torch.Tensor:
    """Return the log-probabilities of the next token after a prefix, computed without a cache, (V,)."""
    inputs = torch.tensor([[exact.model.config.start_id, *prefix]])
    return exact.model(torch.tensor([source]), inputs)[0, -1].float().log_softmax(dim=-1)  # type: ignore[no-any-return]


def slowdown(translator: Translator, sources: list[list[int]], search: SearchSettings, title: str) -> Row:
    """Compare strict with plain search in batches of 64 sorted by length, alternating, by the best of three times."""
    numbers = orders()["batches of 64, sorted"][1](sources)
    strict = msgspec.structs.replace(search, batch_invariant=True)
    seconds: dict[bool, float] = {}
    for _ in range(3):
        for settings in (search, strict):
            started_at = time.perf_counter()
            decode(translator, sources, settings, 64, numbers)
            elapsed = time.perf_counter() - started_at
            seconds[settings.batch_invariant] = min(elapsed, seconds.get(settings.batch_invariant, elapsed))
    ratio = seconds[True] / seconds[False]
    return Row(
        f"{title}: strict search of {len(sources)} sentences",
        seconds[True],
        "s",
        peer="plain search",
        peer_value=seconds[False],
        ratio=ratio,
        bar=f"at most {MAX_SLOWDOWN:g} times",
        holds=ratio <= MAX_SLOWDOWN,
    )


def find_sentences(model: str | None, source: str | None, folder: Path, *, quick: bool) -> tuple[Path, list[str]]:
    """Return a model folder and sentences: those of the options, or else the demonstration's, trained first."""
    if model is not None and source is not None:
        return Path(model), list(read_lines(source))
    trained = folder / "demo"
    demo(trained, steps=150 if quick else 500, device="cpu", threads=1)
    return trained, [line for part in ("test", "train") for line in read_lines(folder / "demo-text" / f"{part}.zh")]


def main() -> int:
    """Run the benchmark, report its rows, and return 1 if a bar is missed."""
    options = parser(__doc__)
    options.add_argument("--model", metavar="FOLDER", help="a trained model, with --source")
    options.add_argument("--source", metavar="FILE", help="a file with its sentences, one per line")
    options.add_argument("--precisions", nargs="+", default=["fp32", "bf16"], choices=("fp32", "bf16"))
    options.add_argument("--emulate", action="store_true", help="emulate bfloat16 matrix multiplications by float32")
    args = options.parse_args()
    if (args.model is None) != (args.source is None):
        options.error("--model and --source go together")
    sys.stderr.write(f"{machine()}\n")
    rows: list[Row] = []
    emulation = Emulation() if args.emulate else nullcontext()  # type: ignore[no-untyped-call]
    with tempfile.TemporaryDirectory() as temporary, emulation:
        folder, lines = find_sentences(args.model, args.source, Path(temporary), quick=args.quick)
        exact = open_translator(folder, precision="fp32", device="cpu", threads=1)
        vocabulary = exact.tokenizer.source
        encoded = [
            [*ids, vocabulary.eos_id] for ids in vocabulary.encode_batch([line for line in lines if line.strip()])
        ]
        sources = [ids for ids in encoded if len(ids) <= LONGEST][: 200 if args.quick else 1000]
        for precision in args.precisions:
            translator = (
                exact if precision == "fp32" else open_translator(folder, precision=precision, device="cpu", threads=1)
            )
            for name in SEARCHES:
                rows += measure(translator, exact, sources, name, timed=not args.emulate)
    return report(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
