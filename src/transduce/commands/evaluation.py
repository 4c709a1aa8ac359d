"""Commands that measure translations: `evaluate`, `compare`, `score` and `estimate-quality`."""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from transduce.atomic_io import write_file
from transduce.commands.options import (
    LANGUAGE_OPTIONS,
    SEARCH_OPTIONS,
    add_computing,
    add_datastore,
    add_glossary,
    add_json,
    add_languages,
    add_scoring,
    add_search,
    check_writable,
    glossary_from,
    load_translator,
    loading_options,
    read_aligned_lines,
    refuse_options,
    search_settings,
    write_lines,
    write_report,
    write_results,
)
from transduce.errors import TransduceError, count_noun, shell_word
from transduce.text.files import unique_suffixes
from transduce.text.glossary import Glossary, TermTally
from transduce.text.languages import language_of, short_code
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inference.quality_estimation import QualityWarning, WarningKind
    from transduce.inference.translation import Translation
    from transduce.inference.translator import Translator
    from transduce.search.settings import SearchSettings

# --- evaluate ---

# Common settings of published scores: beam size and length penalty.
_SEARCHES = (
    ("greedy search", 1, 0.6),
    ("beam 4, length penalty 0.6 (the paper)", 4, 0.6),
    ("beam 5, length penalty 1", 5, 1.0),
    ("beam 4, no length penalty", 4, 0.0),
)


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce evaluate` in its argparse parser."""
    add = parser.add_argument
    add("model", nargs="+", help="a model folder, or several with one vocabulary for an ensemble")
    add("--source", required=True, metavar="FILE", help="source sentences of the test set, one per line; or texts")
    add("--reference", required=True, metavar="FILE", help="their human translations, one per line; or their labels")
    add("--output", metavar="FILE", help="write the model's translations here")
    add_json(add, "the scores")
    add(
        "--variants",
        action="store_true",
        help="also print BLEU with other tokenizers, other treatment of case, and other searches",
    )
    add_glossary(parser)
    add_datastore(parser)
    add_scoring(parser)
    add_search(parser)
    add_languages(parser)
    add_computing(parser)


def run_evaluate(options: argparse.Namespace) -> None:
    """Score a model on a test set: print BLEU and chrF of its translations with their signatures.

    A text classifier is scored by its labels instead.
    """
    from transduce.evaluation.scores import Variant, Variants, choose_tokenizer, count_variants, score
    from transduce.inference.evaluate import decoding_record

    folders, options.model = options.model, options.model[0]
    search = search_settings(options, options.model)
    inputs = [folders, options.source, options.reference, options.glossary, options.datastore]
    check_writable(options.output, report=options.json, inputs=inputs)
    glossary = glossary_from(options)
    sources, references = read_aligned_lines(options.source, options.reference)
    if len(folders) == 1 and _is_classifier(options.model):
        _evaluate_classifier(options, sources, references)
        return
    translator = load_translator(folders, options)
    choose_tokenizer(translator.target_language, options.tokenize)  # check the tokenizer before hours of translating
    started_at = time.monotonic()
    hypotheses = _translate(translator, sources, search, glossary)
    elapsed_seconds = time.monotonic() - started_at
    if options.output:
        write_results((f"{line}\n" for line in hypotheses), options.output)
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
            Variant(way, score(_translate(translator, sources, other, glossary), references, **counting).bleu)
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
    sys.stderr.write(localized(f"{count_noun(report.sentences, 'sentence')} in {elapsed_seconds:.1f} s\n"))


def _is_classifier(model: str) -> bool:
    """Return whether a path is the folder of a text classifier.

    Raises:
        TransduceError: the folder holds a tagger, which another command measures.
    """
    from transduce.model_folder.cards import find_task_card

    card = find_task_card(Path(model)) if Path(model).is_dir() else None
    if card is not None and card.kind == "tagging":
        raise TransduceError(
            f"`evaluate` scores translations and classes, but {model} is a tagger: "
            f"`transduce tag {shell_word(model)} FILE --score` reports its accuracy and the F1 of spans."
        )
    return card is not None and card.kind == "classification"


# Options that only translations have.
_TRANSLATION_OPTIONS = (
    *SEARCH_OPTIONS,
    *LANGUAGE_OPTIONS,
    "variants",
    "glossary",
    "datastore",
    "tokenize",
    "lowercase",
)


def _evaluate_classifier(options: argparse.Namespace, texts: list[str], labels: list[str]) -> None:
    """Classify the texts, and print accuracy, macro F1, the scores of each label and a confusion table.

    Args:
        options: the options of `transduce evaluate`; --output gets the predicted labels.
        texts: the texts of the test set.
        labels: the right label of each text.

    Raises:
        TransduceError: an option is for translations only, or the model does not know the labels.
    """
    from transduce.evaluation.label_scores import score_labels
    from transduce.inference.classifier import load_classifier
    from transduce.inference.evaluate import check_labels

    refuse_options(
        options,
        _TRANSLATION_OPTIONS,
        f"`{{option}}` is for translations, but {options.model} is a classifier: leave it out.",
    )
    classifier = load_classifier(options.model, **loading_options(options))
    check_labels(classifier, labels, f"{options.reference}:1")
    predicted = [each.label for each in classifier(texts)]
    if options.output:
        write_results((f"{label}\n" for label in predicted), options.output)
    report = score_labels(predicted, labels)
    write_report(report, options.json)
    if options.json != "-":
        sys.stdout.write(localized(f"\n{report.table()}\n"))


def _translate(
    translator: "Translator", sources: list[str], search: "SearchSettings", glossary: Glossary | None
) -> list[str]:
    return [each.text for each in translator(sources, search=search, glossary=glossary, document=True)]


def _other_searches(search: "SearchSettings") -> "Iterator[tuple[str, SearchSettings]]":
    """Yield searches with which scores are usually published, such as greedy search and beam 4.

    A search equal to the one that was used is left out.

    Args:
        search: the search settings that were used. The yielded settings differ from them only in the kind of search.

    Yields:
        A description of each search in words, and its settings.
    """
    from transduce.search.settings import override_search

    for way, beam_size, length_penalty in _SEARCHES:
        settings = (beam_size, length_penalty if beam_size > 1 else search.length_penalty)
        if settings != (search.beam_size, search.length_penalty) or search.sampling is not None:
            changes = {"beam_size": beam_size, "length_penalty": length_penalty, "n_best": 1, "diverse_groups": 1}
            yield way, override_search(search, changes)


# --- compare ---


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce compare` in its argparse parser."""
    add = parser.add_argument
    add("a", metavar="A", help="a model folder, or a file of translations")
    add("b", metavar="B", help="another model folder or file of translations")
    add("--source", metavar="FILE", help="source sentences, one per line; required if A or B is a model")
    add("--reference", required=True, metavar="FILE", help="human translations of the source, one per line")
    add("--language", metavar="CODE", help="target language (default: the model's, or the reference's suffix)")
    add_json(add, "the comparison")
    tests = parser.add_argument_group("significance tests").add_argument
    tests("--resamples", type=int, default=1000, metavar="N", help="resamples of each test")
    tests("--seed", type=int, default=12345, metavar="N", help="random seed of the resampling")
    add_scoring(parser)
    add_search(parser)
    add_languages(parser)
    add_computing(parser)


def run_compare(options: argparse.Namespace) -> None:
    """Compare two models or files of translations: print scores, and whether they differ significantly."""
    from transduce.evaluation.significance import compare

    names = _names_of_systems(options.a, options.b)
    _check_systems(options, names)
    check_writable(report=options.json, inputs=[options.a, options.b, options.source, options.reference])
    # Files are read and checked before any model translates; a pipe can be read only once.
    files = [path for path in (options.a, options.b) if not Path(path).is_dir()]
    paths = list(dict.fromkeys(filter(None, [options.source, *files, options.reference])))
    texts = dict(zip(paths, read_aligned_lines(*paths), strict=True))
    a, b = (
        _System(texts[path]) if path in texts else _translate_with(path, texts[options.source], options)
        for path in (options.a, options.b)
    )
    comparison = compare(
        a.lines,
        b.lines,
        texts[options.reference],
        target_language=options.language or a.languages[1] or b.languages[1] or language_of(options.reference),
        tokenize=options.tokenize,
        lowercase=options.lowercase,
        resamples=options.resamples,
        seed=options.seed,
        names=names,
    )
    warnings = (*comparison.warnings, *_pair_warning(names, a, b))
    write_report(
        msgspec.structs.replace(comparison, decoding_a=a.decoding, decoding_b=b.decoding, warnings=warnings),
        options.json,
    )


class _System(msgspec.Struct, frozen=True):
    """The translations of one of the two compared systems, with its languages and decoding settings if known."""

    lines: list[str]
    """The system's translations, one for each line of the test set."""
    languages: tuple[str | None, str | None] = (None, None)
    """Source and target language of a model, a pair; None for one that is unknown, as for a file of translations."""
    decoding: dict[str, str | int | float | bool] = {}
    """The search settings and precision of a model, by name; empty for a file of translations."""


