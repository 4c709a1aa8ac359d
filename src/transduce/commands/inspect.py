"""Commands that show how a model works: `inspect` for one text, and `align` for word links of sentence pairs.

`inspect` shows attention, attributions, and the results of ablation, patching, logit lens and probes.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

import msgspec

from transduce.atomic_io import write_file
from transduce.commands.options import (
    ABLATION_FILLS,
    ATTRIBUTION_METHODS,
    LANGUAGE_OPTIONS,
    add_computing,
    add_json,
    add_languages,
    add_search,
    check_writable,
    load_translator,
    loading_options,
    option_of,
    page_file,
    print_bytes,
    read_aligned_lines,
    search_settings,
    text_argument,
)
from transduce.errors import TransduceError, count_noun
from transduce.text.files import read_lines, unique_suffixes
from transduce.text.sentences import find_sentences
from transduce.text.word_spans import split_words
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.data.series import Numbers
    from transduce.inference.translator import Translator
    from transduce.inspection.alignment import Links, SplitSentencePair
    from transduce.inspection.attention import WordAttention
    from transduce.inspection.plots import Chart
    from transduce.inspection.reading import Reader
    from transduce.inspection.sentence_view import Inspection, PronounAttention, TextInspection

# --- inspect ---


_Inspected = TypeVar("_Inspected", "Inspection", "TextInspection")

_TOOLS = ("pronoun", "ablate", "patch_from", "logit_lens", "probe")
"""Names of options of `inspect` that show something else about a sentence than the usual view; at most one
may be set.
"""
# The tools that change activations or read single layers, and the tool that an option belongs to.
_CAUSAL = ("ablate", "patch_from", "logit_lens", "probe")
_TOOL_OF_OPTION = {
    "antecedent": "pronoun",
    "among": "pronoun",
    "translation_of": "pronoun",
    "reference": "ablate",
    "answers": "patch_from",
    "after": "patch_from",
}


@runtime_checkable
class _Drawn(Protocol):
    """A result of a causal tool (ablation, patching, logit lens, probe), which can be drawn as text or as a `Chart`."""

    def draw(self) -> str: ...
    def chart(self) -> "Chart": ...


def add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce inspect` in its argparse parser."""
    add = parser.add_argument
    add("model", help="a model folder of any kind")
    add(
        "sentence",
        nargs="?",
        type=text_argument,
        help="the sentence to translate, classify, … and inspect; for a time-series model, a table of its history "
        "(default with --html: samples of the dev set)",
    )
    add("--html", metavar="PATH", type=page_file, help="write a self-contained page for a browser")
    add_json(add, "the content of the page")
    add(
        "--attribution",
        choices=ATTRIBUTION_METHODS,
        help="show which words made each word of the output, by this method, in place of attention; the page of --html "
        "opens with it",
    )
    page = parser.add_argument_group("page (with --html)").add_argument
    page("--more", nargs="+", type=text_argument, metavar="TEXT", help="further sentences; two are shown side by side")
    page("--beside", metavar="MODEL", help="another translator, shown beside the first one")
    causal = parser.add_argument_group("causal tools (one at a time)").add_argument
    causal(
        "--ablate",
        choices=ABLATION_FILLS,
        help="show how much the output depends on each head and layer, which are replaced by zeros or by their mean",
    )
    causal("--reference", metavar="FILE", help="texts for --ablate mean (default: the sentence itself)")
    causal(
        "--patch-from",
        type=text_argument,
        metavar="TEXT",
        help="show which activations of this sentence, put into the other one, bring back its answer",
    )
    causal("--answers", nargs=2, type=text_argument, metavar="TOKEN", help="the answers to this and the other sentence")
    causal("--after", type=text_argument, metavar="TEXT", help="the beginning of the translation before the answers")
    causal("--logit-lens", action="store_true", help="show what the model would predict after each layer")
    causal(
        "--probe",
        nargs=2,
        metavar=("TEXTS", "LABELS"),
        help="show how well each layer tells labels: a file of texts, and one with a label for each line or word",
    )
    causal("--picture", metavar="FILE", help="write the result of a causal tool as a picture (png, svg, pdf)")
    pronoun = parser.add_argument_group("pronoun").add_argument
    pronoun("--pronoun", type=text_argument, metavar="WORD", help="show what each head attends to from this word")
    pronoun(
        "--antecedent", type=text_argument, metavar="WORD", help="its antecedent: heads that attend to it are marked"
    )
    pronoun(
        "--among", nargs="+", type=text_argument, metavar="WORD", help="the earlier words that may be its antecedent"
    )
    pronoun(
        "--translation-of",
        type=text_argument,
        metavar="TEXT",
        help="take the sentence as the target of this source, and inspect the decoder",
    )
    add_search(parser)
    add_languages(parser)
    add_computing(parser)


