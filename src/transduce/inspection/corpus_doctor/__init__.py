"""Check a parallel corpus for common faults before training on it."""

import time
from collections.abc import Sequence

import msgspec

from transduce.errors import count_noun
from transduce.inspection.corpus_doctor.alignment import MIN_LINES, Alignment, LineRange, align, side_features
from transduce.inspection.corpus_doctor.findings import (
    character_findings,
    chinese_finding,
    language_findings,
    repeat_findings,
    token_findings,
)
from transduce.inspection.corpus_doctor.report import (
    EXAMPLES,
    CorpusReport,
    CorpusText,
    Example,
    Finding,
    count_finding,
    read_corpus,
)
from transduce.text.filters import FilterSettings
from transduce.text.tokenizer import Tokenizer

__all__ = ["CorpusReport", "Example", "Finding", "examine_corpus"]


_MAX_SHOWN = 8


def examine_corpus(
    source: Sequence[str],
    target: Sequence[str] = (),
    *,
    test_source: Sequence[str] = (),
    test_target: Sequence[str] = (),
    languages: tuple[str, str] | None = None,
    columns: tuple[str, str] | None = None,
    tokenizer: Tokenizer | None = None,
) -> CorpusReport:
    """Check a parallel corpus for faults, and return a `CorpusReport`.

    The corpus is two lists of files whose lines correspond, or files of pairs.

    Args:
        source: files of the source side, plain or compressed; without a target, files of pairs in any form
            that training reads.
        target: files of the target side; empty for files of pairs.
        test_source: source side of the test set, to find its sentences in the training text; empty: not checked.
        test_target: target side of the test set; empty: `test_source` has files of pairs.
        languages: codes of both languages, if columns of tables or keys of JSON lines are named after them.
        columns: the columns or fields of files of pairs that hold source and target, by name or number.
        tokenizer: a model's tokenizer; None: one is trained on the corpus.

    Raises:
        TransduceError: a file is missing, empty, or not in UTF-8.
    """
    started_at = time.monotonic()
    text = read_corpus(source, target, languages, columns)
    test = read_corpus(test_source, test_target, languages, columns) if test_source else None
    ranges, alignment = _alignment_findings(text)
    findings = (
        _line_counts(text),
        *_malformed_lines(text),
        *alignment,
        *character_findings(text),
        *repeat_findings(text, test),
        *language_findings(text),
        chinese_finding(text),
        *token_findings(text, tokenizer, FilterSettings()),
    )
    return CorpusReport(
        passed=all(finding.severity != "problem" for finding in findings),
        source=tuple(source),
        target=tuple(target or source),
        source_lines=len(text.source.lines),
        target_lines=len(text.target.lines),
        line_ranges=ranges,
        findings=findings,
        elapsed_seconds=round(time.monotonic() - started_at, 2),
    )


def _line_counts(text: CorpusText) -> Finding:
    counts = len(text.source.lines), len(text.target.lines)
    difference, message = abs(counts[0] - counts[1]), f"{counts[0]:,} lines and {counts[1]:,}"
    refused = f"{message}, which training refuses: they must correspond line by line"
    return count_finding("line counts", difference, max(counts), refused, 0.0, if_none=message)


def _malformed_lines(text: CorpusText) -> list[Finding]:
    """Return a list with a finding about table lines without two columns; the list is empty if there are none."""
    count = len(text.malformed)
    message = f"{count_noun(count, 'line')} without two columns; training leaves them out"
    finding = count_finding("table lines", count, text.pairs + count, message, 0.05)
    examples = tuple(Example(side="source", location=each, text="") for each in text.malformed[:EXAMPLES])
    return [msgspec.structs.replace(finding, examples=examples)] if count else []


def _alignment_findings(text: CorpusText) -> tuple[tuple[LineRange, ...], list[Finding]]:
    if text.pairs < MIN_LINES:
        message = f"fewer than {MIN_LINES} lines, too few to tell whether they correspond"
        return (), [count_finding("alignment", 0, 1, "", 0.0, if_none=message)]
    alignment = align(side_features(text.source.lines), side_features(text.target.lines))
    if alignment.is_unrelated:
        return (), [_unrelated_files(len(text.source.lines))]
    return alignment.ranges, [_misaligned_lines(text, alignment), _unlikely_pairs(text, alignment)]


def _misaligned_lines(text: CorpusText, alignment: Alignment) -> Finding:
    misaligned = [each for each in alignment.ranges if each.lag != 0]
    count = sum(each.last_line - each.first_line + 1 for each in misaligned)
    descriptions = [_describe(each, _lag_before(each, alignment.ranges)) for each in misaligned[:_MAX_SHOWN]]
    if len(misaligned) > _MAX_SHOWN:
        descriptions.append(f"and {len(misaligned) - _MAX_SHOWN} more ranges")
    examples = ((text.source, each.first_line - 1) for each in misaligned)
    aligned = "the files are aligned from the first line to the last"
    total, message = len(text.source.lines), "; ".join(descriptions)
    return count_finding("alignment", count, total, message, 0.0, examples, if_none=aligned)


def _unrelated_files(lines: int) -> Finding:
    message = (
        "the lines do not seem to correspond: lines of the same number are no more alike than others. The files have "
        "different texts, or the lines of one were reordered"
    )
    return count_finding("alignment", lines, lines, message, 0.0)


def _lag_before(lines: LineRange, ranges: Sequence[LineRange]) -> int:
    """Return the line shift of the last range before `lines` that has a shift; 0 if there is none.

    The translations of all lines of a range are shifted by the same number of lines.
    """
    lags = [earlier.lag for earlier in ranges if earlier.first_line < lines.first_line and earlier.lag is not None]
    return lags[-1] if lags else 0


def _describe(shifted: LineRange, lag_before: int) -> str:
    lines = f"source lines {shifted.first_line:,} to {shifted.last_line:,}"
    if shifted.lag is None:
        return f"{lines} have no translations nearby"
    lines_off = count_noun(abs(shifted.lag), "line")
    where = f"{lines_off} {'later' if shifted.lag > 0 else 'earlier'} in the target"
    if shifted.lag == lag_before:
        return f"{lines} have their translations {where}"
    wrong = "just before, the source has extra lines or the target lacks some"
    if shifted.lag > lag_before:
        wrong = "just before, the target has extra lines or the source lacks some"
    return f"{lines} have their translations {where} ({wrong})"


def _unlikely_pairs(text: CorpusText, alignment: Alignment) -> Finding:
    count = alignment.unlikely_count
    message = f"{count_noun(count, 'pair')} less like translations than most unrelated lines are; the least likely:"
    finding = count_finding("unlikely pairs", count, text.pairs, message, 0.05)
    numbers = [line - 1 for line in alignment.unlikely_lines[:EXAMPLES]]
    examples = tuple(text.pair_example(number) for number in numbers if number < text.pairs)
    return msgspec.structs.replace(finding, examples=examples)
