"""Find the positions of words and tokens in a sentence, to transfer results for tokens to words."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from transduce.errors import TransduceError
from transduce.text.files import compose, is_composed, is_mark
from transduce.text.languages import UNSPACED_RANGES, is_unspaced_or_punctuation
from transduce.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_END, _UNKNOWN = "</s>", "<unk>"
_EAST_ASIAN = "\u2e80"  # the first such character; Thai and Burmese have spaces beside quotation marks
_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")


class Span(NamedTuple):
    """A range of characters in a text, from `start` to `end` (exclusive)."""

    start: int
    end: int

    def shifted(self, offset: int) -> "Span":
        """Return the span with `offset` added to its start and its end."""
        return Span(self.start + offset, self.end + offset)

    def contains(self, other: "Span") -> bool:
        """Return whether the span contains all characters of another span of the same text; equal spans do."""
        return self.start <= other.start and other.end <= self.end


def merge_spans(first: Sequence[Span], others: Iterable[Span]) -> list[Span]:
    """Return a sorted list of all spans in `first`, and of the spans in `others` that overlap none in `first`.

    The spans in `first` must be in order and disjoint. Of overlapping spans in `others`, the one that begins first is
    kept.
    """

    def overlaps(span: Span) -> bool:
        index = bisect_right(first, span.start, key=lambda kept: kept.end)
        return index < len(first) and first[index].start < span.end

    return sorted([*first, *(span for span in disjoint(others) if not overlaps(span))])


def disjoint(spans: Iterable[Span]) -> list[Span]:
    """Return a sorted list of spans without those that overlap an earlier one.

    Of several spans that begin at the same offset, the longest stays.
    """
    kept: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if not kept or span.start >= kept[-1].end:
            kept.append(span)
    return kept


def span_in_full_text(offsets: Sequence[int], span: Span) -> Span:
    """Return the span of a full text that corresponds to a span of a text extracted from it.

    Args:
        offsets: the offset in the full text of each character of the extract, and of the extract's end.
        span: a span of the extract.
    """
    end = offsets[span.end - 1] + 1 if span.end > span.start else offsets[span.start]
    return Span(offsets[span.start], end)


class NormalizedText(NamedTuple):
    """A text after normalization, with the range of the original text that each of its characters comes from."""

    text: str
    starts: Sequence[int]
    """For each character of `text`, the offset in the original text where its origin begins; last, the original text's
    length.
    """
    ends: Sequence[int]
    """For each character of `text`, the offset in the original text where its origin ends (exclusive)."""

    def original_span(self, span: Span) -> Span:
        """Return the span of the original text that a span of the normalized text comes from."""
        start = self.starts[span.start]
        return Span(start, max(start, self.ends[span.end - 1]) if span.end > span.start else start)

    def normalized_span(self, span: Span) -> Span:
        """Return the span of the normalized text that comes from a span of the original text."""
        start = bisect_right(self.ends, span.start)
        end = bisect_left(self.starts, span.end, 0, len(self.text))
        return Span(start, end if span.end > span.start else start)


def normalized_text(text: str, normalize: Callable[[str], str], kept: Sequence[Span] = ()) -> NormalizedText:
    """Normalize a text by a function such as `Vocabulary.normalize`; return a `NormalizedText`.

    Args:
        text: the original text.
        normalize: a function that normalizes a text. Only neighboring characters may affect each other.
        kept: spans of the text, in order and disjoint, that stay as they are.
    """
    parts, starts, ends = list[str](), list[int](), list[int]()

    def add(part: str, origin: Sequence[tuple[int, int]]) -> None:
        parts.append(part)
        starts.extend(start for start, _ in origin)
        ends.extend(end for _, end in origin)

    position = 0
    for span in (*kept, Span(len(text), len(text))):
        for start, end in _clusters(text, position, span.start, normalize):
            part = normalize(text[start:end])
            one_by_one = len(part) == end - start
            add(part, [(n, n + 1) for n in range(start, end)] if one_by_one else [(start, end)] * len(part))
        add(text[slice(*span)], [(n, n + 1) for n in range(*span)])
        position = span.end
    return NormalizedText("".join(parts), [*starts, len(text)], ends)


def _clusters(text: str, start: int, stop: int, normalize: Callable[[str], str]) -> Iterator[tuple[int, int]]:
    """Divide a text, from `start` to `stop`, into ranges that can be normalized one by one; yield (start, end)."""
    first, before = start, ""
    for position in range(start, stop):
        character = text[position]
        alone = normalize(character)
        is_apart = alone and not is_mark(character)
        if first < position and is_apart and normalize(before + character) == normalize(before) + alone:
            yield first, position
            first, before = position, ""
        before += character
    if first < stop:
        yield first, stop


_WORD = re.compile(rf"[{UNSPACED_RANGES}]|[^\s{UNSPACED_RANGES}]+")


def split_words(text: str) -> list[Span]:
    """Return a list of the spans of a text's words, separated by white space.

    In scripts without spaces, every character is a word.
    """
    if not is_composed(text):
        composed = normalized_text(text, compose)
        # A letter that is longer in composed form may be part of several words there: the first one has it.
        found = list[Span]()
        for span in map(composed.original_span, split_words(composed.text)):
            start = max(span.start, found[-1].end if found else 0)
            if start < span.end:
                found.append(Span(start, span.end))
        return found
    return [Span(*match.span()) for match in _WORD.finditer(text)]


_SHARED_MARKS = tuple("“”‘’…—·")  # of scripts with and without spaces


def joins_without_space(before: str, after: str) -> bool:
    """Return whether two texts at a line break are joined without a space, as in Chinese and Japanese.

    The script of the characters at the break decides. Some quotation marks and dashes occur in all scripts; such a
    character counts as Chinese or Japanese if the character on the other side of the break is.
    """
    if before.endswith(_SHARED_MARKS) and after.startswith(_SHARED_MARKS):
        marks = "".join(_SHARED_MARKS)
        before, after = before.rstrip(marks), after.lstrip(marks)
    last, first = before[-1:], after[:1]
    if is_unspaced_or_punctuation(last):
        return is_unspaced_or_punctuation(first) or (last >= _EAST_ASIAN and first in _SHARED_MARKS)
    return last in _SHARED_MARKS and first >= _EAST_ASIAN and is_unspaced_or_punctuation(first)


def locate_words(words: Sequence[str], text: str) -> list[Span]:
    """Find words in a text, each after the end of the word before it, and return a list of their spans.

    Raises:
        TransduceError: a word does not occur after the words before it.
    """
    if not is_composed(" ".join([text, *words])):
        composed = normalized_text(text, compose)
        return [composed.original_span(span) for span in locate_words(list(map(compose, words)), composed.text)]
    spans: list[Span] = []
    position = 0
    for word in words:
        position = text.find(word, position)
        if position < 0:
            raise TransduceError(
                f"Words must occur in their sentence in order, but `{word}` does not come next in `{text}`: "
                "pass the words of the same line."
            )
        spans.append(Span(position, position + len(word)))
        position += len(word)
    return spans


def token_spans(tokens: Sequence[str], text: str) -> list[Span]:
    """Return a list with the span of each token in the tokenized text.

    The span does not contain the space before a word. If several byte tokens form a character, each has the span of the
    whole character. An unknown token has the span of the text between its neighbors. Tokens of white space and the end
    symbol have empty spans.

    Args:
        tokens: the tokens of the text, from `Vocabulary.token_texts`.
        text: the tokenized text, from `Vocabulary.normalize`.
    """
    spans: list[Span] = []
    position, number = 0, 0
    while number < len(tokens):
        group, count = _byte_group(tokens, number)
        if group:
            start, position = _locate_token(text, position, group.decode("utf-8", "replace").strip())
            spans.extend([Span(start, position)] * count)
            number += count
            continue
        if tokens[number] == _UNKNOWN:
            # White space other than U+0020 may be the unknown text.
            start = position
            while text.startswith(" ", start):
                start += 1
            position = _unknown_end(tokens[number + 1 : number + 2], text, start)
        elif tokens[number] == _END:
            start = position = len(text)
        else:
            start, position = _locate_token(text, position, tokens[number].replace("▁", " ").strip())
        spans.append(Span(start, position))
        number += 1
    return spans


def encode_with_spans(vocabulary: Vocabulary, text: str) -> tuple[list[int], list[Span]]:
    """Return two lists: the token ids of a text, and the span of each token in the text as passed (not normalized)."""
    ids = vocabulary.encode(text)
    normal = vocabulary.normalize(text)
    spans = token_spans(vocabulary.token_texts(ids), normal)
    if normal == text:
        return ids, spans
    origin = normalized_text(text, vocabulary.normalize)
    return ids, [origin.original_span(span) for span in spans]


def _byte_group(tokens: Sequence[str], first: int) -> tuple[bytes, int]:
    """Return the bytes of the character that begins at the byte token `first`, and the number of its byte tokens.

    Bytes that form no complete character are returned as well. The result is (b"", 0) if the token is no byte token.
    """
    group = b""
    for count, number in enumerate(range(first, len(tokens)), 1):
        token = tokens[number]
        if not _BYTES.fullmatch(token):
            return group, count - 1
        content = bytes.fromhex(token.replace("<0x", "").replace(">", ""))
        if group and content[0] & 0xC0 != 0x80:  # the previous character is incomplete
            return group, count - 1
        group += content
        if _is_complete(group):
            return group, count
    return group, len(tokens) - first


def _is_complete(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _locate_token(text: str, position: int, token_text: str) -> tuple[int, int]:
    """Return the start and end offset of a token in the tokenized text.

    Args:
        text: the tokenized text.
        position: the offset at which the search starts. Spaces from there on are skipped.
        token_text: the token without outer spaces. If it is empty, both offsets are `position`.
    """
    start = _skip_spaces(text, position) if token_text else position
    end = start
    for character in token_text:
        if character == " ":  # a token across words; the text may have more spaces there
            end = _skip_spaces(text, end)
        else:
            end += 1
    return min(start, len(text)), min(end, len(text))


def _skip_spaces(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _unknown_end(following: Sequence[str], text: str, start: int) -> int:
    """Return the offset in a text where an unknown token ends.

    The token has at least one character, unless the text ends before.

    Args:
        following: a list of the next token; empty if there is none.
        text: the tokenized text.
        start: the offset where the unknown token begins.
    """
    if not following or following[0] == _END:
        return len(text.rstrip())
    token = following[0].removeprefix("▁")
    if token != following[0]:  # a new word: the unknown token ends with the old one
        match = re.compile(r"\s").search(text, start)
        return len(text) if match is None else match.start()
    match_start = text.find(token, start + 1) if token else -1
    return min(start + 1, len(text)) if match_start < 0 else match_start


def overlap(words: Sequence[Span], tokens: Sequence[Span]) -> "npt.NDArray[np.float32]":
    """Return a float32 array of (words, tokens) with the number of characters that each word shares with each token.

    Words and tokens are passed as spans of the same text.
    """
    import numpy as np

    shared = [[max(0, min(w.end, p.end) - max(w.start, p.start)) for p in tokens] for w in words]
    return np.array(shared, dtype=np.float32).reshape(len(words), len(tokens))


def encode_within_words(vocabulary: Vocabulary, text: str, words: Sequence[Span]) -> list[int]:
    """Return a list of the token ids of a text, without tokens that cross from one word into the next.

    In scripts without spaces, a token may span several words. Such a token is replaced by tokens of its parts, unless
    it is the unknown token.

    Args:
        vocabulary: the vocabulary.
        text: the text, normalized as the vocabulary does.
        words: the spans of the words in the text.
    """
    ids = vocabulary.encode(text)
    spans = token_spans(vocabulary.token_texts(ids), text)
    edges = sorted({edge for word in words for edge in word})
    cut: list[int] = []
    for id, span in zip(ids, spans, strict=True):
        inner = [edge for edge in edges if span.start < edge < span.end]
        if not inner or id == vocabulary.unk_id:
            cut.append(id)
            continue
        begins_word = vocabulary.token(id).startswith("▁")
        for number, (start, end) in enumerate(pairwise([span.start, *inner, span.end])):
            spaced = begins_word if number == 0 else text[start].isspace()
            cut.extend(_spell_part(vocabulary, text[start:end].strip(), spaced=spaced))
    return cut


def _spell_part(vocabulary: Vocabulary, part: str, *, spaced: bool) -> list[int]:
    """Return a list of token ids for a part of a text: a single token if the vocabulary has it, otherwise several.

    Args:
        vocabulary: the vocabulary.
        part: the part, without outer spaces; an empty part gives no ids.
        spaced: True if the first token begins with ▁, for a space before the part.
    """
    if not part:
        return []
    single = vocabulary.id(("▁" if spaced else "") + part)
    if single != vocabulary.unk_id:
        return [single]
    ids = vocabulary.encode(part)
    first = vocabulary.token(ids[0])
    if spaced or not first.startswith("▁"):
        return ids
    bare = vocabulary.id(first.removeprefix("▁"))
    return ids[1:] if first == "▁" else [bare, *ids[1:]]