def run_inspect(options: argparse.Namespace) -> None:
    """Print how a model reads a sentence, with its attention, or the result of the tool that the options choose.

    With --html, a page for a browser is written, too.
    """
    from transduce.inference.translator import Translator
    from transduce.inspection.sentence import inspect_text

    inputs = [options.model, options.reference, *(options.probe or [])]
    check_writable(options.html, options.picture, report=options.json, inputs=inputs)
    tool = _check_options(options)
    search_settings(options, options.model)  # check the options before a model is loaded
    if tool in _CAUSAL and options.precision == "auto":
        options.precision = "fp32"  # the tools print differences that are smaller than the rounding of bf16
    reader = load_reader(options.model, options)
    if tool == "pronoun":
        _show_pronoun(options, reader)
    elif tool is not None:
        _show_causal(options, reader, tool)
    elif isinstance(reader, Translator) and reader.model.config.kind == "transformer":
        (_show_translation if options.html is None else _show_page)(options, reader)
    elif options.html is not None:
        _show_text_page(options, reader)
    else:
        found = inspect_text(reader, sentence_or_table(reader, options.sentence))
        _show_inspections(options, _with_method(options, reader, found))


def load_reader(folder: str, options: argparse.Namespace) -> "Reader":
    """Load the model in a folder, whatever its task (translation, classification, …), as the command's options say.

    Raises:
        TransduceError: the model cannot be loaded, or a language option such as --tag is set for a model that does
            not translate.
    """
    from transduce.inference.load import load, task_of

    if task_of(Path(folder)) == "translation":
        return load_translator(folder, options)
    passed = next((name for name in LANGUAGE_OPTIONS if vars(options).get(name) is not None), None)
    if passed is not None:
        raise TransduceError(f"`{option_of(passed)}` is for translators, and {folder} is none: leave it out.")
    return load(folder, **loading_options(options))


def sentence_or_table(reader: "Reader", sentence: str) -> "str | Numbers":
    """Return the input that a model reads: the sentence, or the points of a table for a time-series model.

    Args:
        reader: the model.
        sentence: the sentence. For a time-series model, it is the path of a table, whose points (N, C) are returned.
    """
    from transduce.data.series import read_table
    from transduce.inference.forecaster import Forecaster

    return read_table(sentence, reader.card.columns).values if isinstance(reader, Forecaster) else sentence


def _check_options(options: argparse.Namespace) -> str | None:
    """Return the name of the tool that the options choose, such as `ablate`; None: the usual view of a sentence.

    Raises:
        TransduceError: options do not go together, or the sentence is missing.
    """
    from transduce.inspection.plots import check_picture

    chosen = [name for name in _TOOLS if vars(options)[name]]
    shown = [option_of(name) for name in chosen]
    if len(chosen) > 1:
        raise TransduceError(f"{shown[0]} and {shown[1]} each show something of their own: pass one of them.")
    for name, tool in _TOOL_OF_OPTION.items():
        if vars(options)[name] is not None and tool not in chosen:
            raise TransduceError(f"`{option_of(name)}` needs {option_of(tool)}: pass that too.")
    if options.attribution is not None and chosen:
        raise TransduceError(f"--attribution explains a sentence, and {shown[0]} something else: pass one of them.")
    if options.html is not None and any(name != "pronoun" for name in chosen):
        raise TransduceError(f"--html shows how a sentence is translated, and {shown[0]} does not: use --picture.")
    for name in ("more", "beside"):
        if vars(options)[name] is not None and (options.html is None or chosen):
            raise TransduceError(f"`--{name}` adds to the page of a translation: pass it with --html alone.")
    if options.picture is not None:
        if not chosen or chosen == ["pronoun"]:
            raise TransduceError(
                "--picture draws the result of a causal tool: pass one, or use `transduce plot attention`."
            )
        check_picture(Path(options.picture))
    if (options.sentence is None) != (chosen == ["probe"]) and (chosen or options.html is None):
        raise TransduceError(
            "--probe reads its texts from files: leave the sentence out."
            if chosen == ["probe"]
            else "There is no sentence to inspect: pass one after the model."
        )
    shows = chosen[0] if chosen else None
    _check_tool(options, shows)
    return shows


