"""`transduce check-install [MODEL]`: report versions, hardware, extras and the selected backends."""

import argparse

from transduce.commands.options import add_computing, check_writable, write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce check-install`."""
    add = parser.add_argument
    add("model", nargs="?", help="a model folder: show what decodes this model, and why faster backends do not")
    add("--json", metavar="PATH", help="write the report as JSON; -: to standard output")
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Print the report on the installation: versions, hardware, extras and backends."""
    from transduce.inspection.installation import check_install

    check_writable(report=options.json, inputs=[options.model])
    report = check_install(options.model, precision=options.precision, device=options.device, threads=options.threads)
    write_report(report, options.json)
    return 0
