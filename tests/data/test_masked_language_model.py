"""Test rows of two segments: half of the second ones follow, no row mixes documents, access to any batch."""

from itertools import pairwise

import numpy as np
import pytest

from transduce.data.masked_language_model import (
    MaskedBatch,
    MaskedPlan,
    MaskedPlanSettings,
    MaskingSettings,
    SentenceStore,
)
from transduce.errors import TransduceError
from transduce.text.vocabulary import SpecialTokens

MARKS = SpecialTokens(cls=3, sep=4, mask=5)
EOS, FIRST = 1, 10
SENTENCES_A_DOCUMENT, PIECES = 30, 6


def text(documents: int = 4) -> SentenceStore:
    """Return documents of sentences whose tokens are numbered from FIRST, so that tests can check their order."""
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
        piece += PIECES  # leaves a gap between the token numbers of documents
    return SentenceStore(np.array(ids, np.uint16), np.array(offsets))


def plan(
    rank_and_count: tuple[int, int] = (0, 1), *, store: SentenceStore | None = None, **changed: object
) -> MaskedPlan:
    settings = {"length": 33, "batch_tokens": 8 * 33, "seed": 1} | changed
    return MaskedPlan(store or text(), MARKS, MaskedPlanSettings(**settings), np.arange(FIRST, 60_000), rank_and_count)  # type: ignore[arg-type]


def unmasked(batch: MaskedBatch) -> np.ndarray:
    return np.where(batch.target != 0, batch.target, batch.source)


def segments(batch: MaskedBatch) -> list[tuple[list[int], list[int]]]:
    """Return both segments of each row, with their original tokens."""
    found = []
    for row in unmasked(batch).tolist():
        pieces = [id for id in row if id]
        assert pieces[0] == MARKS.cls
        middle = pieces.index(MARKS.sep)
        assert pieces[-1] == MARKS.sep
        found.append((pieces[1:middle], pieces[middle + 1 : -1]))
    return found


def all_batches(epochs: int = 1, **changed: object) -> list[MaskedBatch]:
    made = plan(**changed)  # type: ignore[arg-type]
    return [made.batch(epoch, position) for epoch in range(epochs) for position in range(len(made))]


def test_half_of_the_second_segments_follow_in_the_text_and_the_label_says_so() -> None:
    labels = []
    for batch in all_batches(epochs=12):
        for (one, two), follows in zip(segments(batch), batch.follows.tolist(), strict=True):
            assert all(b == a + 1 for a, b in pairwise(one))
            assert (two[0] == one[-1] + 1) == bool(follows)
            labels.append(follows)
    assert np.mean(labels) == pytest.approx(0.5, abs=0.06)


