"""Corpora with faults planted in them: each is counted under its reason, as often as it was planted, and whatever is
left still corresponds, pair by pair. The doctor counts the same before anything is trained.
"""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from transduce.data.prepared import PreparedCorpus, prepare
from transduce.errors import TransduceError
from transduce.inspection.corpus_doctor import examine_corpus
from transduce.text.corpus import CorpusFiles, read_pairs
from transduce.text.filters import CONTROL, DUPLICATE, EMPTY, TOO_LONG, UNDECODABLE, FilterSettings
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.text.tokenizer import Tokenizer

PAIRS = 90
PLANTED = (7, 40, 89)  # numbers from 0; the last line of the file is one of them
SOURCE = [f"我们有{number}个苹果，他们有{number}本书。".encode() for number in range(PAIRS)]
TARGET = [f"We have {number} apples and they have {number} books.".encode() for number in range(PAIRS)]


class Fault(NamedTuple):
    """A fault inserted into a corpus, and the expected reports."""

    change: Callable[[bytes], bytes]
    dropped: str | None
    """The reason under which training leaves the pair out; None where it is kept."""
    finding: str | None
    """What the doctor calls it."""


FAULTS = {
    "bytes that are no UTF-8": Fault(lambda line: line + b"\xff\xe9", UNDECODABLE, "not UTF-8"),
    "half a character": Fault(lambda line: line + "字".encode()[:2], UNDECODABLE, "not UTF-8"),
    "surrogates as bytes": Fault(lambda line: line + b"\xed\xa0\xbd", UNDECODABLE, "not UTF-8"),
    "NUL": Fault(lambda line: line[:3] + b"\x00" + line[3:], CONTROL, "control characters"),
    "carriage return inside": Fault(lambda line: b"a\rb" + line, None, "line separators"),
    "line separator U+2028": Fault(lambda line: "a\u2028b".encode() + line, None, "line separators"),
    "next line U+0085": Fault(lambda line: "a\u0085b".encode() + line, None, "line separators"),
    "tab": Fault(lambda line: b"a\tb" + line, None, "tabs"),
    "empty side": Fault(lambda line: b"", EMPTY, "empty lines"),  # noqa: ARG005
    "white space only": Fault(lambda line: " \t\u3000".encode(), EMPTY, "white space only"),  # noqa: ARG005
    "line of 1 MB": Fault(lambda line: line * (1_000_000 // len(line)), TOO_LONG, "long lines"),
    "10,000 words": Fault(lambda line: line + b" word" * 10_000, TOO_LONG, "long lines"),
    "escapes of half characters": Fault(lambda line: line + b"\\ud83d", None, "escapes"),
    "wrong script": Fault(
        lambda line: "Мы купили яблоки ".encode() + b" ".join(re.findall(rb"\d+", line)), None, "wrong script"
    ),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Return a tokenizer that was trained on the corpus without faults."""
    files = write(tmp_path_factory.mktemp("clean"), SOURCE, TARGET)
    return Tokenizer.train(lambda: read_pairs(files), TokenizerSettings(vocabulary_size=400), adjust=True)


def write(folder: Path, source: list[bytes], target: list[bytes]) -> CorpusFiles:
    for name, lines in (("train.zh", source), ("train.en", target)):
        (folder / name).write_bytes(b"".join(line + b"\n" for line in lines))
    return CorpusFiles(source=(str(folder / "train.zh"),), target=(str(folder / "train.en"),))


def shifted_pairs(corpus: PreparedCorpus, tokenizer: Tokenizer) -> int:
    """Return the number of pairs whose source and target contain different numbers."""
    sides = []
    for run, vocabulary in zip(corpus.read(0, corpus.pairs), (tokenizer.source, tokenizer.target), strict=True):
        texts = [vocabulary.decode(np.asarray(run.ids[a:b]).tolist()) for a, b in pairwise(run.offsets.tolist())]
        sides.append([set(re.findall(r"\d+", text)) for text in texts])
    return sum(not (a & b) and bool(a or b) for a, b in zip(*sides, strict=True))


def plant(fault: Fault, side: int) -> tuple[list[bytes], list[bytes]]:
    sides = SOURCE.copy(), TARGET.copy()
    for number in PLANTED:
        sides[side][number] = fault.change(sides[side][number])
    return sides


@pytest.mark.parametrize("side", [0, 1], ids=["source", "target"])
@pytest.mark.parametrize("name", FAULTS)
def test_each_planted_fault_is_counted_under_its_reason(
    tmp_path: Path, tokenizer: Tokenizer, name: str, side: int
) -> None:
    fault = FAULTS[name]
    files = write(tmp_path, *plant(fault, side))
    corpus = prepare(files, tokenizer, FilterSettings(max_length_ratio=100.0), tmp_path / "corpus")
    report = corpus.filters
    expected = {fault.dropped: len(PLANTED)} if fault.dropped else {}
    assert {reason: count for reason, count in report.dropped.items() if count} == expected
    assert report.read == PAIRS
    assert report.kept == corpus.pairs == PAIRS - sum(expected.values())
    assert shifted_pairs(corpus, tokenizer) == 0
    if fault.dropped:
        file = "train.en" if side == 1 and fault.dropped in (UNDECODABLE, EMPTY, CONTROL) else "train.zh"
        assert report.examples[fault.dropped].endswith(f"{file}:{PLANTED[0] + 1}")


@pytest.mark.parametrize("name", FAULTS)
def test_the_corpus_doctor_finds_each_planted_fault_at_its_line(
    tmp_path: Path, tokenizer: Tokenizer, name: str
) -> None:
    fault = FAULTS[name]
    files = write(tmp_path, *plant(fault, 0))
    assert fault.finding is not None
    finding = examine_corpus(files.source, files.target, tokenizer=tokenizer).finding(fault.finding)
    assert finding.count == len(PLANTED)
    assert [int(example.location.rpartition(":")[2]) - 1 for example in finding.examples] == list(PLANTED)


def test_duplicates_are_kept_unless_drop_duplicates_is_set(tmp_path: Path, tokenizer: Tokenizer) -> None:
    source, target = SOURCE.copy(), TARGET.copy()
    for number in PLANTED:
        source[number], target[number] = source[3], target[3]
    files = write(tmp_path, source, target)
    kept = prepare(files, tokenizer, FilterSettings(), tmp_path / "kept")
    dropped = prepare(files, tokenizer, FilterSettings(drop_duplicates=True), tmp_path / "dropped")
    assert kept.pairs == PAIRS
    assert dropped.filters.dropped[DUPLICATE] == PAIRS - dropped.pairs == len(PLANTED)
    assert shifted_pairs(dropped, tokenizer) == 0
    assert examine_corpus(files.source, files.target, tokenizer=tokenizer).finding("duplicates").count == len(PLANTED)


def test_marks_and_carriage_returns_are_removed_and_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    sources: list[str] = []
    targets: list[str] = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        lines = SOURCE[30 * number : 30 * number + 30]
        lines = [b"\xef\xbb\xbf" + lines[0] + b"\r", *lines[1:]]
        files = write(folder, lines, TARGET[30 * number : 30 * number + 30])
        sources, targets = [*sources, *files.source], [*targets, *files.target]
    corpus = prepare(
        CorpusFiles(source=tuple(sources), target=tuple(targets)), tokenizer, FilterSettings(), tmp_path / "corpus"
    )
    assert (corpus.filters.byte_order_marks, corpus.filters.carriage_returns) == (3, 3)
    assert corpus.pairs == PAIRS
    assert shifted_pairs(corpus, tokenizer) == 0
    source, _ = corpus.read(0, 1)
    assert tokenizer.source.decode(source.ids.tolist()) == SOURCE[0].decode()


@pytest.mark.parametrize(("source_lines", "target_lines"), [(90, 89), (85, 90), (90, 1)])
def test_one_side_that_ends_early_is_an_error_with_both_counts(
    tmp_path: Path, tokenizer: Tokenizer, source_lines: int, target_lines: int
) -> None:
    files = write(tmp_path, SOURCE[:source_lines], TARGET[:target_lines])
    counts = rf"train\.zh has {source_lines} lines and .*train\.en has {target_lines}: find"
    with pytest.raises(TransduceError, match=counts):
        prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    finding = examine_corpus(files.source, files.target, tokenizer=tokenizer).finding("line counts")
    assert (finding.severity, finding.count) == ("problem", abs(source_lines - target_lines))


def test_surrogates_escaped_in_json(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Half of a surrogate pair is no text; the line is counted, and the other lines are read."""
    lines = [json.dumps({"zh": a.decode(), "en": b.decode()}) for a, b in zip(SOURCE, TARGET, strict=True)]
    for number in PLANTED:
        lines[number] = lines[number].replace('"}', '\\ud83d"}')
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    files = CorpusFiles(source=(str(tmp_path / "train.jsonl"),), languages=("zh", "en"))
    corpus = prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus")
    assert corpus.filters.dropped[UNDECODABLE] == len(PLANTED)
    assert corpus.pairs == PAIRS - len(PLANTED)
    assert shifted_pairs(corpus, tokenizer) == 0


def test_all_faults_at_once_and_a_vocabulary_learnt_from_them(tmp_path: Path) -> None:
    source, target = SOURCE * 6, TARGET * 6
    for number, fault in enumerate(FAULTS.values()):
        for repeat in range(3):
            place = 90 * repeat + 3 * number + 1
            source[place] = fault.change(source[place])
    files = write(tmp_path, source, target)
    tokenizer = Tokenizer.train(lambda: read_pairs(files), TokenizerSettings(vocabulary_size=500), adjust=True)
    corpus = prepare(files, tokenizer, FilterSettings(max_length_ratio=100.0), tmp_path / "corpus")
    dropped = {reason: count for reason, count in corpus.filters.dropped.items() if count}
    assert dropped == {UNDECODABLE: 9, CONTROL: 3, EMPTY: 6, TOO_LONG: 6}
    assert corpus.pairs == len(source) - 24
    assert shifted_pairs(corpus, tokenizer) == 0


def test_a_file_in_another_encoding_is_an_error_not_a_loss(tmp_path: Path, tokenizer: Tokenizer) -> None:
    files = write(tmp_path, [line.decode().encode("gb18030") for line in SOURCE], TARGET)
    with pytest.raises(
        TransduceError, match=r"train\.zh:20: files must be UTF-8, but 20 of the first 20 lines are not"
    ):
        prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus")
