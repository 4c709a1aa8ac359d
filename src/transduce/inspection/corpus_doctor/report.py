"""The corpus doctor's report, as data, as text and as an HTML page."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec

from transduce.errors import TransduceError, count_noun
from transduce.inspection.corpus_doctor.alignment import LineRange
from transduce.tasks.settings.structs import DataSettings
from transduce.tasks.text_files import STANDARD_INPUT, format_to_convert, store_standard_input
from transduce.text.corpus import HEADER, MALFORMED, CorpusFiles, Pair, PairReader
from transduce.text.files import LineNotes, read_lines
from transduce.text.pair_files import Columns, read_table
from transduce.ui_language import column, localized, noted, ui_language

Severity = Literal["fine", "look", "problem"]
_MARKS: dict[Severity, str] = {"fine": "ok", "look": "look", "problem": "FAULT"}
_LABELS: dict[Severity, str] = {"problem": "to fix", "look": "to check", "fine": "in order"}
_MAX_WIDTH = 60


class Example(msgspec.Struct, frozen=True):
    """A shortened line of the corpus with its file and line number, as an example of a finding."""

    side: Literal["source", "target"]
    location: str
    """The file and line as FILE:LINE, counted from 1; a line is a row in a Parquet file and a unit in a TMX file."""
    text: str

    def __str__(self) -> str:
        return f"{self.location}  {self.text}".rstrip()


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check of a parallel corpus: how many lines are affected, a message and examples."""

    name: str
    """Identifier of the check, such as "duplicates", for scripts."""
    severity: Severity
    """`fine` (nothing found), `look` (it may be intended) or `problem` (training on the text would be wasted)."""
    count: int
    """Number of affected lines, pairs, sentences or tokens, as the check counts."""
    share: float
    """Share of affected lines, pairs, sentences or tokens, from 0 to 1."""
    message: str
    """Message that says what was found, and what to do."""
    examples: tuple[Example, ...] = ()
    """At most three affected lines or pairs."""

    def __str__(self) -> str:
        head = f"{column(_MARKS[self.severity], 6)}{column(self.name, 22)} {localized(self.message)}"
        return "\n".join([head, *(f"{'':29}{example}" for example in self.examples)])


