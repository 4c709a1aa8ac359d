"""Test that training pairs get placeholders on both sides, at aligned words, determined by seed and epoch."""

from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from transduce.data import PreparedCorpus, prepare
from transduce.data.batches import BatchPlan, ChangedPlan
from transduce.data.placeholders import MAX_GROWTH, PlaceholderMasker, WordAligner
from transduce.text import CorpusFiles, FilterSettings, Tokenizer, TokenizerSettings, read_pairs
from transduce.text.protected import PLACEHOLDER_TOKENS

WriteLines = Callable[[str, Iterable[str]], Path]
_SUBJECTS = {"我": "I", "你": "you", "他": "he", "她": "she", "老师": "the teacher"}
_VERBS = {"喜欢": "like", "看见": "see", "买": "buy", "吃": "eat"}
_OBJECTS = {"苹果": "apples", "书": "books", "茶": "tea", "鱼": "fish", "米饭": "rice", "水": "water"}
Made = tuple[Tokenizer, PreparedCorpus]


@pytest.fixture
def made(write_lines: WriteLines, tmp_path: Path) -> Made:
    words = list(product(_SUBJECTS, _VERBS, _OBJECTS))
    source = write_lines("a.zh", [f"{s}{v}{o}。" for s, v, o in words])
    target = write_lines("a.en", [f"{_SUBJECTS[s]} {_VERBS[v]} {_OBJECTS[o]}." for s, v, o in words])
    files = CorpusFiles(source=(str(source),), target=(str(target),))
    settings = TokenizerSettings(vocabulary_size=120, byte_fallback=False, user_symbols=PLACEHOLDER_TOKENS)
    tokenizer = Tokenizer.train(lambda: read_pairs(files), settings, adjust=True)
    return tokenizer, prepare(files, tokenizer, FilterSettings(), tmp_path / "corpus")


def masker(made: Made, *, rate: float = 0.5, seed: int = 1) -> PlaceholderMasker:
    tokenizer, corpus = made
    return PlaceholderMasker(corpus, (tokenizer.source, tokenizer.target), PLACEHOLDER_TOKENS, rate=rate, seed=seed)


def test_words_that_translate_each_other_are_found(made: Made) -> None:
    tokenizer, corpus = made
    aligner = WordAligner(corpus, (tokenizer.source, tokenizer.target), PLACEHOLDER_TOKENS)
    source, target = tokenizer.source, tokenizer.target
    ids = np.array(source.encode("我喜欢茶。")), np.array(target.encode("I like tea."))
    words = [
        (source.decode(ids[0][slice(*one)].tolist()), target.decode(ids[1][slice(*other)].tolist()))
        for one, other in aligner.pairs(*ids)
    ]
    assert ("茶", "tea") in words
    assert {("我", "I"), ("喜欢", "like"), ("茶", "tea")} >= set(words)


def test_both_sides_have_the_same_placeholders_once(made: Made) -> None:
    tokenizer, corpus = made
    plan = BatchPlan(corpus, batch_tokens=300, seed=1)
    masked, changed, rows = ChangedPlan(plan, masker(made).mask), 0, 0
    longest = [int(lengths.max()) for lengths in corpus.read_range_lengths([(0, corpus.pairs)])]
    for position in range(len(plan)):
        plain, batch = plan.batch(0, position), masked.batch(0, position)
        assert batch.indices.tolist() == plain.indices.tolist()
        assert batch.source_tokens == int((batch.source != tokenizer.source.pad_id).sum())
        assert batch.target_tokens == int((batch.target != tokenizer.target.pad_id).sum())
        assert batch.source.shape[1] <= longest[0]
        assert batch.target.shape[1] <= min(longest[1], plain.target.shape[1] + MAX_GROWTH)
        for source, target in zip(batch.source, batch.target, strict=True):
            found = [
                sorted(piece for piece in side.tokens(row.tolist()) if piece in PLACEHOLDER_TOKENS)
                for side, row in ((tokenizer.source, source), (tokenizer.target, target))
            ]
            assert found[0] == found[1]
            assert len(set(found[0])) == len(found[0])
            changed, rows = changed + bool(found[0]), rows + 1
    assert 0.2 < changed / rows < 0.6  # the rate is 0.5; pairs at the longest length stay as they are


def test_epochs_and_seeds_differ_and_are_repeatable(made: Made) -> None:
    plan = BatchPlan(made[1], batch_tokens=300, seed=1)

    def batches(epoch: int, seed: int = 1) -> list[list[list[int]]]:
        masked = ChangedPlan(plan, masker(made, seed=seed).mask)
        return [masked.batch(epoch, position).source.tolist() for position in range(len(plan))]

    assert batches(3) == batches(3)
    assert batches(3) != batches(4)
    assert batches(3) != batches(3, seed=2)


def test_a_share_of_a_batch_has_its_rows(made: Made) -> None:
    whole = ChangedPlan(BatchPlan(made[1], batch_tokens=300, seed=1), masker(made).mask).batch(2, 0)
    pad = made[0].source.pad_id
    for r in (0, 1):
        part = ChangedPlan(
            BatchPlan(made[1], batch_tokens=300, seed=1, rank_and_count=(r, 2)), masker(made).mask
        ).batch(2, 0)
        rows = [[id for id in row if id != pad] for row in part.source.tolist()]
        assert rows == [[id for id in row if id != pad] for row in whole.source[r::2].tolist()]
