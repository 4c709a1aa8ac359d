"""`transduce verify-resume settings.toml`, or with the options of `train`."""

import argparse
from pathlib import Path

from transduce.commands.options import check_writable, write_report
from transduce.commands.train import add_run, run_request
from transduce.tasks.verification import verify_resume


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options: those of `train` that decide a run."""
    add_run(parser)
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; - for standard output")


def run(options: argparse.Namespace) -> int:
    """Prints what was found, and returns 0 where the runs are equal; 1 where they are not."""
    read = [options.settings, options.source, options.target, options.dev_source, options.dev_target]
    check_writable(report=options.json, inputs=read)
    report = verify_resume(run_request(options, Path()))
    write_report(report, options.json)
    return 0 if report.equal else 1