def _check_systems(options: argparse.Namespace, names: tuple[str, str]) -> None:
    from transduce.evaluation.scores import choose_tokenizer
    from transduce.evaluation.significance import check_trial

    folders = [path for path in (options.a, options.b) if Path(path).is_dir()]
    for folder in folders:
        search_settings(options, folder)
    if not folders:
        names_of_models = (*SEARCH_OPTIONS, *LANGUAGE_OPTIONS)
        refuse_options(
            options, names_of_models, "`{option}` sets how to translate, but A and B are translations: leave it out."
        )
    check_trial(options.resamples, options.seed, names)
    choose_tokenizer(options.language or language_of(options.reference), options.tokenize)
    for path in folders:
        if options.source is None:
            raise TransduceError(f"{path} is a model, which needs sentences to translate: pass --source.")


def _translate_with(folder: str, sources: list[str], options: argparse.Namespace) -> _System:
    from transduce.inference.evaluate import decoding_record

    search = search_settings(options, folder)
    translator = load_translator(folder, options)
    lines = _translate(translator, sources, search, None)
    languages = translator.source_language, translator.target_language
    return _System(lines, languages, decoding_record(search, translator.precision))


def _pair_warning(names: tuple[str, str], a: _System, b: _System) -> list[str]:
    """Return a list with a warning if two compared models translate between different languages.

    The list is empty if there is nothing to warn of. An unknown language gives no warning. `names` are the models'
    names in the warning.
    """
    pairs_of_codes = zip(a.languages, b.languages, strict=True)
    if not any(one and other and short_code(one) != short_code(other) for one, other in pairs_of_codes):
        return []
    pairs = [" to ".join(code or "?" for code in each.languages) for each in (a, b)]
    statements = (f"{name} translates {pair}" for name, pair in zip(names, pairs, strict=True))
    return [f"{' and '.join(statements)}, but both had the same sentences: compare models of one pair of languages."]


