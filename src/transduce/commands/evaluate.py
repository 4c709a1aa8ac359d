"""`transduce evaluate MODEL --source F --reference F`: translate or classify a test set and score the result."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transduce.atomic_io import write_file
from transduce.commands.options import (
    add_computing,
    add_datastore,
    add_glossary,
    add_scoring,
    add_search,
    check_writable,
    glossary_from,
    load_translator,
    read_aligned_lines,
    search_settings,
    write_report,
)
from transduce.errors import TransduceError
from transduce.text.glossary import Glossary, TermTally
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inference.translator import Translator
    from transduce.search.settings import SearchSettings

# Common settings of published scores: beam size and length penalty.
_SEARCHES = (
    ("greedy search", 1, 0.6),
    ("beam 4, length penalty 0.6 (the paper)", 4, 0.6),
    ("beam 5, length penalty 1", 5, 1.0),
    ("beam 4, no length penalty", 4, 0.0),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce evaluate`."""
    add = parser.add_argument
    add("model", help="a model folder")
    add("--source", required=True, metavar="FILE", help="source sentences of the test set, one per line; or texts")
    add("--reference", required=True, metavar="FILE", help="their human translations, one per line; or their labels")
    add("--output", metavar="FILE", help="write the model's translations here")
    add("--json", metavar="PATH", help="write the scores as JSON; -: to standard output")
    add(
        "--variants",
        action="store_true",
        help="also print BLEU with other tokenizers, other treatment of case, and other searches",
    )
    add_glossary(parser)
    add_datastore(parser)
    add_scoring(parser)
    add_search(parser)
    add_computing(parser)


def run(options: argparse.Namespace) -> int:
    """Translate the source, score the result, and print both scores with their signatures."""
    from transduce.evaluation.scores import choose_tokenizer, score
    from transduce.evaluation.variants import Variant, Variants, count_variants
    from transduce.inference.evaluate import decoding_record

    search = search_settings(options, options.model)
    inputs = [options.model, options.source, options.reference, options.glossary, options.datastore]
    check_writable(options.output, report=options.json, inputs=inputs)
    glossary = glossary_from(options)
    sources, references = read_aligned_lines(options.source, options.reference)
    if _is_classifier(options.model):
        return _evaluate_classifier(options, sources, references)
    translator = load_translator(options.model, options)
    choose_tokenizer(translator.target_language, options.tokenize)  # check the tokenizer before hours of translating
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
    used = {"glossary": options.glossary if glossary else None, "datastore": options.datastore}
    named = {name: path for name, path in used.items() if path}
    report = score(hypotheses, references, decoding=decoding_record(search, translator.precision) | named, **counting)
    if options.variants:
        searched = [
            Variant(way, score(_texts(translator, sources, other, glossary), references, **counting).bleu)
            for way, other in _other_searches(search)
        ]
        counted = count_variants(hypotheses, references, **counting)
        write_report(Variants(scored=report, counted=counted, searched=tuple(searched)), options.json)
    else:
        write_report(report, options.json)
    if glossary:
        tally = TermTally(glossary)
        for number, pair in enumerate(zip(sources, hypotheses, strict=True), 1):
            tally.add(number, *pair)
        sys.stderr.write(localized(f"{tally}\n"))
    sys.stderr.write(localized(f"{len(sources):,} sentences in {elapsed_seconds:.1f} s\n"))
    return 0


def _is_classifier(model: str) -> bool:
    """Return whether a folder holds a text classifier.

    Raises:
        TransduceError: the folder holds a tagger, which another command measures.
    """
    from transduce.model_folder.cards import find_task_card

    card = find_task_card(Path(model)) if Path(model).is_dir() else None
    if card is not None and card.kind == "tagging":
        raise TransduceError(
            f"`evaluate` scores translations and classes, but {model} is a tagger: `transduce tag {model} FILE "
            "--score` reports its accuracy and the F1 of spans."
        )
    return card is not None and card.kind == "classification"


# Options that only translations have.
_OF_TRANSLATIONS = (
    "tag",
    "variants",
    "glossary",
    "datastore",
    "tokenize",
    "lowercase",
    "source_language",
    "target_language",
)


def _evaluate_classifier(options: argparse.Namespace, texts: list[str], labels: list[str]) -> int:
    """Classify the texts, and print accuracy, macro F1, the scores of each label and a confusion table."""
    from transduce.evaluation.scores import score_labels
    from transduce.inference.classifier import load_classifier
    from transduce.inference.evaluate import check_labels

    for name in _OF_TRANSLATIONS:
        if vars(options).get(name):
            raise TransduceError(
                f"`--{name.replace('_', '-')}` is for translations, but {options.model} is a classifier: leave it out."
            )
    classifier = load_classifier(
        options.model, precision=options.precision, device=options.device, threads=options.threads
    )
    check_labels(classifier, labels, f"{options.reference}:1")
    predicted = [each.label for each in classifier(texts)]
    if options.output:
        write_file(Path(options.output), "".join(f"{label}\n" for label in predicted).encode())
    report = score_labels(predicted, labels)
    write_report(report, options.json)
    if options.json != "-":
        sys.stdout.write(localized(f"\n{report.table()}\n"))
    return 0


def _texts(
    translator: "Translator", sources: Sequence[str], search: "SearchSettings", glossary: Glossary | None
) -> list[str]:
    from transduce.inference.batching import Documents

    translations = translator.translate(sources, search, glossary=glossary, documents=Documents.of_lines(sources))
    return [translation.text for translation in translations]


def _other_searches(search: "SearchSettings") -> "Iterator[tuple[str, SearchSettings]]":
    """Yield names and settings of the usual greedy and beam searches that differ from the one used."""
    for way, beam_size, length_penalty in _SEARCHES:
        settings = (beam_size, length_penalty if beam_size > 1 else search.length_penalty)
        if settings != (search.beam_size, search.length_penalty) or search.sampling is not None:
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
