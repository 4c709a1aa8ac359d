"""`transduce experiment FILE.toml`: train variants of settings with several seeds, and report which are better."""

import argparse
from pathlib import Path

from transduce.commands.options import add_computing, check_writable, write_report
from transduce.ui_language import localized


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce experiment`."""
    add = parser.add_argument
    add("file", metavar="FILE.toml", help="the experiment: variants, seeds and settings")
    add("--jobs", type=int, default=1, metavar="N", help="number of runs at once, which share the cores")
    add("--dry-run", action="store_true", help="list the runs and their state, and do not train")
    add("--json", metavar="PATH", help="write the report as JSON; -: to standard output")
    add_computing(parser, int8=False)


def run(options: argparse.Namespace) -> int:
    """Run an experiment and print its table; return 1 if a run failed."""
    from transduce.inspection.experiments import REPORT, experiment
    from transduce.tasks.experiments import expand, read_experiment

    check_writable(report=options.json, inputs=[options.file])
    if options.dry_run:
        for each in expand(read_experiment(options.file)):
            state = "finished" if each.result() else "started" if each.folder.exists() else "new"
            print(localized(f"{each.variant}, seed {each.seed}: {state}, {each.folder}"))
        return 0
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
