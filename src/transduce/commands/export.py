"""`transduce export MODEL OUT --to ctranslate2|onnx|huggingface`."""

import argparse

from transduce.commands.options import (
    add_computing,
    check_folder,
    check_writable,
    read_side_by_side,
    write_report,
)
from transduce.errors import TransduceError
from transduce.interop.ctranslate2 import QUANTIZATIONS
from transduce.runtime.export import FORMATS, export
from transduce.text.files import read_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.formatter_class = argparse.HelpFormatter
    add = parser.add_argument
    add("model", help="a model folder")
    add("out", help="the folder to make")
    add("--to", required=True, choices=FORMATS, help="whose form the model is to have")
    add(
        "--quantization",
        choices=QUANTIZATIONS,
        help="how CTranslate2 stores weights; float32 where nothing is said, int8 is smallest",
    )
    add("--source", metavar="FILE", help="sentences to compare both models on; the run's dev set where nothing is said")
    add("--reference", metavar="FILE", help="their translations by people: both models are scored, greedily")
    add("--json", metavar="PATH", help="write the comparison as JSON; - for standard output")
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Exports, and prints how far the result agrees with the model."""
    check_writable(report=options.json, inputs=[options.model, options.source, options.reference])
    for option, value, only in (("device", options.device, "cpu"), ("precision", options.precision, "fp32")):
        if value not in ("auto", only):
            raise TransduceError(f"Both models are compared with --{option} {only}, but it is {value}: leave it out.")
    if options.reference and not options.source:
        raise TransduceError("References are translations of sources: name these with --source.")
    check_folder(options.out)
    sources, references = None, None
    if options.reference:
        sources, references = read_side_by_side(options.source, options.reference)
    elif options.source:
        sources = list(read_lines(options.source))
    report = export(
        options.model,
        options.out,
        to=options.to,
        quantization=options.quantization,
        sources=sources,
        references=references,
        threads=options.threads,
    )
    write_report(report, options.json)
    return 0
