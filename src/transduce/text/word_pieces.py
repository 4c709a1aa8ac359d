"""WordPiece, as BERT has it (Devlin et al. 2019): words, then the longest pieces from left to right."""

import unicodedata
from collections.abc import Container, Iterator, Sequence

import msgspec

_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
_GAPS = {" .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m", " 's": "'s"} | {
    " 've": "'ve",
    " 're": "'re",
}


class WordPieces(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="wordpiece"):
    """Cuts at spaces and around punctuation, then into pieces; a word that cannot be cut is one unknown piece."""

    unknown: str = "[UNK]"
    continuing: str = "##"
    """What a piece that does not begin a word begins with."""
    clean: bool = True
    """Control characters are dropped, and all spaces are alike."""
    lowercase: bool = True
    strip_accents: bool = True
    chinese: bool = True
    """Each Chinese character is a word."""
    longest_word: int = 100
    """In characters; what is longer is unknown."""

    def prepare(self, known: Container[str]) -> "WordPieceCutter":
        """What cuts into these pieces."""
        return WordPieceCutter(self, known)

    def normalize(self, text: str) -> str:
        """The text that is cut."""
        if self.clean:
            text = "".join(" " if _is_space(c) else c for c in text if not _is_control(c))
        if self.chinese:
            text = "".join(f" {c} " if _is_chinese(c) else c for c in text)
        if self.strip_accents:
            text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
        # One by one: as a whole, Python would give a sigma at a word's end its other form.
        return "".join(map(str.lower, text)) if self.lowercase else text


class WordPieceCutter:
    """WordPiece at work."""

    def __init__(self, settings: WordPieces, known: Container[str]) -> None:
        self._settings = settings
        self._known = known

    def normalize(self, text: str) -> str:
        """The text that is cut."""
        return self._settings.normalize(text)

    def cut(self, text: str) -> list[str]:
        """The pieces of a text."""
        return [piece for word in _words(self._settings.normalize(text)) for piece in self._cut_word(word)]

    def spelling(self, piece: str) -> str:
        """A piece as sentencepiece would spell it."""
        rest = piece.removeprefix(self._settings.continuing)
        return rest if rest != piece else f"▁{piece}"

    def join(self, pieces: Sequence[str]) -> str:
        """The text of pieces, without spaces before punctuation; what was dropped in cutting is gone."""
        text = " ".join(pieces).replace(f" {self._settings.continuing}", "")
        for gap, closed in _GAPS.items():
            text = text.replace(gap, closed)
        return text

    def _cut_word(self, word: str) -> list[str]:
        pieces: list[str] = []
        start = 0
        if len(word) > self._settings.longest_word:
            return [self._settings.unknown]
        while start < len(word):
            prefix = self._settings.continuing if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if prefix + word[start:end] in self._known), None)
            if end is None:
                return [self._settings.unknown]
            pieces.append(prefix + word[start:end])
            start = end
        return pieces


def _words(text: str) -> Iterator[str]:
    """Cut at spaces; each punctuation mark is a word."""
    word = ""
    for character in text:
        if _is_space(character) or _is_punctuation(character):
            if word:
                yield word
            word = ""
            if not _is_space(character):
                yield character
        else:
            word += character
    if word:
        yield word


def _is_space(character: str) -> bool:
    return character in "\t\n\v\f\r\x85" or unicodedata.category(character) in ("Zs", "Zl", "Zp")


def _is_control(character: str) -> bool:
    if character in "\t\n\r":
        return False
    return character in "\0\ufffd" or unicodedata.category(character)[0] == "C"


def _is_chinese(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in _CHINESE)


def _is_punctuation(character: str) -> bool:
    ascii_mark = character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    return ascii_mark or unicodedata.category(character)[0] == "P"
