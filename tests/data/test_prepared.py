"""Test the corpus on disk: what is written, read back, replaced and refused."""

import gzip
import hashlib
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from transduce.data import EncodedSentences, HoldOutSettings, PreparedCorpus, prepare
from transduce.data.id_files import SideReader, SideWriter
from transduce.errors import TransduceError
from transduce.text import CorpusFiles, FilterSettings, Tokenizer, TokenizerSettings, Vocabulary, read_pairs

WriteLines = Callable[[str, Iterable[str]], Path]
SOURCES = [f"der hund {number} geht" for number in range(300)]
TARGETS = [f"the dog {number} walks" for number in range(300)]


@pytest.fixture
def files(write_lines: WriteLines) -> CorpusFiles:
    return CorpusFiles(source=(str(write_lines("train.de", SOURCES)),), target=(str(write_lines("train.en", TARGETS)),))


@pytest.fixture
def tokenizer(files: CorpusFiles) -> Tokenizer:
    return Tokenizer.train(lambda: read_pairs(files), TokenizerSettings(vocabulary_size=300))


def sentences(vocabulary: Vocabulary, run: tuple[np.ndarray, np.ndarray]) -> list[str]:
    ids, offsets = run
    return [vocabulary.decode(ids[start:stop]) for start, stop in pairwise(offsets)]


