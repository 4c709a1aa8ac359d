"""Replace protected spans by placeholders before translation, and put the spans into the translation afterwards.

Every model can translate a source without its spans. To put a span into the translation, the translation of the word
before the span is found by occlusion, and the span follows it. A model whose vocabulary has placeholder tokens also
translates the source with such a token for each span. Of the two translations, the one with fewer missing or excess
placeholders is used. If they are equal in this, the mean log-probability decides. Spans that stand between words are
better left out; spans that stand for words are not.
"""

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from transduce.inference.batching import TextPart
from transduce.inference.spans import MarkedSentence, Scoring, align_marked
from transduce.inference.translation import Alternative, Translation
from transduce.text.glossary import is_spaced_word_character
from transduce.text.languages import is_unspaced_character, is_unspaced_language, is_word_character
from transduce.text.protected import (
    PLACEHOLDER_TOKENS,
    BareText,
    find_protected,
    is_half_of_pair,
    is_inline_tag,
    without_tag_pairs,
)
from transduce.text.tokenizer import Tokenizer, placeholder_tokens, without_bare_spaces
from transduce.text.vocabulary import Vocabulary, fallback_ids
from transduce.text.word_spans import Span, encode_with_spans, merge_spans

_PLACEHOLDER = re.compile("|".join(map(re.escape, PLACEHOLDER_TOKENS)))
_FORMULA_STARTS = ("\\(", "\\[", "\\begin{")
_CLITIC = re.compile(r"['’](?:s|ll|re|ve|d|m)\b(?!['’])")  # of English, which no space separates from its word
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# Brackets and quotation marks by pairs, and those that other scripts write for them.
_BRACKETS = frozenset(
    ("()", "[]", '""', "''", "“”", "‘’", "«»", "„“", "‚‘", "「」", "『』", "（）", "【】", "《》", "〈〉", "［］")
)
_SPACED_BRACKETS = str.maketrans("（）［］【】「」『』", "()[][]“”‘’")

# --- masking ---


class ProtectedRun(NamedTuple):
    """A run: consecutive protected spans (text that is copied, not translated) with only spaces between them.

    One placeholder token replaces the run, or it is left out of the source that the model translates.
    """

    source: Span
    """The character span of the run in the text of its sentence, with a pair of brackets or quotes directly around it.
    """
    spans: tuple[Span, ...]
    """The character spans of the protected texts that form the run, in the text of its sentence."""
    placeholder: str
    """The text that stands for the run of spans: a placeholder token, or the run itself if a forced prefix of the
    translation contains it; empty if the run is left out.
    """


class MaskedPart(NamedTuple):
    """A sentence whose protected spans (text to be copied) are replaced by placeholders or left out."""

    original: TextPart
    """The sentence (or part of a long one) with its full text and protected spans."""
    masked: TextPart
    """The sentence as the model translates it, with placeholders or without the spans."""
    runs: tuple[ProtectedRun, ...]
    """The replaced or left-out runs (protected spans with only spaces between them), in order."""

    @property
    def is_copied(self) -> bool:
        """True if the text has no letter outside its protected spans, so that it is copied instead of translated."""
        rest = self.original.text
        for run in reversed(self.runs):
            rest = rest[: run.source.start] + rest[run.source.end :]
        return not any(map(str.isalpha, rest))

    def copy(self) -> Translation:
        """Return a translation whose text is the source itself, since nothing in it is to be translated."""
        text = self.original.text
        pairs = tuple((span, span) for run in self.runs for span in run.spans)
        return msgspec.structs.replace(Translation.of(text, text), protected=pairs)


