"""Test back-translated pairs: their sources are tagged, and they never become dev pairs."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import pytest

from transduce.data import HoldOutSettings, PreparedCorpus, prepare
from transduce.text import CorpusFiles, FilterSettings, Tokenizer, TokenizerSettings, read_lines, read_pairs
from transduce.text.vocabulary import BACK_TRANSLATED

WriteLines = Callable[[str, Iterable[str]], Path]
HOLD_OUT = HoldOutSettings(share=0.1, enough_pairs=0)


@pytest.fixture
def files(write_lines: WriteLines) -> CorpusFiles:
    """Return a corpus of 300 human and 500 back-translated pairs, the first 300 of which have the same targets."""
    human = [f"der hund {number} geht" for number in range(300)], [f"the dog {number} walks" for number in range(300)]
    machine = [f"hunde {number}" for number in range(500)], [f"The dog {number} walks." for number in range(500)]
    names = [
        write_lines(f"{name}.{side}", lines)
        for name, pair in (("a", human), ("b", machine))
        for side, lines in zip(("de", "en"), pair, strict=True)
    ]
    a_de, a_en, b_de, b_en = map(str, names)
    return CorpusFiles(source=(a_de, b_de), target=(a_en, b_en), back_translated=(b_de,))


def learn(files: CorpusFiles, *symbols: str) -> Tokenizer:
    settings = TokenizerSettings(vocabulary_size=320, user_symbols=symbols)
    return Tokenizer.train(lambda: read_pairs(files), settings)


def texts(corpus: PreparedCorpus, tokenizer: Tokenizer) -> list[tuple[bool, str, str]]:
    """Return for each pair whether its source is tagged, the source, and the target."""
    tag, found = tokenizer.source.id(BACK_TRANSLATED), []
    sides = corpus.read(0, corpus.pairs)
    rows = [[side.ids[start:stop].tolist() for start, stop in pairwise(side.offsets)] for side in sides]
    for source, target in zip(*rows, strict=True):
        assert tag not in source[1:]
        assert tag not in target
        tagged = source[0] == tag
        found.append((tagged, tokenizer.source.decode(source[tagged:]), tokenizer.target.decode(target)))
    return found


def test_back_translated_sources_begin_with_the_tag_and_are_otherwise_unchanged(
    files: CorpusFiles, tmp_path: Path
) -> None:
    tokenizer = learn(files, BACK_TRANSLATED)
    found = texts(prepare(files, tokenizer, FilterSettings(), tmp_path / "c"), tokenizer)
    pairs = [(pair.path in files.back_translated, pair.source, pair.target) for pair in read_pairs(files)]
    assert found == pairs


def test_a_vocabulary_without_the_tag_leaves_sources_untagged(files: CorpusFiles, tmp_path: Path) -> None:
    tokenizer = learn(files)
    corpus = prepare(files, tokenizer, FilterSettings(), tmp_path / "c")
    sources, _ = corpus.read(0, corpus.pairs)
    ids = [sources.ids[start:stop].tolist() for start, stop in pairwise(sources.offsets)]
    assert [tokenizer.source.decode(row) for row in ids] == [pair.source for pair in read_pairs(files)]


def test_the_length_that_filters_see_is_that_without_the_tag(files: CorpusFiles, tmp_path: Path) -> None:
    tokenizer = learn(files, BACK_TRANSLATED)
    longest = max(len(tokenizer.source.encode(text)) for pair in read_pairs(files) for text in pair[:2])
    corpus = prepare(files, tokenizer, FilterSettings(max_tokens=longest), tmp_path / "c")
    assert corpus.pairs == 800


def test_back_translated_pairs_are_not_held_out_and_drop_held_out_targets(files: CorpusFiles, tmp_path: Path) -> None:
    tokenizer = learn(files, BACK_TRANSLATED)
    corpus = prepare(files, tokenizer, FilterSettings(), tmp_path / "c", hold_out=HOLD_OUT)
    assert corpus.held_out is not None
    held = [pair.source for pair in read_pairs(corpus.held_out)]
    assert len(held) == 30  # a tenth of what people wrote
    assert all(source.startswith("der hund") for source in held)
    numbers = {source.split()[2] for source in held}
    found = texts(corpus, tokenizer)
    assert not numbers & {target.split()[2] for _, _, target in found}
    assert [tagged for tagged, _, _ in found].count(True) == 500 - 30
    assert corpus.pairs == 800 - 30 - 30


def test_the_number_of_workers_changes_no_file(files: CorpusFiles, tmp_path: Path) -> None:
    tokenizer = learn(files, BACK_TRANSLATED)
    folders = [
        prepare(files, tokenizer, FilterSettings(), tmp_path / str(workers), hold_out=HOLD_OUT, workers=workers).folder
        for workers in (1, 3)
    ]
    assert [path.name for path in sorted(folders[0].iterdir())] == [path.name for path in sorted(folders[1].iterdir())]
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes()


def test_nothing_is_held_out_if_all_pairs_are_back_translated(files: CorpusFiles, tmp_path: Path) -> None:
    tokenizer = learn(files, BACK_TRANSLATED)
    alone = CorpusFiles(source=files.source[1:], target=files.target[1:], back_translated=files.back_translated)
    corpus = prepare(alone, tokenizer, FilterSettings(), tmp_path / "c", hold_out=HOLD_OUT)
    assert corpus.held_out is None
    assert corpus.pairs == len(list(read_lines(alone.source[0])))
