"""Selection of a dev set from the training pairs, by a rule that parts of a corpus can apply independently."""

import heapq
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.errors import TransduceError
from transduce.text.corpus import PairBlock
from transduce.text.languages import is_word_character

Keys = NDArray[np.uint64]

# Limits if sources occur many times: the share of sources that is held out, and the share of pairs that is dropped
# because their source is held out.
_MAX_SOURCES, _MAX_FURTHER = 0.2, 0.1
_KEYS = 1 << 64


class HoldOutSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of how many training pairs are held out for validation."""

    share: float = 0.03
    """Share of the pairs that is held out for validation."""
    max_pairs: int = 2_000
    """Maximum number of held-out pairs."""
    enough_pairs: int = 100
    """Minimum number of held-out pairs for small corpora, but at most a tenth of the corpus."""

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise TransduceError(f"`hold_out.share` must be between 0 and 1, but is {self.share}.")
        if self.max_pairs < 1:
            raise TransduceError(f"`hold_out.max_pairs` must be at least 1, but is {self.max_pairs}.")


class Candidate(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A source sentence that may be held out, represented by the first pair with this source."""

    key: int
    source: str
    target: str
    block: int
    """The block of the first pair."""
    row: int
    """The row of the first pair in its block."""
    kept: bool
    """True if the first pair's lengths pass the filters."""
    failed: int = 0
    """The number of pairs with this source whose lengths do not pass the filters."""


class HoldOut:
    """A selection of the sources with the lowest hash keys, in one pass over pairs in any number of parts.

    Keys are hashes of the sources' letters and digits: sources that differ only in case, punctuation or spaces have
    one key, so no close variant of a held-out sentence is trained on. The selection depends only on the texts. A
    source that is among the lowest of a corpus is among the lowest of each part that contains it. So parts need only
    their lowest keys to agree on a selection.
    """

    def __init__(self, settings: HoldOutSettings) -> None:
        self._most = settings.max_pairs
        self._lowest: list[int] = []  # a heap of negated keys; its first is the highest key held
        self._held: dict[int, Candidate] = {}

    def offer(self, block: PairBlock, rows: Sequence[int], keys: Keys, kept: NDArray[np.bool_]) -> None:
        """Consider pairs for the dev set; only the sources with the lowest hash keys are kept.

        Args:
            block: the block of the pairs.
            rows: the rows of the block, in order, whose texts pass the filters.
            keys: the hash key of the source in each of these rows.
            kept: for each of these rows, whether the lengths of its pair pass the filters, too.
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
        """Return the sources with the lowest hash keys so far, sorted by key."""
        return [self._held[key] for key in sorted(self._held)]

    def _limit(self) -> int:
        """Return the greatest hash key with which a pair can still enter the dev set."""
        return -self._lowest[0] if len(self._lowest) == self._most else _KEYS - 1

    def _add(self, candidate: Candidate) -> None:
        heapq.heappush(self._lowest, -candidate.key)
        self._held[candidate.key] = candidate
        if len(self._lowest) > self._most:
            del self._held[-heapq.heappop(self._lowest)]


def join_candidates(parts: Iterable[Iterable[Candidate]]) -> list[Candidate]:
    """Merge the candidates of all parts into one per source, which has the source's first pair, sorted by hash key."""
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
    """Return the sources to hold out, chosen from candidates in the order of their hash keys.

    At least one source always remains for training. If sources occur many times, fewer are held out, and those that
    would drop too many pairs are skipped, but at least one is held out.

    Args:
        candidates: sources of the whole corpus with the lowest keys.
        settings: how many pairs to hold out.
        keys: keys of all pairs that could be trained on.
        offered: the number of pairs, including those whose lengths do not pass the filters.
    """
    candidates = candidates[: settings.max_pairs]  # after joining parts, later candidates may have gaps between them
    enough = min(settings.enough_pairs, offered // 10)
    count = min(settings.max_pairs, max(1, int(settings.share * offered), enough))
    count = min(count, max(1, int(_MAX_SOURCES * _count_sources(candidates, settings.max_pairs))))
    held = _affordable(candidates, keys, count, _MAX_FURTHER * offered)
    covered = int(is_held_out(keys, held).sum()) + sum(candidate.failed for candidate in held)
    if covered == offered:
        return held[:-1]
    first = next((candidate for candidate in candidates if candidate.kept), None)
    if first is None or any(candidate.kept for candidate in held):
        return held
    # None of these few passes the filters; hold out one more that does, if something remains to train on.
    longer = [*held, first]
    return held if is_held_out(keys, longer).all() else longer


def _affordable(candidates: Sequence[Candidate], keys: Keys, count: int, most_further: float) -> list[Candidate]:
    """Return the first candidates that can be held out without dropping many other pairs: 1 to `count` of them.

    A pair is dropped if its source equals a held-out one; together, at most `most_further` pairs are dropped. If every
    candidate exceeds this limit, the one that drops the fewest pairs is returned.
    """
    if not candidates:
        return []
    is_held, counts = np.unique(keys[keys <= candidates[-1].key], return_counts=True)
    pairs = dict(zip(is_held.tolist(), counts.tolist(), strict=True))
    held: list[Candidate] = []
    for candidate in candidates:
        further = pairs.get(candidate.key, 0) + candidate.failed - 1
        if len(held) < count and further <= most_further:
            held.append(candidate)
            most_further -= further
    return held or [min(candidates, key=lambda each: pairs.get(each.key, 0) + each.failed)]


def _count_sources(candidates: Sequence[Candidate], count: int) -> float:
    """Return the number of sources in the corpus, estimated from the density of the lowest keys if necessary."""
    if len(candidates) < count:
        return len(candidates)
    return len(candidates) * _KEYS / (candidates[-1].key + 1)


def is_held_out(keys: Keys, held: Sequence[Candidate]) -> NDArray[np.bool_]:
    """Return whether each hash key is that of a held-out candidate; `held` is sorted by key."""
    is_held = np.zeros(len(keys), bool)
    if held:
        low = np.flatnonzero(keys <= held[-1].key)
        is_held[low] = np.isin(keys[low], np.array([candidate.key for candidate in held], np.uint64))
    return is_held


def source_keys(sources: Sequence[str]) -> Keys:
    """Return a hash of each source's letters, combining marks and digits, ignoring case.

    A source without letters and digits is hashed as it is.
    """
    if not sources:
        return np.zeros(0, np.uint64)
    text = "\n".join(sources)
    if text.count("\n") >= len(sources):  # texts with line feeds, which count as spaces
        text = "\n".join(source.replace("\n", " ") for source in sources)
    # Few distinct characters are not part of words, so each is removed from all texts at once.
    for character in sorted(set(text) - {"\n"}):
        if not is_word_character(character):
            text = text.replace(character, "")
    letters = text.casefold().encode("utf-8", "surrogatepass").split(b"\n")
    digests = (
        blake2b(letters_only or source.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        for letters_only, source in zip(letters, sources, strict=True)
    )
    return np.frombuffer(b"".join(digests), np.dtype(">u8")).astype(np.uint64)
