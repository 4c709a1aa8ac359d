"""`transduce remember MODEL --source F --target F --out FILE`: pairs to translate by, without training."""

import argparse
import sys
from collections.abc import Callable

import msgspec

from transduce.commands.options import add_computing, check_writable, load_translator, read_side_by_side, write_report
from transduce.errors import TransduceError
from transduce.runtime.remembering import MOST_PIECES, Memory, remember
from transduce.runtime.report_clock import ReportClock
from transduce.text.counted import counted


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was remembered, and what it is good for."""

    pairs: int
    left_out: int
    """Pairs with a side without text, or of more pieces than `MOST_PIECES`."""
    positions: int
    """Target pieces, end symbols included."""
    weight: float
    """Of the examples' votes for the next piece; the rest is the model's."""
    temperature: float
    judged_pieces: int
    """By which both were chosen."""
    loss_without: float
    """Of these, in nats a piece."""
    loss_with: float

    def __str__(self) -> str:
        left_out = (
            f", {self.left_out:,} left out for no text or more than {MOST_PIECES} pieces" if self.left_out else ""
        )
        return (
            f"{counted(self.pairs, 'pair')} remembered, {counted(self.positions, 'target piece')}{left_out}\n"
            f"loss of {counted(self.judged_pieces, 'piece')}: {self.loss_without:.3f} nats a piece by the model alone, "
            f"{self.loss_with:.3f} with examples, whose votes weigh {self.weight:g}"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--source", required=True, metavar="FILE", help="sentences, one a line")
    parser.add_argument("--target", required=True, metavar="FILE", help="their translations, one a line")
    parser.add_argument("--out", required=True, metavar="FILE", help="write the examples here")
    parser.add_argument(
        "--dev-source", metavar="FILE", help="pairs like those to be translated, to choose by how much examples weigh"
    )
    parser.add_argument("--dev-target", metavar="FILE", help="their translations")
    parser.add_argument("--json", metavar="PATH", help="write the figures as JSON; - for standard output")
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Writes the file, and says what its examples are good for."""
    if (options.dev_source is None) != (options.dev_target is None):
        raise TransduceError("Dev pairs have two sides: give both --dev-source and --dev-target, or neither.")
    inputs = [options.model, options.source, options.target, options.dev_source, options.dev_target]
    check_writable(options.out, report=options.json, inputs=inputs)
    sources, targets = read_side_by_side(options.source, options.target)
    dev = None
    if options.dev_source is not None:
        dev_sources, dev_targets = read_side_by_side(options.dev_source, options.dev_target)
        dev = dev_sources, dev_targets
    translator = load_translator(options.model, options)
    memory = remember(translator, sources, targets, dev=dev, tell=_teller(len(sources)))
    memory.write(options.out)
    write_report(_report(memory), options.json)
    sys.stderr.write(f"Written to {options.out}: transduce translate {options.model} --examples {options.out}\n")
    return 0


def _report(memory: Memory) -> Report:
    card = memory.examples.card
    return Report(
        pairs=card.pairs,
        left_out=memory.left_out,
        positions=len(memory.examples.remembered.labels),
        weight=card.weight,
        temperature=card.temperature,
        judged_pieces=memory.judged,
        loss_without=memory.before,
        loss_with=memory.after,
    )


def _teller(pairs: int) -> Callable[[int], None]:
    """Says at times how many are done."""
    clock = ReportClock()

    def tell(done: int) -> None:
        if clock.is_due():
            sys.stderr.write(f"{done:,} of {pairs:,} pairs\n")

    return tell
