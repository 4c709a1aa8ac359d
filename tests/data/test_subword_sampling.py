"""Test BPE-dropout and sampling by a unigram model: texts stay, and draws are repeatable and follow the papers."""

from collections import Counter
from itertools import pairwise
from math import exp, isclose
from pathlib import Path
from random import Random

import numpy as np
import pytest

from transduce.data.batches import BatchPlan
from transduce.data.prepared import PreparedCorpus, prepare
from transduce.data.subword_sampling import (
    BpeDropout,
    SampledPlan,
    UnigramSampler,
    grown_batch,
    growth_limit,
    sentence_samplers,
    word_sampler,
)
from transduce.errors import TransduceError
from transduce.text import CorpusFiles, FilterSettings, Pair, Tokenizer, TokenizerSettings
from transduce.text.sentencepiece_model import read_pieces

WORDS = ["lower", "lowest", "newer", "newest", "wider", "widest", "low", "new", "wide", "slow"]
LINES = [f"{one} {other} 爱" for one in WORDS for other in WORDS]


def learn(kind: str, size: int, **settings: object) -> Tokenizer:
    pairs = [Pair(line, line.upper(), number) for number, line in enumerate(LINES)]
    chosen = TokenizerSettings(kind=kind, vocabulary_size=size, **settings)  # type: ignore[arg-type]
    return Tokenizer.train(lambda: pairs, chosen, adjust=True)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return learn("bpe", 360, user_symbols=("<2de>",))


def reference_dropout(text: str, scores: dict[str, float], rate: float, random: Random) -> tuple[str, ...]:
    """Return the tokens of a text by algorithm 1 of Provilkov et al. 2020, which drops merges anew in each step."""
    parts = list(text)
    while True:
        merges = [
            (-scores[one + other], position)
            for position, (one, other) in enumerate(pairwise(parts))
            if one + other in scores and random.random() >= rate
        ]
        if not merges:
            return tuple(parts)
        _, position = min(merges)
        parts[position : position + 2] = [parts[position] + parts[position + 1]]


def test_bpe_dropout_draws_what_the_paper_draws(bpe: Tokenizer) -> None:
    vocabulary, rate, draws = bpe.source, 0.3, 20_000
    word = tuple(vocabulary.encode("lowest"))
    scores = {piece.text: piece.score for piece in read_pieces(vocabulary.model_bytes) if piece.type == 1}
    sampler, ours, theirs = BpeDropout(vocabulary, rate), Random(1), Random(2)
    drawn = Counter(tuple(vocabulary.tokens(sampler.sample(word, ours))) for _ in range(draws))
    expected = Counter(reference_dropout("▁lowest", scores, rate, theirs) for _ in range(draws))
    assert len(expected) > 5
    for division, count in expected.items():
        assert abs(drawn[division] - count) <= 5 * (2 * max(count, 10)) ** 0.5, division


def test_a_unigram_model_draws_by_its_probabilities() -> None:
    vocabulary, alpha, draws = learn("unigram", 290).source, 0.05, 20_000
    word, sampler, random = tuple(vocabulary.encode("newest")), UnigramSampler(vocabulary, alpha), Random(3)
    drawn = Counter(tuple(vocabulary.tokens(sampler.sample(word, random))) for _ in range(draws))
    scores = {piece.text: piece.score for piece in read_pieces(vocabulary.model_bytes)}
    weights = {division: exp(alpha * sum(scores[token] for token in division)) for division in drawn}
    best, second = sorted(drawn, key=drawn.__getitem__)[:-3:-1]
    assert isclose(drawn[best] / drawn[second], weights[best] / weights[second], rel_tol=0.1)
    assert all("".join(division) == "▁newest" for division in drawn)


def corpus_of(tokenizer: Tokenizer, folder: Path) -> PreparedCorpus:
    (folder / "a.txt").write_text("".join(f"{line} <2de>x\n" for line in LINES), "utf-8")
    (folder / "b.txt").write_text("".join(f"{line.upper()}\n" for line in LINES), "utf-8")
    files = CorpusFiles(source=(str(folder / "a.txt"),), target=(str(folder / "b.txt"),))
    return prepare(files, tokenizer, FilterSettings(drop_identical=False), folder / "corpus")


