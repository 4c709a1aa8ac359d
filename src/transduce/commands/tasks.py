"""Commands of other tasks than translation: `classify`, `tag`, `parse`, `fill-mask`, `embed` and `forecast`."""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import msgspec

from transduce.atomic_io import name_path_in_errors, open_atomically
from transduce.commands.options import (
    add_computing,
    add_device,
    add_json,
    check_json,
    check_writable,
    file_or_stream,
    loading_options,
    refuse_options,
    report_long_lines,
    stdin_lines,
    text_argument,
    write_report,
    write_results,
)
from transduce.errors import TransduceError, count_noun, shown_names
from transduce.text.files import read_lines
from transduce.text.languages import is_unspaced_character
from transduce.text.tagged import is_tagged_file, read_tagged
from transduce.text.trees import read_clean_trees, unescape_word
from transduce.ui_language import localized

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from transduce.data.series import Numbers
    from transduce.evaluation.forecasts import ForecastReport
    from transduce.evaluation.label_scores import BracketReport
    from transduce.inference.classifier import Classification, Classifier
    from transduce.inference.forecaster import Forecast, Forecaster
    from transduce.inference.mask_filler import Candidate, Filler, Filling
    from transduce.inference.parser import Parse, Parser
    from transduce.inference.tagger import Tagger, Tagging

_T = TypeVar("_T")
_R = TypeVar("_R")

_TEXT: dict[str, Any] = {"nargs": "?", "metavar": "FILE", "type": file_or_stream}
"""The form of the positional argument `text`, a file; without it, or with `-`, standard input is read."""
_BLOCK_LINES = 1_024
_BLOCK_LINES_OF_PARSER = 256
_MAX_TAGS_SHOWN = 8
_MIN_UNDIVIDED = 5  # characters of a script without spaces that are hardly one word


