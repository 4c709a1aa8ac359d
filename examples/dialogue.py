r"""Make a dialogue corpus from books: utterances and the replies to them.

    python examples/dialogue.py BOOKS corpus/        # a folder of .txt or .txt.gz files
    transduce train --source corpus/train.speech --target corpus/train.reply \
        --dev-source corpus/dev.speech --dev-target corpus/dev.reply \
        --set data.filters.max_length_ratio=100 --out models/dialogue
    echo "Where have you been?" | transduce translate models/dialogue --no-repeated-ngrams 3 --min-length 10

Two consecutive paragraphs that both begin with a quotation mark are usually two persons talking to each other. The
corpus takes the words in quotation marks from each, without the author's “said she”.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from books import Pair, find_books, read_segments, without_repeats, write_pairs

from transduce.errors import TransduceError

SIDES = ("speech", "reply")
_MAX_WORDS = 40
_QUOTED = re.compile(r"“([^“”]*)”?")


def spoken(paragraph: str) -> str | None:
    """Return the quoted words of a paragraph that begins with a quotation mark; None for other or long paragraphs."""
    if not paragraph.startswith("“"):
        return None
    quoted = " ".join(" ".join(_QUOTED.findall(paragraph)).split())
    # A comma before “said she” becomes the end of the sentence.
    quoted = f"{quoted[:-1]}." if quoted.endswith(",") else quoted
    return quoted if 1 <= len(quoted.split()) <= _MAX_WORDS else None


def exchanges(paragraphs: Iterable[str]) -> list[Pair]:
    """Return pairs of speeches and replies from consecutive paragraphs."""
    speeches = [spoken(paragraph) for paragraph in paragraphs]
    return [(one, other) for one, other in pairwise(speeches) if one is not None and other is not None]


def most_frequent(replies: Iterable[str], count: int) -> list[str]:
    """Return the most frequent replies; among equals, the earlier ones first."""
    return [reply for reply, _ in Counter(replies).most_common(count)]


def make_pairs(folder: Path) -> dict[str, list[Pair]]:
    """Return speeches and replies of all books, by part."""
    pairs: dict[str, list[Pair]] = {"train": [], "dev": [], "test": []}
    for book in find_books(folder):
        for part, found in read_segments(book):
            pairs[part] += exchanges(found)
    return without_repeats(pairs)


def main() -> int:
    """Write two files for each part."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    try:
        pairs = make_pairs(Path(sys.argv[1]))
        write_pairs(pairs, Path(sys.argv[2]), SIDES)
    except TransduceError as error:
        raise SystemExit(str(error)) from None
    print(", ".join(f"{len(found):,} pairs in {part}" for part, found in pairs.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
