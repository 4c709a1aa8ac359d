"""Commands that convert models: `export`, `import` from Hugging Face, and `quantize`."""

import argparse

from transduce.commands.options import (
    EXPORT_FORMATS,
    QUANTIZATIONS,
    add_computing,
    check_folder,
    check_writable,
    read_aligned_lines,
    write_report,
)
from transduce.errors import TransduceError
from transduce.text.files import read_lines


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce export` in its argparse parser."""
    add = parser.add_argument
    add("model", help="a model folder")
    add("out", help="the folder to create")
    add("--to", required=True, choices=EXPORT_FORMATS, help="target format")
    add(
        "--quantization",
        choices=QUANTIZATIONS,
        metavar="TYPE",
        help=f"how CTranslate2 stores weights: {', '.join(QUANTIZATIONS)}; int8 is smallest (default: float32)",
    )
    add(
        "--target-language",
        metavar="CODE",
        help="target language of a model of several; --to huggingface takes all of them if none is named",
    )
    add("--json", metavar="PATH", help="write the comparison as JSON; -: to standard output")
    texts = parser.add_argument_group("texts of the comparison")
    texts.add_argument(
        "--source", metavar="FILE", help="sentences to compare both models on (default: the dev set of the run)"
    )
    texts.add_argument(
        "--reference", metavar="FILE", help="human translations of --source: score both models with greedy search"
    )
    add_computing(parser)


def run_export(options: argparse.Namespace) -> int:
    """Export a model to another format, print how well the export agrees with the model, and return 0."""
    from transduce.exchange.export import export

    check_writable(report=options.json, inputs=[options.model, options.source, options.reference])
    for option, value, only in (("device", options.device, "cpu"), ("precision", options.precision, "fp32")):
        if value not in ("auto", only):
            raise TransduceError(
                f"The comparison of both models needs --{option} {only}, but it is {value}: leave it out."
            )
    if options.reference and not options.source:
        raise TransduceError("--reference needs the sources that it translates: pass --source too.")
    check_folder(options.out)
    sources, references = None, None
    if options.reference:
        sources, references = read_aligned_lines(options.source, options.reference)
    elif options.source:
        sources = list(read_lines(options.source))
    report = export(
        options.model,
        options.out,
        to=options.to,
        quantization=options.quantization,
        sources=sources,
        references=references,
        target_language=options.target_language,
        threads=options.threads,
    )
    write_report(report, options.json)
    return 0


def add_import_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce import` in its argparse parser."""
    add = parser.add_argument
    add("folder", help="a Hugging Face folder: config.json, model.safetensors and the tokenizer's files")
    add("out", help="the folder to create")
    add("--source-language", metavar="TAG", help="default source language of the imported model: zho_Hans, zh_CN")
    add("--target-language", metavar="TAG", help="default target language of the imported model: eng_Latn, >>fra<<")
    add("--json", metavar="PATH", help="write what was imported as JSON; -: to standard output")


def run_import(options: argparse.Namespace) -> int:
    """Convert a Hugging Face folder to a model folder, print a report on the model, and return 0."""
    from transduce.exchange.import_folder import import_model_folder

    check_writable(report=options.json, inputs=[options.folder])
    check_folder(options.out)
    report = import_model_folder(
        options.folder,
        options.out,
        source_language=options.source_language,
        target_language=options.target_language,
    )
    write_report(report, options.json)
    return 0


# --- quantize ---


def add_quantize_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce quantize` in its argparse parser."""
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


def run_quantize(options: argparse.Namespace) -> int:
    """Store a model's weights in 8 bits, print a report and return 0.

    With --prove, how often the model then translates as in float32 is also measured, printed and stored.
    """
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
