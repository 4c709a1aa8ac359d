"""Commands that learn from a corpus: `train`, `demo` (on the built-in corpus), `prepare`, and `build-datastore`.

`prepare` only makes what training reads, and `build-datastore` stores sentence pairs for kNN retrieval.
"""

import argparse
import os
import re
import shutil
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from typing_extensions import override

from transduce.argument_checks import as_shard
from transduce.commands.main import STARTED_AT
from transduce.commands.options import (
    DEMO_STEPS,
    LANGUAGE_OPTIONS,
    PREPARED_KINDS,
    add_computing,
    add_json,
    add_languages,
    add_settings,
    check_folder,
    check_writable,
    load_translator,
    loading_options,
    option_of,
    read_aligned_lines,
    refuse_options,
    settings_from,
    write_json_report,
    write_report,
)
from transduce.errors import TransduceError, count_noun, shell_word
from transduce.process_environment import common_options, launched_ranks
from transduce.tasks.settings.options import OPTIONS, TASK_KINDS
from transduce.text.languages import language_of
from transduce.training.callbacks import TRACKERS, Callback
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inference.datastore import Datastore
    from transduce.tasks.run.run import RunRequest
    from transduce.training.run_estimate import RunEstimate


def add_train_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce train` in its argparse parser."""
    add = parser.add_argument
    add("--out", required=True, metavar="DIR", help="the run's folder, which becomes a model folder")
    add("--resume", action="store_true", help="continue from the newest checkpoint in DIR")
    add(
        "--dry-run",
        action="store_true",
        help="print all choices with their reasons and an estimate of time and memory, and do not train",
    )
    add(
        "--estimate-score",
        action="store_true",
        help="like --dry-run, and estimate the final dev score from early steps",
    )
    add_json(add, "the result, or the estimate,")
    add(
        "--track",
        nargs="+",
        default=[],
        choices=tuple(TRACKERS),
        metavar="TRACKER",
        help=f"log the run to experiment trackers: {', '.join(TRACKERS)}",
    )
    add_run(parser)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a command that define a training run: its settings, and where and how to compute."""
    add = parser.add_argument
    add("settings", nargs="?", metavar="SETTINGS.toml", help="a settings file; options override it")
    add_settings(add, "task")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, such as training.steps=2000; can be repeated",
    )
    texts = parser.add_argument_group("texts").add_argument
    add_settings(texts, "source", "target", "prepared", "dev_source", "dev_target", "corpus")
    texts(
        "--dev-corpus",
        nargs=2,
        action="append",
        metavar=("SOURCE", "TARGET"),
        help="the dev set of one of several corpora, in any order",
    )
    add_settings(
        texts,
        *("mix", "columns", "weight_column", "document_column", "context_before", "strict_format", "languages"),
        *("monolingual", "back_translated", "distill_from"),
    )
    add_settings(parser.add_argument_group("vocabulary").add_argument, "vocabulary", "user_symbols", "line_feeds")
    model = parser.add_argument_group("model and training").add_argument
    add_settings(model, "preset", "init_from", "steps", "minutes", "seed")
    add_computing(parser, int8=False)


# A setting of a corpus after its files.
_ASSIGNMENT = re.compile(r"[a-z_]+=")


def run_train(options: argparse.Namespace) -> int:
    """Train a model, or only print an estimate of the run (--dry-run, --estimate-score), and return an exit code.

    Returns:
        0; 130 or 143 if Ctrl-C or SIGTERM ended the run after it was saved.
    """
    from transduce.tasks.train import train_in_stages

    is_dry = options.dry_run or options.estimate_score
    if options.json is not None and is_dry and options.resume:
        raise TransduceError("`--json` writes the estimate of a new run: leave --json out, or --resume.")
    check_folder(options.out)
    sides = (options.source, options.target, options.dev_source, options.dev_target)
    check_writable(
        report=options.json, inputs=[options.settings, options.init_from, *(options.distill_from or ()), *sides]
    )
    request = run_request(options, Path(options.out), resume=options.resume, dry_run=is_dry)
    keeper = _EstimateKeeper()
    callbacks = (keeper,) if is_dry else tuple(TRACKERS[name]() for name in options.track)
    request = msgspec.structs.replace(request, estimate_score=options.estimate_score, callbacks=callbacks)
    result = train_in_stages(request)
    report = keeper.estimate if is_dry else result
    if options.json is not None and report is not None and launched_ranks().rank == 0:
        write_json_report(report, options.json)
    return {"SIGINT": 130, "SIGTERM": 143}.get(result.reason, 0) if result is not None else 0


class _EstimateKeeper(Callback):
    """A callback that stores the estimate of a run's time and memory, which a dry run writes as JSON."""

    estimate: "RunEstimate | None" = None
    """The estimate of the run; None until it is made."""

    @override
    def on_estimate(self, event: "RunEstimate") -> None:
        self.estimate = event


def run_request(options: argparse.Namespace, out: Path, *, resume: bool = False, dry_run: bool = False) -> "RunRequest":
    """Return the request of the training run that the command's options describe (`RunRequest`).

    Args:
        options: the options of `add_run`: settings, texts, model, device.
        out: the run's folder.
        resume: continue from the newest checkpoint.
        dry_run: only choose settings and estimate.

    Raises:
        TransduceError: options contradict each other, or a setting is invalid.
    """
    from transduce.tasks.run.run import RunRequest

    if options.dev_corpus and not options.corpus:
        raise TransduceError("--dev-corpus belongs to --corpus, but none is named: use --dev-source and --dev-target.")
    return RunRequest(
        settings=settings_from(
            options,
            corpus=_corpora(options.corpus, options.dev_corpus or []) if options.corpus else None,
            precision=None if options.precision == "auto" else options.precision,
        ),
        out=out,
        resume=resume,
        dry_run=dry_run,
        device=options.device,
        threads=options.threads,
        started_at=STARTED_AT,
    )


def _corpora(corpora: list[list[str]], dev: list[list[str]]) -> list[dict[str, Any]]:
    """Return the setting `data.corpora` that --corpus and --dev-corpus describe: a list with a dict for each corpus.

    A dev set belongs to the corpus whose files have the same language suffixes.

    Args:
        corpora: the arguments of each --corpus: one or two files, and settings such as `sampling_weight=2`.
        dev: the files of each --dev-corpus.

    Raises:
        TransduceError: a dev set belongs to no corpus, or a --corpus does not have one or two files.
    """
    from transduce.tasks.settings.reading import read_settings

    tables: list[dict[str, Any]] = []
    waiting = [(tuple(map(language_of, files)), files) for files in dev]
    for arguments in corpora:
        files = [each for each in arguments if not _ASSIGNMENT.match(each)]
        table: dict[str, Any] = read_settings(None, [each for each in arguments if _ASSIGNMENT.match(each)])
        if not 1 <= len(files) <= 2:
            raise TransduceError(
                "--corpus takes a source and a target file, or one file of pairs, but was given "
                f"{' '.join(files) or 'none'}."
            )
        table |= {"source": files[:1], "target": files[1:]}
        languages = tuple(map(language_of, files))
        own = [pair for pair in waiting if pair[0] == languages]
        if own:
            waiting.remove(own[0])
            table |= {"dev_source": own[0][1][:1], "dev_target": own[0][1][1:]}
        tables.append(table)
    if waiting:
        raise TransduceError(
            f"--dev-corpus {' '.join(waiting[0][1])} belongs to no --corpus of the same languages: check the suffixes."
        )
    return tables


# --- demo ---


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce demo` in its argparse parser."""
    add = parser.add_argument
    add("--out", default="models/demo", metavar="DIR", help="the run's folder")
    add("--steps", type=int, default=DEMO_STEPS, metavar="N", help="training steps")
    add("--seed", type=int, default=1, metavar="N", help="random seed of training")
    add("--again", action="store_true", help="remove an earlier demonstration in DIR and train again")
    add_json(add, "the result")
    add_computing(parser, int8=False)


def run_demo(options: argparse.Namespace) -> None:
    """Train a small translator on the built-in corpus, and print samples and its result.

    The result is the share of held-out sentences that the translator translates exactly right.
    """
    from transduce.demonstration.run import SENTENCES, demo

    check_folder(options.out)
    check_writable(report=options.json)
    if options.again:
        _remove_run(Path(options.out))
    with redirect_stdout(sys.stderr) if options.json == "-" else nullcontext():
        result = demo(options.out, seed=options.seed, steps=options.steps, **loading_options(options))
        command = f'transduce inspect {shell_word(options.out)}{common_options()} "{SENTENCES[-1]}"'
        of_make = Path(sys.prefix).resolve() == Path(".venv").resolve() and "VIRTUAL_ENV" not in os.environ
        next_step = f"source .venv/bin/activate; {command}" if of_make else command
        sys.stdout.write(localized(f"\nNext, look into a translation: {next_step}\n"))
        sys.stdout.flush()
    write_report(result, options.json)


def _remove_run(folder: Path) -> None:
    """Remove the folder of an earlier demonstration, if the folder exists.

    Raises:
        TransduceError: the folder holds something other than the run of a demonstration.
    """
    from transduce.demonstration.run import refuse_other_run
    from transduce.model_folder.read import SETTINGS_FILE

    if folder.exists() and not (folder / SETTINGS_FILE).exists():
        raise TransduceError(f"`--again` removes a run, but {folder} holds none: choose another folder with --out.")
    refuse_other_run(folder)
    shutil.rmtree(folder, ignore_errors=True)


# --- prepare ---


def add_prepare_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce prepare` in its argparse parser."""
    add = parser.add_argument
    add("settings", nargs="?", metavar="SETTINGS.toml", help="a settings file, such as the one for training")
    add("--out", required=True, metavar="DIR", help="the folder to train from; a prepared one is replaced")
    add(
        "--task",
        choices=TASK_KINDS,
        metavar="KIND",
        help=f"what will be trained: {', '.join(PREPARED_KINDS)} (default: translation)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting of [task], [data] and [tokenizer]; can be repeated",
    )
    add_json(add)
    texts = parser.add_argument_group("texts").add_argument
    add_settings(texts, "source", "target", "dev_source", "dev_target")
    texts("--no-hold-out", action="store_true", help="hold out no training pairs for validation")
    add_settings(
        texts,
        *("back_translated", "columns", "weight_column", "document_column", "context_before", "strict_format"),
        "languages",
    )
    tokenizer = parser.add_argument_group("tokenizer").add_argument
    tokenizer("--tokenizer", metavar="DIR", help="use this tokenizer, or this model's (default: train a new one)")
    tokenizer("--tokenizer-only", action="store_true", help="only train the tokenizer, for shards to be prepared later")
    shards = parser.add_argument_group("shards and processes").add_argument
    shards("--shard", metavar="I/N", help="prepare the I-th of N parts, to be merged with the others")
    shards("--merge", nargs="+", metavar="DIR", help="merge these shards into one corpus")
    shards("--workers", type=int, metavar="N", help="processes (default: by cores and pairs; 1 for a shard)")


