"""Select a dev set from training pairs, by a rule that processes can apply to parts of a corpus independently."""

import heapq
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from transduce.errors import TransduceError
from transduce.text.corpus import PairBlock
from transduce.text.files import compose
from transduce.text.languages import is_word_character

Keys = NDArray[np.uint64]

# Limits if sources occur many times: the share of sources that is held out, and the share of pairs that is dropped
# because their source is held out.
_MAX_SOURCES, _MAX_FURTHER = 0.2, 0.1
_KEYS = 1 << 64


class HoldOutSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of how many training pairs are held out for validation."""

    share: float = 0.03
    """Share of the pairs that is held out for validation, more than 0 and less than 1."""
    max_pairs: int = 2_000
    """Maximum number of held-out pairs."""
    enough_pairs: int = 100
    """Minimum number of held-out pairs for small corpora, but at most a tenth of the corpus."""

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise TransduceError(f"`hold_out.share` must be above 0 and below 1, but is {self.share}.")
        if self.max_pairs < 1:
            raise TransduceError(f"`hold_out.max_pairs` must be at least 1, but is {self.max_pairs}.")


class HoldOutCandidate(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A source sentence that may be held out for the dev set, with the first pair of the corpus that has this source.

    Sources are chosen by `key`, the hash of their letters and digits (`source_keys`).
    """

    key: int
    source: str
    target: str
    block: int
    """The index of the first pair's block (a range of lines of a file) in the corpus."""
    row: int
    """The index of the first pair within its block, counted from 0."""
    kept: bool
    """True if the lengths in tokens of the first pair pass the filters, so that it can be a dev pair."""
    failed: int = 0
    """The number of pairs with this source whose lengths do not pass the filters, which would not be trained on anyway.
    """


class HoldOut:
    """A selector of dev-set candidates: the sources of a corpus, or of a part of it, with the lowest hash keys.

    It needs one pass over the pairs.

    Keys are hashes of the sources' letters and digits. Sources that differ only in case, punctuation or spaces have one
    key, so no such variant of a held-out sentence is trained on. The selection depends only on the texts.

    If a source's key is among the lowest of the corpus, it is also among the lowest of each part that contains the
    source. So the parts of a corpus can be searched independently, and their candidates merged (`join_candidates`).
    """

    def __init__(self, settings: HoldOutSettings) -> None:
        self._most = settings.max_pairs
        self._lowest: list[int] = []  # a heap of negated keys; its first is the highest key held
        self._held: dict[int, HoldOutCandidate] = {}

    def offer(self, block: PairBlock, rows: Sequence[int], keys: Keys, kept: NDArray[np.bool_]) -> None:
        """Consider the pairs of a block of lines as candidates for the dev set.

        Only the `max_pairs` sources with the lowest hash keys so far are kept.

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
                    HoldOutCandidate(
                        key=key,
                        source=block.sources[row],
                        target=block.targets[row],
                        block=block.number,
                        row=row,
                        kept=bool(kept[index]),
                    )
                )
            self._held[key].failed += not kept[index]

    def candidates(self) -> list[HoldOutCandidate]:
        """Return a list of the dev-set candidates so far, the sources with the lowest hash keys, sorted by key."""
        return [self._held[key] for key in sorted(self._held)]

    def _limit(self) -> int:
        """Return the greatest hash key with which a source can still become a candidate.

        As long as fewer than `max_pairs` are held, this is the greatest possible key.
        """
        return -self._lowest[0] if len(self._lowest) == self._most else _KEYS - 1

    def _add(self, candidate: HoldOutCandidate) -> None:
        heapq.heappush(self._lowest, -candidate.key)
        self._held[candidate.key] = candidate
        if len(self._lowest) > self._most:
            del self._held[-heapq.heappop(self._lowest)]


def join_candidates(parts: Iterable[Iterable[HoldOutCandidate]]) -> list[HoldOutCandidate]:
    """Merge the dev-set candidates of all parts of a corpus; return a list sorted by hash key.

    Each source text has one candidate, with the text's first pair in the corpus. `HoldOutCandidate.failed` is summed
    over the parts.
    """
    joined: dict[int, HoldOutCandidate] = {}
    for candidate in (candidate for part in parts for candidate in part):
        other = joined.get(candidate.key)
        if other is None:
            joined[candidate.key] = msgspec.structs.replace(candidate)
            continue
        first, second = sorted((candidate, other), key=lambda it: (it.block, it.row))
        joined[candidate.key] = msgspec.structs.replace(first, failed=first.failed + second.failed)
    return [joined[key] for key in sorted(joined)]


def choose_held_out(
    candidates: list[HoldOutCandidate], settings: HoldOutSettings, keys: Keys, offered: int
) -> list[HoldOutCandidate]:
    """Return a list of the candidates (sources) to hold out for the dev set, chosen in the order of their hash keys.

    At most a fifth of the distinct sources is held out. Other pairs with a held-out source are dropped from training,
    so a source is skipped if more than a tenth of all pairs would be dropped. Nevertheless, at least one source is held
    out if there are several, and at least one always remains for training.

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


def _affordable(
    candidates: Sequence[HoldOutCandidate], keys: Keys, count: int, most_further: float
) -> list[HoldOutCandidate]:
    """Return a list of at most `count` candidates that can be held out without dropping many other pairs.

    A pair is dropped if its source equals a held-out one. A candidate is skipped if more than `most_further` pairs
    would be dropped in total. If every candidate is skipped, the one that drops the fewest pairs is returned. Without
    candidates, the list is empty.

    `keys` are the hash keys of all pairs that could be trained on.
    """
    if not candidates:
        return []
    is_held, counts = np.unique(keys[keys <= candidates[-1].key], return_counts=True)
    pairs = dict(zip(is_held.tolist(), counts.tolist(), strict=True))
    held: list[HoldOutCandidate] = []
    for candidate in candidates:
        further = pairs.get(candidate.key, 0) + candidate.failed - 1
        if len(held) < count and further <= most_further:
            held.append(candidate)
            most_further -= further
    return held or [min(candidates, key=lambda each: pairs.get(each.key, 0) + each.failed)]


def _count_sources(candidates: Sequence[HoldOutCandidate], count: int) -> float:
    """Return the number of distinct sources in the corpus: exact if fewer than `count` candidates were kept.

    Otherwise the number is estimated from how dense the lowest hash keys are.
    """
    if len(candidates) < count:
        return len(candidates)
    return len(candidates) * _KEYS / (candidates[-1].key + 1)


def is_held_out(keys: Keys, held: Sequence[HoldOutCandidate]) -> NDArray[np.bool_]:
    """Return a boolean mask, (keys,), that is True at hash keys of held-out candidates.

    `held` must be sorted by key.
    """
    is_held = np.zeros(len(keys), bool)
    if held:
        low = np.flatnonzero(keys <= held[-1].key)
        is_held[low] = np.isin(keys[low], np.array([candidate.key for candidate in held], np.uint64))
    return is_held


def source_keys(sources: Sequence[str]) -> Keys:
    """Return a 64-bit hash of each source's letters, combining marks and digits, ignoring case: uint64, (sources,).

    So sources that differ only in spaces, punctuation or composition (Unicode NFC) have one key. A source without
    letters and digits is hashed as it is.
    """
    if not sources:
        return np.zeros(0, np.uint64)
    text = "\n".join(sources)
    if text.count("\n") >= len(sources):  # texts with line feeds, which count as spaces
        text = "\n".join(source.replace("\n", " ") for source in sources)
    text = compose(text)
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
