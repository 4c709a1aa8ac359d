"""Rows of two stretches: half of the second ones follow, no row mixes documents, any batch is reached at once."""

from itertools import pairwise

import numpy as np
import pytest

from transduce.data.masking import MaskingSettings
from transduce.data.sentence_pairs import PairSettings, SentencePairBatch, SentencePairPlan, SentenceStore
from transduce.errors import TransduceError
from transduce.text.marks import Marks

MARKS = Marks(cls=3, sep=4, mask=5)
EOS, FIRST = 1, 10
SENTENCES_A_DOCUMENT, PIECES = 30, 6


def text(documents: int = 4) -> SentenceStore:
    """Documents of sentences whose pieces are numbered from FIRST on, so that order can be read off."""
    ids: list[int] = []
    offsets = [0]
    piece = FIRST
    for _ in range(documents):
        for _ in range(SENTENCES_A_DOCUMENT):
            ids += [*range(piece, piece + PIECES), EOS]
            piece += PIECES
            offsets.append(len(ids))
        ids.append(EOS)
        offsets.append(len(ids))
    return SentenceStore(np.array(ids, np.uint16), np.array(offsets))


def plan(share: tuple[int, int] = (0, 1), *, store: SentenceStore | None = None, **changed: object) -> SentencePairPlan:
    settings = {"length": 33, "rows": 8, "seed": 1} | changed
    return SentencePairPlan(store or text(), MARKS, PairSettings(**settings), np.arange(FIRST, 60_000), share)  # type: ignore[arg-type]


def unmasked(batch: SentencePairBatch) -> np.ndarray:
    return np.where(batch.target != 0, batch.target, batch.source)


def stretches(batch: SentencePairBatch) -> list[tuple[list[int], list[int]]]:
    """Both stretches of each row, as they stand in the text."""
    found = []
    for row in unmasked(batch).tolist():
        pieces = [id for id in row if id]
        assert pieces[0] == MARKS.cls
        middle = pieces.index(MARKS.sep)
        assert pieces[-1] == MARKS.sep
        found.append((pieces[1:middle], pieces[middle + 1 : -1]))
    return found


def all_batches(epochs: int = 1, **changed: object) -> list[SentencePairBatch]:
    made = plan(**changed)  # type: ignore[arg-type]
    return [made.batch(epoch, position) for epoch in range(epochs) for position in range(len(made))]


def test_half_of_the_second_stretches_follow_in_the_text_and_the_label_says_so() -> None:
    labels = []
    for batch in all_batches(epochs=12):
        for (one, two), follows in zip(stretches(batch), batch.follows.tolist(), strict=True):
            assert all(b == a + 1 for a, b in pairwise(one))
            assert (two[0] == one[-1] + 1) == bool(follows)
            labels.append(follows)
    assert np.mean(labels) == pytest.approx(0.5, abs=0.06)


