"""`transduce verify-resume settings.toml`, or with the options of `train`: check that resuming is exact."""

import argparse
from pathlib import Path

from transduce.commands.options import check_writable, write_report
from transduce.commands.train import add_run, run_request


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce verify-resume`: those of `train` that define a run."""
    add_run(parser)
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; -: to standard output")


def run(options: argparse.Namespace) -> int:
    """Print a report, and return 0 if the runs are equal, otherwise 1."""
    from transduce.tasks.run.verification import verify_resume

    read = [options.settings, options.source, options.target, options.dev_source, options.dev_target]
    check_writable(report=options.json, inputs=read)
    report = verify_resume(run_request(options, Path()))
    write_report(report, options.json)
    return 0 if report.equal else 1
