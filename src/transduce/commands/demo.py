"""`transduce demo`."""

import argparse
import shutil
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from transduce.commands.options import add_computing, check_folder, check_writable, write_report
from transduce.demo import STEPS, demo, refuse_other_run
from transduce.errors import TransduceError
from transduce.tasks.new_run import SETTINGS_FILE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.add_argument("--out", default="models/demo", metavar="DIR", help="the run's folder")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="of training")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of training")
    parser.add_argument("--again", action="store_true", help="remove an earlier demonstration in DIR and train anew")
    parser.add_argument("--json", metavar="PATH", help="write the result as JSON; - for standard output")
    add_computing(parser, int8=False)


def run(options: argparse.Namespace) -> int:
    """Trains, shows, and ends with the share of held-out sentences that came out exactly right."""
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
        sys.stdout.write("\n")
        sys.stdout.flush()
    write_report(result, options.json)
    return 0


def _remove_run(folder: Path) -> None:
    """Removes a folder that a demonstration made, and no other."""
    if folder.exists() and not (folder / SETTINGS_FILE).exists():
        raise TransduceError(f"`--again` removes a run, but {folder} holds none: name another folder with --out.")
    refuse_other_run(folder)
    shutil.rmtree(folder, ignore_errors=True)
