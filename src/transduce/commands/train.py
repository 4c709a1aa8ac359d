"""`transduce train --source F… --target F… --out DIR`, or `transduce train settings.toml`."""

import argparse
import os
from pathlib import Path

from transduce.commands.options import add_computing, check_folder, check_writable, write_json
from transduce.errors import TransduceError
from transduce.tasks.kinds import KINDS
from transduce.tasks.run import RunRequest
from transduce.tasks.settings_reading import put_setting, read_settings
from transduce.tasks.stages import train_in_stages
from transduce.training.choices import PRESETS

# Options that are settings, by the setting's name.
_SETTINGS = {
    "task": "task.kind",
    "start_from": "start_from",
    "source": "data.source",
    "target": "data.target",
    "prepared": "data.prepared",
    "dev_source": "data.dev_source",
    "dev_target": "data.dev_target",
    "monolingual": "data.monolingual",
    "teacher": "data.teacher",
    "back_translated": "data.back_translated",
    "languages": "data.languages",
    "preset": "preset",
    "steps": "training.steps",
    "minutes": "training.minutes",
    "seed": "training.seed",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    add = parser.add_argument
    add("--out", required=True, metavar="DIR", help="the run's folder, which becomes a model folder")
    add("--resume", action="store_true", help="go on from the newest checkpoint in DIR")
    add("--dry-run", action="store_true", help="print all choices with their reasons, and train nothing")
    add("--json", metavar="PATH", help="write how the run ended as JSON; - for standard output")
    add_run(parser)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Declares what decides a run: its settings, and where and how to compute."""
    parser.formatter_class = argparse.HelpFormatter
    add = parser.add_argument
    add("settings", nargs="?", metavar="SETTINGS.toml", help="a file of settings; options below change it")
    add(
        "--task",
        choices=tuple(KINDS),
        metavar="KIND",
        help=f"what to learn: {', '.join(KINDS)}; translation where nothing is said",
    )
    add("--from", dest="start_from", metavar="DIR", help="begin with the weights of this model, by its tokenizer")
    _add_text(parser)
    add(
        "--preset",
        metavar="NAME",
        help=f"size of the model: {', '.join(PRESETS)}; chosen by the number of pairs where nothing is said",
    )
    add("--steps", type=int, metavar="N", help="parameter updates in all, also when resumed")
    add("--minutes", type=float, metavar="M", help="training time, in place of --steps")
    add("--seed", type=int, metavar="N", help="all random numbers follow from it (1)")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, such as training.steps=2000",
    )
    add_computing(parser, int8=False)


def _add_text(parser: argparse.ArgumentParser) -> None:
    """Declares what is learnt from."""
    add = parser.add_argument
    add(
        "--source",
        nargs="+",
        metavar="FILE",
        help="source text, a sentence a line, plain or gzip; or files of pairs: .tsv, .jsonl; or text alone; "
        "trees, for parsing; tables (.csv, .tsv), for time series",
    )
    add("--prepared", metavar="DIR", help="what `transduce prepare` wrote, in place of files")
    add("--target", nargs="+", metavar="FILE", help="target text, line by line")
    add(
        "--dev-source",
        nargs="+",
        metavar="FILE",
        help="the dev set; a part of the training pairs where there is none",
    )
    add("--dev-target", nargs="+", metavar="FILE", help="the dev set's target side")
    add(
        "--monolingual",
        nargs="+",
        metavar="FILE",
        help="text in the target's language without translations: a model of the other direction is trained first and "
        "translates it back",
    )
    add(
        "--teacher",
        nargs="+",
        metavar="DIR",
        help="in place of --target: a model that translates the source text first, and that training learns from; "
        "several translate together",
    )
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


def run(options: argparse.Namespace) -> int:
    """Trains, and returns 0; 130 or 143 where Ctrl-C or SIGTERM ended the run after it was saved."""
    if options.json is not None and options.dry_run:
        raise TransduceError("`--json` writes how a run ended, and --dry-run begins none: leave one of them out.")
    check_folder(options.out)
    sides = (options.source, options.target, options.dev_source, options.dev_target)
    check_writable(report=options.json, inputs=[options.settings, options.start_from, *(options.teacher or ()), *sides])
    request = run_request(options, Path(options.out), resume=options.resume, dry_run=options.dry_run)
    result = train_in_stages(request)
    if options.json is not None and result is not None and os.environ.get("RANK", "0") == "0":  # of several processes
        write_json(result, options.json)
    return {"SIGINT": 130, "SIGTERM": 143}.get(result.reason, 0) if result is not None else 0


def run_request(options: argparse.Namespace, out: Path, *, resume: bool = False, dry_run: bool = False) -> RunRequest:
    """What the options of `add_run` ask for."""
    content = read_settings(Path(options.settings) if options.settings else None, options.set)
    for option, name in _SETTINGS.items():
        value = getattr(options, option)
        if value is not None:
            put_setting(content, name, value)
    if options.precision != "auto":
        put_setting(content, "training.precision", options.precision)
    return RunRequest(
        settings=content, out=out, resume=resume, dry_run=dry_run, device=options.device, threads=options.threads
    )