def run_prepare(options: argparse.Namespace) -> None:
    """Tokenize a corpus or a shard of it, merge shards, or only train a tokenizer, and print a report."""
    read = [options.settings, options.source, options.target, options.dev_source, options.dev_target, options.tokenizer]
    check_writable(report=options.json, inputs=read)
    check_folder(options.out)
    write_report(_prepare(options), options.json)


def _prepare(options: argparse.Namespace) -> msgspec.Struct:
    from transduce.tasks.preparing import PrepareRequest, merge_shards, prepare_as_requested

    request = PrepareRequest(
        settings=settings_from(options),
        out=Path(options.out),
        tokenizer=None if options.tokenizer is None else Path(options.tokenizer),
        tokenizer_only=options.tokenizer_only,
        shard=None if options.shard is None else as_shard(options.shard),
        workers=options.workers,
        hold_out=not options.no_hold_out,
    )
    if options.merge is not None:
        if options.settings is not None:
            raise TransduceError("`--merge` cannot be combined with a settings file: leave one of them out.")
        others = ("tokenizer", "tokenizer_only", "shard", "workers", "no_hold_out")
        declared = [name for name in OPTIONS if name in options]
        _refuse_beside(options, "--merge", *declared, "set", *others)
        return merge_shards(options.merge, options.out)
    if options.tokenizer_only:
        _refuse_beside(options, "--tokenizer-only", "no_hold_out")
    return prepare_as_requested(request)


def _refuse_beside(options: argparse.Namespace, mode: str, *others: str) -> None:
    """Raise an error if one of the options `others` is set, which cannot be combined with `mode`.

    `mode` is an option in its command-line form, such as `--merge`.

    Raises:
        TransduceError: one of the options is set.
    """
    refuse_options(options, others, f"`{mode}` cannot be combined with `{{option}}`: leave one of them out.")


# --- build-datastore ---


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


def add_build_datastore_arguments(parser: argparse.ArgumentParser) -> None:
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


def run_build_datastore(options: argparse.Namespace) -> None:
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
    write_report(_report_of(datastore), options.json)
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


def _report_of(datastore: "Datastore") -> DatastoreReport:
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