def _names_of_systems(a: str, b: str) -> tuple[str, str]:
    """Return short names for two compared systems: the shortest suffixes of their paths that differ.

    Equal paths get the names `PATH (1)` and `PATH (2)`.
    """
    name_a, name_b = unique_suffixes([Path(a), Path(b)])
    return (name_a, name_b) if name_a != name_b else (f"{a} (1)", f"{b} (2)")


# --- score ---


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The scores that a model gives to existing translations: one for each line, and totals."""

    lines: int
    """The number of lines."""
    tokens: int
    """The number of target tokens, including end symbols."""
    log_probability: float
    """The total log-probability, in nats."""
    perplexity: float
    """Perplexity per token: the exponential of the mean negative log-probability."""
    length_penalty: float
    """The exponent of the length penalty by which each line's log-probability was divided; 0: not divided."""
    precision: str
    """Number format of the model's weights, such as `fp32`."""
    scores: list[float]
    """The score of each line: its log-probability in nats, divided by the length penalty."""

    def __str__(self) -> str:
        return (
            f"{count_noun(self.lines, 'line')}, {count_noun(self.tokens, 'token')}, "
            f"log-probability {self.log_probability:,.2f}, perplexity per token {self.perplexity:,.3f}"
        )


class TextSummary(Summary, frozen=True, kw_only=True):
    """The scores that a language model gives to the lines of a text: one for each line, and totals."""

    bits_per_character: float
    """The negative log-probability of all lines in bits, per character without line feeds."""

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.bits_per_character:,.3f} bits per character"


