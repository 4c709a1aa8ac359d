"""The two sides of a corpus as they stand in their files, whatever is wrong with them."""

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
    """The lines of one side."""

    name: Literal["source", "target"]
    paths: tuple[str, ...]
    lines: list[str]
    starts: tuple[int, ...]
    """Number of the first line of each file, from 0."""
    notes: LineNotes

    def example(self, number: int) -> Example:
        """A line by its number from 0."""
        file = bisect_right(self.starts, number) - 1
        place = f"{self.paths[file]}:{number - self.starts[file] + 1}"
        return Example(side=self.name, place=place, text=shortened(self.lines[number]))


def read_side(name: Literal["source", "target"], paths: Sequence[str]) -> Side:
    """Reads all files of a side.

    Raises:
        TransduceError: one is missing, empty, or in another encoding than UTF-8.
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
    """Both sides. They may differ in length."""

    source: Side
    target: Side

    @property
    def sides(self) -> tuple[Side, Side]:
        """Source, target."""
        return self.source, self.target

    def pair_example(self, number: int) -> Example:
        """Both lines of a pair, at the source's place."""
        source, target = (side.example(number) for side in self.sides)
        return Example(side="source", place=source.place, text=f"{source.text}  ⇔  {target.text}")

    @property
    def pairs(self) -> int:
        """Lines that have a counterpart of the same number."""
        return min(len(self.source.lines), len(self.target.lines))


def read_corpus(source: Sequence[str], target: Sequence[str], languages: tuple[str, str] | None = None) -> CorpusText:
    """Both sides of files line by line or, where no target is given, of files of pairs (.tsv, .jsonl).

    Raises:
        TransduceError: a file is missing, empty, in another encoding than UTF-8, or holds no pairs where it should.
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
    """A finding about lines of either side, by their numbers.

    Args:
        text: the corpus.
        name: of the finding.
        found: numbers of source lines and of target lines.
        message: with {count}; what is said where there are any.
        problem_share: from which share of all lines on it is a problem; more than 1 for never.
    """
    count = len(found[0]) + len(found[1])
    total = len(text.source.lines) + len(text.target.lines)
    return Finding(
        name=name,
        severity=severity_of(count, total, problem_share),
        count=count,
        share=count / total,
        message=message.format(count=f"{count:,} line{'s' * (count > 1)}") if count else "none",
        examples=examples_of(
            (side, number) for side, numbers in zip(text.sides, found, strict=True) for number in numbers
        ),
    )


def examples_of(places: Iterable[tuple[Side, int]]) -> tuple[Example, ...]:
    """The first of each side, few in all."""
    by_side: dict[str, list[Example]] = {"source": [], "target": []}
    for side, number in places:
        if len(by_side[side.name]) < EXAMPLES:
            by_side[side.name].append(side.example(number))
    mixed = [*by_side["source"][:2], *by_side["target"], *by_side["source"][2:]]
    return tuple(mixed[:EXAMPLES])
