"""Reader of plain-text books, as from Project Gutenberg, that splits paragraphs into training, dev and test parts.

A book is split into segments of 100 paragraphs. Of twenty segments, one belongs to dev and one to test. So all
authors and persons occur in all parts, and no paragraph occurs in two parts.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from transduce.atomic_io import write_file
from transduce.errors import TransduceError
from transduce.text.files import read_lines
from transduce.text.sentences import join_lines

PARTS = ("train", "dev", "test")
_SEGMENT, _CYCLE, _DEV, _TEST = 100, 20, 7, 14
_MARKUP = re.compile(r"_|\[[^\]]*\]")

Pair = tuple[str, str]


def find_books(folder: Path) -> list[Path]:
    """Return the text files of a folder, plain or gzip, sorted by name."""
    books = sorted([*folder.glob("*.txt"), *folder.glob("*.txt.gz")])
    if not books:
        raise TransduceError(f"There are no books in {folder}: name a folder of .txt or .txt.gz files.")
    return books


def read_segments(book: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield segments of paragraphs, each with its part (train, dev or test); quotation marks become “ and ”."""
    paragraphs = [even_quotes(" ".join(_MARKUP.sub("", text).split())) for text in join_lines(read_lines(book))]
    for number, first in enumerate(range(0, len(paragraphs), _SEGMENT)):
        position = number % _CYCLE
        part = "dev" if position == _DEV else "test" if position == _TEST else "train"
        yield part, paragraphs[first : first + _SEGMENT]


def even_quotes(paragraph: str) -> str:
    """Replace straight quotation marks by alternating “ and ”; a speech may continue in the next paragraph."""
    segments = paragraph.split('"')
    return "".join(
        segment + ("" if number == len(segments) - 1 else "“" if number % 2 == 0 else "”")
        for number, segment in enumerate(segments)
    )


def without_repeats(pairs: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """Remove repeated pairs within and across parts; training keeps the first occurrence."""
    seen: set[Pair] = set()
    unique: dict[str, list[Pair]] = {}
    for part in ("train", "dev", "test"):
        unique[part] = []
        for pair in pairs[part]:
            if pair not in seen:
                seen.add(pair)
                unique[part].append(pair)
    return unique


def write_pairs(pairs: dict[str, list[Pair]], folder: Path, sides: Sequence[str]) -> dict[str, dict[str, Path]]:
    """Write two files per part, such as train.paragraph and train.headline, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Path]] = {}
    for part, found in pairs.items():
        files[part] = {name: folder / f"{part}.{name}" for name in sides}
        for side, name in enumerate(sides):
            write_file(files[part][name], _lines(pair[side] for pair in found))
    return files


def _lines(texts: Iterable[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()