def _check_tool(options: argparse.Namespace, tool: str | None) -> None:
    """Check that the tool has a sentence to measure, and that --reference is set only with --ablate mean.

    Args:
        options: the options of `transduce inspect`.
        tool: the chosen tool; None: the usual view of a sentence. This view and `probe` need no sentence.

    Raises:
        TransduceError: the sentence is empty, or --reference is set without --ablate mean.
    """
    if tool not in (None, "probe") and not options.sentence.strip():
        raise TransduceError("The sentence is empty, so there is nothing to measure: pass one after the model.")
    if options.reference is not None and options.ablate != "mean":
        raise TransduceError("`--reference` has the texts whose mean replaces a part: pass --ablate mean.")


def _show_translation(options: argparse.Namespace, translator: "Translator") -> None:
    from transduce.inspection.sentence import inspect_sentence

    _report_input(translator, options.sentence)
    inspection = inspect_sentence(translator, options.sentence, search=search_settings(options, options.model))
    _show_inspections(options, _with_method(options, translator, inspection))


def _report_input(translator: "Translator", text: str) -> None:
    """Warn on standard error if `transduce translate` would treat a text differently than `inspect` does.

    Translation divides a text into sentences, and copies parts such as URLs; inspection does neither. There are also
    warnings about letters that the vocabulary lacks, and about a text in a wrong language.
    """
    from transduce.commands.line_warnings import LineWarnings, unknown_letters

    warnings = LineWarnings(
        translator.source_language,
        translator.target_language,
        unknown_characters=unknown_letters(translator.tokenizer.source),
        noun="sentence",
    )
    warnings.add(1, text, None)
    sys.stderr.write(localized(str(warnings)))
    if not text.strip() or translator.is_plain_sentence(text):
        return
    sentences = len(find_sentences(text, translator.source_language))
    if sentences > 1:
        warning = (
            f"warning: the text has {sentences} sentences, which are inspected as one input, while translation takes "
            "each by itself: pass a single sentence to see how it is translated.\n"
        )
    else:
        warning = (
            "warning: translation copies placeholders, URLs, list marks and unknown characters, while the model reads "
            "the whole text here: the translation may differ from that of `transduce translate`.\n"
        )
    sys.stderr.write(localized(warning))


def _show_page(options: argparse.Namespace, translator: "Translator") -> None:
    """Write an HTML page that shows how the model translates each sentence, and print its inspections.

    If --beside names a second model, the page shows both models, but only the first is printed. Without sentences on
    the command line, the page has those of the run's dev set, and only the first sentence is printed.
    """
    from transduce.inspection.sentence import inspect_sentence
    from transduce.inspection.sentence_view import InspectionPage

    sentences = _sentences(options)
    folders = [options.model, *([options.beside] if options.beside else [])]
    translators = [translator, *(load_translator(folder, options) for folder in folders[1:])]
    labels = unique_suffixes([Path(folder) for folder in folders]) if len(folders) > 1 else [""]
    inspections = []
    for sentence in sentences:
        for each, folder, label in zip(translators, folders, labels, strict=True):
            found = inspect_sentence(each, sentence, search=search_settings(options, folder), attributions=True)
            inspections.append(msgspec.structs.replace(_with_method(options, each, found), label=label))
    page = InspectionPage(inspections=tuple(inspections))
    write_file(Path(options.html), page.to_html().encode())
    _show_inspections(options, *inspections[: len(inspections) if options.more else 1 : len(folders)])


