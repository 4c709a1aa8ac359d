"""Commands that check an installation, a model folder, and that runs resume exactly."""

import argparse
from pathlib import Path

from transduce.commands.options import add_computing, check_writable, write_report
from transduce.commands.train import add_run, run_request


def add_check_install_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce check-install`."""
    add = parser.add_argument
    add("model", nargs="?", help="a model folder: show what decodes this model, and why faster backends do not")
    add("--json", metavar="PATH", help="write the report as JSON; -: to standard output")
    add_computing(parser)


def run_check_install(options: argparse.Namespace) -> int:
    """Print the report on the installation: versions, hardware, extras and backends."""
    from transduce.inspection.installation import check_install

    check_writable(report=options.json, inputs=[options.model])
    report = check_install(options.model, precision=options.precision, device=options.device, threads=options.threads)
    write_report(report, options.json)
    return 0


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce verify`."""
    parser.add_argument("folder", help="a model folder of `transduce train` or `transduce import`")
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; -: to standard output")


def run_verify(options: argparse.Namespace) -> int:
    """Verify a model folder, and print what was checked."""
    from transduce.model_folder.upkeep import verify

    check_writable(report=options.json, inputs=[options.folder])
    write_report(verify(options.folder), options.json)
    return 0


def add_verify_resume_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce verify-resume`: the options of `transduce train` that define a run."""
    add_run(parser)
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; -: to standard output")


def run_verify_resume(options: argparse.Namespace) -> int:
    """Compare a resumed run with an uninterrupted one, and print a report; return 0 if they are equal, otherwise 1."""
    from transduce.tasks.run.verification import verify_resume

    read = [options.settings, options.source, options.target, options.dev_source, options.dev_target]
    check_writable(report=options.json, inputs=read)
    report = verify_resume(run_request(options, Path()))
    write_report(report, options.json)
    return 0 if report.equal else 1
