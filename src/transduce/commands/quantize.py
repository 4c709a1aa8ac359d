"""`transduce quantize FOLDER`: quantize a model beforehand, and with `--prove FILE` compare it with float32."""

import argparse

from transduce.commands.options import check_writable, write_report
from transduce.errors import TransduceError
from transduce.text.files import read_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce quantize`."""
    parser.add_argument("folder", help="a model folder of `transduce train` or `transduce import`")
    parser.add_argument(
        "--prove",
        metavar="FILE",
        help="translate these lines in 8 bits and in float32, greedily and with the folder's search settings: if 99 %% "
        "of at least 100 are equal, `--precision auto` takes 8 bits here",
    )
    parser.add_argument(
        "--references",
        metavar="FILE",
        help="with --prove: translations of these lines; BLEU must not differ by over 0.1",
    )
    parser.add_argument("--json", metavar="PATH", help="write the report as JSON; -: to standard output")


def run(options: argparse.Namespace) -> int:
    """Quantize a model, and print where its weights are, or how often it translates like the float32 model."""
    from transduce.model_folder.upkeep import quantize_folder

    check_writable(report=options.json, inputs=[options.folder, options.prove, options.references])
    if options.prove is None:
        if options.references is not None:
            raise TransduceError("`--references` are those of the lines of `--prove`: name these, too.")
        write_report(quantize_folder(options.folder), options.json)
        return 0
    from transduce.inference.evaluate import prove_int8

    references = None if options.references is None else list(read_lines(options.references))
    write_report(prove_int8(options.folder, list(read_lines(options.prove)), references), options.json)
    return 0
