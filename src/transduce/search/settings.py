"""Define and check the settings of search and sampling."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from numbers import Integral, Real
from typing import Any

import msgspec

from transduce.errors import IdleSettingWarning, TransduceError, explain_wrong_types, shown_value, warn
from transduce.search.rules import GenerateSettings

_MAX_LENGTH_FACTOR = 1_000
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
# Greater penalties would exceed the range of float32. Greater lengths could take hours, since the length penalty can
# then always compensate for the log-probability lost so far.
_MAX_VALUES = {"length_penalty": 10, "coverage_penalty": _MILLION, "diversity_penalty": _MILLION}
_MAX_VALUES |= dict.fromkeys(("beam_size", "n_best"), 10_000)
_MAX_VALUES |= dict.fromkeys(("max_length", "max_length_extra", "min_length"), _MILLION)
_MAX_TOKEN_PENALTY = 100  # of repeated tokens
_DIVERSITY_PENALTY = 1.0  # the default (docs/log/searching.md)
EARLIER_DEFAULTS = (("diversity_penalty", 0.5),)
"""Pairs (name, value): earlier versions stored these values of search settings in files although nobody set them."""
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 1e-30, 1e30  # beyond these, logits would exceed the range of float32


def _check_numbers(settings: msgspec.Struct) -> None:
    """Raise an error if numeric fields of settings hold anything but numbers.

    NumPy numbers are converted to Python's in place. A boolean does not count as a number; None is allowed in optional
    fields.
    """
    for name, hint in _numbers_of(type(settings)).items():
        value, is_whole = getattr(settings, name), hint is not float
        if value is None and hint not in (int, float):
            continue
        fits = isinstance(value, Integral) if is_whole else isinstance(value, Real)
        if isinstance(value, bool) or not fits:
            raise TransduceError(
                f"`{name}` must be a {'whole ' if is_whole else ''}number, but is {shown_value(value)}."
            )
        if not isinstance(value, int | float):
            msgspec.structs.force_setattr(settings, name, int(value) if is_whole else float(value))


def _check_ranges(settings: "SearchSettings") -> None:
    for name in _NOT_NEGATIVE:
        if not getattr(settings, name) >= 0:
            raise TransduceError(f"`{name}` must not be negative, but is {getattr(settings, name)}.")
        if getattr(settings, name) == math.inf:
            raise TransduceError(f"`{name}` must be finite, but is inf.")
    for name, limit in _MAX_VALUES.items():
        if (getattr(settings, name) or 0) > limit:
            raise TransduceError(f"`{name}` must be at most {limit:,}, but is {getattr(settings, name):,}.")


def _check_beam(settings: "SearchSettings") -> None:
    """Raise an error if a setting has no effect because search has no beam, or because the beam has a single group."""
    if settings.coverage_penalty > 0.0 and settings.sampling is None and settings.beam_size == 1:
        raise TransduceError("`coverage_penalty` ranks the hypotheses of a beam, but `beam_size` is 1: raise it.")
    if settings.diverse_groups == 1 and settings.diversity_penalty != _DIVERSITY_PENALTY:
        raise TransduceError(
            "`diversity_penalty` applies between groups of a beam, but `diverse_groups` is 1: raise it, or leave the "
            "penalty out."
        )
    for name, is_set in (
        ("coverage_penalty", settings.coverage_penalty > 0.0),
        ("diverse_groups", settings.diverse_groups > 1),
    ):
        if is_set and settings.sampling is not None:
            raise TransduceError(f"`{name}` is for a beam, but `sampling` draws translations: leave one of them out.")


def _check_penalties(settings: "SearchSettings") -> None:
    """Raise an error if a penalty of repeated tokens is out of range.

    Beam search refuses negative frequency and presence penalties.
    """
    if not 0.0 < settings.repetition_penalty <= _MAX_TOKEN_PENALTY:
        raise TransduceError(
            f"`repetition_penalty` must be greater than 0 and at most {_MAX_TOKEN_PENALTY}, but is "
            f"{settings.repetition_penalty}: 1 has no effect."
        )
    is_beam = settings.beam_size > 1 and settings.sampling is None
    for name in ("frequency_penalty", "presence_penalty"):
        value = getattr(settings, name)
        if not -_MAX_TOKEN_PENALTY <= value <= _MAX_TOKEN_PENALTY:
            raise TransduceError(
                f"`{name}` must be between -{_MAX_TOKEN_PENALTY} and {_MAX_TOKEN_PENALTY}, but is {value}: 0 has no "
                "effect."
            )
        if is_beam and value < 0.0:
            raise TransduceError(
                f"`{name}` must not be negative in beam search, but is {value}: set `beam_size` to 1, or sample."
            )


@cache
def _numbers_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the fields of a struct that are numbers or optional whole numbers: a dict from name to type."""
    numbers = (int, int | None, float)
    return {field.name: field.type for field in msgspec.structs.fields(kind) if field.type in numbers}


class SamplingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of sampling, which draws tokens instead of searching for the best."""

    temperature: float = 1.0
    """Logits are divided by this; below 1, likely tokens become more likely."""
    top_k: int = 0
    """Only this many of the most likely tokens may be drawn; 0: all."""
    top_p: float = 1.0
    """Only the most likely tokens that together have this probability may be drawn (Holtzman et al. 2020). With `top_k`
    it is their share of what `top_k` leaves.
    """
    min_p: float = 0.0
    """Only tokens with at least this share of the most likely token's probability may be drawn (Nguyen et al. 2024)."""
    seed: int = 1
    """The random seed; the same seed and input give the same translations."""

    @explain_wrong_types
    def __post_init__(self) -> None:
        _check_numbers(self)
        if not _MIN_TEMPERATURE <= self.temperature <= _MAX_TEMPERATURE:
            raise TransduceError(
                f"`temperature` must be greater than 0 and at most 1e30, but is {self.temperature}: 1 leaves the "
                "probabilities as they are."
            )
        if self.top_k < 0:
            raise TransduceError(f"`top_k` must not be negative, but is {self.top_k}.")
        if not 0.0 < self.top_p <= 1.0:
            raise TransduceError(f"`top_p` must be in (0, 1], but is {self.top_p}.")
        if not 0.0 <= self.min_p <= 1.0:
            raise TransduceError(f"`min_p` must be in [0, 1], but is {self.min_p}.")
        if not 0 <= self.seed < 2**31:
            raise TransduceError(f"`seed` must be between 0 and 2,147,483,647, but is {self.seed}.")


class SearchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of greedy search, beam search and sampling; the defaults are the paper's (section 6.1)."""

    beam_size: int = 4
    """Number of hypotheses kept at each step; 1 is greedy search."""
    length_penalty: float = 0.6
    """Alpha of the length penalty ((5 + |Y|) / 6)^alpha (Wu et al. 2016); 0 ranks by log-probability alone. With
    `beam_size` 1, it only changes the reported scores.
    """
    n_best: int = 1
    """Number of hypotheses returned, best first."""
    max_length_factor: float = 1.0
    """The maximum length in tokens is `max_length_factor` × source tokens + `max_length_extra`, or more if a prefix or
    `min_length` needs it.
    """
    max_length_extra: int = 50
    """Number of tokens added to `max_length_factor` × source tokens for the maximum length."""
    max_length: int | None = None
    """The maximum length in tokens, including the end symbol; None: by `max_length_factor` and `max_length_extra`."""
    min_length: int = 0
    """Minimum number of tokens before the end symbol."""
    no_repeated_ngrams: int = 0
    """No n-gram of this many tokens occurs twice in a translation; 0: no restriction."""
    repetition_penalty: float = 1.0
    """If greater than 1, tokens of the prompt and the output so far become less likely (Keskar et al. 2019): negative
    logits (log-probabilities in a beam) are multiplied by it, and others divided. 1: no effect.
    """
    frequency_penalty: float = 0.0
    """Subtracted from the logit of a token for each of its occurrences in the output so far, as in OpenAI's API."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of each token in the output so far, as in OpenAI's API."""
    coverage_penalty: float = 0.0
    """Beta of the coverage penalty on hypotheses that leave source tokens untranslated (Wu et al. 2016); 0: no penalty.
    """
    diverse_groups: int = 1
    """Number of groups of the beam, which avoid each other's choices (Vijayakumar et al. 2016); 1: plain beam search.
    """
    diversity_penalty: float = _DIVERSITY_PENALTY
    """Cost in nats of a token for each earlier group that chose it at the same position."""
    forbidden: tuple[str, ...] = ()
    """Texts that no translation may contain: words, matched as whole words, and `<unk>` for the unknown token."""
    batch_invariant: bool = False
    """Make scores bit-equal whatever else is in the batch, or refuse if that is impossible.

    Each process uses one thread, and greedy search takes at most a quarter more time.
    """
    sampling: SamplingSettings | None = None
    """Draw `n_best` translations instead of searching for the best ones; None: search."""
    generate: GenerateSettings | None = None
    """Rank, force and forbid tokens as Hugging Face's `generate` does; the length penalty is then |Y|^alpha. None: as
    in the paper.
    """

    @explain_wrong_types
    def __post_init__(self) -> None:
        _check_numbers(self)
        for name in ("beam_size", "n_best", "max_length"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise TransduceError(f"`{name}` must be at least 1, but is {value}.")
        if self.n_best > self.beam_size and self.sampling is None:
            raise TransduceError(
                f"`n_best` must be at most `beam_size` ({self.beam_size}), but is {self.n_best}: raise `beam_size`."
            )
        _check_ranges(self)
        if self.max_length_factor > _MAX_LENGTH_FACTOR:
            raise TransduceError(
                f"`max_length_factor` must be at most {_MAX_LENGTH_FACTOR:,}, but is {self.max_length_factor}: "
                "set `max_length`, in tokens."
            )
        _check_penalties(self)
        _check_beam(self)
        if self.diverse_groups < 1 or self.beam_size % self.diverse_groups:
            raise TransduceError(
                f"`diverse_groups` must divide `beam_size` ({self.beam_size}), but is {self.diverse_groups}: "
                "change one of them."
            )
        if self.max_length is not None and self.min_length >= self.max_length:
            raise TransduceError(
                f"`min_length` must be less than `max_length` ({self.max_length}), which counts the end symbol too, "
                f"but is {self.min_length}: change one of them."
            )
        if isinstance(self.forbidden, str):
            raise TransduceError(f"`forbidden` must be a tuple of texts, but is one text: write (`{self.forbidden}`,).")
        _check_types(self)

    @property
    def penalizes_repetition(self) -> bool:
        """True if any penalty of repeated tokens is set."""
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)

    @property
    def num_hypotheses(self) -> int:
        """The number of hypotheses of a sentence or prompt that are decoded at once: the beam size, or the samples."""
        return self.beam_size if self.sampling is None else self.n_best

    def max_length_for(self, source_tokens: int) -> int:
        """Return the maximum length in tokens, including the end symbol, for a source of this many tokens."""
        if self.max_length is not None:
            return self.max_length
        return max(int(source_tokens * self.max_length_factor) + self.max_length_extra, self.min_length + 1)


