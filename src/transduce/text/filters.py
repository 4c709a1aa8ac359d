"""Which pairs are left out of training, and the account of it."""

import hashlib
import re

import msgspec

from transduce.errors import TransduceError
from transduce.text.counted import counted
from transduce.text.files import is_decodable

UNDECODABLE = "not UTF-8"
EMPTY = "empty side"
CONTROL = "control characters"
IDENTICAL = "source and target identical"
DUPLICATE = "duplicate of an earlier pair"
TOO_LONG = "too many pieces"
RATIO = "lengths too unequal"
HELD_OUT = "same source as a held-out pair"
REASONS = (UNDECODABLE, EMPTY, CONTROL, IDENTICAL, DUPLICATE, TOO_LONG, RATIO, HELD_OUT)

# C0 controls but tab and carriage return, DEL, and C1 controls but the next-line character U+0085. A line
# feed can only come from a JSON string, and would break the correspondence of lines. And what is not UTF-8.
_CONTROL = re.compile("[\x00-\x08\n\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")

# Pieces by which short sentences may exceed the ratio: one piece may face nine, two short sentences never
# clash.
_RATIO_SLACK_PIECES = 5
# Such a share of all pairs that go because a held-out one has their source is worth a remedy.
_MANY_HELD_OUT = 0.05


class FilterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which pairs are dropped. Those with control characters (NUL and its like), or that are not UTF-8, always are."""

    # Longest side in pieces, the end of sentence not counted. The model that comes of it cuts longer sources.
    max_pieces: int = 256
    # The longer side may have this many times the pieces of the shorter one, and 5 more.
    max_length_ratio: float = 4.0
    # Drop pairs with a side of nothing but white space.
    drop_empty: bool = True
    # Drop pairs whose sides are the same text, of whatever length: mostly sentences nobody translated.
    drop_identical: bool = True
    # Drop pairs that occurred before, both sides alike. Needs about 20 bytes of memory a pair, while it is prepared.
    drop_duplicates: bool = False

    def __post_init__(self) -> None:
        if self.max_pieces < 1:
            raise TransduceError(f"`data.filters.max_pieces` must be at least 1, but is {self.max_pieces}.")
        if not self.max_length_ratio >= 1.0:
            raise TransduceError(f"`data.filters.max_length_ratio` must be at least 1, but is {self.max_length_ratio}.")


class FilterReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How many pairs were read, kept and dropped, by reason, with the place of each reason's first pair."""

    read: int = 0
    kept: int = 0
    # Pairs kept out of training to validate on, when there is no dev set.
    held_out: int = 0
    # Pairs dropped, by reason; all reasons in a fixed order.
    dropped: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    # "file:line" of the first pair dropped, by reason.
    examples: dict[str, str] = msgspec.field(default_factory=dict)
    # Carriage returns removed at line ends, and byte order marks at file starts.
    carriage_returns: int = 0
    byte_order_marks: int = 0

    def lines(self, thing: str = "pair") -> list[str]:
        """The report as a person reads it; `thing` is what was counted."""
        held_out = f", {self.held_out:,} held out" if self.held_out else ""
        lines = [f"{counted(self.read, thing)} read, {self.kept:,} kept{held_out}"]
        lines += [
            f"{count:,} dropped: {reason} (first: {self.examples[reason]})"
            for reason, count in self.dropped.items()
            if count
        ]
        if self.dropped[HELD_OUT] > _MANY_HELD_OUT * self.read:
            lines.append("many pairs have the source of a held-out one: name a dev set (--dev-source) to train on them")
        if self.carriage_returns:
            lines.append(f"{counted(self.carriage_returns, 'carriage return')} removed at line ends")
        if self.byte_order_marks:
            lines.append(f"{counted(self.byte_order_marks, 'byte order mark')} removed at file starts")
        return lines


class PairFilter:
    """Says of each pair by itself why it is dropped, or None. Duplicates show only beside others: ``pair_digest``."""

    def __init__(self, settings: FilterSettings) -> None:
        self.settings = settings

    def text_reason(self, source: str, target: str) -> str | None:
        """The reason that the text gives."""
        settings = self.settings
        bare_source, bare_target = source.strip(), target.strip()
        if settings.drop_empty and not (bare_source and bare_target):
            return EMPTY
        if _CONTROL.search(source) or _CONTROL.search(target):
            return CONTROL if is_decodable(source) and is_decodable(target) else UNDECODABLE
        return IDENTICAL if settings.drop_identical and bare_source == bare_target else None

    def is_of_target(self, reason: str, source: str) -> bool:
        """Whether a reason that the text gave is the target's alone."""
        return reason != IDENTICAL and self.text_reason(source, "-") in (None, IDENTICAL)

    def length_reason(self, source_pieces: int, target_pieces: int) -> str | None:
        """The reason that the numbers of pieces give, the end of sentence not counted."""
        shorter, longer = sorted((source_pieces, target_pieces))
        if longer > self.settings.max_pieces:
            return TOO_LONG
        return RATIO if longer > self.settings.max_length_ratio * shorter + _RATIO_SLACK_PIECES else None


def pair_digest(source: str, target: str) -> bytes:
    """Eight bytes by which a pair without control characters is known again."""
    # Neither side can hold a line feed here, so the key has one reading.
    return hashlib.blake2b(f"{source}\n{target}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
