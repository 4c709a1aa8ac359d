"""Test the sample of pairs that a vocabulary is learned from."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from transduce.data.prepared import write_sample
from transduce.text import CorpusFiles, corpus, read_pairs

WriteLines = Callable[[str, Iterable[str]], Path]


@pytest.fixture
def files(write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch) -> CorpusFiles:
    """Return a corpus of 500 pairs in blocks of 64."""
    monkeypatch.setattr(corpus, "BLOCK_LINES", 64)
    source = write_lines("a.de", [f'Satz {number} "\\ ' for number in range(500)])
    target = write_lines("a.en", [f"sentence {number}\u2028" for number in range(500)])
    return CorpusFiles(source=(str(source),), target=(str(target),))


def numbers(sample: CorpusFiles) -> list[int]:
    return [int(pair.source.split(" ")[1]) for pair in read_pairs(sample)]


@pytest.mark.parametrize("most", [1, 7, 100, 333, 500])
def test_a_sample_has_the_requested_pairs_in_order_evenly_from_all_blocks(
    files: CorpusFiles, tmp_path: Path, most: int
) -> None:
    found = numbers(write_sample(files, 500, most, tmp_path / "sample.jsonl"))
    assert len(set(found)) == most
    assert found == sorted(found)
    for first in range(0, 500, 64):
        share = sum(first <= number < first + 64 for number in found)
        assert abs(share - most * min(64, 500 - first) / 500) < 1


def test_a_sample_contains_texts_unchanged(files: CorpusFiles, tmp_path: Path) -> None:
    pairs = {(pair.source, pair.target) for pair in read_pairs(files)}
    sample = write_sample(files, 500, 50, tmp_path / "sample.jsonl")
    assert {(pair.source, pair.target) for pair in read_pairs(sample)} <= pairs


def test_a_sample_keeps_bytes_that_are_not_utf_8(files: CorpusFiles, tmp_path: Path) -> None:
    path = Path(files.source[0])
    path.write_bytes(path.read_bytes().replace(b"Satz 7 ", b"Satz\xff 7 "))
    pairs = list(read_pairs(files))
    sample = write_sample(files, 500, 500, tmp_path / "sample.jsonl")
    assert [pair.source for pair in read_pairs(sample)] == [pair.source for pair in pairs]
    assert "\udcff" in pairs[7].source


def test_the_choice_is_the_same_every_time_and_has_no_period(files: CorpusFiles, tmp_path: Path) -> None:
    found = numbers(write_sample(files, 500, 100, tmp_path / "sample.jsonl"))
    assert found == numbers(write_sample(files, 500, 100, tmp_path / "again.jsonl"))
    gaps = {right - left for left, right in pairwise(found)}
    assert len(gaps) > 8
    # Other versions must learn from the same pairs.
    assert found[:6] == [14, 15, 18, 20, 21, 23]