def test_a_prepared_corpus_reads_back_its_sentences(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    corpus = prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus")
    source, target = corpus.read(0, 300)
    assert sentences(tokenizer.source, source) == SOURCES
    assert sentences(tokenizer.target, target) == TARGETS
    assert source.ids[source.offsets[1:] - 1].tolist() == [tokenizer.source.eos_id] * 300
    middle, _ = corpus.read(100, 103)
    assert sentences(tokenizer.source, middle) == SOURCES[100:103]
    assert middle.offsets[0] == 0


def test_counts_and_lengths_agree_with_the_ids(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    corpus = PreparedCorpus.open(prepare(files, tokenizer, FilterSettings(), tmp_path / "c").folder, tokenizer)
    expected = [len(ids) + 1 for ids in tokenizer.source.encode_batch(SOURCES)]
    source_lengths, target_lengths = corpus.read_range_lengths([(0, 300)])
    assert source_lengths.tolist() == expected
    assert source_lengths.dtype == target_lengths.dtype == np.int32
    assert corpus.source_tokens == sum(expected)
    assert corpus.target_tokens == target_lengths.sum()
    assert corpus.read_range_lengths([(5, 9)])[0].tolist() == expected[5:9]
    statistics = corpus.statistics
    assert (statistics.pairs, statistics.source_tokens) == (300, sum(expected))
    assert statistics.mean_source_length == pytest.approx(np.mean(expected))
    assert statistics.source_percentiles[0] == sorted(expected)[149]
    assert statistics.source_percentiles[3] == max(expected)


def test_the_card_describes_the_files(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    corpus = prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus")
    content = (corpus.folder / "source.ids").read_bytes()
    assert corpus.card.source.ids_sha256 == hashlib.sha256(content).hexdigest()
    assert corpus.card.source.dtype == "<u2"
    assert len(content) == 2 * corpus.source_tokens
    assert corpus.card.tokenizer_fingerprint == tokenizer.fingerprint
    assert sorted(path.name for path in corpus.folder.iterdir()) == [
        *["corpus.json", "source.ids", "source.offsets", "target.ids", "target.offsets"]
    ]
    corpus.verify()


def test_equal_input_gives_equal_files(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folders = [
        prepare(files, tokenizer, FilterSettings(), tmp_path / name, hold_out=HoldOutSettings(), workers=workers).folder
        for name, workers in (("a", 1), ("b", 3))
    ]
    assert len({tuple(sorted(path.name for path in folder.iterdir())) for folder in folders}) == 1
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes()


def test_a_large_vocabulary_takes_four_bytes_an_id(tmp_path: Path) -> None:
    for size, dtype in ((65_536, "<u2"), (65_537, "<u4")):
        with closing(SideWriter(tmp_path, "source", vocabulary_size=size, pad_id=0)) as writer:
            writer.append(EncodedSentences(np.array([size - 1, 1, 1], dtype), np.array([0, 2, 3])))
        card = writer.card()
        assert card.dtype == dtype
        run = SideReader(tmp_path, "source", card, 2).read_ranges([(0, 2)])
        assert run.ids.tolist() == [size - 1, 1, 1]
        assert run.offsets.tolist() == [0, 2, 3]


def test_the_filters_are_applied_and_reported(write_lines: WriteLines, tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = write_lines("s.de", ["der hund", "", "gleich", "der \x00hund", "hund " * 30, "der hund", "ein hund\r"])
    target = write_lines("t.en", ["the dog", "the", "gleich", "the dog", "dog", "the dog", "a dog\r"])
    files = CorpusFiles(source=(str(source),), target=(str(target),))
    settings = FilterSettings(max_tokens=100, drop_duplicates=True)
    report = prepare(files, tokenizer, settings, tmp_path / "corpus").filters
    assert (report.read, report.kept, report.carriage_returns) == (7, 2, 2)
    assert {reason: count for reason, count in report.dropped.items() if count} == {
        "empty side": 1,
        "control characters": 1,
        "source and target identical": 1,
        "duplicate of an earlier pair": 1,
        "lengths too unequal": 1,
    }
    assert report.examples["lengths too unequal"] == f"{source}:5"
    short = prepare(files, tokenizer, FilterSettings(max_tokens=20), tmp_path / "corpus").filters
    assert short.dropped["too many tokens"] == 1


@pytest.mark.parametrize("kept", [1, 2, 5])
def test_something_is_held_out_although_nearly_all_pairs_fail(
    write_lines: WriteLines, tokenizer: Tokenizer, tmp_path: Path, kept: int
) -> None:
    """But never all that could be trained on."""
    lines = [f"sentence {number}" for number in range(60)]
    source = write_lines("few.de", lines)
    target = write_lines("few.en", [line if n < kept else line * 30 for n, line in enumerate(lines)])
    files = CorpusFiles(source=(str(source),), target=(str(target),))
    filters = FilterSettings(max_length_ratio=5.0, drop_identical=False)
    corpus = prepare(files, tokenizer, filters, tmp_path / "corpus", hold_out=HoldOutSettings())
    assert (corpus.filters.held_out, corpus.pairs) == ((1, kept - 1) if kept > 1 else (0, 1))


def test_a_held_out_part_is_kept_as_text(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    settings = HoldOutSettings(share=0.05, enough_pairs=0)
    corpus = prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus", hold_out=settings)
    assert corpus.held_out is not None
    held = {(pair.source, pair.target) for pair in read_pairs(corpus.held_out)}
    source, target = corpus.read(0, corpus.pairs)
    trained = set(zip(sentences(tokenizer.source, source), sentences(tokenizer.target, target), strict=True))
    assert len(held) == corpus.filters.held_out == 15
    assert corpus.pairs == corpus.filters.kept == 285
    assert held | trained == set(zip(SOURCES, TARGETS, strict=True))
    assert not held & trained
    assert prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus").held_out is None


def test_held_out_targets_that_are_also_trained_on_are_counted(
    write_lines: WriteLines, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Their sources differ, so the pairs are no duplicates."""
    lines = [f"sentence {number}" for number in range(60)]
    targets = [f"another {number}" if number % 3 else "the same text" for number in range(60)]
    source, target = write_lines("a.de", lines), write_lines("a.en", targets)
    files = CorpusFiles(source=(str(source),), target=(str(target),))
    settings = HoldOutSettings(share=0.2, enough_pairs=0)
    corpus = prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus", hold_out=settings)
    assert corpus.held_out is not None
    held = [pair.target for pair in read_pairs(corpus.held_out)]
    known = held.count("the same text")
    assert 0 < known < len(held)
    assert corpus.filters.known_targets == known
    assert (
        f"training pairs also have {known} of the {len(held)} held-out targets, which may raise the dev scores"
    ) in corpus.filters.lines()
    assert not any("targets" in line for line in corpus.filters.lines("text"))


def test_progress_is_reported(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    heard: list[int] = []
    prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus", report_progress=heard.append)
    assert heard[-1] == 300


def test_gzip_gives_the_same_corpus(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    packed = []
    for path in (*files.source, *files.target):
        packed.append(f"{path}.gz")
        Path(packed[-1]).write_bytes(gzip.compress(Path(path).read_bytes()))
    plain = prepare(files, tokenizer, FilterSettings(), tmp_path / "plain")
    other = prepare(
        CorpusFiles(source=(packed[0],), target=(packed[1],)), tokenizer, FilterSettings(), tmp_path / "packed"
    )
    assert plain.card == other.card


def test_a_failed_run_leaves_nothing_and_what_was_there(
    files: CorpusFiles, tokenizer: Tokenizer, write_lines: WriteLines, tmp_path: Path
) -> None:
    folder = tmp_path / "out" / "corpus"
    before = prepare(files, tokenizer, FilterSettings(), folder).card
    shorter = CorpusFiles(source=files.source, target=(str(write_lines("short.en", TARGETS[:-1])),))
    with pytest.raises(TransduceError, match=r"has 300 lines and .*short\.en has 299"):
        prepare(shorter, tokenizer, FilterSettings(), folder)
    assert PreparedCorpus.open(folder).card == before
    with pytest.raises(TransduceError):
        prepare(shorter, tokenizer, FilterSettings(), tmp_path / "out" / "new")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["corpus"]


def test_a_run_that_was_killed_between_two_renames_leaves_what_was_there(
    files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    before = prepare(files, tokenizer, FilterSettings(), out).card
    out.rename(tmp_path / ".out.old")
    missing = CorpusFiles(source=("missing.zh",), target=files.target)
    with pytest.raises(TransduceError, match=r"missing\.zh"):
        prepare(missing, tokenizer, FilterSettings(), out)
    assert PreparedCorpus.open(out).card == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_corpus_whose_pairs_are_all_dropped_is_refused(
    write_lines: WriteLines, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    path = str(write_lines("same.de", ["der hund", "ein hund"]))
    files = CorpusFiles(source=(path,), target=(path,))
    with pytest.raises(TransduceError, match=r"No pair of .*same\.de is left: .*dropped 2 for source and target ident"):
        prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    assert prepare(files, tokenizer, FilterSettings(drop_identical=False), tmp_path / "corpus").pairs == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_dropped_pairs_are_reported_with_their_file_and_line(
    tokenizer: Tokenizer, tmp_path: Path, workers: int
) -> None:
    sources, targets = ([f"der hund {number}" for number in range(20_000)] for _ in range(2))
    targets = [f"a dog {line}" for line in targets]
    targets[1] += "\x00"
    sources[2] += "\x00"
    sources[3] = ""
    targets[4] = ""
    targets[9_000] += "\udc80"
    sources[9_001] = targets[9_001]
    for name, lines in (("t.de", sources), ("t.en", targets)):
        (tmp_path / name).write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    files = CorpusFiles(source=(str(tmp_path / "t.de"),), target=(str(tmp_path / "t.en"),))
    report = prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus", workers=workers).filters
    assert {reason: place.rpartition("/")[2] for reason, place in report.examples.items()} == {
        "not UTF-8": "t.en:9001",
        "empty side": "t.de:4",
        "control characters": "t.en:2",
        "source and target identical": "t.de:9002",
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_pairs_with_exchanged_sides_stay_and_are_reported(tokenizer: Tokenizer, tmp_path: Path, workers: int) -> None:
    sources, targets = ([f"{start} {number}" for number in range(17_000)] for start in ("der hund", "the dog"))
    for row in (5, 7, 16_999):
        sources[row] = "he said that the house was not there"
        targets[row] = "er sagte dass das haus nicht da war"
    sources[9] = targets[9]
    for name, lines in (("t.de", sources), ("t.en", targets)):
        (tmp_path / name).write_text("\n".join(lines), "utf-8")
    files = CorpusFiles(source=(str(tmp_path / "t.de"),), target=(str(tmp_path / "t.en"),))
    filters = FilterSettings(drop_identical=False, max_length_ratio=9.0)
    report = prepare(files, tokenizer, filters, tmp_path / "corpus", workers=workers).filters
    assert (report.kept, report.exchanged, report.identical) == (17_000, 3, 1)
    exchanged, identical = report.lines()[1:]
    place = f"{tmp_path / 't.de'}:6"
    assert exchanged.startswith(f"3 pairs with source and target that seem exchanged (first: {place}), which stay")
    assert identical.startswith("1 pair with identical source and target, which stay, as `data.filters.drop_identical`")
    directions = CorpusFiles(source=files.source, target=files.target, languages=("de", "de"))
    assert prepare(directions, tokenizer, filters, tmp_path / "other").filters.exchanged == 0


def test_lines_that_end_with_carriage_returns_are_reported(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for name, compress in (("old.de", bytes), ("old.de.gz", gzip.compress)):
        path = tmp_path / name
        path.write_bytes(compress(b"\r".join([b"der hund"] * 300)))
        files = CorpusFiles(source=(str(path),), target=(str(path),))
        rule = r"old\.de.* ends its lines with carriage returns alone, so it is one line: end them with line feeds\."
        with pytest.raises(TransduceError, match=rule):
            prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus")


def test_folders_with_other_content_are_not_overwritten(
    files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(TransduceError, match=r"holds something other than a prepared corpus: choose an empty"):
        prepare(files, tokenizer, FilterSettings(), tmp_path)
    with pytest.raises(TransduceError, match=r"train\.de is a file, but a prepared corpus is a folder"):
        prepare(files, tokenizer, FilterSettings(), files.source[0])
    (tmp_path / "empty").mkdir()
    assert prepare(files, tokenizer, FilterSettings(), tmp_path / "empty").pairs == 300


def test_folders_without_a_matching_prepared_corpus_are_refused(
    files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(TransduceError, match=r"corpus\.json does not exist: .* holds no prepared corpus"):
        PreparedCorpus.open(tmp_path)
    folder = prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus").folder
    other = Tokenizer.train(lambda: read_pairs(files), TokenizerSettings(vocabulary_size=290))
    with pytest.raises(TransduceError, match="was prepared with another tokenizer than the one passed"):
        PreparedCorpus.open(folder, other)
    card = folder / "corpus.json"
    good = card.read_bytes()
    card.write_bytes(good.replace(b'"format_version": 1', b'"format_version": 7'))
    with pytest.raises(TransduceError, match="has format 7, but this version reads format 1: prepare it again"):
        PreparedCorpus.open(folder)
    for content in (b"{", b'{"format_version": 1}'):
        card.write_bytes(content)
        with pytest.raises(TransduceError, match="does not describe a prepared corpus"):
            PreparedCorpus.open(folder)
    card.write_bytes(good)
    ids = folder / "source.ids"
    content = ids.read_bytes()
    ids.write_bytes(content[:-2])
    with pytest.raises(TransduceError, match=r"source\.ids must have \d+ bytes, but has \d+: the prepared corpus is"):
        PreparedCorpus.open(folder)
    ids.write_bytes(bytes(len(content)))
    with pytest.raises(TransduceError, match=r"source\.ids is not what was prepared \(its SHA-256 differs\)"):
        PreparedCorpus.open(folder).verify()
    ids.unlink()
    with pytest.raises(TransduceError, match=r"source\.ids does not exist: the prepared corpus is incomplete"):
        PreparedCorpus.open(folder)
