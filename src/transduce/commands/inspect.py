"""`transduce inspect MODEL "sentence"`: show how a sentence is translated, or what a pronoun attends to."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transduce.atomic_io import write_file
from transduce.commands.options import (
    ATTRIBUTION_METHODS,
    add_computing,
    add_search,
    check_writable,
    load_translator,
    search_settings,
    text_argument,
)
from transduce.errors import TransduceError
from transduce.text.sentences import find_sentences

if TYPE_CHECKING:
    from transduce.inference.translator import Translator
    from transduce.inspection.attention import WordAttention
    from transduce.inspection.pronouns import PronounAttention
    from transduce.inspection.sentence_view import Inspection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce inspect`."""
    add = parser.add_argument
    add("model", help="a model folder")
    add("sentence", type=text_argument, help="the sentence to translate and inspect")
    add("--html", metavar="PATH", help="write a self-contained page for a browser")
    add("--json", metavar="PATH", help="write the content of the page as JSON; -: to standard output")
    add(
        "--attribution",
        choices=ATTRIBUTION_METHODS,
        help="show which source words made each word of the translation, by this method, in place of attention",
    )
    pronoun = parser.add_argument_group("pronoun")
    pronoun.add_argument(
        "--pronoun", type=text_argument, metavar="WORD", help="show what each head attends to from this word"
    )
    pronoun.add_argument(
        "--antecedent", type=text_argument, metavar="WORD", help="its antecedent: heads that attend to it are marked"
    )
    pronoun.add_argument(
        "--among", nargs="+", type=text_argument, metavar="WORD", help="the earlier words that may be its antecedent"
    )
    pronoun.add_argument(
        "--translation-of",
        type=text_argument,
        metavar="TEXT",
        help="take the sentence as the target of this source, and inspect the decoder",
    )
    add_search(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Print the translation with token probabilities and word alignment; write the page if requested.

    With --pronoun, print what each head attends to; a model that does not translate shows only that.
    """
    from transduce.inference.load import load
    from transduce.inference.translator import Translator
    from transduce.inspection.attribution import attribute
    from transduce.inspection.coreference import pronoun_attention
    from transduce.inspection.sentence import inspect_sentence
    from transduce.inspection.sentence_view import WordAlignment, draw_inspection

    check_writable(options.html, report=options.json, inputs=[options.model])
    _check_pronoun(options)
    search_settings(options, options.model)  # check the options before a model is loaded
    if options.pronoun is None:
        translator = load_translator(options.model, options)
        _report_sentences(translator, options.sentence)
        inspection = inspect_sentence(translator, options.sentence, search=search_settings(options, options.model))
        if options.attribution is not None:
            if options.html is not None:
                raise TransduceError("--attribution is drawn in the terminal and written by --json: leave --html out.")
            found = attribute(translator, options.sentence, inspection.translation, method=options.attribution)
            weights = tuple(tuple(round(float(share), 3) for share in row) for row in found.shares())
            words = WordAlignment(found.source_words, found.target_words, weights)
            inspection = msgspec.structs.replace(inspection, words=words)
        method = options.attribution
        title = (
            f"attribution by {method}: a darker source word contributed more to the word of its row" if method else ""
        )
        drawn = draw_inspection(inspection, _attention(inspection), title)
        return _show(options, inspection, drawn)
    reader = load(options.model, precision=options.precision, device=options.device, threads=options.threads)
    result = pronoun_attention(
        reader,
        options.sentence,
        options.pronoun,
        antecedent=options.antecedent,
        among=options.among,
        translation_of=options.translation_of,
    )
    if isinstance(reader, Translator) and options.translation_of is None:
        inspection = inspect_sentence(reader, options.sentence, search=search_settings(options, options.model))
        inspection = msgspec.structs.replace(inspection, coreference=result)
        return _show(options, inspection, f"{draw_inspection(inspection, _attention(inspection))}\n\n{result.draw()}")
    if options.html is not None:
        raise TransduceError("--html shows how a sentence is translated, but there is no translation: leave it out.")
    return _show(options, result, result.draw())


def _report_sentences(translator: "Translator", text: str) -> None:
    """Report a text with several sentences, which are inspected as one input, but which translation would divide."""
    sentences = len(find_sentences(text, translator.source_language))
    if sentences > 1 and not translator.is_plain_sentence(text):
        sys.stderr.write(
            f"warning: the text has {sentences} sentences, which are inspected as one input, while translation takes "
            "each by itself: pass a single sentence to see how it is translated.\n"
        )


def _check_pronoun(options: argparse.Namespace) -> None:
    for name in ("antecedent", "among", "translation_of"):
        if vars(options)[name] is not None and options.pronoun is None:
            raise TransduceError(f"`--{name.replace('_', '-')}` needs --pronoun: pass that too.")
    if options.attribution is not None and options.pronoun is not None:
        raise TransduceError("--attribution explains a translation, and --pronoun one word: pass one of them.")


def _show(options: argparse.Namespace, result: "Inspection | PronounAttention", drawn: str) -> int:
    """Print a result as text or JSON, and write the requested files."""
    from transduce.inspection.sentence_view import Inspection

    if options.html is not None and isinstance(result, Inspection):
        write_file(Path(options.html), result.to_html().encode())
    content = msgspec.json.encode(result) + b"\n"
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


def _attention(inspection: "Inspection") -> "WordAttention":
    import numpy as np

    from transduce.inspection.attention import WordAttention

    words = inspection.words
    shape = len(words.target_words), len(words.source_words)
    return WordAttention(
        words.source_words, words.target_words, np.array(words.weights, dtype=np.float32).reshape(shape)
    )
