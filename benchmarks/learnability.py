"""Check that models learn to copy and reverse unseen sequences exactly.

    python benchmarks/learnability.py                  # five seeds of both tasks: minutes on one core
    python benchmarks/learnability.py --quick          # one seed of each
    python benchmarks/learnability.py --variants       # copying, by every component and kind of model; or --variants
    gru
    python benchmarks/learnability.py --json rows.json # the figures as a list of rows; `-` for standard output

Ten symbols, sequences of 1 to 12, a Transformer of 2 + 2 layers × 32 without dropout, greedy search. Bar: at least 99 %
of 1,000 held-out sequences are exactly right. Held-out sequences are random, of all lengths, at most a fifth of all
sequences of a length; training never sees them as a source. The exit status is 1 if the bar is missed.

`learnability_variants.py` lists the variants. Variants that cannot solve the task have no bar.
"""

import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from learnability_variants import VARIANTS, StateScorer, Variant
from report import Row, machine, parser, report
from rich.console import Console
from torch import Tensor

from transduce.model.build import Model, build_model
from transduce.model.config import ModelConfig
from transduce.model.transformer import Decoder, Encoder
from transduce.search.greedy import greedy_search
from transduce.training.display import ProgressDisplay
from transduce.training.loop import Trainer
from transduce.training.loss import Loss, projected_cross_entropy
from transduce.training.settings import ResolvedTraining

PAD, EOS, FIRST_SYMBOL = 0, 1, 2
SYMBOLS, LONGEST, HELD_OUT = 10, 12, 1000
BATCH_SEQUENCES = 64
BAR_PERCENT = 99.0
TASKS = ("copy", "reverse")
MAX_STEPS = 3000
PLAIN = Variant("", {})


class Sequences:
    """Training pairs of a task by batch position, a pure function of the seed, without the held-out sequences."""

    def __init__(self, task: str, seed: int) -> None:
        self.task = task
        self.seed = seed
        generator = torch.Generator().manual_seed(_mixed(seed, -1))
        drawn = torch.cat([_draw(length, generator) for length in range(1, LONGEST + 1)])
        self.held_out = drawn[torch.randperm(len(drawn), generator=generator)[:HELD_OUT]]  # (1000, 12)
        self._codes = _codes(self.held_out)

    def __len__(self) -> int:
        return MAX_STEPS

    def batch(self, epoch: int, position: int) -> tuple[Tensor, Tensor]:
        """Return the source and target ids of a batch, (B, 13) each."""
        generator = torch.Generator().manual_seed(_mixed(self.seed, epoch * MAX_STEPS + position))
        lengths = torch.randint(1, LONGEST + 1, (BATCH_SEQUENCES, 1), generator=generator)
        symbols = torch.randint(SYMBOLS, (BATCH_SEQUENCES, LONGEST), generator=generator) + FIRST_SYMBOL
        sequences = symbols.where(torch.arange(LONGEST) < lengths, PAD)
        return self.pairs(sequences[~torch.isin(_codes(sequences), self._codes)])

    def pairs(self, sequences: Tensor) -> tuple[Tensor, Tensor]:
        """Return source and target ids with the end symbol, (N, 13) each, for sequences (N, 12)."""
        answers = sequences if self.task == "copy" else _reversed(sequences)
        return _with_end(sequences), _with_end(answers)


def _mixed(seed: int, position: int) -> int:
    return seed * 1_000_003 + position + 1


