"""Corpus files for `family.py`: single sentences, and consecutive sentences joined into longer inputs."""

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from family_variants import Corpus
from report import data_folder

from transduce.text.files import read_lines

JOINS = (1, 2, 4, 8)
_SEED = 1


class Texts(NamedTuple):
    """Source and target sentences of a parallel corpus."""

    source: list[str]
    target: list[str]


class Files(NamedTuple):
    """A corpus as plain text: options of `transduce train`, and tests by the number of joined sentences."""

    training: dict[str, Path]
    tests: dict[int, Texts]


def join_sentences(lines: Sequence[str], count: int, separator: str) -> list[str]:
    """Join every `count` consecutive lines; an incomplete group at the end is omitted."""
    groups = (lines[first : first + count] for first in range(0, len(lines) - count + 1, count))
    return [separator.join(group) for group in groups]


def join_pairs(pairs: Texts, count: int, separators: tuple[str, str]) -> Texts:
    """Join sources with sources, and targets with the targets of the same lines."""
    return Texts(*(join_sentences(side, count, mark) for side, mark in zip(pairs, separators, strict=True)))


def with_joined(pairs: Texts, separators: tuple[str, str]) -> Texts:
    """Return the pairs, followed by all pairs joined in groups of two, four and eight.

    Groups are random but reproducible, because neighbors in the corpus are often similar.
    """
    order = list(range(len(pairs.source)))
    random.Random(_SEED).shuffle(order)
    mixed = Texts(*([side[number] for number in order] for side in pairs))
    parts = [pairs, *(join_pairs(mixed, count, separators) for count in JOINS[1:])]
    return Texts(*([line for part in parts for line in part[side]] for side in (0, 1)))


def read_part(corpus: Corpus, part: str, most: int | None) -> Texts:
    """Read a part of the corpus, at most `most` pairs."""
    folder = data_folder() / f"tatoeba-{corpus.source}-{corpus.target}"
    sides = (read_lines(folder / f"{part}.{side}.gz") for side in (corpus.source, corpus.target))
    return Texts(*(list(itertools.islice(lines, most)) for lines in sides))


def write_files(corpus: Corpus, folder: Path, *, joined: bool, lines: tuple[int | None, int | None]) -> Files:
    """Write the training and dev files, and return them with the tests.

    Args:
        corpus: the corpus to read.
        folder: the folder to write to.
        joined: whether to train on joined sentences too.
        lines: the maximum number of pairs in train, and in dev and test.
    """
    folder.mkdir(parents=True, exist_ok=True)
    train, dev, test = (read_part(corpus, part, lines[part != "train"]) for part in ("train", "dev", "test"))
    if joined:
        train = with_joined(train, corpus.separators)
    training = {}
    for prefix, name, texts in (("", "train", train), ("dev-", "dev", dev)):
        for option, side, content in zip(("source", "target"), (corpus.source, corpus.target), texts, strict=True):
            training[f"{prefix}{option}"] = write_lines(folder / f"{name}.{side}", content)
    return Files(training, {count: join_pairs(test, count, corpus.separators) for count in JOINS})


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """Write lines to a plain text file, and return its path."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return path