def test_no_segment_crosses_documents_and_no_row_is_too_long() -> None:
    for batch in all_batches(epochs=3):
        assert batch.source.shape[1] <= 33
        for (one, two), follows in zip(segments(batch), batch.follows.tolist(), strict=True):
            documents = [{(id - FIRST) // (PIECES * (SENTENCES_A_DOCUMENT + 1)) for id in part} for part in (one, two)]
            assert [len(found) for found in documents] == [1, 1]
            assert not follows or documents[0] == documents[1]


def test_an_epoch_reads_the_whole_text_and_the_next_one_cuts_it_elsewhere() -> None:
    def cuts(epoch: int) -> set[int]:
        made = plan(next_sentence=False, length=200)
        return {row[0][0] for n in range(len(made)) for row in segments_of_one(made.batch(epoch, n))}

    made = plan(next_sentence=False, length=200)
    seen = {id for n in range(len(made)) for row in segments_of_one(made.batch(0, n)) for id in row[0]}
    assert len(seen) == 4 * SENTENCES_A_DOCUMENT * PIECES
    assert cuts(1) != cuts(2)


def segments_of_one(batch: MaskedBatch) -> list[tuple[list[int]]]:
    assert len(batch.follows) == 0
    assert not batch.token_types.any()
    return [([id for id in row if id][1:-1],) for row in unmasked(batch).tolist()]


def test_token_types_tell_the_segments_apart() -> None:
    batch = all_batches()[0]
    for row, types in zip(unmasked(batch).tolist(), batch.token_types.tolist(), strict=True):
        middle = row.index(MARKS.sep)
        assert not any(types[: middle + 1])
        assert all(kind == (id != 0) for kind, id in zip(types[middle + 1 :], row[middle + 1 :], strict=True))


def test_special_tokens_are_never_hidden_and_about_15_of_100_others_are() -> None:
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
    idle = plan((7, 8), batch_tokens=3 * 33).batch(0, 0)
    first = plan((0, 8), batch_tokens=3 * 33).batch(0, 0)
    assert (first.is_stand_in, idle.is_stand_in, idle.target_tokens, len(idle.indices)) == (False, True, 0, 0)
    assert len(first.indices) == len(idle.follows) == 1
    assert (idle.source.tolist(), idle.target.tolist()) == (first.source.tolist(), first.target.tolist())


def text_of(lengths: list[int]) -> SentenceStore:
    """Return one document of sentences with these lengths, whose tokens are numbered from FIRST."""
    ends = np.cumsum(lengths)
    ids = np.insert(np.arange(FIRST, FIRST + ends[-1]), ends, EOS).astype(np.uint16)
    return SentenceStore(ids, np.concatenate(([0], ends + np.arange(1, len(lengths) + 1))))


@pytest.mark.parametrize("lengths", [[200, 90, 131, 64], [1_000]])
def test_an_epoch_reads_all_of_sentences_that_are_longer_than_a_row(lengths: list[int]) -> None:
    made = plan(store=text_of(lengths), next_sentence=False, length=33)
    for epoch in range(3):
        rows = [row[0] for n in range(len(made)) for row in segments_of_one(made.batch(epoch, n))]
        assert all(b == a + 1 for row in rows for a, b in pairwise(row))
        read = sorted(id for row in rows for id in row)
        # An epoch that begins within a row has one more, and leaves one out.
        assert len(read) == len(set(read)) >= sum(lengths) - (33 - 2 if epoch else 0)


def test_all_of_long_sentences_is_read_in_pairs_and_labels_are_right() -> None:
    read: set[int] = set()
    for batch in all_batches(epochs=12, store=text_of([200, 5, 90, 131, 3, 4, 64])):
        assert batch.source.shape[1] <= 33
        for (one, two), follows in zip(segments(batch), batch.follows.tolist(), strict=True):
            assert all(b == a + 1 for part in (one, two) for a, b in pairwise(part))
            assert bool(follows) == (two[0] == one[-1] + 1)
            read.update(one, two)
    assert read == set(range(FIRST, FIRST + 200 + 5 + 90 + 131 + 3 + 4 + 64))


def short_documents(sentences: int, documents: int = 200) -> SentenceStore:
    """Return documents of a few sentences of 2 to 9 tokens."""
    ids: list[int] = []
    offsets = [0]
    for document in range(documents):
        for number in range(sentences):
            ids += [*range(FIRST + len(ids), FIRST + len(ids) + 2 + (3 * document + number) % 8), EOS]
            offsets.append(len(ids))
        ids.append(EOS)
        offsets.append(len(ids))
    return SentenceStore(np.array(ids, np.uint16), np.array(offsets))


@pytest.mark.parametrize("next_sentence", [True, False])
def test_batches_have_the_tokens_that_they_are_to_have_however_short_documents_are(next_sentence: bool) -> None:
    made = plan(store=short_documents(1), batch_tokens=200, next_sentence=next_sentence)
    for epoch in range(3):
        batches = [made.batch(epoch, position) for position in range(len(made))]
        assert all(200 - 2 * 33 < batch.source_tokens < 200 + 33 for batch in batches)
        assert sum(batch.source_tokens for batch in batches) == pytest.approx(200 * len(made), rel=0.1)
        assert sorted(row for batch in batches for row in batch.indices.tolist()) == list(range(200))
        assert sum(batch.source.size for batch in batches) < 1.2 * sum(batch.source_tokens for batch in batches)
    assert made.tokens == sum(made.batch(0, position).source_tokens for position in range(len(made)))


def test_batches_smaller_than_a_row_have_one_row() -> None:
    made = plan(batch_tokens=5, next_sentence=False)
    for epoch in range(3):
        assert {len(made.batch(epoch, position).indices) for position in range(len(made))} == {1}


def test_has_next_is_the_share_of_segments_with_a_next_one() -> None:
    assert plan(store=short_documents(1)).has_next == 0.0
    assert 0.5 < plan(store=short_documents(2)).has_next < 1.0  # the last sentence of some is a row
    assert plan(store=short_documents(1), next_sentence=False).has_next == 0.0


def test_every_process_knows_the_hidden_tokens_of_a_row_of_the_whole_batch() -> None:
    whole, parts = plan().batch(2, 1), [plan((rank, 3)).batch(2, 1) for rank in range(3)]
    assert whole.masked_per_row == whole.target_tokens / len(whole.indices)
    assert {part.masked_per_row for part in parts} == {whole.masked_per_row}


def test_no_batch_is_larger_than_the_one_that_memory_is_tried_with() -> None:
    largest = plan().largest_batches()
    assert all(batch.source.size <= max(each.source.size for each in largest) for batch in all_batches())
    assert all(each.target_tokens == (each.target != 0).sum() > 0 for each in largest)


def test_a_text_without_another_position_is_refused() -> None:
    store = SentenceStore(np.array([10, EOS, 11, EOS], np.uint16), np.array([0, 2, 4]))
    with pytest.raises(TransduceError, match=r"at least four sentences, .*, but this one has 2 of 2 tokens"):
        plan(store=store)


def test_masking_settings_are_used() -> None:
    batch = all_batches(masking=MaskingSettings(share=0.5, masked=1.0, random=0.0))[0]
    assert (batch.source[batch.target != 0] == MARKS.mask).all()
    assert batch.target_tokens > 0.4 * (unmasked(batch) >= FIRST).sum()
