"""`transduce demo`: train a small translator on the built-in corpus."""

import argparse
import os
import shlex
import shutil
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from transduce.commands.options import DEMO_STEPS, add_computing, check_folder, check_writable, write_report
from transduce.errors import TransduceError
from transduce.ui_language import localized


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce demo`."""
    add = parser.add_argument
    add("--out", default="models/demo", metavar="DIR", help="the run's folder")
    add("--steps", type=int, default=DEMO_STEPS, metavar="N", help="training steps")
    add("--seed", type=int, default=1, metavar="N", help="random seed of training")
    add("--again", action="store_true", help="remove an earlier demonstration in DIR and train again")
    add("--json", metavar="PATH", help="write the result as JSON; -: to standard output")
    add_computing(parser, int8=False)


def run(options: argparse.Namespace) -> int:
    """Train a translator; print samples and the share of held-out sentences that it translates exactly right."""
    from transduce.demonstration.run import SENTENCES, demo

    check_folder(options.out)
    check_writable(report=options.json)
    if options.again:
        _remove_run(Path(options.out))
    with redirect_stdout(sys.stderr) if options.json == "-" else nullcontext():
        result = demo(
            options.out,
            seed=options.seed,
            steps=options.steps,
            device=options.device,
            threads=options.threads,
            precision=options.precision,
        )
        command = f'transduce inspect {shlex.quote(options.out)} "{SENTENCES[-1]}"'
        sys.stdout.write(localized(f"\nNext: {_activation()}{command}\n"))
        sys.stdout.flush()
    write_report(result, options.json)
    return 0


def _activation() -> str:
    """Return the command that activates `make demo`'s environment; empty if the environment is active or not in use."""
    of_make = Path(sys.prefix).resolve() == Path(".venv").resolve() and "VIRTUAL_ENV" not in os.environ
    return "source .venv/bin/activate, then: " if of_make else ""


def _remove_run(folder: Path) -> None:
    """Remove the folder of an earlier demonstration; refuse any other folder."""
    from transduce.demonstration.run import refuse_other_run
    from transduce.tasks.run.run_folder import SETTINGS_FILE

    if folder.exists() and not (folder / SETTINGS_FILE).exists():
        raise TransduceError(f"`--again` removes a run, but {folder} holds none: choose another folder with --out.")
    refuse_other_run(folder)
    shutil.rmtree(folder, ignore_errors=True)