def find_unknown(text: str, vocabulary: Vocabulary) -> list[Span]:
    """Return a list of the character spans of a text that the vocabulary can represent only as bytes or as unknown.

    In scripts with spaces a span is extended to whole words. Punctuation is excluded: the target language has its own.
    A rare character of a known script without spaces, such as Chinese, is excluded if it is encoded as bytes. It is an
    ordinary word, which the model has learned to read. A script is known if the vocabulary has other letters of it.
    """
    fallback = _fallback_ids(vocabulary)
    ids, token_spans = encode_with_spans(vocabulary, text)
    if fallback.isdisjoint(ids):
        return []
    spans = [
        span
        for id, span in zip(ids, token_spans, strict=True)
        if id in fallback
        and span.start < span.end
        and (id == vocabulary.unk_id or not _is_rare_word(text[span.start : span.end], vocabulary))
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
    return [run for run in runs if not all(map(_is_punctuation, text[run.start : run.end]))]


def _is_rare_word(text: str, vocabulary: Vocabulary) -> bool:
    """Return whether characters that the vocabulary lacks form a rare word in a script that it knows.

    Every character must be of a script without spaces, such as Chinese. The vocabulary must have other letters of this
    script.
    """
    return all(is_unspaced_character(character) and _script(character) in _scripts(vocabulary) for character in text)


@lru_cache(maxsize=16)
def _scripts(vocabulary: Vocabulary) -> frozenset[str]:
    """Return the set of the scripts (such as "CJK" or "LATIN") of the letters in a vocabulary's tokens; cached."""
    characters = set("".join(map(vocabulary.token, range(vocabulary.size))))
    return frozenset(map(_script, filter(str.isalpha, characters)))


def _script(character: str) -> str:
    """Return the script of a character, the first word of its Unicode name, such as "CJK"; "" without a name."""
    return unicodedata.name(character, "").partition(" ")[0]


def _is_punctuation(character: str) -> bool:
    return character.isspace() or unicodedata.category(character).startswith("P")


@lru_cache(maxsize=16)
def _fallback_ids(vocabulary: Vocabulary) -> frozenset[int]:
    return frozenset(fallback_ids(vocabulary))


def _spans_of(part: TextPart, tokenizer: Tokenizer) -> list[Span]:
    """Return a list of the spans of a part (sentence) to copy untranslated.

    These are its protected spans, and spans of characters that the vocabulary lacks.
    """
    if _fallback_ids(tokenizer.source).isdisjoint(part.ids):
        return list(part.protected)
    unknown = [
        span
        for run in find_unknown(part.text, tokenizer.source)
        for span in _outside(run, part.protected)
        if not all(map(_is_punctuation, part.text[span.start : span.end]))
    ]
    return merge_spans(part.protected, unknown)


def _outside(run: Span, spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the parts of the character span `run` that are outside of `spans`, which are in order and disjoint."""
    start = run.start
    for index in range(max(0, bisect_left(spans, (start, start)) - 1), len(spans)):
        span = spans[index]
        if span.start >= run.end:
            break
        if span.end <= start:
            continue
        if start < span.start:
            yield Span(start, span.start)
        start = span.end
    if start < run.end:
        yield Span(start, run.end)


def mask_part(part: TextPart, tokenizer: Tokenizer, tokens: Sequence[str]) -> MaskedPart | None:
    """Return a `MaskedPart`: a sentence whose protected spans are replaced or left out; None if it has no such spans.

    Placeholder tokens replace the spans. The translation's prefix gets the same placeholders, and required phrases that
    equal a protected span are dropped.

    Args:
        part: a sentence of a text, or part of one.
        tokenizer: the model's tokenizer.
        tokens: placeholder tokens, one for each run of spans; further runs are left out. Empty: all are left out.
    """
    text, spans = part.text, _spans_of(part, tokenizer)
    if not spans:
        return None
    adjacent: list[list[Span]] = []
    for span in spans:
        if adjacent and not text[adjacent[-1][-1].end : span.start].strip():
            adjacent[-1].append(span)
        else:
            adjacent.append([span])
    prefix = tokenizer.target.decode(part.prefix) if part.prefix else ""
    written, position = "", 0
    runs: list[ProtectedRun] = []
    for number, group in enumerate(adjacent):
        source = _with_brackets(Span(group[0].start, group[-1].end), text)
        literal, token = text[slice(*source)], tokens[number] if number < len(tokens) else ""
        runs.append(ProtectedRun(source, tuple(group), literal if not token and literal in prefix else token))
        written, position = _join(written, text[position : source.start]), source.end
        prefix = re.sub(f" ?{re.escape(literal)}", token, prefix, count=1) if token else prefix
        if token:
            written = written.rstrip(" ") + token
            rest = text[position:]
            position += len(rest) - len(rest.lstrip(" ")) if is_unspaced_character(rest.lstrip()[:1]) else 0
    written = _join(written, text[position:]).strip()
    ids = tokenizer.source.with_special_tokens(without_bare_spaces(tokenizer.source.encode(written), tokenizer.source))
    prefix_ids = part.prefix
    if tokens and part.prefix:
        prefix_ids = without_bare_spaces(tokenizer.target.encode(prefix), tokenizer.target)
    literals = {text[slice(*span)] for span in spans}
    phrases = tuple(each for each in part.phrases if tokenizer.target.decode(each[0]).strip() not in literals)
    masked = part._replace(text=written, ids=ids, prefix=prefix_ids, phrases=phrases, protected=())
    return MaskedPart(part, masked, tuple(runs))


def _with_brackets(span: Span, text: str) -> Span:
    """Return a span of a text, widened by a pair of brackets or quotation marks that directly encloses it."""
    around = text[max(0, span.start - 1) : span.start] + text[span.end : span.end + 1]
    return Span(span.start - 1, span.end + 1) if around in _BRACKETS else span


def _join(before: str, after: str) -> str:
    """Join the texts before and after a left-out span.

    Of spaces on both sides of the span, only one side is kept. Spaces at the start of a text are dropped. A space is
    added between two words that would otherwise touch.
    """
    if not before or before.endswith(" "):
        return before + after.lstrip(" ")
    if after and is_spaced_word_character(before[-1]) and is_spaced_word_character(after[0]):
        return f"{before} {after}"
    return before + after


class MaskedPair(NamedTuple):
    """A source and a given translation of it, in which copied spans are replaced by placeholders or left out."""

    source: str
    target: str
    protected: tuple[tuple[Span, Span], ...]
    """For each copied span, in order, a pair of its character spans in the original source and in the given
    translation.
    """


def mask_pair(
    source: str, target: str, tokenizer: Tokenizer, tokens: Sequence[str], patterns: Iterable[str] = ()
) -> MaskedPair | None:
    """Mask the protected spans of a source and their copies in a translation, as in a search.

    Return a `MaskedPair`; None if the translation copies no span. A span that the translation lacks stays in the
    source.

    Args:
        source: the source sentence.
        target: a given translation of it.
        tokenizer: the model's tokenizer.
        tokens: placeholder tokens, as for `mask_part`.
        patterns: regular expressions of further protected spans.
    """
    ids = tokenizer.source.encode(tokenizer.source.readable(source))
    part = TextPart(source, 0, 0, ids, protected=tuple(find_protected(source, patterns)))
    pairs = _find_copies(source, target, _spans_of(part, tokenizer))
    if not pairs:
        return None
    part = part._replace(protected=tuple(span for span, _ in pairs))
    bare = without_tag_pairs(source, part.protected)
    if bare is not None:
        tags = {tag for pair in bare.pairs for tag in pair[:2]}
        target = _without_copies(target, {copy: "" for span, copy in pairs if span in tags})
        part = _bare_part(part, bare, tokenizer)
    copies = dict(_find_copies(part.text, target, part.protected))
    masked = mask_part(part._replace(protected=tuple(copies)), tokenizer, tokens)
    if masked is not None:
        part, placeholders = masked.masked, {run.spans[0]: run.placeholder for run in masked.runs}
        target = _without_copies(target, {copy: placeholders.get(span, "") for span, copy in copies.items()})
    return MaskedPair(part.text, target, tuple(pairs))


def _find_copies(source: str, text: str, spans: Iterable[Span]) -> list[tuple[Span, Span]]:
    """Return a list of pairs: a character span of a source, and the span of its copy in a translation.

    Spans without a copy are left out. Spans of equal text are paired with copies in the same order.
    """
    pairs, position = list[tuple[Span, Span]](), dict[str, int]()
    for span in spans:
        literal = source[slice(*span)]
        start = text.find(literal, position.get(literal, 0))
        if start >= 0:
            position[literal] = start + len(literal)
            pairs.append((span, Span(start, position[literal])))
    return pairs


def _without_copies(text: str, copies: Mapping[Span, str]) -> str:
    """Replace the copies of protected spans in a translation by placeholders, and return the text.

    `copies` maps each copy's character span to its placeholder. A pair of brackets or quotes around a copy is replaced,
    too. If the placeholder is empty, the copy is left out. The space before a left-out copy is removed if a mark that
    ends a sentence or clause follows.
    """
    written, position = "", 0
    for span in sorted(copies):
        around = _with_brackets(span, text)
        written = _join(written, text[position : max(position, around.start)])
        position = around.end
        if copies[span] or text[position : position + 1] in _SENTENCE_MARKS:
            written = written.rstrip(" ") + copies[span]
    return _join(written, text[position:]).strip()


# --- restoring ---


class _InsertedRun(NamedTuple):
    """A run of adjacent protected spans, with the character offset in a translation at which to insert the run."""

    offset: int
    run: ProtectedRun


class _Plain(NamedTuple):
    """A translation without placeholders, with the runs of protected spans that are to be inserted into it."""

    text: str
    placed: list[_InsertedRun]
    """The runs whose placeholders the translation had, with the offsets of the placeholders in the text without them.
    """
    missing: list[ProtectedRun]
    """The runs without a placeholder in the translation, whose offsets are found by alignment."""


class SpanModel(NamedTuple):
    """The functions of a translation model that are needed to translate texts with protected spans."""

    search: Callable[[Sequence[TextPart]], Mapping[tuple[int, int], Translation]]
    """Translates parts (sentences); returns a dict by part key, without parts that an observer stopped."""
    score: Scoring
    """Returns the model's scores of lists of sources and translations, to find where spans without a placeholder
    belong.
    """
    can_score: Callable[[str, str], bool]
    """Returns whether a source and its translation are short enough for `score`."""


Locate = Callable[[Sequence[Translation], Sequence[Sequence[Span]]], list[list[Span]]]
"""A function from translations, and lists of character spans marked in each source, to lists of the corresponding spans
in the translations.
"""


class Placeholders:
    """A translator of sentences with protected spans: it masks the spans and restores them in the translations."""

    def __init__(self, tokenizer: Tokenizer, target_language: str | None, *, sampled: bool = False) -> None:
        """Create a translator of sentences with protected spans, from the model's tokenizer and target language.

        Of alternatives whose texts become equal, all are kept if they were `sampled`, otherwise only the first.
        """
        self._tokenizer = tokenizer
        self._sampled = sampled
        self._tokens = placeholder_tokens(tokenizer)
        self._joins_words = is_unspaced_language(target_language)

    def has_spans(self, part: TextPart) -> bool:
        """Return whether a sentence has protected spans, or characters that the vocabulary lacks."""
        return bool(_spans_of(part, self._tokenizer))

    def translate(self, parts: Iterable[TextPart], model: "SpanModel") -> dict[tuple[int, int], Translation]:
        """Return a dict of translations by part key, for the parts (sentences) that have protected spans.

        Each such part is translated without its spans and, if the vocabulary has placeholder tokens, also with
        placeholders; the better result is used. A part without a letter outside its spans is copied. Parts that an
        observer stopped before they were decoded are missing.
        """
        left_out = [each for each in (mask_part(part, self._tokenizer, ()) for part in parts) if each is not None]
        translations = {each.original.key: each.copy() for each in left_out if each.is_copied}
        left_out = [each for each in left_out if not each.is_copied]
        if not left_out:
            return translations
        found = self._restore(left_out, model)
        if self._tokens:
            masked = [mask_part(each.original, self._tokenizer, self._tokens) for each in left_out]
            for key, other in self._restore([each for each in masked if each is not None], model).items():
                found[key] = max(found.get(key, other), other, key=lambda ranked: ranked[1])
        return translations | {key: translation for key, (translation, _) in found.items()}

    def with_tag_pairs(
        self,
        parts: Sequence[TextPart],
        translate: Callable[[Sequence[TextPart]], dict[tuple[int, int], Translation]],
        locate: Locate,
    ) -> dict[tuple[int, int], Translation]:
        """Translate parts (sentences) with pairs of tags around the words that they enclose; return a dict by part key.

        Args:
            parts: the parts.
            translate: translates parts without pairs of tags.
            locate: aligns the words between tags.
        """
        found = {part.key: each for part in parts if (each := _without_pairs(part, self._tokenizer)) is not None}
        if not found:
            return translate(parts)
        bare = {key: _bare_part(part, found[key], self._tokenizer) for part in parts if (key := part.key) in found}
        translations = translate([bare.get(part.key, part) for part in parts])
        tagged = [part for part in parts if part.key in found and part.key in translations]
        candidates = [(part, each) for part in tagged for each in _one_by_one(translations[part.key])]
        inner = [[pair.inner for pair in found[part.key].pairs] for part, _ in candidates]
        spans = locate([each for _, each in candidates], inner)
        written = iter(
            found[part.key].written(part.text, each.text, own, each.protected)
            for (part, each), own in zip(candidates, spans, strict=True)
        )
        for part in tagged:
            whole = translations[part.key]
            texts = [next(written) for _ in whole.alternatives]
            translations[part.key] = self._with_texts(whole, part.text, texts)
        return translations

    def _restore(
        self, masked: Sequence[MaskedPart], model: "SpanModel"
    ) -> dict[tuple[int, int], tuple[Translation, tuple[int, float]]]:
        """Translate masked parts (sentences), and insert their protected spans into the translations.

        Return a dict from part keys to pairs of a translation and its rank. The higher rank shows which of two
        translations of a part is better. A rank is a pair: minus the number of missing or excess placeholders, and the
        mean log-probability per token.
        """
        found = model.search([each.masked for each in masked])
        translated = [(each, found[each.original.key]) for each in masked if each.original.key in found]
        plain = [[_without_placeholders(one.text, each) for one in own.alternatives] for each, own in translated]
        requests = [
            _Request(*bare[run], alternative.text)
            for (each, _), alternatives in zip(translated, plain, strict=True)
            for bare in [_bare_sources(each)]
            for alternative in alternatives
            for run in alternative.missing
        ]
        offsets = _find_offsets(requests, self._tokenizer, model)
        restored = {}
        for (each, translation), alternatives in zip(translated, plain, strict=True):
            texts = []
            for alternative in alternatives:
                placed = [*alternative.placed, *(_InsertedRun(next(offsets), run) for run in alternative.missing)]
                texts.append(self._write(each.original.text, alternative.text, placed))
            rank = -_count_faults(translation.text, each), _mean_log_probability(translation.alternatives[0])
            restored[each.original.key] = self._with_texts(translation, each.original.text, texts), rank
        return restored

    def without_stray(self, translation: Translation) -> Translation:
        """Return a translation without placeholder tokens that the model wrote though the source has none of them."""
        if not self._tokens or not any("<placeholder-" in each.text for each in translation.alternatives):
            return translation
        texts = [(_remove_placeholders(each.text)[0], ()) for each in translation.alternatives]
        return self._with_texts(translation, translation.source, texts)

    def _with_texts(
        self, translation: Translation, source: str, texts: Sequence[tuple[str, tuple[tuple[Span, Span], ...]]]
    ) -> Translation:
        """Return a translation with this source, and with another text for each alternative.

        `texts` has a pair for each alternative: its text, and pairs of spans copied from source to text. Of
        alternatives with equal texts, only the first is kept, unless the alternatives were sampled.
        """
        alternatives: dict[tuple[str, int], Alternative] = {}
        for number, (alternative, (text, _)) in enumerate(zip(translation.alternatives, texts, strict=True)):
            key = text, number if self._sampled else 0
            alternatives.setdefault(key, msgspec.structs.replace(alternative, text=text))
        return msgspec.structs.replace(
            translation, source=source, alternatives=tuple(alternatives.values()), protected=texts[0][1]
        )

    def _write(
        self, source: str, text: str, placed: Sequence[_InsertedRun]
    ) -> tuple[str, tuple[tuple[Span, Span], ...]]:
        """Insert protected spans into a translation; return the text, and pairs of the spans in source and text.

        Args:
            source: the source text.
            text: the text of the translation without the spans.
            placed: the runs of spans to insert, with their offsets in `text`.
        """
        written, position = "", 0
        pairs: list[tuple[Span, Span]] = []
        inside = [one._replace(offset=self._outside_word(source, text, one)) for one in placed]
        inside = _with_tags_in_order(source, inside)
        for offset, run in sorted(inside, key=lambda one: (one.offset, one.run.source)):
            before, after = text[position:offset], text[offset:]
            written += before
            has_space = written.endswith(" ") or after.startswith(" ")
            written, rest = written.rstrip(" "), after.lstrip(" ")
            left, right = self._spaces(source, run.source, (written[-1:], rest[:1]), has_space=has_space)
            right = "" if _CLITIC.match(rest) else right
            written += left
            moved = len(written) - run.source.start
            pairs += [(span, Span(span.start + moved, span.end + moved)) for span in run.spans]
            written += self._literal(source, run) + right
            position = len(text) - len(rest)
        return written + text[position:], tuple(sorted(pairs))

    def _outside_word(self, source: str, text: str, inserted: _InsertedRun) -> int:
        """Return the character offset at which to insert a run of protected spans without splitting a word.

        A run inside a word such as "don't" moves to the word's end. The offset stays as it is if the run touches a word
        or a mark in the source, or if the text there is of a script without spaces.
        """
        offset, run = inserted
        touches = source[max(0, run.source.start - 1) : run.source.start] + source[run.source.end : run.source.end + 1]
        is_attached = any(not each.isspace() and not is_unspaced_character(each) for each in touches)
        if self._joins_words or is_attached or is_unspaced_character(text[offset : offset + 1]):
            return offset
        word = next((word for word in _WORD.finditer(text) if word.start() < offset < word.end()), None)
        return offset if word is None else word.end()

    def _literal(self, source: str, run: ProtectedRun) -> str:
        """Return the source text of a run of protected spans, with its brackets as the target script writes them."""
        literal = source[slice(*run.source)]
        if self._joins_words or run.source.start == run.spans[0].start:
            return literal
        return literal[0].translate(_SPACED_BRACKETS) + literal[1:-1] + literal[-1].translate(_SPACED_BRACKETS)

    def _spaces(self, source: str, span: Span, beside: tuple[str, str], *, has_space: bool) -> tuple[str, str]:
        """Return a pair of texts (a space or nothing) to write before and after a run of protected spans.

        Args:
            source: the source text.
            span: the run in the source.
            beside: the characters before and after the run in the translation; empty at an end of the translation.
            has_space: True if the translation without the run has a space at this offset.
        """
        literal, before, after = source[slice(*span)], source[: span.start], source[span.end :]
        sides = (
            _SpanSide(beside[0], before.rstrip(" ")[-1:], before.endswith(" "), literal[0], comes_before=True),
            _SpanSide(beside[1], after.lstrip(" ")[:1], after.startswith(" "), literal[-1], comes_before=False),
        )
        if is_inline_tag(literal) or (literal[0] == "\\" and not literal.startswith(_FORMULA_STARTS)):
            spaces = self._spaces_of_tag(literal, sides, has_space=has_space)
        else:
            spaces = [self._has_space(side) for side in sides]
        return " " * spaces[0], " " * spaces[1]

    def _has_space(self, side: "_SpanSide") -> bool:
        """Return whether a space is written on one side of a protected span that stands for a word.

        In general, there is a space if the source has one. No space is written at an end of the translation, beside a
        bracket or punctuation that takes none, or between characters of scripts without spaces.
        """
        if not side.target:
            return False
        if self._joins_words or is_unspaced_character(side.target):
            meets_word = is_spaced_word_character(side.target) and is_spaced_word_character(side.edge)
            return meets_word or (side.spaced and is_unspaced_character(side.source))
        if side.takes_no_space:
            return False
        if side.comes_before and side.target in _SENTENCE_MARKS:
            return True
        attached = bool(side.source) and not side.spaced and not is_unspaced_character(side.source)
        return not attached or (side.source != side.target and side.source.isalnum() != side.target.isalnum())

    def _spaces_of_tag(self, literal: str, sides: Sequence["_SpanSide"], *, has_space: bool) -> list[bool]:
        """Return a list of two booleans: whether spaces are written before and after an inline tag.

        Spaces are written where the source has them. If the source has none, but the translation has a space at this
        offset (`has_space`), the space is written before an opening tag or after a closing tag.
        """
        if self._joins_words:
            return [side.spaced and bool(side.target) and is_unspaced_character(side.source) for side in sides]
        spaced = [side.spaced and bool(side.target) and not side.takes_no_space for side in sides]
        if literal[0] != "\\" and not any(spaced) and has_space and all(side.target for side in sides):
            closes = literal.startswith("</")
            return [not closes, closes]
        return spaced


_SENTENCE_MARKS = frozenset(".!?,;:。！？，；：…")


class _SpanSide(NamedTuple):
    """One side (left or right) of a protected span: the neighboring characters in the source and in the translation."""

    target: str
    """The neighboring character in the translation; empty at the start or end of the translation."""
    source: str
    """The neighboring character in the source, apart from spaces; empty at the start or end of the source."""
    spaced: bool
    """True if the source has a space between the neighbor and the span."""
    edge: str
    """The first character of the protected span (on its left side) or the last (on its right side)."""
    comes_before: bool
    """True if this is the side before the span, False for the side after it."""

    @property
    def takes_no_space(self) -> bool:
        """True if no space is written between this neighbor in the translation and the span, such as after "("."""
        category = unicodedata.category(self.target) if self.target else ""
        if self.comes_before:
            return category in ("Ps", "Pi") or self.target in "¿¡"
        return category in ("Pe", "Pf") or self.target in _SENTENCE_MARKS


def _without_placeholders(text: str, masked: MaskedPart) -> _Plain:
    """Remove the placeholders from a translation, and return a `_Plain`.

    The result holds the runs of protected spans that the placeholders stood for, with their offsets. It also holds the
    runs whose placeholder is missing. A repeated placeholder counts once, where it is first.
    """
    runs = {run.placeholder: run for run in masked.runs if run.placeholder}
    bare, found = _remove_placeholders(text, tuple(runs))
    placed: dict[ProtectedRun, _InsertedRun] = {}
    for placeholder, offset in found:
        if placeholder in runs:
            placed.setdefault(runs[placeholder], _InsertedRun(offset, runs[placeholder]))
    return _Plain(bare, list(placed.values()), [run for run in masked.runs if run not in placed])


def _count_faults(text: str, masked: MaskedPart) -> int:
    """Return the number of placeholder tokens that a translation of a masked part lacks or has in excess."""
    found = Counter(_PLACEHOLDER.findall(text))
    wanted = Counter(run.placeholder for run in masked.runs if run.placeholder in PLACEHOLDER_TOKENS)
    return sum(abs(found[token] - wanted[token]) for token in {*found, *wanted})


def _mean_log_probability(alternative: Alternative) -> float:
    values = alternative.token_log_probabilities
    return sum(values) / len(values) if values else 0.0


def remove_placeholders(text: str) -> str:
    """Return a text without placeholder tokens, to show a translation while it is generated."""
    return _PLACEHOLDER.sub("", text) if "<placeholder-" in text else text


def _remove_placeholders(text: str, literals: Sequence[str] = ()) -> tuple[str, list[tuple[str, int]]]:
    """Remove placeholder tokens and the texts `literals` from a translation.

    Of two spaces that would remain next to each other, the second is removed, too. Return the text, and a list of
    pairs: each removed token or literal, and its character offset in the result.
    """
    expression = "|".join(map(re.escape, dict.fromkeys((*literals, *PLACEHOLDER_TOKENS))))
    parts = re.split(f"({expression})", text)  # texts and removed tokens by turns
    written, found = parts[0], list[tuple[str, int]]()
    for removed, rest in zip(parts[1::2], parts[2::2], strict=True):
        found.append((removed, len(written)))
        written += rest.lstrip(" ") if written.endswith(" ") or not written else rest
    return written, found


def _with_tags_in_order(source: str, placed: Iterable[_InsertedRun]) -> list[_InsertedRun]:
    """Move tags without a partner so that they keep their source order.

    Return a list of all runs of protected spans, some with greater offsets.
    """
    ordered: list[_InsertedRun] = []
    least = 0
    inside = sorted(placed, key=lambda one: one.run.source)
    has_end_tags = any(source.startswith("</", span.start) for one in inside for span in one.run.spans)
    for one in inside:
        if any(is_half_of_pair(source[slice(*span)], has_end_tags=has_end_tags) for span in one.run.spans):
            least = max(least, one.offset)
            one = one._replace(offset=least)
        ordered.append(one)
    return ordered


# --- pairs of tags ---


def _without_pairs(part: TextPart, tokenizer: Tokenizer) -> BareText | None:
    """Return a part's text without its pairs of tags.

    The result is None if there are no pairs, or if the forced prefix of the translation contains a protected span.
    """
    bare = without_tag_pairs(part.text, part.protected)
    prefix = tokenizer.target.decode(part.prefix) if bare is not None and part.prefix else ""
    return None if any(part.text[slice(*span)] in prefix for span in part.protected if prefix) else bare


def _bare_part(part: TextPart, bare: BareText, tokenizer: Tokenizer) -> TextPart:
    """Return a part (sentence) without its pairs of tags, whose text is then `bare`.

    Required phrases that are such tags are dropped, too.
    """
    ids = tokenizer.source.with_special_tokens(tokenizer.source.encode(bare.text))
    tags = {part.text[slice(*tag)] for pair in bare.pairs for tag in pair[:2]}
    phrases = tuple(each for each in part.phrases if tokenizer.target.decode(each[0]).strip() not in tags)
    return part._replace(text=bare.text, ids=ids, protected=bare.protected, phrases=phrases)


def _one_by_one(translation: Translation) -> Iterator[Translation]:
    """Yield each alternative as a translation of its own, with the protected spans of the alternative's text."""
    for number, alternative in enumerate(translation.alternatives):
        own = translation.protected
        if number:
            own = tuple(_find_copies(translation.source, alternative.text, (span for span, _ in own)))
        yield msgspec.structs.replace(translation, alternatives=(alternative,), protected=own)


# --- offsets by alignment ---


class _Request(NamedTuple):
    """A request to find where a run of protected spans belongs in a translation that lacks the run."""

    source: str
    """The source text without its runs of protected spans."""
    offset: int
    """The character offset in `source` (the text without protected spans) at which the run was."""
    text: str
    """The translation, also without protected spans."""


def _bare_sources(masked: MaskedPart) -> dict[ProtectedRun, tuple[str, int]]:
    """Return a dict from each run of protected spans to its position in the source without runs.

    The position is a pair: the source without any run, and the run's character offset in it.
    """
    text, written, position = masked.original.text, "", 0
    offsets = []
    for run in masked.runs:
        written = _join(written, text[position : run.source.start])
        offsets.append(len(written))
        position = run.source.end
    written = _join(written, text[position:])
    return {run: (written, offset) for run, offset in zip(masked.runs, offsets, strict=True)}


def _find_offsets(requests: Sequence[_Request], tokenizer: Tokenizer, model: SpanModel) -> Iterator[int]:
    """Yield, for each request, the character offset at which the run of protected spans belongs in the translation.

    A run before the first word or after the last word of the source is put at the same end of the translation. Any
    other run follows the translation of the word before it. In reference translations, runs are closer to this position
    than to the start of the next word's translation.
    """
    nearest: list[Span | None] = []  # the word before each run; None if the run is before or after all words
    for each in requests:
        words = _words(each.source, tokenizer.source)
        before = [word for word in words if word.end <= each.offset]
        nearest.append(before[-1] if 0 < len(before) < len(words) else None)
    questions = [
        MarkedSentence(each.source, each.text, [word], is_scored=model.can_score(each.source, each.text))
        for each, word in zip(requests, nearest, strict=True)
        if word is not None
    ]
    answers = iter(align_marked(questions, tokenizer.target, model.score))
    for each, word in zip(requests, nearest, strict=True):
        yield _at_edge(each) if word is None else next(answers)[0].end


def _words(text: str, vocabulary: Vocabulary) -> list[Span]:
    """Return a list of the character spans of a text's words; in a script without spaces, of its tokens."""
    spans: list[Span] = []
    for start, end in encode_with_spans(vocabulary, text)[1]:
        if not any(map(is_word_character, text[start:end])):
            continue
        joins = spans and spans[-1].end == start and is_spaced_word_character(text[start - 1])
        spans.append(Span(spans.pop().start if joins and is_spaced_word_character(text[start]) else start, end))
    return spans


def _at_edge(request: _Request) -> int:
    """Return the offset in a translation of protected spans before the first or after the last word of the source.

    Spans before the first word go to the start of the translation. Spans after the last word go behind the last word of
    the translation. They go to the very end if a closing bracket, or a mark that ends a sentence or clause, stands
    between the last word and the spans in the source.
    """
    text, before = request.text, request.source[: request.offset]
    if _last_word(before) == 0:
        return len(text) - len(text.lstrip())
    between = before[_last_word(before) :]
    follows_mark = any(each in _SENTENCE_MARKS or unicodedata.category(each) in ("Pe", "Pf") for each in between)
    return len(text) if follows_mark else _last_word(text)


def _last_word(text: str) -> int:
    """Return the character offset of the end of the last word of a text; 0 if it has none."""
    return max((index for index, character in enumerate(text) if is_word_character(character)), default=-1) + 1
