"""`transduce import FOLDER OUT`: convert a Hugging Face model to a model folder."""

import argparse

from transduce.commands.options import check_folder, check_writable, write_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce import`."""
    add = parser.add_argument
    add("folder", help="a Hugging Face folder: config.json, model.safetensors and the tokenizer's files")
    add("out", help="the folder to create")
    add("--source-language", metavar="TAG", help="default source language of the imported model: zho_Hans, zh_CN")
    add("--target-language", metavar="TAG", help="default target language of the imported model: eng_Latn, >>fra<<")
    add("--json", metavar="PATH", help="write what was imported as JSON; -: to standard output")


def run(options: argparse.Namespace) -> int:
    """Import a model, and print a report on it."""
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
