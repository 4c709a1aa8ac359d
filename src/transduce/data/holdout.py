"""A dev set taken from the training pairs, by a rule that parts of a corpus can follow without each other."""

import heapq
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.errors import TransduceError
from transduce.text.corpus import PairBlock
from transduce.text.languages import is_of_word

Keys = NDArray[np.uint64]

# Where sources come many times, so much is taken at most: of the sources, and, of the pairs, those that go because a
# held-out pair has their source.
_MOST_SOURCES, _MOST_FURTHER = 0.2, 0.1
_KEYS = 1 << 64


class HoldOutSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many pairs are held out to validate on: a share of the corpus, up to a number."""

    share: float = 0.03
    max_pairs: int = 2_000
    # Of a small corpus, more than the share: so many, or a tenth of it where that is less.
    enough_pairs: int = 100

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise TransduceError(f"`hold_out.share` must be between 0 and 1, but is {self.share}.")
        if self.max_pairs < 1:
            raise TransduceError(f"`hold_out.max_pairs` must be at least 1, but is {self.max_pairs}.")


class Candidate(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A source that may be held out, by the first pair that has it."""

    key: int
    source: str
    target: str
    # Of the first pair: its block, and its row in that.
    block: int
    row: int
    # Whether the first pair's lengths pass the filters.
    kept: bool
    # Pairs with this source whose lengths do not pass.
    failed: int = 0


class HoldOut:
    """Finds the sources whose keys are lowest, in one pass over pairs in any number of parts.

    Keys are hashes of the sources' letters and digits: neither case nor punctuation nor spaces tell two sources apart,
    so a held-out sentence is not seen in training under a thin disguise. The choice depends on the texts alone. A
    source that is among the lowest of a corpus is among the lowest of each part that has it, so parts need no more
    than their own lowest ones to agree on a choice.
    """

    def __init__(self, settings: HoldOutSettings) -> None:
        self._most = settings.max_pairs
        self._lowest: list[int] = []  # a heap of negated keys: its first is the highest one held
        self._held: dict[int, Candidate] = {}

    def offer(self, block: PairBlock, rows: Sequence[int], keys: Keys, kept: NDArray[np.bool_]) -> None:
        """Take pairs into account.

        Args:
            block: in which they stand.
            rows: of the block: the pairs whose text passes the filters, in their order.
            keys: of their sources.
            kept: whether their lengths pass too.
        """
        for index in np.flatnonzero(keys <= self._limit()).tolist():
            key, row = int(keys[index]), rows[index]
            if key > self._limit():
                continue
            if key not in self._held:
                self._add(
                    Candidate(
                        key=key,
                        source=block.sources[row],
                        target=block.targets[row],
                        block=block.number,
                        row=row,
                        kept=bool(kept[index]),
                    )
                )
            self._held[key].failed += not kept[index]

    def candidates(self) -> list[Candidate]:
        """The sources with the lowest keys so far, in the order of their keys."""
        return [self._held[key] for key in sorted(self._held)]

    def _limit(self) -> int:
        """Keys above this one are of no interest any more."""
        return -self._lowest[0] if len(self._lowest) == self._most else _KEYS - 1

    def _add(self, candidate: Candidate) -> None:
        heapq.heappush(self._lowest, -candidate.key)
        self._held[candidate.key] = candidate
        if len(self._lowest) > self._most:
            del self._held[-heapq.heappop(self._lowest)]


def join_candidates(parts: Iterable[Iterable[Candidate]]) -> list[Candidate]:
    """One candidate a source, by its first pair in all parts, in the order of their keys."""
    joined: dict[int, Candidate] = {}
    for candidate in (candidate for part in parts for candidate in part):
        other = joined.get(candidate.key)
        if other is None:
            joined[candidate.key] = msgspec.structs.replace(candidate)
            continue
        first, second = sorted((candidate, other), key=lambda it: (it.block, it.row))
        joined[candidate.key] = msgspec.structs.replace(first, failed=first.failed + second.failed)
    return [joined[key] for key in sorted(joined)]


def choose_held_out(
    candidates: list[Candidate], settings: HoldOutSettings, keys: Keys, offered: int
) -> list[Candidate]:
    """The sources to hold out, of candidates in the order of their keys.

    Always leaves something to train on: of a single source, nothing is held out. Where sources come many times, fewer
    are, and those that would take too many pairs along are passed over; but one is.

    Args:
        candidates: sources of the whole corpus with the lowest keys.
        settings: how many.
        keys: of all pairs that could be trained on.
        offered: how many pairs there are, with those whose lengths do not pass.
    """
    candidates = candidates[: settings.max_pairs]  # of what was joined from parts, later ones may not be the next ones
    enough = min(settings.enough_pairs, offered // 10)
    wanted = min(settings.max_pairs, max(1, int(settings.share * offered), enough))
    wanted = min(wanted, max(1, int(_MOST_SOURCES * _count_sources(candidates, settings.max_pairs))))
    held = _affordable(candidates, keys, wanted, _MOST_FURTHER * offered)
    covered = int(have_held_source(keys, held).sum()) + sum(candidate.failed for candidate in held)
    if covered == offered:
        return held[:-1]
    first = next((candidate for candidate in candidates if candidate.kept), None)
    if first is None or any(candidate.kept for candidate in held):
        return held
    # All of these few failed; one that did not can be held out, if something is left to train on.
    longer = [*held, first]
    return held if have_held_source(keys, longer).all() else longer


def _affordable(candidates: Sequence[Candidate], keys: Keys, wanted: int, most_further: float) -> list[Candidate]:
    """So many of the first candidates that their further pairs are no more than so many; one, where there is any."""
    if not candidates:
        return []
    found, counts = np.unique(keys[keys <= candidates[-1].key], return_counts=True)
    pairs = dict(zip(found.tolist(), counts.tolist(), strict=True))
    held: list[Candidate] = []
    for candidate in candidates:
        further = pairs.get(candidate.key, 0) + candidate.failed - 1
        if len(held) < wanted and further <= most_further:
            held.append(candidate)
            most_further -= further
    return held or [min(candidates, key=lambda each: pairs.get(each.key, 0) + each.failed)]


def _count_sources(candidates: Sequence[Candidate], most: int) -> float:
    """How many sources the corpus has; where they are not all candidates, by how close together the lowest keys lie."""
    if len(candidates) < most:
        return len(candidates)
    return len(candidates) * _KEYS / (candidates[-1].key + 1)


def have_held_source(keys: Keys, held: Sequence[Candidate]) -> NDArray[np.bool_]:
    """For each key whether it is one of the candidates', which stand in the order of their keys."""
    found = np.zeros(len(keys), bool)
    if held:
        low = np.flatnonzero(keys <= held[-1].key)
        found[low] = np.isin(keys[low], np.array([candidate.key for candidate in held], np.uint64))
    return found


def source_keys(sources: Sequence[str]) -> Keys:
    """A hash of the letters, with their marks, and digits of each source, without case; of the source itself where
    there are none.
    """
    if not sources:
        return np.zeros(0, np.uint64)
    text = "\n".join(sources)
    # Of what is no word's, few characters differ: each goes out of all at once.
    for character in sorted(set(text) - {"\n"}):
        if not is_of_word(character):
            text = text.replace(character, "")
    letters = text.casefold().encode("utf-8", "surrogatepass").split(b"\n")
    digests = (
        blake2b(own or source.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for own, source in zip(letters, sources, strict=True)
    )
    return np.frombuffer(b"".join(digests), np.dtype(">u8")).astype(np.uint64)
