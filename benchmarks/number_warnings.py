"""Count how often the warning about numbers errs: on references, which are right, and on generated wrong numbers.

    python benchmarks/number_warnings.py --data ../shared/data

Missed errors are counted on pairs of short sentences whose numbers were made wrong: a separator that moved or vanished
(3,5 and 35), another digit, another day or month, or another power of ten in words.
"""

import argparse
import calendar
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from transduce.text.files import read_lines
from transduce.text.numbers import missing_numbers

_CORPORA = (("tatoeba-de-en", "de", "en"), ("tatoeba-zh-en", "zh", "en"))
_PARTS = ("dev", "test")
_MONTHS = tuple(calendar.month_name)[1:]


def count_false(data: Path, folder: str, source: str, target: str, parts: tuple[str, ...]) -> tuple[int, int]:
    """Return how many references have a warning, and how many sources have a digit."""
    flagged = total = 0
    for part in parts:
        sides = [read_lines(data / folder / f"{part}.{code}.gz") for code in (source, target)]
        for line, reference in zip(*sides, strict=True):
            if re.search(r"\d", line):
                total += 1
                flagged += bool(missing_numbers(line, reference))
    return flagged, total


def wrong_pairs(count: int, generator: random.Random) -> Iterator[tuple[str, str, str]]:
    """Yield the kind of an error, a German sentence and an English one in which a number is wrong."""
    for _ in range(count):
        whole, tenths = generator.randint(1, 999), generator.randint(1, 9)
        yield "decimals", f"Es sind {whole},{tenths} Liter.", f"It is {whole}{tenths} liters."
        cents = generator.randint(11, 99)
        yield "decimals", f"Es kostet {whole},{cents} Euro.", f"It costs {10 * whole + cents // 10}.{cents % 10} euros."
        large = generator.randint(21, 999_999)
        changed = large + generator.choice((-1, 1)) * 10 ** generator.randint(0, len(str(large)) - 1)
        yield "digits", f"Es waren {large:,} Leute.".replace(",", "."), f"There were {abs(changed):,} people."
        day, month, year = generator.randint(13, 28), generator.randint(1, 12), generator.randint(1900, 2030)
        other = generator.choice([each for each in range(1, 13) if each != month])
        yield "dates", f"Am {day}.{month}.{year} war es.", f"It was on {day} {_MONTHS[other - 1]} {year}."
        yield "dates", f"Am {day}.{month}.{year} war es.", f"It was on {_MONTHS[month - 1]} {day - 1}, {year}."
        yield "powers of ten", f"Es waren {whole + 1} Millionen.", f"There were {whole + 1} thousand."
        yield "powers of ten", f"有{whole + 1}万人。", f"There are {whole + 1},000 people."


def main() -> None:
    """Print both counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--parts", nargs="+", default=_PARTS, help="parts of the corpora (default: dev test)")
    parser.add_argument("--count", type=int, default=500, help="wrong sentences of each kind")
    arguments = parser.parse_args()
    for folder, one, other in _CORPORA:
        for source, target in ((one, other), (other, one)):
            flagged, total = count_false(arguments.data, folder, source, target, tuple(arguments.parts))
            print(f"{source}-{target}: {flagged} of {total} references with digits have a warning")
    missed, total_by_kind = Counter[str](), Counter[str]()
    for kind, source, target in wrong_pairs(arguments.count, random.Random(1)):
        total_by_kind[kind] += 1
        missed[kind] += not missing_numbers(source, target)
    for kind, total in total_by_kind.items():
        print(f"{kind}: {missed[kind]} of {total:,} wrong numbers have none")


if __name__ == "__main__":
    main()
