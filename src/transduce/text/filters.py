"""Filter unsuitable sentence pairs out of training, and report how many were dropped and why."""

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

import msgspec

from transduce.errors import TransduceError, count_noun
from transduce.text.corpus import HEADER, MALFORMED
from transduce.text.files import compose, is_decodable
from transduce.text.languages import (
    FREQUENT_WORDS,
    detect_other_language,
    english_name,
    main_script,
    script_of,
    short_code,
)

UNDECODABLE = "not UTF-8"
EMPTY = "empty side"
CONTROL = "control characters"
IDENTICAL = "source and target identical"
DUPLICATE = "duplicate of an earlier pair"
TOO_LONG = "too many tokens"
RATIO = "lengths too unequal"
NO_PAIR = "line without two columns"
HEADER_LINE = "header"
HELD_OUT = "same source as a held-out pair"
NO_WEIGHT = "weight of 0"
BETWEEN_DOCUMENTS = "empty line between documents"
EXCHANGED = "exchanged"
"""The key in reports for pairs that pass the filters although each side seems to be in the other's language."""
REASONS = (
    UNDECODABLE,
    EMPTY,
    CONTROL,
    IDENTICAL,
    DUPLICATE,
    TOO_LONG,
    RATIO,
    HELD_OUT,
    NO_PAIR,
    HEADER_LINE,
    NO_WEIGHT,
    BETWEEN_DOCUMENTS,
)

