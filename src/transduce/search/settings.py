"""How to search."""

import msgspec

from transduce.errors import TransduceError


class SearchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of greedy and beam search. The defaults are the paper's (section 6.1)."""

    beam_size: int = 4
    # Alpha of the length penalty ((5 + |Y|) / 6)^alpha (Wu et al. 2016); 0 ranks by log-probability alone.
    length_penalty: float = 0.6
    # How many hypotheses are returned, best first.
    n_best: int = 1
    # At most source pieces × factor + extra new pieces; or max_length, where it is said.
    max_length_factor: float = 1.0
    max_length_extra: int = 50
    max_length: int | None = None
    # No end symbol before this many pieces.
    min_length: int = 0

    def __post_init__(self) -> None:
        if self.beam_size < 1:
            raise TransduceError(f"`beam_size` must be at least 1, but is {self.beam_size}.")
        if not 1 <= self.n_best <= self.beam_size:
            raise TransduceError(
                f"`n_best` must be between 1 and `beam_size` ({self.beam_size}), but is {self.n_best}: "
                "raise `beam_size`."
            )
        for name in ("length_penalty", "max_length_factor", "max_length_extra"):
            if not getattr(self, name) >= 0:
                raise TransduceError(f"`{name}` must not be negative, but is {getattr(self, name)}.")
        if self.max_length is not None and self.max_length < 1:
            raise TransduceError(f"`max_length` must be at least 1, but is {self.max_length}.")
        if self.min_length < 0:
            raise TransduceError(f"`min_length` must not be negative, but is {self.min_length}.")

    def longest(self, source_pieces: int) -> int:
        """The greatest number of pieces, end symbol included, for a source of this many pieces."""
        if self.max_length is not None:
            return self.max_length
        return int(source_pieces * self.max_length_factor) + self.max_length_extra
