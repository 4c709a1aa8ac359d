"""`transduce verify FOLDER`: verify a model folder."""

import argparse

from transduce.commands.options import check_writable, write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce verify`."""
    parser.add_argument("folder", help="a model folder of `transduce train` or `transduce import`")
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; -: to standard output")


def run(options: argparse.Namespace) -> int:
    """Verify a model folder, and print what was checked."""
    from transduce.model_folder.upkeep import verify

    check_writable(report=options.json, inputs=[options.folder])
    write_report(verify(options.folder), options.json)
    return 0