class CorpusReport(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all checks of a corpus, and the alignment of its sides."""

    passed: bool
    """True if no finding is a problem."""
    source: tuple[str, ...]
    """The paths of the files of the source side, or of pairs."""
    target: tuple[str, ...]
    """The paths of the files of the target side; those of `source` if these are files of pairs."""
    source_lines: int
    """The number of lines of the source side."""
    target_lines: int
    """The number of lines of the target side."""
    line_ranges: tuple[LineRange, ...]
    """Ranges of source lines whose translations are shifted equally; empty if files are too short or unrelated."""
    findings: tuple[Finding, ...]
    elapsed_seconds: float

    def finding(self, name: str) -> Finding:
        """Return the finding of the check with this name.

        Raises:
            StopIteration: the report has no such finding.
        """
        return next(finding for finding in self.findings if finding.name == name)

    def __str__(self) -> str:
        sides = f"{' '.join(self.source)} ({count_noun(self.source_lines, 'line')}) and {' '.join(self.target)}"
        problems, looks, fine = (sum(each.severity == severity for each in self.findings) for severity in _LABELS)
        verdict = f"{problems} to fix, {looks} to check, {fine} in order"
        return "\n".join([
            localized(f"The doctor on {sides} ({count_noun(self.target_lines, 'line')})"),
            *map(str, _worst_first(self.findings)),
            noted(localized(verdict), localized(f"{self.elapsed_seconds:.1f} s")),
        ])  # fmt: skip


def _worst_first(findings: Sequence[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: list(_LABELS).index(finding.severity))


def shortened(text: str) -> str:
    """Return a line for display: unprintable characters are escaped, and a long line is cut."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: 2 * _MAX_WIDTH])
    return shown if len(shown) <= _MAX_WIDTH and len(text) <= 2 * _MAX_WIDTH else shown[: _MAX_WIDTH - 1] + "…"


def severity_of(count: int, total: int, problem_share: float) -> Severity:
    """Return the severity of a finding that affects `count` of `total` lines.

    It is `fine` if no line is affected. It is `problem` if the share of affected lines is at least `problem_share`, and
    `look` otherwise.
    """
    if not count:
        return "fine"
    return "problem" if count >= problem_share * total else "look"


# --- a self-contained HTML page ---


_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
body{color:#222;background:#fff}
table{border-collapse:collapse;width:100%}td{padding:.3rem .6rem;vertical-align:top;border-top:1px solid #ddd}
.problem{color:#a00;font-weight:bold}.look{color:#850}.fine{color:#070}code{font-size:85%;color:#555}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td{border-color:#444}code{color:#aaa}
.problem{color:#f77}.look{color:#fc6}.fine{color:#7d7}}"""


def html_page(report: CorpusReport) -> str:
    """Return a self-contained HTML page with the findings of a report, worst first."""
    rows = "\n".join(map(_row, _worst_first(report.findings)))
    title = f"{' '.join(report.source)} and {' '.join(report.target)}"
    heading = localized("The doctor on a corpus")
    sides = localized(f"{title}: {report.source_lines:,} and {count_noun(report.target_lines, 'line')}.")
    return (
        f'<!DOCTYPE html>\n<html lang="{ui_language()}"><head><meta charset="utf-8">'
        f"<title>{escape(localized(title))}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{heading}</h1><p>{escape(sides)}</p>\n<table>\n{rows}\n</table></body></html>\n"
    )


def _row(finding: Finding) -> str:
    examples = "".join(
        f"<br><code>{escape(example.location)}</code> {escape(example.text)}" for example in finding.examples
    )
    return (
        f'<tr><td class="{finding.severity}">{localized(_LABELS[finding.severity])}</td>'
        f"<td>{escape(localized(finding.name))}</td><td>{escape(localized(finding.message))}{examples}</td></tr>"
    )


# --- the text of the corpus ---

EXAMPLES = 3


@dataclass(frozen=True)
class Side:
    """The lines of the source or target side of a corpus, from one or several files."""

    name: Literal["source", "target"]
    paths: tuple[str, ...]
    lines: list[str]
    starts: tuple[int, ...]
    """For each file, the index of its first line in `lines`."""
    notes: LineNotes
    """Counts of what reading removed, such as byte order marks."""
    numbers: Sequence[int] | None = None
    """The number of each line in its file, from 1, if it differs from the order, as lines of tables may be left out;
    None: the lines are numbered in order.
    """

    def example(self, number: int) -> Example:
        """Return the line with this index, from 0, as an `Example`: shortened, with its file and line number."""
        file = bisect_right(self.starts, number) - 1
        line = number - self.starts[file] + 1 if self.numbers is None else self.numbers[number]
        return Example(side=self.name, location=f"{self.paths[file]}:{line}", text=shortened(self.lines[number]))


def read_side(name: Literal["source", "target"], paths: Sequence[str]) -> Side:
    """Return the lines of all files of one side of a corpus as one `Side`.

    Bytes that are not UTF-8 are kept if only few lines of a file have some.

    Raises:
        TransduceError: a file is missing, empty, or cannot be read as UTF-8.
    """
    notes, files = LineNotes(), []
    for path in paths:
        files.append(list(read_lines(path, notes, keep_undecodable=True)))
        if not files[-1]:
            raise TransduceError(f"{path} is empty, but a corpus needs at least one line: check the file.")
    starts = (0, *accumulate(map(len, files)))[:-1]
    return Side(name, tuple(paths), [line for lines in files for line in lines], starts, notes)


@dataclass(frozen=True)
class CorpusText:
    """The lines of both sides of a corpus, which may differ in number."""

    source: Side
    target: Side
    malformed: tuple[str, ...] = ()
    """Locations (FILE:LINE) of the lines of tables that lack two columns, and are therefore on neither side."""

    @property
    def sides(self) -> tuple[Side, Side]:
        """The source and the target side, in this order."""
        return self.source, self.target

    def pair_example(self, number: int) -> Example:
        """Return both lines of the pair with this index, from 0, as one `Example` with the source line's location."""
        source, target = (side.example(number) for side in self.sides)
        return Example(side="source", location=source.location, text=f"{source.text}  ⇔  {target.text}")

    @property
    def pairs(self) -> int:
        """The number of line pairs: the number of lines of the shorter side."""
        return min(len(self.source.lines), len(self.target.lines))


def read_corpus(
    source: Sequence[str],
    target: Sequence[str],
    languages: tuple[str, str] | None = None,
    columns: tuple[str, str] | None = None,
) -> CorpusText:
    """Read both sides of a corpus, from parallel files or from files of pairs, and return a `CorpusText`.

    Args:
        source: files of the source side, or files of pairs; `-` instead of a file of pairs is standard input.
        target: files of the target side; empty for files of pairs.
        languages: the languages of source and target, after which columns or fields may be named; None: unknown.
        columns: the names or numbers of the columns with source and target in files of pairs; None: found by name or
            order.

    Raises:
        TransduceError: a file is missing, empty, or cannot be read; files of pairs have no pairs, or columns do not
            fit; or a package that a format needs is missing.
    """
    if target:
        return CorpusText(read_side("source", source), read_side("target", target))
    notes, starts, malformed = LineNotes(), list[int](), list[str]()
    pairs, data = list[Pair](), DataSettings(languages=languages, columns=columns)
    for path in source:
        starts.append(len(pairs))
        with TemporaryDirectory() as folder:
            file = store_standard_input(Path(folder, "pairs"), "auto") if path == STANDARD_INPUT else path
            table = format_to_convert(file, data)
            if table is not None:
                rows = enumerate(read_table(file, table, Columns(columns, languages)), 1)
                pairs += [
                    Pair(_one_line(row.source), _one_line(row.target), row.number or number, path)
                    for number, row in rows
                ]
                continue
            for block in PairReader(CorpusFiles(source=(file,), languages=languages), notes):
                lines = [block.pair(row) for row in range(len(block.sources))]
                pairs += [pair for pair in lines if pair.source not in (MALFORMED, HEADER)]
                malformed += [f"{path}:{pair.line}" for pair in lines if pair.source == MALFORMED]
    if not pairs:
        raise TransduceError(f"{', '.join(source)} has no pairs, but a corpus needs at least one: check it.")
    numbers = [pair.line for pair in pairs]
    return CorpusText(
        Side("source", tuple(source), [pair.source for pair in pairs], tuple(starts), notes, numbers),
        Side("target", tuple(source), [pair.target for pair in pairs], tuple(starts), LineNotes(), numbers),
        tuple(malformed),
    )


def _one_line(text: str) -> str:
    return text.replace("\r\n", " ").replace("\n", " ")


def count_finding(
    name: str,
    count: int,
    total: int,
    message: str,
    problem_share: float,
    examples: Iterable[tuple[Side, int]] = (),
    *,
    if_none: str = "none",
) -> Finding:
    """Return a finding that affects `count` of `total` lines, pairs or tokens.

    Args:
        name: name of the finding.
        count: number of affected lines, pairs or tokens.
        total: number of all lines, pairs or tokens.
        message: used if `count` is not 0.
        problem_share: the share from which the finding is a problem; more than 1: never.
        examples: affected lines, as pairs of a side and a line index; the first ones are shown.
        if_none: the message if `count` is 0.
    """
    return Finding(
        name=name,
        severity=severity_of(count, total, problem_share),
        count=count,
        share=count / total,
        message=message if count else if_none,
        examples=first_examples(examples),
    )


def line_finding(
    text: CorpusText, name: str, found: tuple[Sequence[int], Sequence[int]], message: str, problem_share: float = 2.0
) -> Finding:
    """Return a finding about affected lines of either side: their number, share, severity and a few examples.

    Args:
        text: the corpus.
        name: name of the finding.
        found: indices of the affected source lines and target lines.
        message: used if any line is affected; `{count}` is replaced by a text such as "2 lines".
        problem_share: the share of affected lines from which the finding is a problem; more than 1: never.
    """
    count, total = sum(map(len, found)), sum(len(side.lines) for side in text.sides)
    lines = ((side, number) for side, numbers in zip(text.sides, found, strict=True) for number in numbers)
    return count_finding(name, count, total, message.format(count=count_noun(count, "line")), problem_share, lines)


def first_examples(lines: Iterable[tuple[Side, int]]) -> tuple[Example, ...]:
    """Return at most 3 of some lines, each a pair (side, index), as `Example`s: the first ones of each side."""
    by_side: dict[str, list[Example]] = {"source": [], "target": []}
    for side, number in lines:
        if len(by_side[side.name]) < EXAMPLES:
            by_side[side.name].append(side.example(number))
    mixed = [*by_side["source"][:2], *by_side["target"], *by_side["source"][2:]]
    return tuple(mixed[:EXAMPLES])