def _blocks(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield the items in order, in lists of `size` items; the last list may have fewer."""
    waiting = iter(items)
    while block := list(itertools.islice(waiting, size)):
        yield block


def _in_blocks(compute: Callable[[list[_T]], Iterable[_R]], items: Iterable[_T], size: int) -> Iterator[_R]:
    """Apply `compute` to lists of at most `size` items, and return an iterator over the results of all items."""
    return itertools.chain.from_iterable(map(compute, _blocks(items, size)))


def _input_lines(options: argparse.Namespace) -> Iterator[str]:
    return report_long_lines(read_lines(options.text) if options.text else stdin_lines())


# --- classify ---


def add_classify_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce classify` in its argparse parser."""
    add = parser.add_argument
    add("model", help="the folder of a classifier")
    add("text", **_TEXT, help="texts, one per line (default: standard input)")
    add(
        "--probabilities",
        type=_number_of_labels,
        nargs="?",
        const=-1,
        metavar="N",
        help="print the N most likely labels with their probabilities; all labels without N",
    )
    add("--labels", metavar="FILE", help="the right labels, one per line: report the accuracy, print no labels")
    add("--output", metavar="FILE", type=file_or_stream, help="write the labels here (default: standard output)")
    add_json(add, needs="--labels")
    add_computing(parser)


def _number_of_labels(text: str) -> int:
    """Return an option's text as a number of labels to print, at least 1; an argparse `type`.

    Raises:
        argparse.ArgumentTypeError: the text is no such number. It may be a file name that follows the option.
    """
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of labels (1 or more); put a file before the option")


def run_classify(options: argparse.Namespace) -> None:
    """Print a label for each text or, with --labels (the right labels), a report of scores."""
    from transduce.inference.classifier import load_classifier

    check_writable(options.output, report=options.json, inputs=[options.model, options.text, options.labels])
    check_json(options, "labels")
    if options.probabilities and options.labels and not options.output:
        raise TransduceError(
            "`--probabilities` are printed after labels, but `--labels` prints none: add `--output`, or leave one "
            "of them out."
        )
    classifier = load_classifier(options.model, **loading_options(options))
    if options.labels:
        _report_labels(options, classifier)
        return
    found = _in_blocks(classifier, _input_lines(options), _BLOCK_LINES)
    write_results((f"{format_classification(each, options.probabilities)}\n" for each in found), options.output)


def _report_labels(options: argparse.Namespace, classifier: "Classifier") -> None:
    """Classify all texts, write the predicted labels to --output if set, and print scores against --labels."""
    from transduce.evaluation.label_scores import score_labels
    from transduce.evaluation.scores import check_line_counts
    from transduce.inference.evaluate import check_labels

    texts, labels = list(_input_lines(options)), list(read_lines(options.labels))
    name = options.text or "standard input"
    check_line_counts({f"lines in {name}": texts, f"lines in {options.labels}": labels})
    check_labels(classifier, labels, f"{options.labels}:1")
    found = list(_in_blocks(classifier, texts, _BLOCK_LINES))
    if options.output:
        write_results((f"{format_classification(each, options.probabilities)}\n" for each in found), options.output)
    write_report(score_labels([each.label for each in found], labels), options.json)


def format_classification(classification: "Classification", shown: int | None) -> str:
    """Return the classification of a text as a line.

    Args:
        classification: the label and the probabilities of all labels, the most probable first.
        shown: how many labels to show with their probabilities, separated by tabs; -1: all; None: the label alone.
    """
    if not shown:
        return classification.label
    ranked = list(classification.probabilities.items())[: shown if shown > 0 else None]
    return "\t".join(f"{label}\t{probability:.4f}" for label, probability in ranked)


# --- tag ---


def add_tag_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce tag` in its argparse parser."""
    add = parser.add_argument
    add("model", help="the folder of a tagger")
    add(
        "text",
        **_TEXT,
        help="sentences, one per line, words separated by spaces; or columns (.conll, .conllu, …) or JSON lines "
        "(default: standard input)",
    )
    add(
        "--columns",
        nargs="+",
        metavar="COLUMN",
        help="FILE has columns: which of them holds the word and, for --score, the tag; numbers from 1, or names",
    )
    add(
        "--score", action="store_true", help="compare with the tags in FILE: report accuracy and span F1, print no tags"
    )
    add("--output", metavar="FILE", type=file_or_stream, help="write the tags here (default: standard output)")
    add_json(add, needs="--score")
    add_computing(parser)


def run_tag(options: argparse.Namespace) -> None:
    """Print a line `word TAB tag` for each word, with an empty line after each sentence.

    With --score, a report that compares the tags with those in the file is printed instead.
    """
    from transduce.inference.tagger import load_tagger

    check_writable(options.output, report=options.json, inputs=[options.model, options.text])
    check_json(options, "score")
    if (options.score or options.columns) and not options.text:
        option = "--score" if options.score else "--columns"
        raise TransduceError(f"`{option}` needs a file of columns, but standard input has sentences: name a file.")
    if options.columns and len(options.columns) > 2:
        raise TransduceError(f"`--columns` names those of word and tag, but there are {len(options.columns)}.")
    tagger = load_tagger(options.model, **loading_options(options))
    if options.score:
        _report_tags(options, tagger)
        return
    taggings = _in_blocks(tagger.tag, _sentences(options), _BLOCK_LINES)
    write_results(map(_tagged_lines, taggings), options.output)


def _tagged_lines(tagging: "Tagging") -> str:
    """Return a tagged sentence as lines, with an empty line at the end.

    A sentence without words gives only the empty line.
    """
    return f"{tagging}\n\n" if tagging.words else "\n"


def _sentences(options: argparse.Namespace) -> Iterable[Sequence[str]]:
    """Return the sentences to tag, each as a list of words.

    The sentences come from the columns of a tagged file, or else from lines whose words are separated by spaces.
    """
    if options.columns or (options.text and is_tagged_file(options.text)):
        return [sentence.words for sentence in read_tagged(options.text, options.columns, needs_tags=False)]
    return _words_of_lines(options)


def _words_of_lines(options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield the list of words of each input line, and at the end warn about lines without spaces.

    The warning is about scripts such as Chinese: a line counts if it is a single word with at least five characters of
    a script without spaces.
    """
    undivided = []
    for number, line in enumerate(_input_lines(options), 1):
        words = line.split()
        if len(words) == 1 and sum(map(is_unspaced_character, words[0])) >= _MIN_UNDIVIDED:
            undivided.append(number)
        yield words
    if undivided:
        sys.stderr.write(
            localized(
                f"Lines without spaces are read as one word, here {len(undivided):,} (the first is line "
                f"{undivided[0]:,}): put spaces between words, or between characters, as in the training text.\n"
            )
        )


def _report_tags(options: argparse.Namespace, tagger: "Tagger") -> None:
    """Tag the sentences of a tagged file, compare the tags with those of the file, and print a report of scores.

    The predicted tags are written to --output if set.

    Raises:
        TransduceError: the model knows none of the file's tags.
    """
    from transduce.evaluation.label_scores import score_tags

    sentences = read_tagged(options.text, options.columns)
    tags = {tag for sentence in sentences for tag in sentence.tags}
    unknown = sorted(tags - set(tagger.tags))
    if len(unknown) == len(tags):
        raise TransduceError(
            f'{options.text} has tags such as "{unknown[0][:40]}", none of which the model knows: its tags are '
            f"{shown_names(tagger.tags, _MAX_TAGS_SHOWN)}; choose the column of the tags by --columns."
        )
    if unknown:
        shown = shown_names(unknown, _MAX_TAGS_SHOWN)
        sys.stderr.write(localized(f"The model does not know {len(unknown)} of {len(tags)} tags: {shown}\n"))
    taggings = list(_in_blocks(tagger.tag, (sentence.words for sentence in sentences), _BLOCK_LINES))
    if options.output:
        write_results(map(_tagged_lines, taggings), options.output)
    report = score_tags([tagging.tags for tagging in taggings], [sentence.tags for sentence in sentences])
    write_report(report, options.json)


# --- parse ---


class ParsingReport(msgspec.Struct, frozen=True, kw_only=True):
    """A report about a parser: its bracket scores on a treebank, and the beam size with which it parsed."""

    brackets: "BracketReport"
    f1: float
    """Bracket F1 of sentences of all lengths, in percent."""
    f1_of_short: float
    """Bracket F1 of sentences of at most 40 words, in percent."""
    valid: float
    """Share of the sentences whose parse is a tree over exactly their words, in percent."""
    cut: int
    """Number of trees that reached the maximum length, so that they were cut there and their open brackets closed."""
    beam_size: int

    def __str__(self) -> str:
        return f"{self.brackets}\nvalid trees {self.valid:.2f} %, {self.cut:,} of them cut, beam {self.beam_size}"


def add_parse_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce parse` in its argparse parser."""
    add = parser.add_argument
    add("model", help="the folder of a parser")
    add("text", **_TEXT, help="sentences, one per line, words separated by spaces (default: standard input)")
    add("--pretty", action="store_true", help="draw each tree on several lines, followed by an empty line")
    add(
        "--beam-size",
        type=int,
        metavar="N",
        help="hypotheses kept at each step; 1: greedy (default: the setting in the model's folder)",
    )
    add("--reference", metavar="TREEBANK", help="parse its sentences and report bracket scores, print no trees")
    add("--output", metavar="FILE", type=file_or_stream, help="write the trees here (default: standard output)")
    add_json(add, needs="--reference")
    add_computing(parser)


def run_parse(options: argparse.Namespace) -> None:
    """Print a tree for each sentence or, with --reference (a treebank), a report of bracket scores."""
    from transduce.inference.parser import load_parser

    check_writable(options.output, report=options.json, inputs=[options.model, options.text, options.reference])
    check_json(options, "reference")
    if options.reference and options.text:
        raise TransduceError(f"--reference has its own sentences, but {options.text} is named too: leave one out.")
    if options.pretty and options.reference and not options.output:
        raise TransduceError(
            "`--pretty` draws trees, but `--reference` prints none: add `--output`, or leave one of them out."
        )
    parser = load_parser(options.model, **loading_options(options))
    if options.beam_size is not None:
        parser.search = msgspec.structs.replace(parser.search, beam_size=options.beam_size)
    if options.reference:
        write_report(_parse_treebank(options, parser), options.json)
        return
    sentences = ([unescape_word(word) for word in words] for words in _words_of_lines(options))
    parses = _in_blocks(parser.parse, sentences, _BLOCK_LINES_OF_PARSER)
    write_results((_format_parse(parse, options) for parse in parses), options.output)


def _format_parse(parse: "Parse", options: argparse.Namespace) -> str:
    return f"{parse.draw()}\n\n" if options.pretty else f"{parse}\n"


def _parse_treebank(options: argparse.Namespace, parser: "Parser") -> ParsingReport:
    """Parse the sentences of a treebank, write the trees to --output if set, and return the bracket scores."""
    from transduce.evaluation.label_scores import BracketSettings, score_trees

    references = read_clean_trees(options.reference)
    sentences = (reference.words() for reference in references)
    parses = list(_in_blocks(parser.parse, sentences, _BLOCK_LINES_OF_PARSER))
    if options.output:
        write_results((_format_parse(parse, options) for parse in parses), options.output)
    brackets = score_trees([parse.tree for parse in parses], references, BracketSettings())
    all_lengths = brackets.all
    return ParsingReport(
        brackets=brackets,
        f1=all_lengths.f1,
        f1_of_short=brackets.short.f1,
        valid=100.0 * (all_lengths.sentences - all_lengths.invalid) / max(1, all_lengths.sentences),
        cut=sum(not parse.ended for parse in parses),
        beam_size=parser.search.beam_size,
    )


# --- fill-mask ---


class FillReport(msgspec.Struct, frozen=True, kw_only=True):
    """Texts whose masks a model filled, with the candidates for each mask; `str` returns both as lines."""

    fillings: "Sequence[Filling]"

    def __str__(self) -> str:
        """Return each text with its masks filled and, below the text, a line of candidates for each mask."""
        lines = []
        for filling in self.fillings:
            lines.append(filling.text)
            candidates = (
                [f"{_format_candidate(each)} {each.probability:.3f}" for each in mask] for mask in filling.masks
            )
            lines += ("  " + "  ".join(shown) for shown in candidates)
        return "\n".join(lines)


def _format_candidate(candidate: "Candidate") -> str:
    """Return the text of a mask's candidate, as it is printed.

    If the text is blank or an incomplete character, the token is returned instead.
    """
    text = candidate.text.strip()
    return candidate.token if not text or "\ufffd" in text else text


def add_fill_mask_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce fill-mask` in its argparse parser."""
    add = parser.add_argument
    add("model", help="the folder of a masked language model")
    add(
        "text",
        type=text_argument,
        nargs="?",
        default="-",
        help="a text that contains [MASK] (<mask> for some imported models); -: read standard input, one text per line",
    )
    add("--candidates", type=int, default=5, metavar="N", help="number of candidates shown for each mask")
    add_json(add, "the texts with their probabilities")
    add_computing(parser)


def run_fill_mask(options: argparse.Namespace) -> None:
    """Print each text with its masks filled and, below the text, the candidates for each mask."""
    from transduce.inference.mask_filler import load_filler

    check_writable(report=options.json, inputs=[options.model])
    filler = load_filler(options.model, **loading_options(options))
    if options.text == "-":
        lines = enumerate(stdin_lines(), 1)
        fillings = [_fill_line(filler, number, line, options.candidates) for number, line in lines if line.strip()]
    else:
        fillings = [filler(options.text, candidates=options.candidates)]
    write_report(FillReport(fillings=fillings), options.json)


def _fill_line(filler: "Filler", number: int, line: str, candidates: int) -> "Filling":
    try:
        return filler(line, candidates=candidates)
    except TransduceError as error:
        raise TransduceError(f"Standard input, line {number:,}: {error}") from error


# --- embed ---


def add_embed_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce embed` in its argparse parser."""
    add = parser.add_argument
    add("model", help="the folder of an encoder: a model of sentence-transformers, or any other BERT")
    add("text", **_TEXT, help="texts, one per line (default: standard input)")
    add("--output", metavar="FILE", required=True, help="vectors.npy: one float32 array; vectors.jsonl: JSON lines")
    add(
        "--pooling", choices=("mean", "max", "first"), help="how token states become one vector (default: the folder's)"
    )
    add(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="divide each vector by its norm, so that dot products are cosines (default: as the folder specifies)",
    )
    add_computing(parser)


def run_embed(options: argparse.Namespace) -> None:
    """Write a vector for each line of text to --output (.npy or .jsonl).

    The number of vectors, and of lines that are longer than the model reads, are reported on standard error.
    """
    from transduce.inference.embedder import load_embedder

    path = Path(options.output)
    is_npy = path.suffix == ".npy"
    if not is_npy and path.suffix != ".jsonl":
        raise TransduceError(
            f"`--output` must end in .npy or .jsonl, which sets the format, but is `{options.output}`."
        )
    check_writable(options.output, inputs=[options.model, options.text])
    embedder = load_embedder(
        options.model, **loading_options(options), pooling=options.pooling, normalizes=options.normalize
    )
    width, count, cut = embedder.model.config.d_model, 0, 0
    with name_path_in_errors(path), open_atomically(path) as file:
        if is_npy:
            _write_header(file, (0, width))
        for lines in _blocks(_input_lines(options), _BLOCK_LINES):
            whole = embedder.tokenizer.source.encode_batch(lines)
            rows = embedder.frame(whole)
            vectors = embedder.vectors(rows).numpy()
            file.write(vectors.tobytes() if is_npy else _json_lines(lines, vectors))
            count += len(lines)
            cut += sum(len(row) < len(ids) + 2 for row, ids in zip(rows, whole, strict=True))  # with [CLS] and [SEP]
        if is_npy and file.seekable():
            file.seek(0)
            _write_header(file, (count, width))
        elif is_npy and count:
            raise TransduceError("An .npy file begins with the number of its rows: name a regular file, or use .jsonl.")
    sys.stderr.write(localized(f"{path}: {count_noun(count, 'vector')} of {width} numbers\n"))
    if cut:
        sys.stderr.write(
            localized(f"texts of which the model reads only the first {embedder.length:,} tokens: {cut:,}\n")
        )


def _write_header(file: BinaryIO, shape: tuple[int, int]) -> None:
    """Write the header of a file in NumPy's format (.npy) with a float32 array of this shape.

    NumPy pads the header. So the header can be overwritten later, when the number of rows is known.
    """
    import numpy as np

    header = {"descr": np.lib.format.dtype_to_descr(np.dtype("<f4")), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _json_lines(texts: list[str], vectors: "NDArray[np.float32]") -> bytes:
    """Return a line of JSON for each text, with the fields `text` and `vector`, as bytes.

    The numbers have nine significant digits, which are enough to identify a float32.

    Args:
        texts: the texts, one per line of the input.
        vectors: a vector for each text, (lines, width).
    """
    objects = (
        b'{"text":'
        + msgspec.json.encode(text)
        + f',"vector":[{",".join(f"{number:.9g}" for number in vector)}]}}\n'.encode()
        for text, vector in zip(texts, vectors.tolist(), strict=True)
    )
    return b"".join(objects)


# --- forecast ---


def add_forecast_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce forecast` in its argparse parser."""
    add = parser.add_argument
    add("model", help="the folder of a forecaster")
    add("table", metavar="FILE", help="a .csv or .tsv table, plain or gzip, with a header; the newest line comes last")
    add("--steps", type=int, metavar="N", help="points to forecast (default: as many as in training)")
    add("--output", metavar="FILE", type=file_or_stream, help="write the table here (default: standard output)")
    sampling = parser.add_argument_group("sampling").add_argument
    sampling(
        "--samples",
        type=int,
        default=0,
        metavar="N",
        help="draw N trajectories, and print the range of the middle 80 %% of them; for models trained with "
        "task.series.likelihood=gaussian",
    )
    sampling("--seed", type=int, metavar="N", help="with --samples: random seed (default: 1)")
    scoring = parser.add_argument_group("scoring").add_argument
    scoring(
        "--score",
        action="store_true",
        help="forecast the table's own points instead, and report the errors; of the table of training, only the last "
        "tenth is unseen (see --last)",
    )
    scoring(
        "--last",
        type=int,
        metavar="N",
        help="with --score: use only the last N points, rounded down to a multiple of --steps (default: all)",
    )
    scoring(
        "--season",
        type=int,
        metavar="N",
        help="with --score: points of a season, which a baseline repeats (default: the model's)",
    )
    add_json(scoring, needs="--score")
    add_device(parser)("--precision", default="auto", choices=("auto", "fp32", "bf16"), help="auto: fp32")


def run_forecast(options: argparse.Namespace) -> None:
    """Print a table (CSV) of forecasts or, with `--score`, a report of forecast errors."""
    from transduce.data.series import read_table
    from transduce.inference.forecaster import load_forecaster

    check_writable(options.output, report=options.json, inputs=[options.model, options.table])
    _check_forecast_options(options)
    forecaster = load_forecaster(options.model, **loading_options(options))
    table = read_table(options.table, forecaster.card.columns)
    values = table.values
    if table.time_warning:
        sys.stderr.write(localized(f"warning: {table.time_warning}\n"))
    if options.score:
        write_report(score_table(forecaster, values, options), options.json)
        return
    forecast = forecaster(values, options.steps, samples=options.samples, seed=_seed(options))
    write_results((f"{line}\n" for line in table_lines(forecast)), options.output)


def _seed(options: argparse.Namespace) -> int:
    return 1 if options.seed is None else int(options.seed)


def _check_forecast_options(options: argparse.Namespace) -> None:
    check_json(options, "score")
    if not options.score:
        refuse_options(options, ("last", "season"), "`{option}` needs `--score`: add that, or leave it out.")
    if not options.samples:
        refuse_options(options, ["seed"], "`{option}` needs `--samples`: add that, or leave it out.")
    if options.score and options.output:
        raise TransduceError("`--score` writes no table: leave `--output` out, or name a file with `--json`.")


def score_table(forecaster: "Forecaster", values: "Numbers", options: argparse.Namespace) -> "ForecastReport":
    """Forecast a table's own points, one segment of `--steps` points after the other, and return the errors.

    Each segment is forecast from the actual points before it; the errors are a `ForecastReport`.

    Args:
        forecaster: the model.
        values: the points of the table, (N, C).
        options: the options --steps, --last (score only the newest points), --season, --samples and --seed.

    Raises:
        TransduceError: an option is out of range, or the table is too short.
    """
    import numpy as np

    from transduce.data.series import WindowedSeries, find_learned
    from transduce.evaluation.forecasts import score_forecasts

    card = forecaster.card
    steps = card.horizon if options.steps is None else options.steps
    season = card.season if options.season is None else options.season
    if season < 1:
        raise TransduceError(f"`--season` must be at least 1, but is {season}.")
    if options.last is not None and options.last < steps:
        raise TransduceError(
            f"`--last` must be at least {steps}, the points that are forecast at a time, but is {options.last}: score "
            "more points, or forecast fewer (`--steps`)."
        )
    if options.season is None and len(values) < season + steps:
        season = 1  # the table is shorter than the season of training
    known = max(card.past, season)
    if steps < 1 or len(values) < known + steps:
        raise TransduceError(
            f"Scoring takes {known} points to read and `--steps` {steps} to forecast, but there are {len(values)} "
            "points: use a longer table, or fewer steps."
        )
    scored, learned = values, find_learned(values, card.learned)
    if options.last is not None:
        # The oldest points that fill no window are dropped, so that the newest are scored.
        first = len(values) - known - min(options.last, len(values) - known) // steps * steps
        scored, learned = values[first:], learned[first:]
    series = WindowedSeries([scored], past=card.past, horizon=steps, stride=steps, season=season)
    windows = np.arange(len(series))
    past, actual = series.known(windows), series.cut(windows)[1]
    forecast = forecaster.forecast_windows(past, steps, samples=options.samples, seed=_seed(options))
    count = int(learned[series.target_rows()].sum()) if any(len(each.digests) > 1 for each in card.learned) else None
    return score_forecasts(past, actual, forecast.values, names=card.columns, season=season, learned=count)


def table_lines(forecast: "Forecast") -> Iterator[str]:
    """Yield a forecast as the lines of a CSV table: a header, then one line per point, without line breaks.

    With samples, each series has three columns: the forecast, and the low and high end of its range.
    """
    import numpy as np

    from transduce.inference.forecaster import forecast_columns

    yield ",".join(_cell(name) for name in forecast_columns(forecast))
    parts = [part for part in (forecast.values, forecast.low, forecast.high) if part is not None]
    for row in np.stack(parts, axis=-1):  # (C, 1 or 3)
        yield ",".join(f"{value:.10g}" for value in row.ravel())


def _cell(name: str) -> str:
    """Return the name of a column as a cell of a CSV table, quoted if it contains a comma or quotes."""
    return '"' + name.replace('"', '""') + '"' if "," in name or '"' in name else name
