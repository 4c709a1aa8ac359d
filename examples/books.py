"""Books in plain text, as Project Gutenberg has them: paragraphs, dealt into a training, a dev and a test part.

A book is cut into stretches of 100 paragraphs. Of twenty stretches one is of the dev part and one of the test part, so
that all authors and persons are in all parts, and no paragraph stands in two of them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from transduce.atomic_io import write_file
from transduce.errors import TransduceError
from transduce.text.files import read_lines
from transduce.text.sentences import join_lines

PARTS = ("train", "dev", "test")
_STRETCH, _CYCLE, _DEV, _TEST = 100, 20, 7, 14
_MARKUP = re.compile(r"_|\[[^\]]*\]")

Pair = tuple[str, str]


def find_books(folder: Path) -> list[Path]:
    """The texts of a folder, plain or gzip, by name."""
    books = sorted([*folder.glob("*.txt"), *folder.glob("*.txt.gz")])
    if not books:
        raise TransduceError(f"There are no books in {folder}: name a folder of .txt or .txt.gz files.")
    return books


def read_stretches(book: Path) -> Iterator[tuple[str, list[str]]]:
    """Runs of paragraphs, each with the part it belongs to. Quotation marks are “ and ” in all books."""
    paragraphs = [even_quotes(" ".join(_MARKUP.sub("", text).split())) for text in join_lines(read_lines(book))]
    for number, first in enumerate(range(0, len(paragraphs), _STRETCH)):
        place = number % _CYCLE
        part = "dev" if place == _DEV else "test" if place == _TEST else "train"
        yield part, paragraphs[first : first + _STRETCH]


def even_quotes(paragraph: str) -> str:
    """Straight quotation marks open and close in turn; a speech that goes on in the next paragraph does not close."""
    pieces = paragraph.split('"')
    return "".join(
        piece + ("" if number == len(pieces) - 1 else "“" if number % 2 == 0 else "”")
        for number, piece in enumerate(pieces)
    )


def without_repeats(pairs: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """Each pair once; those of dev and test are none of training's."""
    seen: set[Pair] = set()
    kept: dict[str, list[Pair]] = {}
    for part in ("train", "dev", "test"):
        kept[part] = []
        for pair in pairs[part]:
            if pair not in seen:
                seen.add(pair)
                kept[part].append(pair)
    return kept


def write_pairs(pairs: dict[str, list[Pair]], folder: Path, sides: Sequence[str]) -> dict[str, dict[str, Path]]:
    """Writes two files a part, line by line: train.paragraph and train.headline, for instance; returns where."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Path]] = {}
    for part, found in pairs.items():
        files[part] = {name: folder / f"{part}.{name}" for name in sides}
        for side, name in enumerate(sides):
            write_file(files[part][name], _lines(pair[side] for pair in found))
    return files


def _lines(texts: Iterable[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()