def sampled(tokenizer: Tokenizer, corpus: PreparedCorpus, rank_and_count: tuple[int, int] = (0, 1)) -> SampledPlan:
    sides = (tokenizer.source, tokenizer.target)
    plan = BatchPlan(corpus, batch_tokens=60, seed=1, rank_and_count=rank_and_count)
    samplers = sentence_samplers(sides, bpe_dropout=0.3, unigram_alpha=None)
    return SampledPlan(plan, sides, samplers, seed=7, growth_rate=0.3)


def test_batches_keep_their_texts_and_are_repeatable(bpe: Tokenizer, tmp_path: Path) -> None:
    corpus = corpus_of(bpe, tmp_path)
    plain, plan, again = BatchPlan(corpus, batch_tokens=60, seed=1), sampled(bpe, corpus), sampled(bpe, corpus)
    again.batch(0, 1)  # what was drawn before does not matter
    symbol, changed = bpe.source.id("<2de>"), 0
    for position in range(len(plan)):
        usual, first, second = plain.batch(1, position), plan.batch(1, position), plan.batch(2, position)
        assert np.array_equal(first.source, again.batch(1, position).source)
        changed += not np.array_equal(first.source, usual.source)
        assert first.source_tokens == (first.source != 0).sum()
        assert first.target_tokens == (first.target != 0).sum()
        for side, rows, usual_rows in (("source", first.source, usual.source), ("target", first.target, usual.target)):
            decode = getattr(bpe, side).decode
            assert [decode(row) for row in rows] == [decode(row) for row in usual_rows]
        assert (first.source == symbol).sum() == len(first.source)
        assert all((row == 1).sum() == 1 for row in first.source)
        assert len(second.source)
    assert changed > len(plan) // 2


def test_a_process_draws_its_rows_as_one_process_would(bpe: Tokenizer, tmp_path: Path) -> None:
    corpus = corpus_of(bpe, tmp_path)
    whole, shares = sampled(bpe, corpus), [sampled(bpe, corpus, (rank, 2)) for rank in range(2)]
    for position in range(len(whole)):
        rows = {int(index): row[row != 0].tolist() for index, row in zip(*_rows(whole, position), strict=True)}
        for share in shares:
            for index, row in zip(*_rows(share, position), strict=True):
                assert rows[int(index)] == row[row != 0].tolist()


def _rows(plan: SampledPlan, position: int) -> tuple[np.ndarray, np.ndarray]:
    batch = plan.batch(3, position)
    return batch.indices, batch.target[: len(batch.indices)]


def test_no_batch_is_larger_than_its_stand_in(bpe: Tokenizer, tmp_path: Path) -> None:
    corpus = corpus_of(bpe, tmp_path)
    plain, plan = BatchPlan(corpus, batch_tokens=60, seed=1), sampled(bpe, corpus)
    for position in range(len(plan)):
        limit = grown_batch(plain.batch(0, position), (0, 0), 0.3)
        batch = plan.batch(0, position)
        assert batch.source.shape[1] <= limit.source.shape[1]
        assert batch.target.shape[1] <= limit.target.shape[1]
    assert growth_limit(10, 0.1) == 18


def test_vocabularies_of_another_kind_are_refused(bpe: Tokenizer) -> None:
    with pytest.raises(TransduceError, match=r"`training\.unigram_alpha` is 0\.2, but the vocabulary is no unigram"):
        word_sampler(bpe.source, bpe_dropout=0.0, unigram_alpha=0.2)
    for kind in ("unigram", "character"):
        with pytest.raises(TransduceError, match=r"`training\.bpe_dropout` is 0\.1, but the vocabulary is no BPE"):
            word_sampler(learn(kind, 320).source, bpe_dropout=0.1, unigram_alpha=None)
