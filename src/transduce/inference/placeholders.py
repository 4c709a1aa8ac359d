"""Replace protected spans by placeholders before translation, and put the spans into the translation afterwards.

A model whose vocabulary has placeholder tokens reads and writes such a token for each span. For other models the spans
are left out of the source, and occlusion of the words beside a span finds its offset in the translation.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import msgspec

from transduce.inference.batching import Part, is_unspaced
from transduce.inference.spans import MarkedSentence, Scoring, align_marked
from transduce.inference.translation import Alternative, Translation
from transduce.text.glossary import is_spaced_word_character
from transduce.text.languages import is_unspaced as is_of_unspaced_script
from transduce.text.languages import is_word_character
from transduce.text.protected import PLACEHOLDER_TOKENS, is_inline_tag, merge_spans
from transduce.text.tokenizer import Tokenizer, placeholder_tokens
from transduce.text.vocabulary import Vocabulary, fallback_ids
from transduce.text.word_spans import Span, token_spans

_PLACEHOLDER = re.compile("|".join(map(re.escape, PLACEHOLDER_TOKENS)))
_SPACE = "▁"

# --- masking ---


class Slot(NamedTuple):
    """A run of protected spans with nothing but spaces between them, which one placeholder replaces."""

    source: Span
    """The run in the part's text."""
    spans: tuple[Span, ...]
    """The protected spans of the run, in the part's text."""
    token: str
    """The placeholder token; empty if the run was left out."""


class MaskedPart(NamedTuple):
    """A part of a text whose protected spans are replaced by placeholders or left out."""

    original: Part
    """The part with its spans."""
    masked: Part
    """The part as the model translates it."""
    slots: tuple[Slot, ...]
    """The replaced spans, in order."""

    @property
    def is_copied(self) -> bool:
        """True if the part has no letter outside its spans, so that the whole text is copied."""
        rest = self.original.text
        for slot in reversed(self.slots):
            rest = rest[: slot.source.start] + rest[slot.source.end :]
        return not any(unicodedata.category(character).startswith("L") for character in rest)

    def copy(self) -> Translation:
        """Return the part itself as its translation."""
        text = self.original.text
        pairs = tuple((span, span) for slot in self.slots for span in slot.spans)
        return msgspec.structs.replace(Translation.of(text, text), protected=pairs)


def find_unknown(text: str, vocabulary: Vocabulary) -> list[Span]:
    """Return the runs of a text that the vocabulary cannot represent except as bytes or as unknown.

    In scripts with spaces a run is extended to whole words.
    """
    odd, ids = _odd_ids(vocabulary), vocabulary.encode(text)
    if odd.isdisjoint(ids) or vocabulary.normalize(text) != text:
        return []
    spans = [
        span
        for id, span in zip(ids, token_spans(vocabulary.token_texts(ids), text), strict=True)
        if id in odd and span.start < span.end
    ]
    runs: list[Span] = []
    for start, end in spans:
        while start < end and text[start].isspace():
            start += 1
        while start > 0 and is_spaced_word_character(text[start]) and is_spaced_word_character(text[start - 1]):
            start -= 1
        while end < len(text) and is_spaced_word_character(text[end - 1]) and is_spaced_word_character(text[end]):
            end += 1
        if start >= end:
            continue
        if runs and not text[runs[-1].end : start].strip():
            start = runs.pop().start
        runs.append(Span(start, end))
    return runs


@lru_cache(maxsize=16)
def _odd_ids(vocabulary: Vocabulary) -> frozenset[int]:
    return frozenset(fallback_ids(vocabulary))