def _show_text_page(options: argparse.Namespace, reader: "Reader") -> None:
    """Write an HTML page that shows how a model reads each text, for models other than translating Transformers.

    The inspections are printed, too. Without texts on the command line, the page has those of the run's dev set, and
    only the first text is printed.

    Raises:
        TransduceError: --beside is set, or there are no texts.
    """
    from transduce.inspection.sentence import inspect_text
    from transduce.inspection.sentence_view import TextInspectionPage

    if options.beside is not None:
        raise TransduceError("`--beside` compares Transformers that translate, and this model is none: leave it out.")
    texts = [sentence_or_table(reader, each) for each in _sentences(options)]
    found = tuple(_with_method(options, reader, inspect_text(reader, text, attributions=True)) for text in texts)
    write_file(Path(options.html), TextInspectionPage(inspections=found).to_html().encode())
    _show_inspections(options, *(found if options.more else found[:1]))


def _sentences(options: argparse.Namespace) -> list[str]:
    """Return a list of the sentences of an HTML page.

    The sentences on the command line are returned. If there are none, the sentences that the run sampled for its dev
    set are returned.

    Raises:
        TransduceError: no sentence is passed, and the run sampled none.
    """
    from transduce.inspection.sentence import sample_sentences

    passed = [each for each in (options.sentence, *(options.more or [])) if each is not None]
    sentences = passed or sample_sentences(Path(options.model))
    if not sentences:
        raise TransduceError(f"{options.model} has no sample sentences of `transduce train`: pass a sentence.")
    return sentences


def _with_method(options: argparse.Namespace, reader: "Reader", found: _Inspected) -> _Inspected:
    """Return an inspection whose first attribution is by the method of --attribution, so that a page opens with it.

    Without --attribution, the inspection is returned unchanged.

    Args:
        options: the options of `transduce inspect`.
        reader: the model that was inspected.
        found: the inspection of one text.
    """
    from transduce.inference.translator import Translator
    from transduce.inspection.attribution import attribute
    from transduce.inspection.sentence import shown_attribution
    from transduce.inspection.sentence_view import Inspection, WordAttribution

    if options.attribution is None:
        return found
    text, answer = (found.source, found.translation) if isinstance(found, Inspection) else (found.text, found.answer)
    target = answer if isinstance(reader, Translator) else None
    first = shown_attribution(attribute(reader, text, target, method=options.attribution))
    others: list[WordAttribution] = [each for each in found.attributions if each.method != options.attribution]
    replaced: _Inspected = msgspec.structs.replace(found, attributions=(first, *others))
    return replaced


def _show_inspections(options: argparse.Namespace, *inspections: "Inspection | TextInspection") -> None:
    """Print inspections, and write the first one as JSON to --json if set.

    With --attribution, the printed tables and the field `words` in the JSON have each inspection's first attribution
    instead of attention. A sentence below the table then compares the sum of the contributions with the change of the
    log-probability, if both are known. With `--json -`, the JSON is printed instead of the tables.
    """
    from transduce.inspection.sentence_view import Inspection, draw_inspection

    shown: list[Inspection | TextInspection] = []
    drawn = []
    for inspection in inspections:
        each, title, note = inspection, None, None
        if options.attribution is not None:
            first = inspection.attributions[0]
            each = msgspec.structs.replace(inspection, words=first.words)
            title = f"attribution by {options.attribution}: a darker word contributed more to the word of its row"
            note = first.note()
        table = (
            draw_inspection(each, _attention(each), title or "") if isinstance(each, Inspection) else each.draw(title)
        )
        shown.append(each)
        drawn.append(table + (f"\n{localized(note)}" if note else ""))
    _show(options, shown[0], "\n\n\n".join(drawn))


