"""How to search."""

import math
from functools import cache
from numbers import Integral, Real
from typing import Any

import msgspec

from transduce.errors import TransduceError
from transduce.search.forced import GenerateSettings

_GREATEST_FACTOR = 1_000
_NOT_NEGATIVE = (
    "length_penalty",
    "max_length_factor",
    "max_length_extra",
    "min_length",
    "no_repeated_ngrams",
    "coverage_penalty",
    "diversity_penalty",
)
_MILLION = 1_000_000
# Beyond these, a penalty would leave the range of float32, and a beam would go on for hours: with room for so many
# pieces, the length penalty may always make up for more log-probability than has been lost.
_GREATEST = {"length_penalty": 10, "coverage_penalty": _MILLION, "diversity_penalty": _MILLION}
_GREATEST |= dict.fromkeys(("beam_size", "n_best"), 10_000)
_GREATEST |= dict.fromkeys(("max_length", "max_length_extra", "min_length"), _MILLION)
_LEAST_TEMPERATURE, _GREATEST_TEMPERATURE = 1e-30, 1e30  # beyond, logits would leave the range of float32


def _check_numbers(settings: msgspec.Struct) -> None:
    """Whoever calls from Python may hand in anything. NumPy's numbers become Python's."""
    for name, hint in _numbers_of(type(settings)).items():
        value, is_whole = getattr(settings, name), hint is not float
        if value is None and hint not in (int, float):
            continue
        fits = isinstance(value, Integral) if is_whole else isinstance(value, Real)
        if isinstance(value, bool) or not fits:
            raise TransduceError(f"`{name}` must be a {'whole ' if is_whole else ''}number, but is {value!r}.")
        if not isinstance(value, int | float):
            msgspec.structs.force_setattr(settings, name, int(value) if is_whole else float(value))


def _check_ranges(settings: "SearchSettings") -> None:
    for name in _NOT_NEGATIVE:
        if not getattr(settings, name) >= 0:
            raise TransduceError(f"`{name}` must not be negative, but is {getattr(settings, name)}.")
        if getattr(settings, name) == math.inf:
            raise TransduceError(f"`{name}` must be finite, but is inf.")
    for name, most in _GREATEST.items():
        if (getattr(settings, name) or 0) > most:
            raise TransduceError(f"`{name}` must be at most {most:,}, but is {getattr(settings, name):,}.")


@cache
def _numbers_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Its fields that are numbers, and of which type."""
    numbers = (int, int | None, float)
    return {field.name: field.type for field in msgspec.structs.fields(kind) if field.type in numbers}


class SamplingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be drawn, where pieces are drawn in place of searched for."""

    # Logits are divided by it: below 1 likely pieces become likelier.
    temperature: float = 1.0
    # Only so many of the likeliest pieces may be drawn; 0: all.
    top_k: int = 0
    # Only the likeliest pieces that together have this probability may be drawn (Holtzman et al. 2020).
    top_p: float = 1.0
    # The same seed draws the same translations of the same input.
    seed: int = 1

    def __post_init__(self) -> None:
        _check_numbers(self)
        if not _LEAST_TEMPERATURE <= self.temperature <= _GREATEST_TEMPERATURE:
            raise TransduceError(f"`temperature` must be greater than 0 and at most 1e30, but is {self.temperature}.")
        if self.top_k < 0:
            raise TransduceError(f"`top_k` must not be negative, but is {self.top_k}.")
        if not 0.0 < self.top_p <= 1.0:
            raise TransduceError(f"`top_p` must be in (0, 1], but is {self.top_p}.")
        if not 0 <= self.seed < 2**31:
            raise TransduceError(f"`seed` must be between 0 and 2,147,483,647, but is {self.seed}.")


class SearchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of greedy search, beam search and sampling. The defaults are the paper's (section 6.1)."""

    beam_size: int = 4
    # Alpha of the length penalty ((5 + |Y|) / 6)^alpha (Wu et al. 2016); 0 ranks by log-probability alone.
    length_penalty: float = 0.6
    # How many hypotheses are returned, best first.
    n_best: int = 1
    # At most source pieces × factor + extra new pieces, or more where a prefix or min_length takes them; or max_length,
    # where it is said.
    max_length_factor: float = 1.0
    max_length_extra: int = 50
    max_length: int | None = None
    # No end symbol before this many pieces.
    min_length: int = 0
    # No run of so many pieces occurs twice in a translation; 0: they may.
    no_repeated_ngrams: int = 0
    # Beta of the coverage penalty (Wu et al. 2016), by which beams rank down what left a source piece untranslated.
    coverage_penalty: float = 0.0
    # The beam is divided into so many groups, which avoid each other's choices (Vijayakumar et al. 2016).
    diverse_groups: int = 1
    # In nats: what a piece costs a group for each earlier group that chose it at the same position.
    diversity_penalty: float = 0.5
    # Texts that no translation contains: words as whole words, and `<unk>` for what the model has no pieces for.
    forbidden: tuple[str, ...] = ()
    # Bit-equal scores whatever else is in the batch, or a refusal; takes one thread, and up to twice the time.
    strict: bool = False
    # Draw n_best translations instead of searching for the best ones.
    sampling: SamplingSettings | None = None
    # Rank, force and forbid as Hugging Face's `generate` does; the length penalty is then |Y|^alpha.
    generate: GenerateSettings | None = None

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.beam_size < 1:
            raise TransduceError(f"`beam_size` must be at least 1, but is {self.beam_size}.")
        if self.n_best < 1:
            raise TransduceError(f"`n_best` must be at least 1, but is {self.n_best}.")
        if self.n_best > self.beam_size and self.sampling is None:
            raise TransduceError(
                f"`n_best` must be at most `beam_size` ({self.beam_size}), but is {self.n_best}: raise `beam_size`."
            )
        _check_ranges(self)
        if self.max_length_factor > _GREATEST_FACTOR:
            raise TransduceError(
                f"`max_length_factor` must be at most {_GREATEST_FACTOR:,}, but is {self.max_length_factor}: "
                "set `max_length`, in pieces."
            )
        if self.diverse_groups < 1 or self.beam_size % self.diverse_groups:
            raise TransduceError(
                f"`diverse_groups` must divide `beam_size` ({self.beam_size}), but is {self.diverse_groups}: "
                "change one of them."
            )
        if self.max_length is not None and self.max_length < 1:
            raise TransduceError(f"`max_length` must be at least 1, but is {self.max_length}.")
        if self.max_length is not None and self.min_length >= self.max_length:
            raise TransduceError(
                f"`min_length` must be less than `max_length` ({self.max_length}), which counts the end symbol too, "
                f"but is {self.min_length}: change one of them."
            )
        if isinstance(self.forbidden, str):
            raise TransduceError(f"`forbidden` must be a tuple of texts, but is one text: write (`{self.forbidden}`,).")

    def longest(self, source_pieces: int) -> int:
        """The greatest number of pieces, end symbol included, for a source of this many pieces."""
        if self.max_length is not None:
            return self.max_length
        return max(int(source_pieces * self.max_length_factor) + self.max_length_extra, self.min_length + 1)


def checked_search(search: object) -> SearchSettings:
    """What is handed in as all options of a search.

    Raises:
        TransduceError: it is something else.
    """
    if not isinstance(search, SearchSettings):
        raise TransduceError(
            f"`search` must be a `SearchSettings`, but is {search!r}: write SearchSettings(beam_size=4)."
        )
    return search
