"""`transduce prepare --source F… --target F… --out DIR`: the corpus ahead of training, or a shard of it."""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from transduce.commands.options import check_folder, check_writable, write_report
from transduce.errors import TransduceError
from transduce.tasks.kinds import KINDS
from transduce.tasks.preparing import (
    PREPARED_KINDS,
    PrepareRequest,
    merge_shards,
    parse_shard,
    prepare_corpus_folder,
    prepare_shard,
    prepare_tokenizer,
)
from transduce.tasks.settings_reading import put_setting, read_settings

# Options that are settings, by the setting's name.
_SETTINGS = {
    "task": "task.kind",
    "source": "data.source",
    "target": "data.target",
    "dev_source": "data.dev_source",
    "dev_target": "data.dev_target",
    "back_translated": "data.back_translated",
    "languages": "data.languages",
}
# Options that say how pairs are cut.
_MODES = ("tokenizer", "shard", "workers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.formatter_class = argparse.HelpFormatter
    add = parser.add_argument
    add("settings", nargs="?", metavar="SETTINGS.toml", help="a file of settings, such as the one to train with")
    add(
        "--task",
        choices=tuple(KINDS),
        metavar="KIND",
        help=f"what will be learnt: {', '.join(PREPARED_KINDS)}; translation where nothing is said",
    )
    add(
        "--source",
        nargs="+",
        metavar="FILE",
        help="source text, a sentence a line, plain or gzip; or files of pairs: .tsv, .jsonl; or text alone",
    )
    add("--target", nargs="+", metavar="FILE", help="target text, line by line")
    add("--dev-source", nargs="+", metavar="FILE", help="the dev set to come; then nothing is held out")
    add("--dev-target", nargs="+", metavar="FILE", help="the dev set's target side")
    add(
        "--back-translated",
        nargs="+",
        metavar="FILE",
        help="those of --source that a machine wrote, by translating their targets back; they are tagged",
    )
    add(
        "--languages",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        help="language codes; the files' suffixes where nothing is said",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of [task], [data] and [tokenizer]")
    add("--out", required=True, metavar="DIR", help="the folder to train from; one that was prepared is replaced")
    add("--tokenizer", metavar="DIR", help="cut by this tokenizer, or this model's; one is learnt where none is named")
    add("--tokenizer-only", action="store_true", help="learn the tokenizer, for shards to come, and nothing else")
    add("--shard", metavar="I/N", help="prepare the I-th of N parts, to merge with the others")
    add("--merge", nargs="+", metavar="DIR", help="make one corpus of these shards")
    add("--workers", type=int, metavar="N", help="processes; by cores and pairs where nothing is said; for a shard 1")
    add("--no-hold-out", action="store_true", help="hold nothing out to validate on")
    add("--json", metavar="PATH", help="the figures as JSON; - for standard output")


def run(options: argparse.Namespace) -> int:
    """Prepares, and prints what came out. Ctrl-C and SIGTERM leave nothing behind."""
    read = [options.settings, options.source, options.target, options.dev_source, options.dev_target, options.tokenizer]
    check_writable(report=options.json, inputs=read)
    check_folder(options.out)
    with _cleaning_up_on_sigterm():
        write_report(_prepare(options), options.json)
    return 0


@contextmanager
def _cleaning_up_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the program as an exception does, so that what was begun is removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _prepare(options: argparse.Namespace) -> msgspec.Struct:
    request = _request(options)
    if options.merge is not None:
        _refuse_beside(options, "--merge", "settings", *_SETTINGS, "set", *_MODES, "tokenizer_only", "no_hold_out")
        return merge_shards([Path(folder) for folder in options.merge], Path(options.out))
    if options.tokenizer_only:
        _refuse_beside(options, "--tokenizer-only", *_MODES, "no_hold_out")
        return prepare_tokenizer(request)
    return prepare_corpus_folder(request) if options.shard is None else prepare_shard(request)


def _request(options: argparse.Namespace) -> PrepareRequest:
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
    """An option that another one leaves without a meaning is refused."""
    for other in others:
        if getattr(options, other):
            name = "a settings file" if other == "settings" else f"`--{other.replace('_', '-')}`"
            raise TransduceError(f"`{mode}` has no use for {name}: leave one of them out.")
