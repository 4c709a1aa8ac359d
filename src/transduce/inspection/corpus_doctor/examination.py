"""Looks for everything."""

import time
from collections.abc import Sequence

from transduce.inspection.corpus_doctor.alignment import FEWEST_LINES, Alignment, Stretch, align
from transduce.inspection.corpus_doctor.evidence import side_features
from transduce.inspection.corpus_doctor.findings import (
    character_findings,
    chinese_finding,
    language_findings,
    repeat_findings,
    token_findings,
)
from transduce.inspection.corpus_doctor.report import CorpusReport, Finding, severity_of
from transduce.inspection.corpus_doctor.text import EXAMPLES, CorpusText, examples_of, read_corpus
from transduce.text.filters import FilterSettings
from transduce.text.tokenizer import Tokenizer

_MOST_SHOWN = 8


def examine_corpus(
    source: Sequence[str],
    target: Sequence[str] = (),
    *,
    test_source: Sequence[str] = (),
    test_target: Sequence[str] = (),
    languages: tuple[str, str] | None = None,
    tokenizer: Tokenizer | None = None,
    filters: FilterSettings | None = None,
) -> CorpusReport:
    """Looks through two files that should correspond line by line, or a file of pairs. Text is held in memory.

    Args:
        source: files of the source side, plain or gzip; or, without a target, of pairs (.tsv, .jsonl).
        target: files of the target side.
        test_source: the test set's, to look for its sentences in the training text.
        test_target: its other side.
        languages: codes of both, where JSON lines have them for keys.
        tokenizer: a model's; one is learnt where nothing is said.
        filters: what training leaves out.

    Raises:
        TransduceError: a file is missing, empty, or in another encoding than UTF-8.
    """
    started_at = time.monotonic()
    text = read_corpus(source, target, languages)
    test = read_corpus(test_source, test_target, languages) if test_source else None
    stretches, alignment = _alignment_findings(text)
    findings = (
        _line_counts(text),
        *alignment,
        *character_findings(text),
        *repeat_findings(text, test),
        *language_findings(text),
        chinese_finding(text),
        *token_findings(text, tokenizer, filters or FilterSettings()),
    )
    return CorpusReport(
        passed=all(finding.severity != "problem" for finding in findings),
        source=tuple(source),
        target=tuple(target or source),
        source_lines=len(text.source.lines),
        target_lines=len(text.target.lines),
        stretches=stretches,
        findings=findings,
        elapsed_seconds=round(time.monotonic() - started_at, 2),
    )


def _line_counts(text: CorpusText) -> Finding:
    counts = len(text.source.lines), len(text.target.lines)
    difference = abs(counts[0] - counts[1])
    return Finding(
        name="line counts",
        severity="problem" if difference else "fine",
        count=difference,
        share=difference / max(counts),
        message=f"{counts[0]:,} lines and {counts[1]:,}"
        + (", which training refuses: they must correspond line by line" if difference else ""),
    )


def _alignment_findings(text: CorpusText) -> tuple[tuple[Stretch, ...], list[Finding]]:
    if text.pairs < FEWEST_LINES:
        message = f"fewer than {FEWEST_LINES} lines, too few to tell whether they correspond"
        return (), [Finding(name="alignment", severity="fine", count=0, share=0.0, message=message)]
    alignment = align(side_features(text.source.lines), side_features(text.target.lines))
    if alignment.is_of_strangers:
        return (), [_strangers(len(text.source.lines))]
    return alignment.stretches, [_alignment(text, alignment), _unlikely(text, alignment)]


def _alignment(text: CorpusText, alignment: Alignment) -> Finding:
    off = [stretch for stretch in alignment.stretches if stretch.lag != 0]
    count = sum(stretch.last_line - stretch.first_line + 1 for stretch in off)
    told = [_told(stretch, _lag_before(stretch, alignment.stretches)) for stretch in off[:_MOST_SHOWN]]
    if len(off) > _MOST_SHOWN:
        told.append(f"and {len(off) - _MOST_SHOWN} more stretches")
    return Finding(
        name="alignment",
        severity="problem" if off else "fine",
        count=count,
        share=count / len(text.source.lines),
        message="; ".join(told) if off else "the files keep step from the first line to the last",
        examples=examples_of((text.source, stretch.first_line - 1) for stretch in off),
    )


def _strangers(lines: int) -> Finding:
    return Finding(
        name="alignment",
        severity="problem",
        count=lines,
        share=1.0,
        message="nothing tells that the lines correspond: those of the same number are no more alike than others; "
        "translations would be, so the files are of different texts, or the lines of one were put in another order",
    )


def _lag_before(stretch: Stretch, stretches: Sequence[Stretch]) -> int:
    """That of the last stretch before this one that has any; at the beginning of the files, none."""
    known = [each.lag for each in stretches if each.first_line < stretch.first_line and each.lag is not None]
    return known[-1] if known else 0


def _told(stretch: Stretch, lag_before: int) -> str:
    lines = f"source lines {stretch.first_line:,} to {stretch.last_line:,}"
    if stretch.lag is None:
        return f"{lines} have no translations near by"
    lines_off = f"{abs(stretch.lag):,} line{'s' * (abs(stretch.lag) > 1)}"
    where = f"{lines_off} {'later' if stretch.lag > 0 else 'earlier'} in the target"
    if stretch.lag == lag_before:
        return f"{lines} have their translations {where}"
    wrong = (
        "the target has lines too many, or the source too few, just before"
        if stretch.lag > lag_before
        else ("the source has lines too many, or the target too few, just before")
    )
    return f"{lines} have their translations {where} ({wrong})"


def _unlikely(text: CorpusText, alignment: Alignment) -> Finding:
    numbers = [line - 1 for line in alignment.unlikely_lines]
    count = alignment.unlikely_count
    return Finding(
        name="unlikely pairs",
        severity=severity_of(count, text.pairs, 0.05),
        count=count,
        share=count / text.pairs,
        message=f"{count:,} pairs share neither words nor length nor punctuation; the least likely:"
        if count
        else "none",
        examples=tuple(text.pair_example(number) for number in numbers[:EXAMPLES] if number < text.pairs),
    )
