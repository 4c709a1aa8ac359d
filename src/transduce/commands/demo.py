"""`transduce demo`."""

import argparse
import shutil
import sys
from pathlib import Path

from transduce.commands.options import check_folder
from transduce.demo import STEPS, demo
from transduce.errors import TransduceError
from transduce.tasks.new_run import SETTINGS_FILE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.add_argument("--out", default="models/demo", metavar="DIR", help="the run's folder")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help="of training")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of training")
    parser.add_argument("--again", action="store_true", help="remove an earlier demonstration in DIR and train anew")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--threads", type=int, metavar="N", help="threads to compute with")


def run(options: argparse.Namespace) -> int:
    """Trains, shows, and ends with the share of held-out sentences that came out exactly right."""
    check_folder(options.out)
    if options.again:
        _remove_run(Path(options.out))
    result = demo(options.out, seed=options.seed, steps=options.steps, device=options.device, threads=options.threads)
    sys.stdout.write(f"\n{result}\n")
    return 0


def _remove_run(folder: Path) -> None:
    """Removes a folder that a run made, and no other."""
    if folder.exists() and not (folder / SETTINGS_FILE).exists():
        raise TransduceError(f"`--again` removes a run, but {folder} holds none: name another folder with --out.")
    shutil.rmtree(folder, ignore_errors=True)
