"""Measure how often texts in a wrong language are reported, and how often right ones are.

    python benchmarks/language_detection.py             # test sets: Tatoeba de-en and zh-en
    python benchmarks/language_detection.py --dev       # development sets, on which the threshold was chosen
    python benchmarks/language_detection.py --learn     # write src/transduce/text/common_profiles.json again

Texts with fewer than four words (six Chinese characters) are left out.
"""

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from report import REPOSITORY, Row, data_folder, parser, report

from transduce.text.files import read_lines
from transduce.text.languages import MIN_CHARACTERS, MIN_WORDS, detect_other_language, learn_profiles

_CORPORA = {"de": "tatoeba-de-en", "en": "tatoeba-de-en", "zh": "tatoeba-zh-en"}
# Several kinds of text for each language, as many characters of each.
_TRAINING = {
    "cs": ["multi30k-en-cs/raw/train.cs.gz"],
    "de": ["tatoeba-de-en/train.de.gz", "multi30k-en-de/raw/train.de.gz"],
    "en": [
        "tatoeba-de-en/train.en.gz",
        "multi30k-en-de/raw/train.en.gz",
        "gutenberg/emma.txt.gz",
        "gutenberg/dracula.txt.gz",
    ],
    "es": [f"americasnlp-es/es-{code}/train.es.gz" for code in ("aym", "bzd", "cni", "hch", "shp", "tar")],
}
_LEARNED_CHARACTERS = 480_000  # of each language; `learn_profiles` reads half a million
_KEPT_NGRAMS = 2000
_MIN_FLAGGED, _MAX_FALSELY_FLAGGED = 98.0, 1.0  # percent


def learn(folder: Path) -> None:
    """Write the profiles of the package."""
    texts = {code: list(_mixed(folder, names)) for code, names in _TRAINING.items()}
    profiles = learn_profiles(texts, kept=_KEPT_NGRAMS)
    (REPOSITORY / "src" / "transduce" / "text" / "common_profiles.json").write_bytes(
        msgspec.json.encode(profiles) + b"\n"
    )


def _mixed(folder: Path, names: list[str]) -> Iterator[str]:
    for name in names:
        lines = list(read_lines(folder / name))
        random.Random(1).shuffle(lines)
        characters = 0
        for line in lines:
            characters += len(line)
            if characters > _LEARNED_CHARACTERS // len(names):
                break
            yield line


def rows(folder: Path, part: str) -> Iterator[Row]:
    """Yield the share of the texts of each language that are reported, by the expected language."""
    for code, corpus in _CORPORA.items():
        texts = [text for text in read_lines(folder / corpus / f"{part}.{code}.gz") if _is_long_enough(text, code)]
        for expected in _CORPORA:
            flagged = sum(detect_other_language(text, expected) is not None for text in texts)
            percent = 100.0 * flagged / len(texts)
            if code == expected:
                bar, holds = f"<= {_MAX_FALSELY_FLAGGED:g}", percent <= _MAX_FALSELY_FLAGGED
            else:
                bar, holds = f">= {_MIN_FLAGGED:g}", percent >= _MIN_FLAGGED
            yield Row(
                f"{len(texts):,} texts in {code}, {expected} expected", percent, "% reported", bar=bar, holds=holds
            )


def _is_long_enough(text: str, code: str) -> bool:
    if code == "zh":
        return len(re.findall("[\u4e00-\u9fff]", text)) >= MIN_CHARACTERS
    return len(text.split()) >= MIN_WORDS


def main() -> int:
    """Run the benchmark and return its exit status."""
    options = parser(__doc__)
    options.add_argument("--dev", action="store_true", help="measure on the development sets")
    options.add_argument("--learn", action="store_true", help="learn the profiles again")
    args = options.parse_args()
    if args.learn:
        learn(data_folder())
    return report(rows(data_folder(), "dev" if args.dev else "test"), args.json)


if __name__ == "__main__":
    sys.exit(main())
