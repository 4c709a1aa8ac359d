"""`transduce build-datastore MODEL --source F --target F --output FILE`: build a datastore for kNN retrieval."""

import argparse
import sys
from typing import TYPE_CHECKING

import msgspec

from transduce.commands.options import (
    LANGUAGE_OPTIONS,
    add_computing,
    add_json,
    add_languages,
    check_writable,
    load_translator,
    option_of,
    read_aligned_lines,
    write_report,
)
from transduce.errors import TransduceError, count_noun, shell_word
from transduce.process_environment import common_options
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inference.datastore import Datastore


class DatastoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report on a new datastore of sentence pairs for kNN retrieval: its size, and its effect on the model's loss."""

    pairs: int
    """Number of sentence pairs that are stored."""
    left_out: int
    """Number of pairs with an empty side, or with more than `MAX_TOKENS` tokens."""
    positions: int
    """The number of target tokens in the datastore, including end symbols."""
    weight: float
    """The weight of retrieved neighbors in the next-token distribution, from 0 to 1; the model has the rest."""
    temperature: float
    """The temperature of the softmax over distances to neighbors."""
    tuning_tokens: int
    """The number of tokens that the weight and the temperature were chosen by."""
    loss_without: float
    """Loss of the tuning tokens by the model without retrieval, in nats per token."""
    loss_with: float
    """Loss of the tuning tokens with retrieval, in nats per token."""

    def __str__(self) -> str:
        from transduce.inference.datastore import MAX_TOKENS

        left_out = f", {self.left_out:,} skipped as empty or longer than {MAX_TOKENS} tokens" if self.left_out else ""
        return (
            f"{count_noun(self.pairs, 'pair')} stored, {count_noun(self.positions, 'target token')}{left_out}\n"
            f"loss of {count_noun(self.tuning_tokens, 'token')}: {self.loss_without:.3f} nats each by the model alone, "
            f"{self.loss_with:.3f} with retrieval, whose weight is {self.weight:g}"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce build-datastore` in its argparse parser."""
    add = parser.add_argument
    add("model", help="a model folder")
    add("--source", required=True, metavar="FILE", help="sentences, one per line")
    add("--target", required=True, metavar="FILE", help="their translations, one per line")
    add("--output", required=True, metavar="FILE", help="write the datastore here")
    add_json(add)
    tuning = parser.add_argument_group("choice of the retrieval weight").add_argument
    tuning(
        "--dev-source",
        metavar="FILE",
        help="pairs like those to be translated, by which the weight is chosen (default: some of the pairs)",
    )
    tuning("--dev-target", metavar="FILE", help="translations of --dev-source")
    add_languages(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> None:
    """Build a datastore of sentence pairs, write it, and print its effect on the model's loss."""
    from transduce.inference.bulk_files import ReportClock
    from transduce.inference.datastore import build_datastore

    if (options.dev_source is None) != (options.dev_target is None):
        raise TransduceError("Dev pairs have two sides: pass both --dev-source and --dev-target, or neither.")
    inputs = [options.model, options.source, options.target, options.dev_source, options.dev_target]
    check_writable(options.output, report=options.json, inputs=inputs)
    sources, targets = read_aligned_lines(options.source, options.target)
    dev = None
    if options.dev_source is not None:
        dev_sources, dev_targets = read_aligned_lines(options.dev_source, options.dev_target)
        dev = dev_sources, dev_targets
    translator = load_translator(options.model, options)
    clock, pairs = ReportClock(), count_noun(len(sources), "pair")

    def report_progress(done: int) -> None:
        if clock.is_due():
            sys.stderr.write(localized(f"{done:,} of {pairs}\n"))

    datastore = build_datastore(translator, sources, targets, dev=dev, document=True, report_progress=report_progress)
    datastore.write(options.output)
    write_report(_report(datastore), options.json)
    if datastore.after >= datastore.before:
        sys.stderr.write(
            localized(
                "warning: With retrieval the loss is not lower: these pairs do not help with such text, so translate "
                "without the datastore, or build one from other pairs.\n"
            )
        )
    passed = [(option_of(name), vars(options)[name]) for name in LANGUAGE_OPTIONS if vars(options)[name] is not None]
    languages = "".join(f" {option} {shell_word(value)}" for option, value in passed)
    sys.stderr.write(
        localized(
            f"Written to {options.output}: transduce translate {shell_word(options.model)} --datastore "
            f"{shell_word(options.output)}{languages}{common_options()}\n"
        )
    )


def _report(datastore: "Datastore") -> DatastoreReport:
    card = datastore.neighbors.card
    return DatastoreReport(
        pairs=card.pairs,
        left_out=datastore.left_out,
        positions=len(datastore.neighbors.tensors.labels),
        weight=card.weight,
        temperature=card.temperature,
        tuning_tokens=datastore.tuning_tokens,
        loss_without=datastore.before,
        loss_with=datastore.after,
    )
