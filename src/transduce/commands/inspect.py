"""`transduce inspect MODEL "sentence"`, also of one pronoun in it."""

import argparse
import sys
from pathlib import Path

import msgspec
import numpy as np

from transduce.commands.options import (
    add_computing,
    add_search,
    check_writable,
    load_translator,
    search_settings,
    text_argument,
)
from transduce.durable import write_file
from transduce.errors import TransduceError
from transduce.inspection.attention import WordAttention
from transduce.inspection.coreference import pronoun_attention
from transduce.inspection.payload import Inspection
from transduce.inspection.pronouns import PronounAttention
from transduce.inspection.sentence import inspect_sentence
from transduce.inspection.terminal import draw_inspection
from transduce.runtime.loading import load
from transduce.runtime.translator import Translator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.add_argument("model", help="a model folder")
    parser.add_argument("sentence", type=text_argument, help="what to translate and look into")
    parser.add_argument("--html", metavar="PATH", help="write a page that needs nothing else: open it in a browser")
    parser.add_argument("--json", metavar="PATH", help="write what the page shows as JSON; - for standard output")
    parser.add_argument(
        "--pronoun",
        type=text_argument,
        metavar="WORD",
        help="show where each head looks from this word of the sentence",
    )
    parser.add_argument(
        "--antecedent", type=text_argument, metavar="WORD", help="what it stands for: heads that point there are marked"
    )
    parser.add_argument(
        "--among", nargs="+", type=text_argument, metavar="WORD", help="the earlier words that it may stand for"
    )
    parser.add_argument(
        "--translation-of",
        type=text_argument,
        metavar="TEXT",
        help="the sentence is the target of this one: its decoder is asked",
    )
    add_search(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the translation, each piece's probability and the word alignment; writes the page where asked.

    Of a pronoun it prints where each head looks; a model that translates nothing has only that to show.
    """
    check_writable(options.html, report=options.json, inputs=[options.model])
    _check_pronoun(options)
    search_settings(options, options.model)  # refuses what is out of range before a model is loaded
    if options.pronoun is None:
        translator = load_translator(options.model, options)
        inspection = inspect_sentence(translator, options.sentence, search=search_settings(options, options.model))
        return _show(options, inspection, draw_inspection(inspection, _attention(inspection)))
    reader = load(options.model, precision=options.precision, device=options.device, threads=options.threads)
    found = pronoun_attention(
        reader,
        options.sentence,
        options.pronoun,
        antecedent=options.antecedent,
        among=options.among,
        translation_of=options.translation_of,
    )
    if isinstance(reader, Translator) and options.translation_of is None:
        inspection = inspect_sentence(reader, options.sentence, search=search_settings(options, options.model))
        inspection = msgspec.structs.replace(inspection, coreference=found)
        return _show(options, inspection, f"{draw_inspection(inspection, _attention(inspection))}\n\n{found.draw()}")
    if options.html is not None:
        raise TransduceError("The page shows a translation and how it was made, and here is none: leave out --html.")
    return _show(options, found, found.draw())


def _check_pronoun(options: argparse.Namespace) -> None:
    for name in ("antecedent", "among", "translation_of"):
        if vars(options)[name] is not None and options.pronoun is None:
            raise TransduceError(f"`--{name.replace('_', '-')}` says more about a pronoun: give --pronoun too.")


def _show(options: argparse.Namespace, found: Inspection | PronounAttention, drawn: str) -> int:
    """Prints it, or what it is as JSON, and writes what was asked for."""
    if options.html is not None and isinstance(found, Inspection):
        write_file(Path(options.html), found.to_html().encode())
    content = msgspec.json.encode(found) + b"\n"
    if options.json == "-":
        sys.stdout.buffer.write(content)
    else:
        if options.json is not None:
            write_file(Path(options.json), content)
        sys.stdout.buffer.write(f"{drawn}\n".encode())
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
