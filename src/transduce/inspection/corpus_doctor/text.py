"""Read the two sides of a corpus as they are, faults included."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from transduce.errors import TransduceError
from transduce.inspection.corpus_doctor.report import Example, Finding, severity_of, shortened
from transduce.text.corpus import CorpusFiles, PairReader
from transduce.text.files import LineNotes, read_lines

EXAMPLES = 3


@dataclass(frozen=True)
class Side:
    """The lines of the source or target side, from one or several files."""

    name: Literal["source", "target"]
    paths: tuple[str, ...]
    lines: list[str]
    starts: tuple[int, ...]
    """Index of the first line of each file, from 0."""
    notes: LineNotes

    def example(self, number: int) -> Example:
        """Return the line with this index, from 0, as an example for the report."""
        file = bisect_right(self.starts, number) - 1
        location = f"{self.paths[file]}:{number - self.starts[file] + 1}"
        return Example(side=self.name, location=location, text=shortened(self.lines[number]))


def read_side(name: Literal["source", "target"], paths: Sequence[str]) -> Side:
    """Return the lines of all files of a side.

    Raises:
        TransduceError: a file is missing, empty, or not in UTF-8.
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
    """Both sides of a corpus, which may differ in length."""

    source: Side
    target: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        """The source and the target side."""
        return self.source, self.target

    def pair_example(self, number: int) -> Example:
        """Return both lines of a pair as an example with the source's file and line number."""
        source, target = (side.example(number) for side in self.sides)
        return Example(side="source", location=source.location, text=f"{source.text}  ⇔  {target.text}")

    @property
    def pairs(self) -> int:
        """The number of lines that both sides have."""
        return min(len(self.source.lines), len(self.target.lines))


def read_corpus(source: Sequence[str], target: Sequence[str], languages: tuple[str, str] | None = None) -> CorpusText:
    """Return both sides of a corpus in parallel files or, without a target, in files of pairs (.tsv, .jsonl).

    Raises:
        TransduceError: a file is missing, empty, not in UTF-8, or lacks pairs.
    """
    if target:
        return CorpusText(read_side("source", source), read_side("target", target))
    notes, starts = LineNotes(), []
    lines: tuple[list[str], list[str]] = ([], [])
    for path in source:
        starts.append(len(lines[0]))
        for block in PairReader(CorpusFiles(source=(path,), languages=languages), notes):
            lines[0].extend(block.sources)
            lines[1].extend(block.targets)
    paths, firsts = tuple(source), tuple(starts)
    return CorpusText(
        Side("source", paths, lines[0], firsts, notes), Side("target", paths, lines[1], firsts, LineNotes())
    )


def line_finding(
    text: CorpusText, name: str, found: tuple[Sequence[int], Sequence[int]], message: str, problem_share: float = 2.0
) -> Finding:
    """Return a finding about lines of either side.

    Args:
        text: the corpus.
        name: name of the finding.
        found: indices of the affected source lines and target lines.
        message: used if any line is affected; `{count}` is replaced.
        problem_share: the share of affected lines from which the finding is a problem; more than 1: never.
    """
    count = len(found[0]) + len(found[1])
    total = len(text.source.lines) + len(text.target.lines)
    return Finding(
        name=name,
        severity=severity_of(count, total, problem_share),
        count=count,
        share=count / total,
        message=message.format(count=f"{count:,} line{'s' * (count > 1)}") if count else "none",
        examples=first_examples(
            (side, number) for side, numbers in zip(text.sides, found, strict=True) for number in numbers
        ),
    )


def first_examples(places: Iterable[tuple[Side, int]]) -> tuple[Example, ...]:
    """Return the first few lines as examples, from both sides if possible."""
    by_side: dict[str, list[Example]] = {"source": [], "target": []}
    for side, number in places:
        if len(by_side[side.name]) < EXAMPLES:
            by_side[side.name].append(side.example(number))
    mixed = [*by_side["source"][:2], *by_side["target"], *by_side["source"][2:]]
    return tuple(mixed[:EXAMPLES])
