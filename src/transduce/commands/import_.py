"""`transduce import FOLDER OUT`."""

import argparse

from transduce.commands.options import check_folder, check_writable, write_report
from transduce.runtime.importing import import_model_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.formatter_class = argparse.HelpFormatter
    add = parser.add_argument
    add("folder", help="a Hugging Face folder: config.json, model.safetensors and the tokenizer's own files")
    add("out", help="the folder to make")
    add("--source-language", metavar="TAG", help="what to translate from where nothing else is said: zho_Hans, zh_CN")
    add("--target-language", metavar="TAG", help="what to translate into where nothing else is said: eng_Latn, >>fra<<")
    add("--json", metavar="PATH", help="write what was imported as JSON; - for standard output")


def run(options: argparse.Namespace) -> int:
    """Imports, and prints what."""
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