def _check_types(search: SearchSettings) -> None:
    """Check the settings that are no numbers, and convert `forbidden` to a tuple and NumPy's booleans to Python's.

    Raises:
        TransduceError: a setting has another type.
    """
    forbidden: Any = search.forbidden
    texts = () if forbidden is None else tuple(forbidden) if isinstance(forbidden, Iterable) else (forbidden,)
    if not all(isinstance(text, str) for text in texts):
        raise TransduceError(f"`forbidden` must be a tuple of texts, but is {shown_value(forbidden)}.")
    msgspec.structs.force_setattr(search, "forbidden", texts)
    batch_invariant: Any = search.batch_invariant
    if getattr(batch_invariant, "size", None) == 1:  # of NumPy
        batch_invariant = batch_invariant.item()
    if not isinstance(batch_invariant, bool):
        raise TransduceError(f"`batch_invariant` must be True or False, but is {shown_value(batch_invariant)}.")
    msgspec.structs.force_setattr(search, "batch_invariant", batch_invariant)
    for name, kind in (("sampling", SamplingSettings), ("generate", GenerateSettings)):
        value = getattr(search, name)
        if value is not None and not isinstance(value, kind):
            raise TransduceError(
                f"`{name}` must be a `{kind.__name__}` or None, but is {shown_value(value)}: write {kind.__name__}()."
            )


def checked_search(search: object) -> SearchSettings:
    """Return the argument unchanged if it is a `SearchSettings`; otherwise raise an error.

    Raises:
        TransduceError: the argument is something else.
    """
    if not isinstance(search, SearchSettings):
        raise TransduceError(
            f"`search` must be a `SearchSettings`, but is {shown_value(search)}: write SearchSettings(beam_size=4)."
        )
    return search


BEAM_SETTINGS = ("beam_size", "length_penalty", "coverage_penalty", "diverse_groups", "diversity_penalty")
"""Search settings that have no effect when translations are sampled."""
BY_SOURCE = ("max_length_factor", "max_length_extra")
"""Search settings that derive the maximum length from the source's, so that they have no effect beside `max_length`."""


def override_search(
    search: SearchSettings, options: Mapping[str, Any], sampling: Mapping[str, float | None] | None = None
) -> SearchSettings:
    """Return search settings changed by the options that are not None.

    Sampling options make search sample, except that a temperature of 0 makes it greedy. While search samples, a stored
    beam has no effect. An option of beam search turns stored sampling off. Other stored settings are changed if an
    option contradicts them or leaves them without effect: with `beam_size` 1, for example, `n_best` is 1, too. A stored
    `max_length` that does not exceed the option `min_length` is dropped, so that the source's length limits the
    translation.

    Args:
        search: the stored settings to start from.
        options: fields of `SearchSettings` with their new values; None: unchanged.
        sampling: fields of `SamplingSettings` with their new values; None: unchanged. A temperature of 0 means greedy
            search.

    Raises:
        TransduceError: an option is out of range, or would have no effect beside another.
    """
    changes = {name: value for name, value in options.items() if value is not None}
    draws = {name: value for name, value in (sampling or {}).items() if value is not None}
    named = [name for name in BEAM_SETTINGS if name in changes]
    if named and (draws or "sampling" in changes):
        raise TransduceError(
            f"`{named[0]}` sets how to search, but `{next(iter(draws), 'sampling')}` samples instead: leave one of them"
            " out."
        )
    if draws.get("temperature") == 0 and not isinstance(draws["temperature"], bool):
        if len(draws) > 1:
            idle = next(name for name in draws if name != "temperature")
            raise TransduceError(
                f"`{idle}` sets how to sample, but with `temperature` 0 search is greedy: leave one of them out."
            )
        changes |= {"beam_size": 1, "sampling": None}
    elif draws:
        changes["sampling"] = msgspec.structs.replace(search.sampling or SamplingSettings(), **draws)
    elif named:
        changes["sampling"] = None
    by_source = [name for name in BY_SOURCE if name in changes]
    if by_source and "max_length" in changes:
        raise TransduceError(f"`{by_source[0]}` has no effect beside `max_length`: leave one of them out.")
    if by_source:
        changes["max_length"] = None
    return msgspec.structs.replace(search, **_neutral(search, changes), **changes)


@cache
def _fields_by_name() -> list[msgspec.structs.FieldInfo]:
    return sorted(msgspec.structs.fields(SearchSettings), key=lambda field: field.name)