def add_score_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce score` in its argparse parser."""
    add = parser.add_argument
    add("model", nargs="+", help="a model folder; the probabilities of several translation models are averaged")
    add("--source", required=True, metavar="FILE", help="sentences, one per line; for a language model, texts to score")
    add("--target", metavar="FILE", help="their translations, one per line; a language model needs none")
    add(
        "--length-penalty",
        type=float,
        default=0.0,
        metavar="ALPHA",
        help="divide log-probabilities by the length penalty of search, which usually uses 0.6; 0: do not divide",
    )
    add_json(add, "the scores")
    add_languages(parser)
    add_computing(parser)


def run_score(options: argparse.Namespace) -> None:
    """Print the score of each translation in a file, and totals on stderr.

    A score is the log-probability in nats, divided by the length penalty of --length-penalty, if any. A language model
    scores each line of the source as a text.
    """
    from transduce.inference.scoring import TooLongError
    from transduce.model_folder.read import model_kind
    from transduce.search.settings import SearchSettings

    check_writable(report=options.json, inputs=[options.model, options.source, options.target])
    SearchSettings(length_penalty=options.length_penalty)  # checks the range
    if model_kind(Path(options.model[0])) == "decoder":
        _score_texts(options)
        return
    if options.target is None:
        raise TransduceError(
            f"{options.model[0]} is no language model, and other models score translations: name their file by "
            "`--target`."
        )
    sources, targets = read_aligned_lines(options.source, options.target)
    translator = load_translator(options.model, options)
    try:
        scores = translator.score(sources, targets, length_penalty=options.length_penalty, document=True)
    except TooLongError as error:
        raise TransduceError(f"{vars(options)[error.side]}:{error.number}: {error}") from error
    summary = Summary(
        **_totals([each.log_probability for each in scores], sum(len(each.token_log_probabilities) for each in scores)),
        length_penalty=options.length_penalty,
        precision=translator.precision,
        scores=[each.score for each in scores],
    )
    write_lines((f"{score.score:.6f}" for score in scores), summary, options.json)


def _score_texts(options: argparse.Namespace) -> None:
    """Print a language model's log-probability of each line of a file, in nats, and totals on stderr.

    Raises:
        TransduceError: there are several models, or an option is for translations only.
    """
    from transduce.inference.generator import load_generator

    refuse_options(
        options,
        ("target", *LANGUAGE_OPTIONS),
        "`{option}` is for translations, but the model is a language model: leave it out.",
    )
    if len(options.model) > 1 or options.length_penalty:
        raise TransduceError(
            f"{options.model[0]} is a language model: score with one such model at a time, without `--length-penalty`."
        )
    (texts,) = read_aligned_lines(options.source)
    generator = load_generator(options.model[0], **loading_options(options))
    scores = [generator.score(text) for text in texts]
    log_probabilities, characters = [-each.nats for each in scores], sum(each.characters for each in scores)
    summary = TextSummary(
        **_totals(log_probabilities, sum(each.tokens for each in scores)),
        length_penalty=0.0,
        precision=generator.precision,
        scores=log_probabilities,
        bits_per_character=-math.fsum(log_probabilities) / math.log(2.0) / max(1, characters),
    )
    write_lines((f"{each:.6f}" for each in log_probabilities), summary, options.json)


def _totals(log_probabilities: list[float], tokens: int) -> dict[str, Any]:
    """Return the fields `lines`, `tokens`, `log_probability` and `perplexity` of a `Summary`, as a dict.

    `log_probabilities` are those of the lines, and `tokens` is the number of tokens in all lines.
    """
    total = math.fsum(log_probabilities)
    perplexity = math.exp(min(-total / max(1, tokens), 700.0))
    return {"lines": len(log_probabilities), "tokens": tokens, "log_probability": total, "perplexity": perplexity}


# --- estimate-quality ---


class ReviewedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the source with its translation, quality warnings, and the model's probability of the translation."""

    line: int
    """The line number, from 1."""
    warnings: "tuple[QualityWarning, ...]"
    """The quality warnings, which say why the translation may be bad, such as untranslated or repeated text."""
    source: str
    translation: str
    nats_per_token: float | None
    """The mean negative log-probability of the translation's tokens, in nats; with several sentences, that of the least
    likely one. None if the translation is empty or too long to score.
    """

    @property
    def reasons(self) -> str:
        """The quality warnings as one text, joined by commas; "" if there are none."""
        return ", ".join(map(str, self.warnings))

    @property
    def rank(self) -> tuple[int, float]:
        """A sort key that is lower for worse translations.

        Translations are sorted by the number of definite warnings, and then by probability. Warnings of the kinds
        `unlikely` and `unread` are not definite: the first is about the probability alone, the second about the source.
        """
        definite = sum(warning.kind not in ("unlikely", "unread") for warning in self.warnings)
        return -definite, -(self.nats_per_token or 0.0)

    def __str__(self) -> str:
        nats = "" if self.nats_per_token is None else f"{self.nats_per_token:.2f} nats a token"
        columns = (str(self.line), self.reasons or nats, self.source, self.translation)
        return "\t".join(column.replace("\t", " ").replace("\r", " ") for column in columns)


class QualityReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report on the quality of translations: the lines with quality warnings, and every line's probability."""

    lines: int
    """The number of all translated lines, with or without warnings."""
    counts: "dict[WarningKind, int]"
    """Dict: kind of quality warning → number of lines with it."""
    flagged: list[ReviewedLine]
    """The lines that have quality warnings, in order."""
    worst: list[ReviewedLine] = []
    """The lines that --worst asks for, the worst first, with or without warnings; empty without the option."""
    nats_per_token: list[float | None]
    """For every line, the mean negative log-probability of a token of its translation, in nats; None for a line whose
    translation is empty or too long to score.
    """

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in self.counts.items())
        return (
            f"{len(self.flagged):,} of {count_noun(self.lines, 'translation')} "
            f"{'has' if len(self.flagged) == 1 else 'have'} quality warnings"
        ) + (f": {kinds}" if kinds else "")


def add_estimate_quality_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce estimate-quality` in its argparse parser."""
    add = parser.add_argument
    add("model", nargs="+", help="a model folder; the probabilities of several models are averaged")
    add("--source", required=True, metavar="FILE", help="sentences, one per line")
    add("--translation", metavar="FILE", help="translations of any origin (default: the model's own)")
    add("--redecode", metavar="FILE", help="write all translations, improved by re-decoding those with warnings")
    add(
        "--worst",
        type=int,
        metavar="N",
        help="print the N worst lines, the worst first: those with the most warnings, then the least likely "
        "(default: all lines with warnings, in order)",
    )
    add(
        "--output",
        metavar="FILE",
        help="write all lines with their warnings and probabilities: a table (.tsv, .csv) or JSON lines (.jsonl)",
    )
    add_json(add, "the warnings")
    add_glossary(parser)
    add_search(parser)
    add_languages(parser)
    add_computing(parser)


def run_estimate_quality(options: argparse.Namespace) -> None:
    """Print the lines whose translations have quality warnings, or the N worst lines for --worst N.

    Each printed line has the line number, the warnings, source and translation, separated by tabs. --output writes a
    table of all lines. --redecode writes all translations to a file, after those with warnings were searched again.
    """
    from transduce.inference.quality_estimation import without_protected
    from transduce.inference.redecoding import redecode

    search = search_settings(options, options.model[0])
    inputs, glossary = [options.model, options.source, options.translation, options.glossary], glossary_from(options)
    check_writable(options.redecode, options.output, report=options.json, inputs=inputs)
    suffix = None if options.output is None else Path(options.output).suffix
    if suffix not in (None, ".tsv", ".csv", ".jsonl"):
        raise TransduceError(
            f"`--output` must end in .tsv, .csv or .jsonl, which sets the format, but is `{options.output}`."
        )
    if options.worst is not None and options.worst < 1:
        raise TransduceError(f"`worst` must be at least 1, but is {options.worst}.")
    sources, *passed = read_aligned_lines(options.source, *([options.translation] if options.translation else []))
    translator = load_translator(options.model, options)
    if passed:
        translations = _with_scores(translator, sources, passed[0])
    else:
        translations = translator(sources, search=search, glossary=glossary, document=True)
    lines = _reviewed(translator, translations, glossary)
    report = _report(lines, options.worst)
    write_lines(report.flagged if options.worst is None else report.worst, report, options.json)
    # Copied lines of which nothing is to be translated, such as 12345 or a URL, have no tokens to score.
    unscored = sum(
        each.nats_per_token is None
        and each.translation.strip() != ""
        and (each.translation.strip() != each.source.strip() or any(map(str.isalpha, without_protected(each.source))))
        for each in lines
    )
    if unscored:
        sys.stderr.write(
            localized(
                f"{count_noun(unscored, 'line')} could not be scored, since the source or the translation is too long: "
                "split such lines into sentences.\n"
            )
        )
    if suffix is not None:
        write_file(Path(options.output), _table(lines, suffix))
    if options.redecode:
        redecoded = redecode(translator, translations, search, glossary=glossary)
        write_results((f"{each.text}\n" for each in redecoded), options.redecode)
        remaining = _report(_reviewed(translator, redecoded, glossary), None)
        changed = sum(one.text != other.text for one, other in zip(translations, redecoded, strict=True))
        sys.stderr.write(localized(f"Re-decoding changed {changed:,}; {remaining}\n"))


def _table(lines: list[ReviewedLine], suffix: str) -> bytes:
    """Return reviewed lines as the content of a file with the suffix `.tsv`, `.csv` or `.jsonl`, in UTF-8.

    A table has a header, and texts with quotes or delimiters are quoted. JSON lines have an object per line.
    """
    import csv
    import io

    if suffix == ".jsonl":
        return b"".join(msgspec.json.encode(each) + b"\n" for each in lines)
    text, delimiter = io.StringIO(), "\t" if suffix == ".tsv" else ","
    plain = csv.writer(text, delimiter=delimiter, lineterminator="\n")
    quoting = csv.writer(text, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
    plain.writerow(("line", "nats_per_token", "warnings", "source", "translation"))
    for each in lines:
        nats = "" if each.nats_per_token is None else f"{each.nats_per_token:.4f}"
        # By itself, the writer does not quote a carriage return, at which readers end a row.
        writer = quoting if "\r" in each.source + each.translation else plain
        writer.writerow((each.line, nats, each.reasons, each.source, each.translation))
    return text.getvalue().encode("utf-8", "replace")


def _with_scores(translator: "Translator", sources: list[str], targets: list[str]) -> "list[Translation]":
    """Return existing translations as `Translation`s, with the probability that the model gives to each token.

    Protected spans, such as URLs, are masked if both sides contain them. A masked span is left out or replaced by a
    placeholder token, whichever is more likely.

    A translation gets no probabilities if one side is too long. It gets none either if the model would divide the
    source instead of translating it as a whole.

    Args:
        translator: the model.
        sources: the source of each translation.
        targets: the translations, of any origin.
    """
    from transduce.inference.placeholders import MaskedPair, mask_pair
    from transduce.inference.scoring import as_translation, score_translations
    from transduce.inference.spans import can_score
    from transduce.inference.translation import Translation
    from transduce.text.tokenizer import placeholder_tokens

    candidates: list[tuple[int, MaskedPair]] = []
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        masks = {(): None, placeholder_tokens(translator.tokenizer): None}
        found = [mask_pair(source, target, translator.tokenizer, each, translator.text.protect) for each in masks]
        candidates += ((number, each or MaskedPair(source, target, ())) for each in (found if found[0] else found[:1]))
    texts = translator.tokenizer.source.encode_batch([each.source for _, each in candidates])
    scored = [
        (number, pair)
        for (number, pair), ids in zip(candidates, texts, strict=True)
        if len(ids) <= translator.max_sentence_tokens and can_score(translator, pair.source, pair.target)
    ]
    histories = translator.histories(sources, targets)
    scores = score_translations(
        translator.models,
        translator.tokenizer,
        [pair.source for _, pair in scored],
        [pair.target for _, pair in scored],
        generate=translator.search.generate,
        histories=None if histories is None else [histories[number] for number, _ in scored],
    )
    translations = list(map(Translation.of, sources, targets))
    for number, pair in candidates:
        translations[number] = msgspec.structs.replace(translations[number], protected=pair.protected)
    best: dict[int, float] = {}
    for (number, pair), score in zip(scored, scores, strict=True):
        mean = score.log_probability / len(score.token_log_probabilities)
        if number not in best or mean > best[number]:
            best[number] = mean
            given = msgspec.structs.replace(score, source=sources[number], target=targets[number])
            translations[number] = msgspec.structs.replace(as_translation(given), protected=pair.protected)
    return translations


def _reviewed(
    translator: "Translator", translations: "list[Translation]", glossary: Glossary | None
) -> list[ReviewedLine]:
    """Return a list of the translations as `ReviewedLine`s: with line number, quality warnings and probability.

    Args:
        translator: the model, by which the quality is estimated.
        translations: the translations, one per line.
        glossary: the terms whose tokens do not count in the probability; None without a glossary.
    """
    from transduce.inference.quality_estimation import least_likely_nats
    from transduce.inference.redecoding import estimate_quality

    warnings = estimate_quality(translator, translations, glossary=glossary)
    return [
        ReviewedLine(
            line=number,
            warnings=line_warnings,
            source=each.source,
            translation=each.text,
            nats_per_token=least_likely_nats(each, glossary),
        )
        for number, (each, line_warnings) in enumerate(zip(translations, warnings, strict=True), 1)
    ]


def _report(lines: list[ReviewedLine], worst: int | None) -> QualityReport:
    from transduce.inference.quality_estimation import count_warnings

    translated = [each for each in lines if each.source.strip() or each.translation.strip()]
    return QualityReport(
        lines=len(lines),
        counts=count_warnings([each.warnings for each in lines]),
        flagged=[each for each in lines if each.warnings],
        worst=[] if worst is None else sorted(translated, key=lambda each: each.rank)[:worst],
        nats_per_token=[each.nats_per_token for each in lines],
    )