def _show_causal(options: argparse.Namespace, reader: "Reader", tool: str) -> None:
    """Run a causal tool on the sentence, print its result, and write its heat maps to --picture if set.

    Args:
        options: the options of `transduce inspect`.
        reader: the model.
        tool: the tool: `ablate`, `patch_from`, `logit_lens` or `probe`.

    Raises:
        TransduceError: the model is a forecaster, which only a probe can examine, or a file has no texts.
    """
    from transduce.inference.forecaster import Forecaster
    from transduce.inspection.causal import ablate, logit_lens, patch_activations
    from transduce.inspection.plots import save_chart
    from transduce.inspection.probing import probe

    result: _Drawn
    if tool == "probe":
        texts, lines = (list(read_lines(path)) for path in options.probe)
        result = probe(reader, texts, _labels(texts, lines))
    elif isinstance(reader, Forecaster):
        raise TransduceError(
            "Causal tools measure probabilities of tokens, classes and tags, but a forecaster predicts numbers."
        )
    elif tool == "ablate":
        reference = [] if options.reference is None else [*filter(str.strip, read_lines(options.reference))]
        if options.reference is not None and not reference:
            raise TransduceError(f"`--reference` needs a file with texts, but {options.reference} has none: add some.")
        result = ablate(reader, options.sentence, fill=options.ablate, reference=reference)
    elif tool == "patch_from":
        answers = None if options.answers is None else (options.answers[0], options.answers[1])
        result = patch_activations(reader, options.patch_from, options.sentence, answers=answers, after=options.after)
    else:
        result = logit_lens(reader, options.sentence)
    if options.picture is not None:
        save_chart(result.chart(), Path(options.picture))
    _show(options, result, result.draw())


def _labels(texts: list[str], lines: list[str]) -> list[str] | list[list[str]]:
    """Return the labels for a probe: a list of labels for each text's words, or one label for each text.

    A line of labels belongs to the words of its text if every line has as many labels as its text has words. If no text
    has more than one word, however, each line is the label of a text.

    Args:
        texts: the texts.
        lines: the lines of the file of labels.
    """
    counts = [len(split_words(text)) for text in texts]
    of_words = len(lines) == len(texts) and all(
        len(line.split()) == count for line, count in zip(lines, counts, strict=True)
    )
    return [line.split() for line in lines] if of_words and max(counts, default=0) > 1 else lines


def _show_pronoun(options: argparse.Namespace, reader: "Reader") -> None:
    from transduce.inference.translator import Translator
    from transduce.inspection.coreference import pronoun_attention
    from transduce.inspection.sentence import inspect_sentence
    from transduce.inspection.sentence_view import draw_inspection

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
        if options.html is not None:
            write_file(Path(options.html), inspection.to_html().encode())
        _show(options, inspection, f"{draw_inspection(inspection, _attention(inspection))}\n\n{result.draw()}")
        return
    if options.html is not None:
        raise TransduceError("--html shows how a sentence is translated, but there is no translation: leave it out.")
    _show(options, result, result.draw())


def _show(
    options: argparse.Namespace, result: "Inspection | TextInspection | PronounAttention | _Drawn", drawn: str
) -> None:
    """Print a result, and write it as JSON to --json if set.

    Args:
        options: the options of `transduce inspect`; with `--json -` the JSON is printed instead of the text.
        result: the result.
        drawn: the result as text.
    """
    content = msgspec.json.encode(result) + b"\n"
    if options.json not in (None, "-"):
        write_file(Path(options.json), content)
    print_bytes(content if options.json == "-" else f"{drawn}\n".encode())
    if options.html is not None:
        sys.stderr.write(localized(f"The page is {options.html}: open it in a browser.\n"))


def _attention(inspection: "Inspection") -> "WordAttention":
    import numpy as np

    from transduce.inspection.attention import WordAttention

    words = inspection.words
    shape = len(words.target_words), len(words.source_words)
    return WordAttention(
        words.source_words, words.target_words, np.array(words.weights, dtype=np.float32).reshape(shape)
    )


# --- align ---


