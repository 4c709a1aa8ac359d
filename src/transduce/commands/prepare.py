"""`transduce prepare --source F… --target F… --out DIR`: prepare a corpus, or a shard of it, before training."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transduce.commands.options import (
    PREPARED_KINDS,
    TASK_KINDS,
    add_columns,
    check_folder,
    check_writable,
    write_report,
)
from transduce.errors import TransduceError

if TYPE_CHECKING:
    from transduce.tasks.preparing import PrepareRequest

# Options that set a setting, with the setting's name.
_SETTINGS = {
    "task": "task.kind",
    "source": "data.source",
    "target": "data.target",
    "dev_source": "data.dev_source",
    "dev_target": "data.dev_target",
    "back_translated": "data.back_translated",
    "strict_format": "data.strict_format",
    "columns": "data.columns",
    "weight_column": "data.weight_column",
    "document_column": "data.document_column",
    "context_before": "data.context_before",
    "languages": "data.languages",
}
# Options that affect only the tokenization of pairs.
_MODES = ("tokenizer", "shard", "workers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce prepare`."""
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
    add("--json", metavar="PATH", help="write the report as JSON; -: to standard output")
    texts = parser.add_argument_group("texts")
    texts.add_argument(
        "--source",
        nargs="+",
        metavar="FILE",
        help="source text, one sentence per line, plain or compressed; or files of pairs (.tsv, .jsonl, .csv, "
        ".parquet, .arrow, .tmx, a datasets folder, or - for standard input); or monolingual text",
    )
    texts.add_argument("--target", nargs="+", metavar="FILE", help="target text, line by line")
    texts.add_argument(
        "--dev-source", nargs="+", metavar="FILE", help="dev set (default: some training pairs are held out)"
    )
    texts.add_argument("--dev-target", nargs="+", metavar="FILE", help="target side of the dev set")
    texts.add_argument("--no-hold-out", action="store_true", help="hold out no training pairs for validation")
    texts.add_argument(
        "--back-translated",
        nargs="+",
        metavar="FILE",
        help="files of --source that were back-translated by a machine from their targets; their source "
        "sentences start with a tag that marks them",
    )
    texts.add_argument(
        "--columns",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="columns or JSON fields that hold the texts (default: language codes or usual names)",
    )
    add_columns(texts.add_argument)
    texts.add_argument(
        "--strict-format",
        action="store_const",
        const=True,
        help="stop at a line of a .tsv file that has other than two columns, instead of skipping it",
    )
    texts.add_argument(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="language codes (default: the files' suffixes)",
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
    """Prepare a corpus, and print a report."""
    read = [options.settings, options.source, options.target, options.dev_source, options.dev_target, options.tokenizer]
    check_writable(report=options.json, inputs=read)
    check_folder(options.out)
    write_report(_prepare(options), options.json)
    return 0


def _prepare(options: argparse.Namespace) -> msgspec.Struct:
    from transduce.tasks.preparing import merge_shards, prepare_corpus_folder, prepare_shard, prepare_tokenizer

    request = _request(options)
    if options.merge is not None:
        _refuse_beside(options, "--merge", "settings", *_SETTINGS, "set", *_MODES, "tokenizer_only", "no_hold_out")
        return merge_shards(options.merge, options.out)
    if options.tokenizer_only:
        _refuse_beside(options, "--tokenizer-only", *_MODES, "no_hold_out")
        return prepare_tokenizer(request)
    return prepare_corpus_folder(request) if options.shard is None else prepare_shard(request)


def _request(options: argparse.Namespace) -> "PrepareRequest":
    from transduce.tasks.preparing import PrepareRequest, parse_shard
    from transduce.tasks.settings.reading import put_setting, read_settings

    content = read_settings(Path(options.settings) if options.settings else None, options.set)
    for option, name in _SETTINGS.items():
        value = getattr(options, option)
        if value is not None:
            put_setting(content, name, value)
    return PrepareRequest(
        settings=content,
        out=Path(options.out),
        tokenizer=None if options.tokenizer is None else Path(options.tokenizer),
        shard=(1, 1) if options.shard is None else parse_shard(options.shard),
        workers=options.workers,
        hold_out=not options.no_hold_out,
    )


def _refuse_beside(options: argparse.Namespace, mode: str, *others: str) -> None:
    """Refuse options that cannot be combined with the option `mode`."""
    for other in others:
        if getattr(options, other):
            name = "a settings file" if other == "settings" else f"`--{other.replace('_', '-')}`"
            raise TransduceError(f"`{mode}` cannot be combined with {name}: leave one of them out.")