def test_no_stretch_crosses_documents_and_no_row_is_too_long() -> None:
    for batch in all_batches(epochs=3):
        assert batch.source.shape[1] <= 33
        for (one, two), follows in zip(stretches(batch), batch.follows.tolist(), strict=True):
            documents = [{(id - FIRST) // (PIECES * SENTENCES_A_DOCUMENT) for id in part} for part in (one, two)]
            assert [len(found) for found in documents] == [1, 1]
            assert not follows or documents[0] == documents[1]


def test_an_epoch_reads_the_whole_text_and_the_next_one_cuts_it_elsewhere() -> None:
    def cuts(epoch: int) -> set[int]:
        made = plan(next_sentence=False, length=200)
        return {row[0][0] for n in range(len(made)) for row in stretches_of_one(made.batch(epoch, n))}

    made = plan(next_sentence=False, length=200)
    seen = {id for n in range(len(made)) for row in stretches_of_one(made.batch(0, n)) for id in row[0]}
    assert len(seen) == 4 * SENTENCES_A_DOCUMENT * PIECES
    assert cuts(1) != cuts(2)


def stretches_of_one(batch: SentencePairBatch) -> list[tuple[list[int]]]:
    assert len(batch.follows) == 0
    assert not batch.token_types.any()
    return [([id for id in row if id][1:-1],) for row in unmasked(batch).tolist()]


def test_token_types_tell_the_stretches_apart() -> None:
    batch = all_batches()[0]
    for row, types in zip(unmasked(batch).tolist(), batch.token_types.tolist(), strict=True):
        middle = row.index(MARKS.sep)
        assert not any(types[: middle + 1])
        assert all(kind == (id != 0) for kind, id in zip(types[middle + 1 :], row[middle + 1 :], strict=True))


def test_special_pieces_are_never_hidden_and_about_15_of_100_others_are() -> None:
    hidden = total = 0
    for batch in all_batches(epochs=2):
        assert not np.isin(batch.target, MARKS).any()
        hidden += batch.target_tokens
        total += int((unmasked(batch) >= FIRST).sum())
        assert batch.target_tokens == (batch.target != 0).sum()
    assert hidden / total == pytest.approx(0.15, abs=0.02)


def test_a_batch_is_a_function_of_seed_epoch_and_position() -> None:
    reached, again, other = plan(), plan(), plan(seed=2)
    for position in range(len(reached)):
        reached.batch(1, position)
    for epoch, position in ((3, 1), (0, 2), (3, 1)):
        one, two = reached.batch(epoch, position), again.batch(epoch, position)
        assert (one.source == two.source).all()
        assert (one.target == two.target).all()
        assert (one.follows == two.follows).all()
    assert unmasked(other.batch(0, 0)).tolist() != unmasked(again.batch(0, 0)).tolist()


def test_processes_share_the_rows_of_a_batch() -> None:
    whole, parts = plan().batch(2, 1), [plan((rank, 3)).batch(2, 1) for rank in range(3)]
    assert sum(part.target_tokens for part in parts) == whole.target_tokens
    for rank, part in enumerate(parts):
        assert part.indices.tolist() == whole.indices[rank::3].tolist()
        rows = [row[row != 0].tolist() for row in part.source]
        assert rows == [row[row != 0].tolist() for row in whole.source[rank::3]]
    idle = plan((7, 8), rows=3).batch(0, 0)
    assert (idle.target_tokens, len(idle.follows), len(idle.indices)) == (0, 0, 0)


def test_a_long_sentence_is_trimmed_and_a_single_one_has_a_second_stretch() -> None:
    lengths = [50, 50, 50, 50, 50]
    ids = [id for n in range(5) for id in (*range(FIRST + 100 * n, FIRST + 100 * n + 50), EOS)]
    store = SentenceStore(np.array(ids, np.uint16), np.concatenate(([0], np.cumsum([n + 1 for n in lengths]))))
    for batch in all_batches(epochs=4, store=store):
        for (one, two), follows in zip(stretches(batch), batch.follows.tolist(), strict=True):
            assert len(one) == len(two) == 15
            assert (one[-1] - FIRST) % 100 == 49
            assert (two[0] - FIRST) % 100 == 0
            assert bool(follows) == ((two[0] - one[-1]) == 51)


def test_no_batch_is_larger_than_the_one_that_memory_is_tried_with() -> None:
    largest = plan().largest()
    assert all(batch.source.size <= largest.source.size for batch in all_batches())
    assert largest.target_tokens == (largest.target != 0).sum() > 0


def test_a_text_without_another_place_is_refused() -> None:
    store = SentenceStore(np.array([10, EOS, 11, EOS], np.uint16), np.array([0, 2, 4]))
    with pytest.raises(TransduceError, match=r"four sentences at least, but has 2"):
        plan(store=store)


def test_masking_settings_are_used() -> None:
    batch = all_batches(masking=MaskingSettings(share=0.5, masked=1.0, random=0.0))[0]
    assert (batch.source[batch.target != 0] == MARKS.mask).all()
    assert batch.target_tokens > 0.4 * (unmasked(batch) >= FIRST).sum()
