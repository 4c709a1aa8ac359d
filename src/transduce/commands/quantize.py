"""`transduce quantize FOLDER`: quantize a model beforehand."""

import argparse

from transduce.commands.options import check_writable, write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce quantize`."""
    parser.add_argument("folder", help="a model folder of `transduce train` or `transduce import`")
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; -: to standard output")


def run(options: argparse.Namespace) -> int:
    """Quantize a model, and print where its weights are."""
    from transduce.model_folder.upkeep import quantize_folder

    check_writable(report=options.json, inputs=[options.folder])
    write_report(quantize_folder(options.folder), options.json)
    return 0
