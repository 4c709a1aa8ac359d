"""A dev set taken from the training pairs, chosen in one pass over a stream of unknown length."""

import hashlib
import heapq
import re

import msgspec

from transduce.errors import TransduceError
from transduce.text import Pair


class HoldOutSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How many pairs are held out to validate on: a share of the corpus, up to a number."""

    share: float = 0.03
    max_pairs: int = 2_000

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise TransduceError(f"`hold_out.share` must be between 0 and 1, but is {self.share}.")
        if self.max_pairs < 1:
            raise TransduceError(f"`hold_out.max_pairs` must be at least 1, but is {self.max_pairs}.")


class HoldOut:
    """Holds back the sentences whose hashes are lowest, with every pair of the same source.

    Two sources are the same when their letters and digits are: neither case nor punctuation nor spaces tell
    them apart, so a held-out sentence is not seen in training under a thin disguise. The choice depends on
    the texts alone, not on their order.
    """

    def __init__(self, settings: HoldOutSettings) -> None:
        self._settings = settings
        self._lowest: list[int] = []  # a heap of negated hashes: its first is the highest one held
        self._held: dict[int, list[Pair]] = {}
        self._offered = 0

    def offer(self, pair: Pair) -> list[Pair]:
        """Take a pair into account; returns the pairs that are now certain to be trained on."""
        self._offered += 1
        key = _hash_source(pair.source)
        if key in self._held:
            self._held[key].append(pair)
            return []
        if len(self._lowest) == self._settings.max_pairs and key > -self._lowest[0]:
            return [pair]
        heapq.heappush(self._lowest, -key)
        self._held[key] = [pair]
        return self._release() if len(self._lowest) > self._settings.max_pairs else []

    def finish(self) -> tuple[list[Pair], list[Pair], list[Pair]]:
        """After the last pair: those to train on, those held out (one a source), and their sources' others.

        Always leaves something to train on: of a single source, nothing is held out.
        """
        wanted = min(self._settings.max_pairs, max(1, int(self._settings.share * self._offered)))
        training: list[Pair] = []
        while self._lowest and (len(self._lowest) > wanted or self._holds_all()):
            training += self._release()
        held = [self._held[key] for key in sorted(self._held)]
        return training, [pairs[0] for pairs in held], [pair for pairs in held for pair in pairs[1:]]

    def _holds_all(self) -> bool:
        return sum(map(len, self._held.values())) == self._offered

    def _release(self) -> list[Pair]:
        return self._held.pop(-heapq.heappop(self._lowest))


def _hash_source(source: str) -> int:
    letters = re.sub(r"[\W_]+", "", source).casefold() or source
    return int.from_bytes(hashlib.blake2b(letters.encode("utf-8", "surrogatepass"), digest_size=8).digest())