def _draw(length: int, generator: torch.Generator) -> Tensor:
    """Draw distinct random sequences of one length: an equal share of the held-out ones, at most a fifth of all."""
    share = min(math.ceil(HELD_OUT / (LONGEST - 2)), SYMBOLS**length // 5)
    symbols = torch.randint(SYMBOLS, (20 * share, length), generator=generator) + FIRST_SYMBOL
    distinct = symbols.unique(dim=0)
    chosen = distinct[torch.randperm(len(distinct), generator=generator)[:share]]
    return torch.nn.functional.pad(chosen, (0, LONGEST - length), value=PAD)


def _codes(sequences: Tensor) -> Tensor:
    """Encode each sequence (N, 12) as one number, (N,)."""
    powers = (SYMBOLS + FIRST_SYMBOL) ** torch.arange(LONGEST)
    return (sequences * powers).sum(dim=1)


def _lengths(sequences: Tensor) -> Tensor:
    return (sequences != PAD).sum(dim=1, keepdim=True)  # (N, 1)


def _reversed(sequences: Tensor) -> Tensor:
    lengths, positions = _lengths(sequences), torch.arange(sequences.shape[1])
    return sequences.gather(1, (lengths - 1 - positions).clamp_min(0)).where(positions < lengths, PAD)


def _with_end(sequences: Tensor) -> Tensor:
    return torch.nn.functional.pad(sequences, (0, 1), value=PAD).scatter(1, _lengths(sequences), EOS)


def _settings(seed: int, steps: int) -> ResolvedTraining:
    return ResolvedTraining(
        seed=seed,
        steps=steps,
        minutes=None,
        batch_tokens=BATCH_SEQUENCES * (LONGEST + 3) // 2,
        accumulate=1,
        optimizer="adam",
        learning_rate=0.008,
        schedule="linear",
        warmup_steps=steps // 10,
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-9,
        weight_decay=0.0,
        clip_norm=1.0,
        label_smoothing=0.0,
        precision="fp32",
        kernels="torch",
        cuda_graphs=False,
        average_decay=0.0,
        adapt_dropout=False,
        report_every=100,
        validate_every=steps,
        save_every=steps,
        best_by="loss",
        patience=0,
        translate_dev=0,
        keep_checkpoints=1,
    )


def train(sequences: Sequences, variant: Variant, *, seed: int, steps: int, console: Console) -> Model:
    """Train a model on one task."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "source_vocabulary_size": FIRST_SYMBOL + SYMBOLS,
        "target_vocabulary_size": FIRST_SYMBOL + SYMBOLS,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "d_model": 32,
        "d_ff": 64,
        "num_heads": 4,
        "dropout": 0.0,
        "pad_id": PAD,
        "eos_id": EOS,
        "start_id": PAD,
    }
    model = build_model(ModelConfig(**(shape | variant.settings)))

    def loss(batch: Any) -> Loss:
        hidden, labels = teacher_forced(model, *batch)
        return projected_cross_entropy(hidden, model.output_weight, labels, pad_id=PAD)

    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=model,
            loss=loss,
            batches=sequences,
            settings=_settings(seed, steps),
            folder=Path(folder),
            display=ProgressDisplay(console),
        ).run()
    return model.eval()


def teacher_forced(model: Model, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last layer's states (B, T, D) and the tokens that they must predict, (B, T)."""
    if isinstance(model, Encoder):
        raise TypeError("an encoder alone writes no answers")
    if not isinstance(model, Decoder):
        inputs = torch.cat([torch.full_like(target[:, :1], PAD), target[:, :-1]], dim=1)
        return model.hidden(source, inputs), target
    # A decoder-only model continues the source with the target: one row, with all padding moved to its end.
    row = torch.cat([source, target], dim=1)
    order = (row == PAD).to(torch.int8).sort(dim=1, stable=True).indices
    labels = torch.cat([torch.full_like(source, PAD), target], dim=1)
    row, labels = row.gather(1, order), labels.gather(1, order)
    return model.hidden(row[:, :-1]), labels[:, 1:]


def exact(model: Model, sequences: Sequences) -> Tensor:
    """Return whether the model's output is exactly right for each held-out sequence, (1000,)."""
    source, target = sequences.pairs(sequences.held_out)
    with torch.inference_mode():
        longest = torch.full((len(source),), 2 * LONGEST)
        found = greedy_search(StateScorer(model, source, PAD), start_id=PAD, eos_id=EOS, max_lengths=longest)
    answers = [tuple(piece for piece in row if piece >= FIRST_SYMBOL) for row in target.tolist()]
    return torch.tensor([best.ended and best.ids == answer for (best,), answer in zip(found, answers, strict=True)])


def measure(task: str, *, seed: int, steps: int, console: Console, variant: Variant = PLAIN) -> list[Row]:
    """Train one model, and return the share of exact answers among all held-out sequences and among the longest."""
    started_at = time.monotonic()
    sequences = Sequences(task, seed)
    right = exact(train(sequences, variant, seed=seed, steps=steps, console=console), sequences)
    percent = 100.0 * right.double().mean().item()
    hardest = 100.0 * right[_lengths(sequences.held_out)[:, 0] == LONGEST].double().mean().item()
    name = f"{task}, {variant.name}, seed {seed}, {steps} steps".replace(", ,", ",")
    bar = f"at least {BAR_PERCENT:g} %" if variant.has_bar else None
    return [
        Row(f"{name}: unseen sequences exact", percent, "%", bar=bar, holds=percent >= BAR_PERCENT if bar else None),
        Row(f"{name}: of those with {LONGEST} symbols", hardest, "%"),
        Row(f"{name}: training and search", time.monotonic() - started_at, "s"),
    ]


def main() -> int:
    """Run the benchmark, report its rows, and return 1 if a bar is missed."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=1000, help=f"steps of each training, at most {MAX_STEPS}")
    options.add_argument("--threads", type=int, default=1, help="threads to compute with (one is fastest here)")
    options.add_argument("--variants", nargs="*", metavar="NAME", help="run these variants on copying; no name: all")
    args = options.parse_args()
    if not 10 <= args.steps <= MAX_STEPS:
        options.error(f"--steps must be between 10 and {MAX_STEPS}, but is {args.steps}")
    known = {variant.name: variant for variant in VARIANTS}
    unknown = [name for name in args.variants or () if name not in known]
    if unknown:
        options.error(f"--variants must be some of {', '.join(known)}, but one is {unknown[0]}")
    torch.set_num_threads(args.threads)
    console = Console(stderr=True, highlight=False)
    console.print(machine())
    if args.variants is not None:
        chosen = [known[name] for name in args.variants] or [v for v in VARIANTS if v.in_quick or not args.quick]
        runs = [measure("copy", seed=1, steps=args.steps, console=console, variant=variant) for variant in chosen]
    else:
        seeds = range(1, 2 if args.quick else 6)
        runs = [measure(task, seed=seed, steps=args.steps, console=console) for task in TASKS for seed in seeds]
    return report([row for rows in runs for row in rows], args.json)


if __name__ == "__main__":
    sys.exit(main())