def mask_part(part: Part, tokenizer: Tokenizer, tokens: Sequence[str]) -> MaskedPart | None:
    """Return a part with its protected spans replaced; None if it has none.

    Args:
        part: a part of a text.
        tokenizer: the model's tokenizer.
        tokens: placeholder tokens; runs beyond their number are left out.
    """
    text = part.text
    unknown = [] if _odd_ids(tokenizer.source).isdisjoint(part.ids) else find_unknown(text, tokenizer.source)
    spans = merge_spans(part.protected, unknown)
    if not spans:
        return None
    runs: list[list[Span]] = []
    for span in spans:
        if runs and not text[runs[-1][-1].end : span.start].strip():
            runs[-1].append(span)
        else:
            runs.append([span])
    written, position = "", 0
    slots: list[Slot] = []
    for number, run in enumerate(runs):
        source = Span(run[0].start, run[-1].end)
        token = tokens[number] if number < len(tokens) else ""
        slots.append(Slot(source, tuple(run), token))
        written, position = _join(written, text[position : source.start]), source.end
        if token:
            written = written.rstrip(" ") + token
            skips = _begins_unspaced(text[position:])
            position += len(text[position:]) - len(text[position:].lstrip(" ")) if skips else 0
    written = _join(written, text[position:]).strip()
    ids = tokenizer.source.with_special_tokens(_without_bare_spaces(tokenizer.source.encode(written), tokenizer.source))
    prefix = _mask_prefix(part.prefix, text, slots, tokenizer.target) if part.prefix else part.prefix
    return MaskedPart(part, part._replace(text=written, ids=ids, prefix=prefix, protected=()), tuple(slots))


def _begins_unspaced(text: str) -> bool:
    """Return whether a text's first character other than a space belongs to a script without spaces."""
    return bool(text.strip()) and is_of_unspaced_script(text.lstrip()[0])


def _join(before: str, after: str) -> str:
    """Join the texts around a run that was left out, with at most one space, and none at the start of a text."""
    if not before or before.endswith(" "):
        return before + after.lstrip(" ") if not before or after.startswith(" ") else before + after
    if after and is_spaced_word_character(before[-1]) and is_spaced_word_character(after[0]):
        return f"{before} {after}"
    return before + after


