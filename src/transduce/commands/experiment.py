"""`transduce experiment FILE.toml`: train variants of settings with several seeds, and report which are better."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.commands.options import add_computing, check_writable, write_report
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.tasks.experiments import ExperimentSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce experiment`."""
    add = parser.add_argument
    add("file", metavar="FILE.toml", help="the experiment: variants, seeds and settings")
    add("--jobs", type=int, default=1, metavar="N", help="number of runs at once, which share the cores")
    add(
        "--dry-run",
        action="store_true",
        help="list the runs and their state, check settings and files, and do not train",
    )
    add("--json", metavar="PATH", help="write the report as JSON; -: to standard output")
    add_computing(parser, int8=False)


def run(options: argparse.Namespace) -> int:
    """Run an experiment and print its table; return 1 if a run failed."""
    from transduce.inspection.experiments import REPORT, experiment
    from transduce.tasks.experiments import read_experiment

    check_writable(report=options.json, inputs=[options.file])
    if options.dry_run:
        return _dry_run(read_experiment(options.file), options.device)
    report = experiment(
        options.file,
        jobs=options.jobs,
        device=options.device,
        threads=options.threads,
        precision=options.precision,
    )
    write_report(report, options.json)
    if options.json != "-":
        print(localized(f"The report is in {Path(read_experiment(options.file).out) / REPORT}."))
    return 1 if report.failures else 0


def _dry_run(experiment: "ExperimentSettings", device: str) -> int:
    """List the runs of an experiment and what keeps them from starting; return 1 if something does."""
    from transduce.tasks.experiments import expand, find_problems

    problems = list[str]()
    runs = expand(experiment, problems)
    for each in runs:
        state = "finished" if each.result() else "started" if each.folder.exists() else "new"
        print(localized(f"{each.variant}, seed {each.seed}: {state}, {each.folder}"))
    problems += find_problems(experiment, runs, device)
    for problem in problems:
        print(localized(problem), file=sys.stderr)
    return 1 if problems else 0