def add_align_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce align` in its argparse parser."""
    add = parser.add_argument
    add("model", help="a model folder")
    add("--source", required=True, metavar="FILE", help="sentences, one per line")
    add("--target", required=True, metavar="FILE", help="their translations, one per line")
    add(
        "--source-words",
        metavar="FILE",
        help="the source sentences with a space after each word (default: split at spaces, and into characters in "
        "scripts without spaces)",
    )
    add("--target-words", metavar="FILE", help="the translations with a space after each word (same default)")
    heads = parser.add_argument_group("choice of attention heads").add_argument
    heads("--heads", metavar="FILE", help="heads that were chosen for this model with --learn")
    heads(
        "--learn",
        metavar="FILE",
        help="choose heads by the alignments of --known and write them here; a hundred lines suffice. Without --known: "
        "learn from these lines alone which heads align and which words translate each other",
    )
    heads(
        "--known",
        metavar="FILE",
        help="reference alignments of these lines, as `0-0 1-2`: to choose heads with --learn, otherwise to compare",
    )
    add_languages(parser)
    add_computing(parser)


def run_align(options: argparse.Namespace) -> None:
    """Print the word links of each sentence pair as `source-target`, counted from 0.

    With --known, the alignment error rate is printed too. With --learn, attention heads or word statistics are written
    to a file instead.
    """
    from transduce.inspection.alignment import (
        ReferenceAlignment,
        align_pairs,
        alignment_error,
        choose_heads,
        learn_word_statistics,
        read_heads,
    )

    if options.learn is not None and options.heads is not None:
        raise TransduceError("`--learn` chooses heads, and --heads names chosen ones: pass one of them.")
    read = [options.model, options.source, options.target, options.source_words, options.target_words]
    check_writable(options.learn, inputs=[*read, options.known])
    heads = None if options.heads is None else read_heads(Path(options.heads))
    pairs = list(_read_pairs(options))
    references = None if options.known is None else [parse_links(*line) for line in _numbered(options.known)]
    if references is not None and len(references) != len(pairs):
        raise TransduceError(
            f"Every pair needs its reference alignment on the same line, but {options.known} has "
            f"{count_noun(len(references), 'line')} for {count_noun(len(pairs), 'pair')}: use files with equally many "
            "lines."
        )
    translator = load_translator(options.model, options)
    if options.learn is not None:
        learned: msgspec.Struct
        if references is None:
            learned = learn_word_statistics(translator, pairs)
            message = f"The word statistics of {count_noun(len(pairs), 'pair')} are in {options.learn}.\n"
        else:
            learned = choose_heads(
                translator, [ReferenceAlignment(*each) for each in zip(pairs, references, strict=True)]
            )
            message = f"The heads, chosen by {len(pairs):,} alignments, are in {options.learn}.\n"
        write_file(Path(options.learn), msgspec.json.encode(learned) + b"\n")
        sys.stderr.write(localized(message))
        return
    predicted = []
    for links in align_pairs(translator, pairs, heads):
        predicted.append(links)
        sys.stdout.buffer.write(f"{format_links(links)}\n".encode())
    sys.stdout.buffer.flush()
    if references is not None:
        sys.stderr.write(localized(f"alignment error rate {100 * alignment_error(predicted, references):.1f} %\n"))


def parse_links(location: str, line: str) -> "Links":
    """Return the word links in a line such as `0-0 1-2 2-1`, as a set of pairs; words are counted from 0.

    Args:
        location: name of the line in error messages.
        line: the line; a blank one has no links.

    Returns:
        A set of pairs (source word, target word).

    Raises:
        TransduceError: a part of the line is not a link.
    """
    links = []
    for link in line.split():
        source, dash, target = link.partition("-")
        if not (dash and source.isdecimal() and target.isdecimal()):
            raise TransduceError(
                f"A link is written `0-2`, source word first, but {location} says `{link}`: correct it."
            )
        links.append((int(source), int(target)))
    return frozenset(links)


def format_links(links: "Links") -> str:
    """Return the word links of a sentence pair as a line such as `0-0 1-2 2-1`, sorted by source and target word."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def _read_pairs(options: argparse.Namespace) -> "Iterator[SplitSentencePair]":
    from transduce.inspection.alignment import word_pair

    files = [options.source, options.target, options.source_words, options.target_words]
    lines = iter(read_aligned_lines(*(file for file in files if file is not None)))
    columns: list[Iterable[str | None]] = [repeat(None) if file is None else next(lines) for file in files]
    named = " and ".join(file for file in files[2:] if file is not None)
    is_document = False  # empty lines separate the documents of models that read context
    for number, (source, target, source_words, target_words) in enumerate(zip(*columns, strict=False), 1):
        try:
            pair = word_pair(source or "", target or "", _split(source_words), _split(target_words))
        except TransduceError as error:
            raise TransduceError(f"{named}, line {number:,}: {error}") from error
        has_text = bool(pair.source.strip())
        yield msgspec.structs.replace(pair, continues=is_document and has_text)
        is_document = has_text


def _split(words: str | None) -> list[str] | None:
    return None if words is None else words.split()


def _numbered(path: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), 1):
        yield f"{path}, line {number},", line
