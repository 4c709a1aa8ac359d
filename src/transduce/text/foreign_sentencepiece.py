"""Pieces of a sentencepiece model whose numbers are another toolkit's, and such models out of a table of pieces.

The numbers of fields are those of sentencepiece's published `sentencepiece_model.proto`.
"""

import struct
from collections.abc import Container, Sequence
from typing import Literal

import msgspec
from sentencepiece import SentencePieceProcessor

from transduce.errors import TransduceError
from transduce.text.model_proto import Piece, PieceType


class SentencePieces(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sentencepiece"):
    """Cuts as a sentencepiece model does, with the model's own normaliser."""

    model: bytes
    spaces: Literal["model", "all"] = "model"
    """`all`: every run of white space is a space, whatever the model's normaliser says."""

    def prepare(self, known: Container[str]) -> "SentencePieceCutter":  # noqa: ARG002
        """What cuts."""
        return SentencePieceCutter(self)


class SentencePieceCutter:
    """A sentencepiece model at work."""

    def __init__(self, settings: SentencePieces) -> None:
        """Raises TransduceError where the bytes are no such model."""
        self._collapses = settings.spaces == "all"
        try:
            # An empty model would be taken for one that is loaded later.
            self._processor = SentencePieceProcessor(model_proto=settings.model or b"empty")
        except RuntimeError:
            raise TransduceError("The tokenizer's sentencepiece model cannot be read: copy its file again.") from None

    def normalize(self, text: str) -> str:
        """The text itself: symbols are looked for in what is written."""
        return text

    def cut(self, text: str) -> list[str]:
        """The pieces of a text; where none fits, the characters themselves."""
        if self._collapses:
            text = " ".join(text.split())
        pieces: list[str] = self._processor.encode(text, out_type=str)
        return pieces

    def join(self, pieces: Sequence[str]) -> str:
        """The text of pieces."""
        text: str = self._processor.decode_pieces(list(pieces))
        return text.replace("▁", " ").strip()


def unigram_model(pieces: Sequence[Piece], *, byte_fallback: bool, space_first: bool, rules: bytes = b"") -> bytes:
    """A sentencepiece model of the unigram kind.

    Args:
        pieces: with log-probabilities, in the order of their ids; one is the unknown piece.
        byte_fallback: characters without a piece are spelt by bytes, which have pieces.
        space_first: a text begins with a space, said or not.
        rules: a normaliser's table, as sentencepiece compiles it; empty: characters stay as they are.
    """
    rows = (
        _text(1, _text(1, piece.text.encode()) + _key(2, 5) + struct.pack("<f", piece.score) + _number(3, piece.type))
        for piece in pieces
    )
    trainer = _number(3, 1) + _number(35, int(byte_fallback))
    return b"".join(rows) + _text(2, trainer) + _text(3, _normalizer(rules, space_first=space_first))


def normalizer_model(rules: bytes) -> bytes:
    """A sentencepiece model that does nothing but normalise."""
    pieces = [Piece("<unk>", 0.0, PieceType.UNKNOWN), Piece("▁", 0.0, PieceType.NORMAL)]  # there must be one
    return unigram_model(pieces, byte_fallback=False, space_first=False, rules=rules)


def _normalizer(rules: bytes, *, space_first: bool) -> bytes:
    return _text(2, rules) + _number(3, int(space_first)) + _number(4, 1) + _number(5, 1)


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _number(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value)


def _text(number: int, value: bytes) -> bytes:
    return _key(number, 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Seven bits a byte, lowest first."""
    content = bytearray()
    while value > 0x7F:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*content, value])
