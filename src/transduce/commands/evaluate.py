"""`transduce evaluate MODEL --source F --reference F`."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from transduce.commands.options import (
    add_computing,
    add_examples,
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
from transduce.evaluation.variants import Variant, Variants, count_otherwise
from transduce.runtime.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.text.glossary import Glossary, TermTally

# Beam size and length penalty of scores that are often reported.
_SEARCHES = (
    ("greedy search", 1, 0.6),
    ("beam 4, length penalty 0.6 (the paper)", 4, 0.6),
    ("beam 5, length penalty 1", 5, 1.0),
    ("beam 4, no length penalty", 4, 0.0),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's options."""
    parser.add_argument("model", help="a model folder")
    parser.add_argument("--source", required=True, metavar="FILE", help="the test set's source sentences, one a line")
    parser.add_argument("--reference", required=True, metavar="FILE", help="their translations by people, one a line")
    parser.add_argument("--output", metavar="FILE", help="write the model's translations here")
    parser.add_argument("--json", metavar="PATH", help="write the scores as JSON; - for standard output")
    parser.add_argument(
        "--variants",
        action="store_true",
        help="tell besides what BLEU would be with other tokenizers and cases, and by other searches",
    )
    add_glossary(parser)
    add_examples(parser)
    add_scoring(parser)
    add_search(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Translates the source, scores the result, prints both scores with their signatures."""
    search = search_settings(options, options.model)
    inputs = [options.model, options.source, options.reference, options.glossary, options.examples]
    check_writable(options.output, report=options.json, inputs=inputs)
    glossary = glossary_from(options)
    sources, references = read_side_by_side(options.source, options.reference)
    translator = load_translator(options.model, options)
    choose_tokenizer(translator.target_language, options.tokenize)  # a wrong one is told before hours of translating
    started_at = time.monotonic()
    hypotheses = _texts(translator, sources, search, glossary)
    elapsed_seconds = time.monotonic() - started_at
    if options.output:
        write_file(Path(options.output), "".join(f"{line}\n" for line in hypotheses).encode())
    counting = {
        "target_language": translator.target_language,
        "tokenize": options.tokenize,
        "lowercase": options.lowercase,
    }
    used = {"glossary": options.glossary if glossary else None, "examples": options.examples}
    named = {name: path for name, path in used.items() if path}
    report = score(hypotheses, references, decoding=decoding_record(search, translator.precision) | named, **counting)
    if options.variants:
        others = [
            Variant(way, score(_texts(translator, sources, other, glossary), references, **counting).bleu)
            for way, other in _other_searches(search)
        ]
        counted = count_otherwise(hypotheses, references, **counting)
        write_report(Variants(scored=report, counted=counted, searched=tuple(others)), options.json)
    else:
        write_report(report, options.json)
    if glossary:
        tally = TermTally(glossary)
        for number, pair in enumerate(zip(sources, hypotheses, strict=True), 1):
            tally.add(number, *pair)
        sys.stderr.write(f"{tally}\n")
    sys.stderr.write(f"{len(sources):,} sentences in {elapsed_seconds:.1f} s\n")
    return 0


def _texts(
    translator: Translator, sources: Sequence[str], search: SearchSettings, glossary: Glossary | None
) -> list[str]:
    return [found.text for found in translator.translate(sources, search, glossary=glossary)]


def _other_searches(search: SearchSettings) -> Iterator[tuple[str, SearchSettings]]:
    """Those that others report, but for the one that was used."""
    for way, beam_size, length_penalty in _SEARCHES:
        said = (beam_size, length_penalty if beam_size > 1 else search.length_penalty)
        if said != (search.beam_size, search.length_penalty) or search.sampling is not None:
            yield (
                way,
                msgspec.structs.replace(
                    search,
                    beam_size=beam_size,
                    length_penalty=length_penalty,
                    n_best=1,
                    sampling=None,
                    diverse_groups=1,
                    coverage_penalty=search.coverage_penalty if beam_size > 1 else 0.0,
                ),
            )