def describe_overridden(
    stored: SearchSettings, search: SearchSettings, overrides: Collection[str], where: str
) -> Iterator[str]:
    """Yield a sentence for each stored search setting that options change or leave without effect.

    Args:
        stored: the settings before the options.
        search: the settings with the options.
        overrides: names of the settings that the options themselves set. These settings are not described.
        where: names in the sentence where the settings are stored, such as the model's folder.
    """
    begins_to_sample = stored.sampling is None and search.sampling is not None
    for field in _fields_by_name():
        name, value, before = field.name, getattr(search, field.name), getattr(stored, field.name)
        is_idle = begins_to_sample and name in BEAM_SETTINGS and before != field.default
        if name in overrides or (value == before and not is_idle):
            continue
        shown = before if isinstance(before, int | float) else "set"
        if name in ("n_best", "min_length"):
            yield f"`{name}` ({shown} in {where}) is {value} with these options."
        else:
            yield f"`{name}` ({shown} in {where}) has no effect with these options."


def override_with_warnings(
    search: SearchSettings, options: Mapping[str, Any], sampling: Mapping[str, float | None] | None = None
) -> SearchSettings:
    """Return the result of `override_search`, with a warning for each stored setting that loses its effect.

    The texts of the warnings come from `describe_overridden`.
    """
    changed = override_search(search, options, sampling)
    named = {*(name for name, value in options.items() if value is not None), "sampling"}
    if (sampling or {}).get("temperature") == 0:
        named.add("beam_size")
    for sentence in describe_overridden(search, changed, named, "the search settings"):
        warn(sentence, IdleSettingWarning)
    return changed


def without_idle_penalties(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict of stored search settings in which penalties and groups without effect get their neutral values.

    Earlier versions stored such values, which are refused now. With sampling, the coverage penalty becomes 0 and the
    number of diverse groups 1. With a beam of 1, the coverage penalty becomes 0. With one group, the diversity penalty
    gets its default.

    Args:
        table: fields of `SearchSettings` by name, as a folder's file has them.
    """
    neutral = dict[str, Any]()
    if table.get("sampling") is not None:
        neutral = {"coverage_penalty": 0.0, "diverse_groups": 1}
    elif table.get("beam_size") == 1:
        neutral = {"coverage_penalty": 0.0}
    if {**table, **neutral}.get("diverse_groups", 1) == 1:
        neutral["diversity_penalty"] = _DIVERSITY_PENALTY
    return {**table, **neutral}


def _neutral(search: SearchSettings, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return new values for stored settings that `changes` contradict or leave without effect: a dict by name.

    Settings in `changes` are not among the stored settings that get new values.
    """
    samples = changes.get("sampling", search.sampling) is not None
    beam_size = changes.get("beam_size", search.beam_size)
    neutral = dict[str, Any]()
    if not samples and isinstance(beam_size, int):
        neutral["n_best"] = max(1, min(search.n_best, beam_size))
    if samples or (isinstance(beam_size, int) and beam_size % search.diverse_groups):
        neutral["diverse_groups"] = 1
    if samples or beam_size == 1:
        neutral["coverage_penalty"] = 0.0
    else:  # a beam refuses penalties that make repetitions more likely
        neutral |= {name: 0.0 for name in ("frequency_penalty", "presence_penalty") if getattr(search, name) < 0.0}
    if {**neutral, **changes}.get("diverse_groups", search.diverse_groups) == 1:
        neutral["diversity_penalty"] = _DIVERSITY_PENALTY
    max_length = changes.get("max_length")
    if isinstance(max_length, int) and search.min_length >= max_length:
        neutral["min_length"] = max(0, max_length - 1)
    min_length = changes.get("min_length")
    if isinstance(min_length, int) and search.max_length is not None and min_length >= search.max_length:
        neutral["max_length"] = None
    return {name: value for name, value in neutral.items() if name not in changes}
