"""`transduce evaluate MODEL --source F --reference F`."""

import argparse
import sys
import time
from pathlib import Path

from transduce.commands.options import (
    add_computing,
    add_glossary,
    add_scoring,
    add_search,
    check_writable,
    decoding_record,
    glossary_from,
    load_translator,
    read_side_by_side,
    search_settings,
    write_report,
)
from transduce.durable import write_file
from transduce.evaluation.scores import score
from transduce.evaluation.tokenizers import choose_tokenizer
from transduce.text.glossary import TermTally


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--source", required=True, metavar="FILE", help="the test set's source sentences, one a line")
    parser.add_argument("--reference", required=True, metavar="FILE", help="their translations by people, one a line")
    parser.add_argument("--output", metavar="FILE", help="write the model's translations here")
    parser.add_argument("--json", metavar="PATH", help="write the scores as JSON; - for standard output")
    add_glossary(parser)
    add_scoring(parser)
    add_search(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Translates the source, scores the result, prints both scores with their signatures."""
    search = search_settings(options, options.model)
    inputs = [options.model, options.source, options.reference, options.glossary]
    check_writable(options.output, report=options.json, inputs=inputs)
    glossary = glossary_from(options)
    sources, references = read_side_by_side(options.source, options.reference)
    translator = load_translator(options.model, options)
    choose_tokenizer(translator.target_language, options.tokenize)  # a wrong one is told before hours of translating
    started_at = time.monotonic()
    hypotheses = [translation.text for translation in translator(sources, search=search, glossary=glossary)]
    elapsed_seconds = time.monotonic() - started_at
    if options.output:
        write_file(Path(options.output), "".join(f"{line}\n" for line in hypotheses).encode())
    report = score(
        hypotheses,
        references,
        target_language=translator.target_language,
        tokenize=options.tokenize,
        lowercase=options.lowercase,
        decoding=decoding_record(search, translator.precision) | ({"glossary": options.glossary} if glossary else {}),
    )
    write_report(report, options.json)
    if glossary:
        tally = TermTally(glossary)
        for number, pair in enumerate(zip(sources, hypotheses, strict=True), 1):
            tally.add(number, *pair)
        sys.stderr.write(f"{tally}\n")
    sys.stderr.write(f"{len(sources):,} sentences in {elapsed_seconds:.1f} s\n")
    return 0
