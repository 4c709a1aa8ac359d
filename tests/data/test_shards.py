"""Test that merging separately prepared shards gives the same bytes as preparing the corpus in one go."""

import gzip
import random
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from transduce.data import HoldOutSettings, PreparedCorpus, prepare, processes
from transduce.data.merging import check_parts, write_corpus
from transduce.data.parts import CorpusPart, PartRequest
from transduce.data.processes import write_parts
from transduce.errors import TransduceError
from transduce.text import CorpusFiles, FilterSettings, Tokenizer, TokenizerSettings, corpus, read_pairs

WriteLines = Callable[[str, Iterable[str]], Path]
FILTERS = FilterSettings(drop_duplicates=True, max_tokens=20, max_length_ratio=1.0)
HOLD_OUT = HoldOutSettings(share=0.1, max_pairs=30)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the blocks of corpora small in this process, so that a small corpus has many of them."""
    monkeypatch.setattr(corpus, "BLOCK_LINES", 16)


def lines(count: int, seed: int) -> tuple[list[str], list[str]]:
    """Return sources and targets of which some are repeated, empty, long, equal or have unusual characters."""
    choose = random.Random(seed)
    sources, targets = [], []
    for _ in range(count):
        number = choose.randrange(150)
        source, target = f"der Hund {number} geht", f"the dog {choose.randrange(3)} walks {number}"
        match choose.randrange(14):
            case 0:
                target = ""
            case 1:
                source = "geht " * choose.randrange(8, 30)
            case 2:
                source = target
            case 3:
                source = f"{source}\x07"
            case 4:
                source = f"DER  Hund {number} geht!"
            case 5:
                target += "\r"
            case 6 if choose.random() < 0.4:
                target += "\udce9"  # written as a byte that is no UTF-8
        sources.append(source)
        targets.append(target)
    return sources, targets


@pytest.fixture
def files(tmp_path: Path) -> CorpusFiles:
    """Return a corpus of three pairs of files, the second compressed, whose lengths are no multiples of a block."""
    paths: tuple[list[str], list[str]] = ([], [])
    for number, count in enumerate((259, 101, 16)):
        for side, language, text in zip(paths, ("de", "en"), lines(count, number), strict=True):
            content = "".join(f"{line}\n" for line in text).encode("utf-8", "surrogateescape")
            path = tmp_path / f"{number}.{language}{'.gz' if number == 1 else ''}"
            path.write_bytes(gzip.compress(content) if number == 1 else content)
            side.append(str(path))
    return CorpusFiles(source=tuple(paths[0]), target=tuple(paths[1]))


@pytest.fixture
def tokenizer(files: CorpusFiles) -> Tokenizer:
    return Tokenizer.train(lambda: read_pairs(files), TokenizerSettings(vocabulary_size=330))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def shard(files: CorpusFiles, tokenizer: Tokenizer, folder: Path, number: int, count: int) -> CorpusPart:
    request = PartRequest(files=files, filters=FILTERS, hold_out=HOLD_OUT, shard=(number, count))
    (path,) = write_parts(request, tokenizer, folder, workers=1)
    return CorpusPart(path)


def merge(parts: list[CorpusPart], tokenizer: Tokenizer, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    write_corpus(parts, tokenizer, folder)
    return content(folder)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_merged_shards_are_the_bytes_of_one_go(
    files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path, count: int
) -> None:
    whole = prepare(files, tokenizer, FILTERS, tmp_path / "whole", hold_out=HOLD_OUT)
    dropped = whole.filters.dropped
    assert [reason for reason in dropped if not dropped[reason]] == [
        "line without two columns",
        "header",
        "weight of 0",
        "empty line between documents",
    ]
    assert whole.filters.held_out > 10
    parts = [shard(files, tokenizer, tmp_path / str(number), number, count) for number in range(1, count + 1)]
    for part in parts:
        part.verify()
    random.Random(1).shuffle(parts)
    assert merge(parts, tokenizer, tmp_path / "merged") == content(tmp_path / "whole")


def test_shards_of_different_counts_fit_together(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    prepare(files, tokenizer, FILTERS, tmp_path / "whole", hold_out=HOLD_OUT)
    parts = [shard(files, tokenizer, tmp_path / f"{n}of{c}", n, c) for n, c in ((1, 2), (2, 4), (4, 4))]
    assert merge(parts, tokenizer, tmp_path / "merged") == content(tmp_path / "whole")


def test_kept_and_held_out_pairs_equal_the_rules_applied_by_hand(
    files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    found = prepare(files, tokenizer, FILTERS, tmp_path / "whole", hold_out=HOLD_OUT)
    seen: set[tuple[str, str]] = set()
    passing = []
    for pair in read_pairs(files):
        source, target = pair.source.strip(), pair.target.strip()
        sizes = sorted(len(tokenizer.source.encode(text)) for text in (pair.source, pair.target))
        sound = source and target and source != target and not {"\x07", "\udce9"} & {*source, *target}
        if sound and sizes[1] <= min(20, sizes[0] + 5) and (pair.source, pair.target) not in seen:
            seen.add((pair.source, pair.target))
            passing.append(pair)
    assert found.held_out is not None
    held = [(pair.source, pair.target) for pair in read_pairs(found.held_out)]
    letters = {"".join(filter(str.isalnum, source)).casefold() for source, _ in held}
    trained = [p for p in passing if "".join(filter(str.isalnum, p.source)).casefold() not in letters]
    source_run, target_run = found.read(0, found.pairs)
    expected = [[*tokenizer.source.encode(pair.source), tokenizer.source.eos_id] for pair in trained]
    assert source_run.ids.tolist() == [id for ids in expected for id in ids]
    assert target_run.sentences == len(trained) == found.pairs
    assert set(held) <= {(pair.source, pair.target) for pair in passing}
    assert found.filters.read == 259 + 101 + 16


def test_worker_processes_write_the_same_bytes(
    write_lines: WriteLines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sources, targets = ([line.replace("\udce9", "é") for line in side] for side in lines(30_000, seed=9))
    files = CorpusFiles(source=(str(write_lines("a.de", sources)),), target=(str(write_lines("a.en", targets)),))
    tokenizer = Tokenizer.train(lambda: read_pairs(files), TokenizerSettings(vocabulary_size=330))
    heard: list[int] = []
    # Worker processes use the default block size, so the parent process must too.
    monkeypatch.setattr(corpus, "BLOCK_LINES", 8_192)
    for workers in (1, 2, 5):
        folder = tmp_path / str(workers)
        prepare(files, tokenizer, FILTERS, folder, hold_out=HOLD_OUT, workers=workers, report_progress=heard.append)
        assert heard[-1] == 30_000
    assert content(tmp_path / "1") == content(tmp_path / "2") == content(tmp_path / "5")
    assert capfd.readouterr().err == ""


def test_a_mistake_in_one_process_ends_all_and_leaves_nothing(
    files: CorpusFiles, tokenizer: Tokenizer, write_lines: WriteLines, tmp_path: Path
) -> None:
    uneven = CorpusFiles(source=files.source, target=(*files.target[:-1], str(write_lines("odd.en", ["a"] * 15))))
    with pytest.raises(TransduceError, match=r"2\.de has 16 lines and .*odd\.en has 15: find"):
        prepare(uneven, tokenizer, FILTERS, tmp_path / "out" / "corpus", workers=2)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_process_that_is_killed_is_an_error(
    files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = processes._start

    def start_and_kill(task: processes.Task) -> "subprocess.Popen[bytes]":
        process = start(task)
        process.kill()
        return process

    monkeypatch.setattr(processes, "_start", start_and_kill)
    with pytest.raises(TransduceError, match=r"ended with status -9: if memory ran out, use fewer workers"):
        prepare(files, tokenizer, FILTERS, tmp_path / "out" / "corpus", workers=2)
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(TransduceError, match="`workers` must be at least 1, but is 0"):
        prepare(files, tokenizer, FILTERS, tmp_path / "out" / "corpus", workers=0)


def test_an_interruption_leaves_nothing(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    def interrupt(read: int) -> None:
        if read > 200:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(files, tokenizer, FILTERS, tmp_path / "out" / "corpus", report_progress=interrupt)
    assert list((tmp_path / "out").iterdir()) == []


def test_missing_and_repeated_shards_are_refused(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    one, two, three = (shard(files, tokenizer, tmp_path / str(number), number, 3) for number in (1, 2, 3))
    with pytest.raises(
        TransduceError, match=r"All shards .* but 2/3 is not among these: 1/3, 3/3; name the others too"
    ):
        check_parts([one, three])
    with pytest.raises(TransduceError, match="but 2/3, 3/3 are not among these: 1/3"):
        check_parts([one])
    half = shard(files, tokenizer, tmp_path / "half", 1, 2)
    with pytest.raises(TransduceError, match=r"Parts must not overlap, but .* both hold the pairs from .*0\.de:1 on"):
        check_parts([one, two, three, half])
    with pytest.raises(TransduceError, match=r"but \d+ blocks of its pairs are in none of these shards: 1/2, 2/4"):
        check_parts([half, shard(files, tokenizer, tmp_path / "quarter", 2, 4)])


def test_shards_with_different_settings_are_refused(
    files: CorpusFiles, tokenizer: Tokenizer, write_lines: WriteLines, tmp_path: Path
) -> None:
    one = shard(files, tokenizer, tmp_path / "1", 1, 2)
    other = Tokenizer.train(lambda: read_pairs(files), TokenizerSettings(vocabulary_size=320))
    with pytest.raises(TransduceError, match=r"prepared alike, but .*1.* and .*2.* have different tokenizers: prepare"):
        check_parts([one, shard(files, other, tmp_path / "2", 2, 2)])
    fewer = CorpusFiles(source=files.source[:1], target=files.target[:1])
    with pytest.raises(TransduceError, match="have different files"):
        check_parts([one, shard(fewer, tokenizer, tmp_path / "3", 2, 2)])
    lenient = PartRequest(files=files, filters=FilterSettings(), hold_out=HOLD_OUT, shard=(2, 2))
    with pytest.raises(TransduceError, match="have different filters"):
        check_parts([one, *map(CorpusPart, write_parts(lenient, tokenizer, tmp_path / "4", workers=1))])
    keeping = PartRequest(files=files, filters=FILTERS, shard=(2, 2))
    with pytest.raises(TransduceError, match="have different rules for holding out"):
        check_parts([one, *map(CorpusPart, write_parts(keeping, tokenizer, tmp_path / "5", workers=1))])
    for path in (files.source[0], files.target[0]):
        write_lines(Path(path).name, ["hund"])
    with pytest.raises(TransduceError, match=r"have different numbers of lines \(376 and 118\)"):
        check_parts([one, shard(files, tokenizer, tmp_path / "6", 2, 2)])


def test_shards_of_equally_named_files_with_other_text_are_refused(
    files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """On another machine an older version of a file may lie, and its blocks would be mixed with those of the newer."""
    one = shard(files, tokenizer, tmp_path / "1", 1, 2)
    for number, path in enumerate((files.source[0], files.target[-1])):
        before = Path(path).read_bytes()
        first, *others = before.splitlines(keepends=True)
        Path(path).write_bytes(b"".join([*others, first]))
        with pytest.raises(TransduceError, match=r"prepared alike, .* have different text in the files of these names"):
            check_parts([one, shard(files, tokenizer, tmp_path / f"other-{number}", 2, 2)])
        Path(path).write_bytes(before)
    check_parts([one, shard(files, tokenizer, tmp_path / "2", 2, 2)])


def test_damaged_shards_are_refused(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = shard(files, tokenizer, tmp_path / "1", 1, 2).folder
    for name in ("source.ids", "target.offsets", "keys", "digests", "rows"):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(good[:-1])
        with pytest.raises(TransduceError, match=rf"{name} must have {len(good)} bytes, but has {len(good) - 1}"):
            CorpusPart(folder)
        (folder / name).write_bytes(bytes([good[0] ^ 1]) + good[1:])
        with pytest.raises(TransduceError, match=rf"{name} is not what was prepared \(its SHA-256 differs\)"):
            CorpusPart(folder).verify()
        (folder / name).write_bytes(good)
    card = folder / "part.json"
    good = card.read_bytes()
    for text, message in (
        (b"{", "does not describe a part of a corpus"),
        (b"{}", "has format none, but this version reads format 1"),
        (b'{"format_version":1}', "does not describe a part of a corpus"),
        (good.replace(b'"format_version":1', b'"format_version":9'), "has format 9, but this version reads format 1"),
    ):
        card.write_bytes(text)
        with pytest.raises(TransduceError, match=message):
            CorpusPart(folder)
    shutil.rmtree(folder)
    with pytest.raises(TransduceError, match=r"part\.json does not exist: .* holds no part of a corpus"):
        CorpusPart(folder)


def test_a_part_may_be_empty(write_lines: WriteLines, tokenizer: Tokenizer, tmp_path: Path) -> None:
    files = CorpusFiles(
        source=(str(write_lines("s.de", ["der Hund", "ein Hund"])),),
        target=(str(write_lines("s.en", ["the dog", "a dog"])),),
    )
    parts = [shard(files, tokenizer, tmp_path / str(number), number, 2) for number in (1, 2)]
    assert [part.kept for part in parts] == [2, 0]
    merge(parts, tokenizer, tmp_path / "merged")
    assert PreparedCorpus.open(tmp_path / "merged", tokenizer).pairs == 1  # the other one is held out


def test_a_corpus_rewritten_while_in_use_is_an_error(files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A run would learn from other pairs, cut by another vocabulary perhaps, and nobody would know."""
    found = prepare(files, tokenizer, FILTERS, tmp_path / "corpus")
    found.read(0, 5)
    prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus")
    with pytest.raises(TransduceError, match=r"source\.offsets was written again while in use"):
        found.read(0, 5)
    with pytest.raises(TransduceError, match=r"source\.offsets was written again while in use"):
        found.read_range_lengths([(0, 5)])


def test_a_corpus_file_that_shrinks_while_it_is_read_is_an_error(
    files: CorpusFiles, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    found = prepare(files, tokenizer, FILTERS, tmp_path / "whole")
    (tmp_path / "whole" / "source.offsets").write_bytes(b"12345678")
    with pytest.raises(TransduceError, match=r"source\.offsets has become shorter while it was read"):
        found.read_range_lengths([(0, 5)])