def _without_bare_spaces(ids: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """Return ids without the tokens of a single space before placeholder tokens; training has none there."""
    space = vocabulary.id(_SPACE)
    placeholders = _placeholder_ids(vocabulary)
    if not placeholders or vocabulary.piece(space) != _SPACE:
        return list(ids)
    return [id for id, after in pairwise([*ids, vocabulary.eos_id]) if not (id == space and after in placeholders)]


@lru_cache(maxsize=16)
def _placeholder_ids(vocabulary: Vocabulary) -> frozenset[int]:
    return frozenset(vocabulary.id(token) for token in PLACEHOLDER_TOKENS if vocabulary.has_special_token(token))


def _mask_prefix(prefix: Sequence[int], text: str, slots: Sequence[Slot], vocabulary: Vocabulary) -> list[int]:
    """Return the prefix of a translation with placeholders for the spans that it contains."""
    written = vocabulary.decode(prefix)
    for slot in slots:
        if slot.token:
            written = re.sub(f" ?{re.escape(text[slot.source.start : slot.source.end])}", slot.token, written, count=1)
    return _without_bare_spaces(vocabulary.encode(written), vocabulary)


# --- restoring ---


class _Placed(NamedTuple):
    """A run of protected spans with its offset in a translation that contains none of the runs."""

    offset: int
    slot: Slot


class _Plain(NamedTuple):
    """A translation without placeholders."""

    text: str
    placed: list[_Placed]
    """The runs whose placeholders the translation had."""
    missing: list[Slot]
    """The runs whose placeholders the translation lacked."""


class Placeholders:
    """The protection of spans for one model: masks parts, and restores the spans in their translations."""

    def __init__(self, tokenizer: Tokenizer, target_language: str | None) -> None:
        self._tokenizer = tokenizer
        self._tokens = placeholder_tokens(tokenizer)
        self._joins_words = is_unspaced(target_language)

    def mask(self, parts: Iterable[Part]) -> dict[tuple[int, int], MaskedPart]:
        """Return the parts that have protected spans, masked, by the parts' keys."""
        masked = {part.key: mask_part(part, self._tokenizer, self._tokens) for part in parts}
        return {key: each for key, each in masked.items() if each is not None}

    def require_missing(
        self, masked: Mapping[tuple[int, int], MaskedPart], translations: Mapping[tuple[int, int], Translation]
    ) -> list[Part]:
        """Return the masked parts whose translations lack placeholders or repeat them, with these as required phrases.

        Args:
            masked: the masked parts by key.
            translations: their translations by key; parts that were not decoded are missing.
        """
        again = []
        for key, each in masked.items():
            if key in translations and _count_faults(translations[key].text, each):
                ids = [self._tokenizer.target.id(slot.token) for slot in each.slots if slot.token]
                again.append(each.masked._replace(phrases=(*each.masked.phrases, *(((id,),) for id in ids))))
        return again

    def restore(
        self,
        masked: Mapping[tuple[int, int], MaskedPart],
        translations: Mapping[tuple[int, int], Translation],
        score: Scoring,
        can_score: Callable[[str, str], bool],
    ) -> dict[tuple[int, int], Translation]:
        """Return the translations of masked parts with the protected spans, each exactly once.

        Args:
            masked: the masked parts by key.
            translations: their translations by key; parts that were not decoded are missing.
            score: scores pairs with the model, to find the offsets of spans without placeholders.
            can_score: returns whether a source and its translation are short enough to be scored.
        """
        plain = {
            key: [_without_placeholders(alternative.text, each) for alternative in translations[key].alternatives]
            for key, each in masked.items()
            if key in translations
        }
        requests = [
            _Request(*bare[slot], each.text)
            for key, alternatives in plain.items()
            for bare in [_bare_sources(masked[key])]
            for each in alternatives
            for slot in each.missing
        ]
        offsets = _find_offsets(requests, self._tokenizer, score, can_score)
        restored = {}
        for key, alternatives in plain.items():
            texts = []
            for each in alternatives:
                placed = [*each.placed, *(_Placed(next(offsets), slot) for slot in each.missing)]
                texts.append(self._write(masked[key].original.text, each.text, placed))
            restored[key] = _with_texts(translations[key], masked[key].original.text, texts)
        return restored

    def without_stray(self, translation: Translation) -> Translation:
        """Return a translation without placeholder tokens, which a model might write for a source that has none."""
        if not self._tokens or not any("<placeholder-" in each.text for each in translation.alternatives):
            return translation
        texts = [(_remove_placeholders(each.text).text, ()) for each in translation.alternatives]
        return _with_texts(translation, translation.source, texts)

    def _write(self, source: str, text: str, placed: Sequence[_Placed]) -> tuple[str, tuple[tuple[Span, Span], ...]]:
        """Return a translation with the protected spans, and the pairs of source and target spans."""
        written, position = "", 0
        pairs: list[tuple[Span, Span]] = []
        for offset, slot in sorted(placed, key=lambda one: (one.offset, one.slot.source)):
            before, after = text[position:offset], text[offset:]
            written += before
            has_space = written.endswith(" ") or after.startswith(" ")
            written, rest = written.rstrip(" "), after.lstrip(" ")
            left, right = self._spaces(source, slot.source, (written[-1:], rest[:1]), has_space=has_space)
            written += left
            moved = len(written) - slot.source.start
            pairs += [(span, Span(span.start + moved, span.end + moved)) for span in slot.spans]
            written += source[slice(*slot.source)] + right
            position = len(text) - len(rest)
        return written + text[position:], tuple(sorted(pairs))

    def _spaces(self, source: str, span: Span, beside: tuple[str, str], *, has_space: bool) -> tuple[str, str]:
        """Return the spaces before and after a span in a translation.

        Args:
            source: the source text.
            span: the protected run in the source.
            beside: the characters before and after it in the translation; empty at an end of it.
            has_space: whether the translation without the run has a space there.
        """
        literal, before, after = source[slice(*span)], source[: span.start], source[span.end :]
        sides = (
            _Side(beside[0], before.rstrip(" ")[-1:], before.endswith(" "), literal[0], comes_before=True),
            _Side(beside[1], after.lstrip(" ")[:1], after.startswith(" "), literal[-1], comes_before=False),
        )
        if is_inline_tag(literal) or literal[0] == "\\":
            spaces = self._spaces_of_tag(literal, sides, has_space=has_space)
        else:
            spaces = [self._has_space(side) for side in sides]
        return " " * spaces[0], " " * spaces[1]

    def _has_space(self, side: "_Side") -> bool:
        """Return whether a span that stands for a word has a space on one side."""
        if not side.target:
            return False
        if self._joins_words or _is_unspaced_script(side.target):
            meets_word = is_spaced_word_character(side.target) and is_spaced_word_character(side.edge)
            return meets_word or (side.spaced and _is_unspaced_script(side.source))
        if side.clings:
            return False
        attached = bool(side.source) and not side.spaced and not _is_unspaced_script(side.source)
        if attached and (side.source == side.target or side.source.isalnum() == side.target.isalnum()):
            return side.source in _SENTENCE_MARKS and side.comes_before
        return True

    def _spaces_of_tag(self, literal: str, sides: Sequence["_Side"], *, has_space: bool) -> list[bool]:
        """Return whether markup has spaces: where the source has them, or on the outer side of the tag."""
        if self._joins_words:
            return [side.spaced and bool(side.target) and _is_unspaced_script(side.source) for side in sides]
        spaced = [side.spaced and bool(side.target) and not side.clings for side in sides]
        if not any(spaced) and has_space and all(side.target for side in sides):
            closes = literal.startswith("</")
            return [not closes, closes]
        return spaced


_SENTENCE_MARKS = frozenset(".!?,;:。！？，；：…")


class _Side(NamedTuple):
    """The neighbors of a protected span on one side, in the source and in the translation."""

    target: str
    """The neighboring character in the translation; empty at an end of it."""
    source: str
    """The neighboring character in the source other than a space; empty at an end of it."""
    spaced: bool
    """True if the source has a space on this side."""
    edge: str
    """The character of the span on this side."""
    comes_before: bool
    """True for the side before the span."""

    @property
    def clings(self) -> bool:
        """True if the character of the translation takes no space toward the span, such as an opening bracket."""
        category = unicodedata.category(self.target) if self.target else ""
        if self.comes_before:
            return category in ("Ps", "Pi") or self.target in "¿¡"
        return category in ("Pe", "Pf") or self.target in _SENTENCE_MARKS


def _is_unspaced_script(character: str) -> bool:
    """Return whether a character belongs to a script without spaces; False if there is none."""
    return bool(character) and is_of_unspaced_script(character)


def _without_placeholders(text: str, masked: MaskedPart) -> _Plain:
    """Return a translation without placeholders; of a repeated one, the first counts."""
    slots = {slot.token: slot for slot in masked.slots if slot.token}
    bare = _remove_placeholders(text)
    placed: dict[str, _Placed] = {}
    for token, offset in bare.found:
        if token in slots and token not in placed:
            placed[token] = _Placed(offset, slots[token])
    return _Plain(bare.text, list(placed.values()), [slot for slot in masked.slots if slot.token not in placed])


def _count_faults(text: str, masked: MaskedPart) -> int:
    """Return how many placeholders a translation lacks or has too often."""
    found = Counter(_PLACEHOLDER.findall(text))
    wanted = Counter(slot.token for slot in masked.slots if slot.token)
    return sum(abs(found[token] - wanted[token]) for token in {*found, *wanted})


class _Bare(NamedTuple):
    """A translation without placeholder tokens."""

    text: str
    found: list[tuple[str, int]]
    """Each placeholder token, and its offset in the text without placeholders."""


def remove_placeholders(text: str) -> str:
    """Return a text without placeholder tokens, for parts of a translation that is written token by token."""
    return _PLACEHOLDER.sub("", text) if "<placeholder-" in text else text


def _remove_placeholders(text: str) -> _Bare:
    written, position = "", 0
    found: list[tuple[str, int]] = []
    for match in _PLACEHOLDER.finditer(text):
        before = text[position : match.start()]
        written += before.lstrip(" ") if written.endswith(" ") or not written else before
        found.append((match[0], len(written)))
        position = match.end()
    rest = text[position:]
    written += rest.lstrip(" ") if found and (written.endswith(" ") or not written) else rest
    return _Bare(written, found)


def _with_texts(
    translation: Translation, source: str, texts: Sequence[tuple[str, tuple[tuple[Span, Span], ...]]]
) -> Translation:
    alternatives: dict[str, Alternative] = {}
    for alternative, (text, _) in zip(translation.alternatives, texts, strict=True):
        alternatives.setdefault(text, msgspec.structs.replace(alternative, text=text))
    return msgspec.structs.replace(
        translation, source=source, alternatives=tuple(alternatives.values()), protected=texts[0][1]
    )


# --- offsets by alignment ---


class _Request(NamedTuple):
    """A question where a run belongs in a translation that lacks it."""

    source: str
    """The source without its runs."""
    offset: int
    """The offset of the run in it."""
    text: str
    """The translation without runs."""


def _bare_sources(masked: MaskedPart) -> dict[Slot, tuple[str, int]]:
    """Return the source without its protected runs, with the offset of each run in it."""
    text, written, position = masked.original.text, "", 0
    offsets = []
    for slot in masked.slots:
        written = _join(written, text[position : slot.source.start])
        offsets.append(len(written))
        position = slot.source.end
    written = _join(written, text[position:])
    return {slot: (written, offset) for slot, offset in zip(masked.slots, offsets, strict=True)}


def _find_offsets(
    requests: Sequence[_Request], tokenizer: Tokenizer, score: Scoring, can_score: Callable[[str, str], bool]
) -> Iterator[int]:
    """Yield the offset in the translation for each request.

    A run before the first word or after the last word of the source is put there in the translation. Any other run
    goes between the translations of the words beside it.
    """
    neighbors = [_neighbors(each, tokenizer.source) for each in requests]
    questions = [
        MarkedSentence(each.source, each.text, beside, is_scored=can_score(each.source, each.text))
        for each, beside in zip(requests, neighbors, strict=True)
        if beside is not None
    ]
    answers = iter(align_marked(questions, tokenizer.target, score) if questions else [])
    for each, beside in zip(requests, neighbors, strict=True):
        if beside is None:
            yield _at_edge(each)
            continue
        left, right = next(answers)
        yield left.end if right.start < left.end else right.start


def _neighbors(request: _Request, vocabulary: Vocabulary) -> tuple[Span, Span] | None:
    """Return the words before and after a run; None if there is none on one side."""
    words = _words(request.source, vocabulary)
    before = [span for span in words if span.end <= request.offset]
    after = [span for span in words if span.start >= request.offset]
    return (before[-1], after[0]) if before and after else None


def _words(text: str, vocabulary: Vocabulary) -> list[Span]:
    """Return the words of a text; in a script without spaces, its tokens."""
    spans: list[Span] = []
    for start, end in token_spans(vocabulary.token_texts(vocabulary.encode(text)), text):
        if not any(map(is_word_character, text[start:end])):
            continue
        joins = spans and spans[-1].end == start and is_spaced_word_character(text[start - 1])
        spans.append(Span(spans.pop().start if joins and is_spaced_word_character(text[start]) else start, end))
    return spans


def _at_edge(request: _Request) -> int:
    """Return the offset of a run before the first or after the last word of its source."""
    text, before = request.text, request.source[: request.offset]
    if _last_word(before) == 0:
        return len(text) - len(text.lstrip())
    follows_punctuation = before[_last_word(before) :].strip()
    return len(text) if follows_punctuation else _last_word(text)


def _last_word(text: str) -> int:
    """Return the end of the last word of a text; 0 if it has none."""
    return max((index for index, character in enumerate(text) if is_word_character(character)), default=-1) + 1
