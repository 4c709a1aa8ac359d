"""`transduce inspect MODEL "sentence"`."""

import argparse
import sys
from pathlib import Path

import msgspec
import numpy as np

from transduce.commands.options import add_computing, add_search, check_writable, load_translator, search_settings
from transduce.durable import write_file
from transduce.inspection.attention import WordAttention
from transduce.inspection.payload import Inspection
from transduce.inspection.sentence import inspect_sentence
from transduce.inspection.terminal import draw_inspection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.add_argument("model", help="a model folder")
    parser.add_argument("sentence", help="what to translate and look into")
    parser.add_argument("--html", metavar="PATH", help="write a page that needs nothing else: open it in a browser")
    parser.add_argument("--json", metavar="PATH", help="write what the page shows as JSON; - for standard output")
    add_search(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the translation, each piece's probability and the word alignment; writes the page where asked."""
    check_writable(options.html, None if options.json == "-" else options.json)
    search = search_settings(options)
    inspection = inspect_sentence(load_translator(options.model, options), options.sentence, search=search)
    if options.html is not None:
        write_file(Path(options.html), inspection.to_html().encode())
    content = msgspec.json.encode(inspection) + b"\n"
    if options.json == "-":
        sys.stdout.buffer.write(content)
    else:
        if options.json is not None:
            write_file(Path(options.json), content)
        sys.stdout.buffer.write(f"{draw_inspection(inspection, _attention(inspection))}\n".encode())
    sys.stdout.buffer.flush()
    if options.html is not None:
        sys.stderr.write(f"The page is {options.html}: open it in a browser.\n")
    return 0


def _attention(inspection: Inspection) -> WordAttention:
    words = inspection.words
    shape = len(words.target_words), len(words.source_words)
    return WordAttention(
        words.source_words, words.target_words, np.array(words.weights, dtype=np.float32).reshape(shape)
    )
