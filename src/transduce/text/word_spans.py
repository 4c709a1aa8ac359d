"""Where words and pieces stand in a sentence, so that what is known of pieces can be said of words."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transduce.errors import TransduceError
from transduce.text.languages import stands_without_spaces
from transduce.text.vocabulary import Vocabulary

_END, _UNKNOWN = "</s>", "<unk>"
_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")


class Span(NamedTuple):
    """A stretch of a text, in characters."""

    start: int
    end: int


def split_words(text: str) -> list[Span]:
    """What spaces separate; in a script without spaces (Chinese, kana, Thai) every character is a word."""
    spans: list[Span] = []
    for match in re.finditer(r"\S+", text):
        start = match.start()
        for place in range(match.start(), match.end()):
            if not stands_without_spaces(text[place]):
                continue
            if start < place:
                spans.append(Span(start, place))
            spans.append(Span(place, place + 1))
            start = place + 1
        if start < match.end():
            spans.append(Span(start, match.end()))
    return spans


def locate_words(words: Sequence[str], text: str) -> list[Span]:
    """Where these words stand in the text, in their order.

    Raises:
        TransduceError: one of them does not.
    """
    spans: list[Span] = []
    place = 0
    for word in words:
        place = text.find(word, place)
        if place < 0:
            raise TransduceError(
                f"Words must stand in their sentence one after another, but `{word}` does not come next in `{text}`: "
                "give the words of the same line."
            )
        spans.append(Span(place, place + len(word)))
        place += len(word)
    return spans


def piece_spans(pieces: Sequence[str], text: str) -> list[Span]:
    """The characters that each piece spells, without the space before a word.

    A byte of a character spells the whole character, the unknown piece what nothing else spells, white space and the
    end symbol nothing.

    Args:
        pieces: of this text, as `Vocabulary.spellings` has them.
        text: what was cut into pieces, as `Vocabulary.as_seen` gives it.
    """
    spans: list[Span] = []
    place, number = 0, 0
    while number < len(pieces):
        group, count = _byte_group(pieces, number)
        if group:
            start, place = _take(text, place, group.decode("utf-8", "replace").strip())
            spans.extend([Span(start, place)] * count)
            number += count
            continue
        if pieces[number] == _UNKNOWN:
            # Other white space than the space itself may be what has no piece.
            start = place + len(text[place:]) - len(text[place:].lstrip(" "))
            place = _next_known(pieces[number + 1 :], text, start)
        elif pieces[number] == _END:
            start = place = len(text)
        else:
            start, place = _take(text, place, pieces[number].replace("▁", " ").strip())
        spans.append(Span(start, place))
        number += 1
    return spans


def _byte_group(pieces: Sequence[str], first: int) -> tuple[bytes, int]:
    """What the pieces of bytes from `first` on spell until a character is whole, and how many they are."""
    group = b""
    for count, piece in enumerate(pieces[first:], 1):
        if not _BYTES.fullmatch(piece):
            return group, count - 1
        own = bytes.fromhex(piece.replace("<0x", "").replace(">", ""))
        if group and own[0] & 0xC0 != 0x80:  # the one before is broken off
            return group, count - 1
        group += own
        if _is_whole(group):
            return group, count
    return group, len(pieces) - first


def _is_whole(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _take(text: str, place: int, spelt: str) -> tuple[int, int]:
    """Where `spelt` stands from `place` on; a piece of spaces alone spells nothing."""
    start = _skip_spaces(text, place) if spelt else place
    end = start
    for character in spelt:
        if character == " ":  # a piece over several words; the text may have more spaces there
            end = _skip_spaces(text, end)
        else:
            end += 1
    return min(start, len(text)), min(end, len(text))


def _skip_spaces(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _next_known(following: Sequence[str], text: str, start: int) -> int:
    """Where the next piece begins after an unknown one, which spells at least a character."""
    if not following or following[0] == _END:
        return len(text.rstrip())
    piece = following[0].removeprefix("▁")
    if piece != following[0]:  # a new word: the unknown piece ends with its own
        match = re.compile(r"\s").search(text, start)
        return len(text) if match is None else match.start()
    found = text.find(piece, start + 1) if piece else -1
    return min(start + 1, len(text)) if found < 0 else found


def overlap(words: Sequence[Span], pieces: Sequence[Span]) -> npt.NDArray[np.float32]:
    """How many characters each word shares with each piece, (words, pieces)."""
    shared = [[max(0, min(w.end, p.end) - max(w.start, p.start)) for p in pieces] for w in words]
    return np.array(shared, dtype=np.float32).reshape(len(words), len(pieces))


def cut_at_words(vocabulary: Vocabulary, text: str, words: Sequence[Span]) -> list[int]:
    """The text's ids, where no piece reaches from one word into the next.

    A vocabulary of a script without spaces has pieces of several words; such a piece is replaced by those of its parts.
    """
    ids = vocabulary.encode(text)
    spans = piece_spans(vocabulary.spellings(ids), text)
    edges = sorted({edge for word in words for edge in word})
    cut: list[int] = []
    for id, span in zip(ids, spans, strict=True):
        inner = [edge for edge in edges if span.start < edge < span.end]
        if not inner or id == vocabulary.unk_id:
            cut.append(id)
            continue
        begins_word = vocabulary.piece(id).startswith("▁")
        for number, (start, end) in enumerate(pairwise([span.start, *inner, span.end])):
            spaced = begins_word if number == 0 else text[start].isspace()
            cut.extend(_spell_part(vocabulary, text[start:end].strip(), spaced=spaced))
    return cut


def _spell_part(vocabulary: Vocabulary, part: str, *, spaced: bool) -> list[int]:
    """A part as one piece where there is such a piece, else as those that the vocabulary cuts it into by itself."""
    if not part:
        return []
    whole = vocabulary.id(("▁" if spaced else "") + part)
    if whole != vocabulary.unk_id:
        return [whole]
    ids = vocabulary.encode(part)
    first = vocabulary.piece(ids[0])
    if spaced or not first.startswith("▁"):
        return ids
    bare = vocabulary.id(first.removeprefix("▁"))
    return ids[1:] if first == "▁" else [bare, *ids[1:]]