# C0 controls except tab and carriage return, DEL, and C1 controls except the next-line character U+0085. A line feed
# can only come from a JSON string, and would break the correspondence of lines. Surrogates represent invalid UTF-8.
_CONTROL = re.compile("[\x00-\x08\n\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_CONTROL_BUT_LINE_FEEDS = re.compile(_CONTROL.pattern.replace("\n", ""))

# Names that version 0.1 wrote into prepared corpora.
_OLD_TOO_LONG, _OLD_MAX_TOKENS = "too many pieces", b'"max_pieces":'

# Tokens by which short sentences may exceed the length ratio: at a ratio of 4, one token may face nine.
_RATIO_SLACK_TOKENS = 5
_SHORT_WORD = 2  # characters of words that occur in many languages
# If a greater share of pairs is dropped because of a held-out source, the report suggests a remedy.
_MANY_HELD_OUT = 0.05


def with_current_names(content: bytes) -> bytes:
    """Rename the setting `max_pieces` of version 0.1 to `max_tokens` in a prepared corpus's settings.

    The settings are JSON bytes.
    """
    return content.replace(_OLD_MAX_TOKENS, b'"max_tokens":')


class FilterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of the filters of training pairs. Pairs with control characters or invalid UTF-8 are always dropped."""

    max_tokens: int = 256
    """Maximum length of each side in tokens, without the end symbol; longer pairs are dropped. The trained model splits
    longer sources when it translates.
    """
    max_length_ratio: float = 4.0
    """Drop a pair if its longer side has more tokens than this factor times the tokens of the shorter side, plus 5."""
    drop_empty: bool = True
    """Drop pairs with a side that has only white space."""
    drop_identical: bool = True
    """Drop pairs whose sides are the same text, which are mostly untranslated sentences."""
    drop_duplicates: bool = False
    """Drop a pair if its source and target both equal those of an earlier pair. Preparation then needs about 20 bytes
    of memory per pair.
    """

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise TransduceError(f"`data.filters.max_tokens` must be at least 1, but is {self.max_tokens}.")
        if not self.max_length_ratio >= 1.0:
            raise TransduceError(f"`data.filters.max_length_ratio` must be at least 1, but is {self.max_length_ratio}.")


class FilterReport(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Counts of sentence pairs read, kept and dropped by reason, with the file and line of each reason's first pair."""

    read: int = 0
    kept: int = 0
    held_out: int = 0
    """The number of pairs held out of training for validation; 0 if the corpus has a validation (dev) set of its
    own.
    """
    exchanged: int = 0
    """The number of pairs that pass the filters, but whose sides seem exchanged (`are_exchanged`)."""
    identical: int = 0
    """The number of pairs with identical sides that pass the filters, because `drop_identical` is false."""
    known_targets: int = 0
    """The number of held-out pairs whose target is also that of a training pair with another source."""
    dropped: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    """The number of dropped pairs by reason: a dict with an entry for every reason (0 if none), in a fixed order."""
    examples: dict[str, str] = msgspec.field(default_factory=dict)
    """A dict from a reason to the location ("file:line") of the first pair that was dropped for this reason. The key
    "exchanged" has the location of the first pair with exchanged sides. Reasons that did not occur have no entry.
    """
    carriage_returns: int = 0
    """The number of carriage returns removed at line ends."""
    byte_order_marks: int = 0
    """The number of byte order marks removed at file starts."""

    def __post_init__(self) -> None:
        if _OLD_TOO_LONG in self.dropped:
            self.dropped = {
                TOO_LONG if reason == _OLD_TOO_LONG else reason: count for reason, count in self.dropped.items()
            }
            self.examples = {
                TOO_LONG if reason == _OLD_TOO_LONG else reason: example for reason, example in self.examples.items()
            }

    def lines(self, noun: str = "pair") -> list[str]:
        """Return the report as a list of lines for printing; reasons and notices that concern no pair are left out.

        Args:
            noun: what was counted, in the singular, such as "pair" or "sentence".
        """
        names = {EMPTY: "empty"} if noun in ("line", "sentence") else {}
        names |= {HELD_OUT: f"same source as a held-out {noun}", DUPLICATE: f"duplicate of an earlier {noun}"}
        held_out = f", {self.held_out:,} held out" if self.held_out else ""
        separators = self.dropped.get(BETWEEN_DOCUMENTS, 0)
        lines = [f"{count_noun(self.read - separators, noun)} read, {self.kept:,} kept{held_out}"]
        if separators:
            lines.append(f"empty lines between documents: {separators:,}")
        lines += [
            f"{count:,} dropped: {names.get(reason, reason)} (first: {self.examples[reason]})"
            for reason, count in self.dropped.items()
            if count and reason != BETWEEN_DOCUMENTS
        ]
        if self.exchanged:
            lines.append(
                f"{count_noun(self.exchanged, noun)} with source and target that seem exchanged (first: "
                f"{self.examples[EXCHANGED]}), which stay: correct or remove them"
            )
        if self.identical:
            lines.append(
                f"{count_noun(self.identical, noun)} with identical source and target, which stay, as "
                "`data.filters.drop_identical` is false"
            )
        if self.dropped[HELD_OUT] > _MANY_HELD_OUT * self.read:
            lines.append(
                f"many {noun}s have the source of a held-out one: name a dev set (--dev-source) to train on them"
            )
        if self.known_targets and noun == "pair":
            lines.append(
                f"training pairs also have {self.known_targets:,} of the {self.held_out:,} held-out targets, "
                "which may raise the dev scores"
            )
        if self.carriage_returns:
            lines.append(f"{count_noun(self.carriage_returns, 'carriage return')} removed at line ends")
        if self.byte_order_marks:
            lines.append(f"{count_noun(self.byte_order_marks, 'byte order mark')} removed at file starts")
        return lines


class PairFilter:
    """A filter that decides for each sentence pair, by its texts and by its lengths in tokens, whether to drop it.

    It does not find duplicates, for which `pair_digest` serves.
    """

    def __init__(self, settings: FilterSettings, *, line_feeds: bool = False) -> None:
        """Create a filter of sentence pairs.

        Args:
            settings: the settings of the filter.
            line_feeds: True if texts may contain line feeds; otherwise, pairs with line feeds are dropped.
        """
        self.settings = settings
        self._control = _CONTROL_BUT_LINE_FEEDS if line_feeds else _CONTROL

    def text_reason(self, source: str, target: str) -> str | None:
        """Return the reason to drop a pair because of its texts, such as "empty side", or None to keep the pair."""
        settings = self.settings
        if source in (MALFORMED, HEADER):
            return NO_PAIR if source == MALFORMED else HEADER_LINE
        bare_source, bare_target = source.strip(), target.strip()
        if settings.drop_empty and not (bare_source and bare_target):
            return EMPTY
        if self._control.search(source) or self._control.search(target):
            return CONTROL if is_decodable(source) and is_decodable(target) else UNDECODABLE
        return IDENTICAL if settings.drop_identical and bare_source == bare_target else None

    def is_target_reason(self, reason: str, source: str) -> bool:
        """Return whether a pair was dropped only because of its target.

        In this case, its source alone would be kept. The result is False for identical sides, and for lines that are no
        pair.

        Args:
            reason: the reason that `text_reason` returned for the pair.
            source: the pair's source.
        """
        return reason not in (IDENTICAL, NO_PAIR, HEADER_LINE) and self.text_reason(source, "-") in (None, IDENTICAL)

    def length_reason(self, source_tokens: int, target_tokens: int) -> str | None:
        """Return the reason to drop a pair with these token counts, or None to keep it.

        End symbols do not count as tokens.
        """
        shorter, longer = sorted((source_tokens, target_tokens))
        if longer > self.settings.max_tokens:
            return TOO_LONG
        return RATIO if longer > self.settings.max_length_ratio * shorter + _RATIO_SLACK_TOKENS else None


class _LanguageSide(NamedTuple):
    """One side of a language pair: its language, and features that reveal a text of the other side."""

    language: str
    other_script: str
    other_names: tuple[str, ...]
    """The results of `detect_other_language` that count as the other side's language."""
    words: frozenset[str]
    """Frequent words of this side's language with more than two letters that are not frequent in the other side's."""
    other_words: frozenset[str]
    """Frequent words of the other side's language with more than two letters that are not frequent in this side's."""


@lru_cache(maxsize=64)
def _sides(languages: tuple[str, str]) -> tuple[_LanguageSide, _LanguageSide]:
    """Return a `_LanguageSide` for the source and one for the target, given their language codes."""
    sides = []
    for language, other in (languages, languages[::-1]):
        own, others = (
            {word for word in FREQUENT_WORDS.get(short_code(code), ()) if len(word) > _SHORT_WORD}
            for code in (language, other)
        )
        names = (english_name(other), *(() if others else ("another language",)))
        sides.append(_LanguageSide(language, script_of(other), names, frozenset(own - others), frozenset(others - own)))
    return sides[0], sides[1]


def are_exchanged(source: str, target: str, languages: tuple[str, str]) -> bool:
    """Return whether a source and its target seem exchanged.

    Each must clearly be in the language or script of the other side. The result is False for equal languages. It is
    also False if the languages share a script and neither has an entry in `FREQUENT_WORDS`.

    Args:
        source: the source sentence.
        target: the target sentence.
        languages: the codes of source and target language.
    """
    one, other = _sides(languages)
    sides = ((source, one), (target, other))
    if one.other_script != other.other_script:
        # The script of ASCII text is known at once.
        for text, side in sorted(sides, key=lambda pair: not pair[0].isascii()):
            if main_script(text) != side.other_script:
                return False
        return all(detect_other_language(text, side.language) is not None for text, side in sides)
    if not (one.words or one.other_words):
        return False
    for text, side in sides:  # most sentences have a frequent word of their language
        words = set(text.lower().split())
        if len(words & side.words) > len(words & side.other_words):
            return False
    return all(detect_other_language(text, side.language) in side.other_names for text, side in sides)


def pair_digest(source: str, target: str) -> bytes:
    """Return an 8-byte hash (bytes) of a sentence pair, by which duplicates are found.

    The sides are hashed in composed form (NFC). They must not contain control characters other than line feeds;
    `PairFilter` drops pairs with these.
    """
    # The separator is in neither side, so the key is unambiguous.
    separator = "\0" if "\n" in source or "\n" in target else "\n"
    text = compose(f"{source}{separator}{target}")
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
