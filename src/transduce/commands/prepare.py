"""`transduce prepare --source F… --target F… --out DIR`: prepare a corpus, or a shard of it, before training."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transduce.argument_checks import as_shard
from transduce.commands.options import (
    PREPARED_KINDS,
    add_json,
    add_settings,
    check_folder,
    check_writable,
    refuse_options,
    settings_from,
    write_report,
)
from transduce.errors import TransduceError
from transduce.tasks.settings.options import OPTIONS, TASK_KINDS

if TYPE_CHECKING:
    from transduce.tasks.preparing import PrepareRequest

# Options that affect only the tokenization of pairs.
_PAIR_OPTIONS = ("tokenizer", "shard", "workers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    tokenizer = parser.add_argument_group("tokenizer")
    tokenizer.add_argument(
        "--tokenizer", metavar="DIR", help="use this tokenizer, or this model's (default: train a new one)"
    )
    tokenizer.add_argument(
        "--tokenizer-only", action="store_true", help="only train the tokenizer, for shards to be prepared later"
    )
    shards = parser.add_argument_group("shards and processes")
    shards.add_argument("--shard", metavar="I/N", help="prepare the I-th of N parts, to be merged with the others")
    shards.add_argument("--merge", nargs="+", metavar="DIR", help="merge these shards into one corpus")
    shards.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: by cores and pairs; 1 for a shard)"
    )


def run(options: argparse.Namespace) -> int:
    """Tokenize a corpus or a shard of it, merge shards, or only train a tokenizer; print a report and return 0."""
    read = [options.settings, options.source, options.target, options.dev_source, options.dev_target, options.tokenizer]
    check_writable(report=options.json, inputs=read)
    check_folder(options.out)
    write_report(_prepare(options), options.json)
    return 0


def _prepare(options: argparse.Namespace) -> msgspec.Struct:
    from transduce.tasks.preparing import merge_shards, prepare_corpus_folder, prepare_shard, prepare_tokenizer

    request = _request(options)
    if options.merge is not None:
        if options.settings is not None:
            raise TransduceError("`--merge` cannot be combined with a settings file: leave one of them out.")
        declared = [name for name in OPTIONS if name in options]
        _refuse_beside(options, "--merge", *declared, "set", *_PAIR_OPTIONS, "tokenizer_only", "no_hold_out")
        return merge_shards(options.merge, options.out)
    if options.tokenizer_only:
        _refuse_beside(options, "--tokenizer-only", *_PAIR_OPTIONS, "no_hold_out")
        return prepare_tokenizer(request)
    return prepare_corpus_folder(request) if options.shard is None else prepare_shard(request)


def _request(options: argparse.Namespace) -> "PrepareRequest":
    from transduce.tasks.preparing import PrepareRequest

    return PrepareRequest(
        settings=settings_from(options),
        out=Path(options.out),
        tokenizer=None if options.tokenizer is None else Path(options.tokenizer),
        shard=(1, 1) if options.shard is None else as_shard(options.shard),
        workers=options.workers,
        hold_out=not options.no_hold_out,
    )


def _refuse_beside(options: argparse.Namespace, mode: str, *others: str) -> None:
    """Refuse the options named `others`, which cannot be combined with the option `mode`, such as `--merge`."""
    refuse_options(options, others, f"`{mode}` cannot be combined with `{{option}}`: leave one of them out.")
