"""Reader and editor of the pieces in a sentencepiece model file, without the protobuf library.

A message is a sequence of fields: a key (field number and wire type), then a varint, a fixed number of bytes, or a
length and as many bytes. The numbers are those of sentencepiece's published ``sentencepiece_model.proto``.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

_VARINT, _FIXED_64, _LENGTH_DELIMITED, _FIXED_32 = 0, 1, 2, 5
_MODEL_PIECES, _MODEL_TRAINER, _MODEL_NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_TRAINER_MODEL_TYPE = 3
_BPE, _CHARACTER = 2, 4
_DUMMY_PREFIX, _REMOVE_EXTRA_SPACES = 3, 4
_NO = b"\x00"
_FLOAT = struct.Struct("<f")


class PieceType(IntEnum):
    """The role of a piece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Piece(NamedTuple):
    """A piece; a higher ``score`` is preferred (BPE: minus the rank; unigram: the log-probability)."""

    text: str
    score: float
    type: PieceType


class _Field(NamedTuple):
    """The number of a field and the range of its value in the file."""

    number: int
    start: int
    stop: int


def read_pieces(model_bytes: bytes) -> list[Piece]:
    """Return all pieces in the order of their ids."""
    return [_piece(model_bytes, field) for field in _piece_fields(model_bytes)]


def is_bpe(model_bytes: bytes) -> bool:
    """Return whether the model is BPE, which merges pairs of pieces, and not a unigram or character model."""
    return _model_type(model_bytes) == bytes([_BPE])


def is_by_character(model_bytes: bytes) -> bool:
    """Return whether every character is a piece."""
    return _model_type(model_bytes) == bytes([_CHARACTER])


def puts_space_first(model_bytes: bytes) -> bool:
    """Return whether the model inserts a space before a text, so that its first word is encoded like others."""
    return _part(model_bytes, _MODEL_NORMALIZER).get(_DUMMY_PREFIX) != _NO


def keeps_spaces(model_bytes: bytes) -> bool:
    """Return whether all spaces of a text are kept; otherwise outer ones are removed and runs collapsed."""
    return _part(model_bytes, _MODEL_NORMALIZER).get(_REMOVE_EXTRA_SPACES) == _NO


def _model_type(model_bytes: bytes) -> bytes | None:
    return _part(model_bytes, _MODEL_TRAINER).get(_TRAINER_MODEL_TYPE)


def _part(model_bytes: bytes, number: int) -> dict[int, bytes]:
    """Return the raw values of a submessage of the model."""
    for field in _fields(model_bytes, 0, len(model_bytes)):
        if field.number == number:
            return _values(model_bytes, field)
    return {}


def round_scores(model_bytes: bytes, fraction_bits: int) -> bytes:
    """Return the model with each score rounded to a multiple of 2 ** -fraction_bits."""
    rounded = bytearray(model_bytes)
    for piece in _piece_fields(model_bytes):
        for field in _fields(model_bytes, piece.start, piece.stop):
            if field.number == _PIECE_SCORE:
                (score,) = _FLOAT.unpack_from(rounded, field.start)
                _FLOAT.pack_into(rounded, field.start, round(score * 2**fraction_bits) / 2**fraction_bits)
    return bytes(rounded)


def _piece_fields(model_bytes: bytes) -> Iterator[_Field]:
    return (field for field in _fields(model_bytes, 0, len(model_bytes)) if field.number == _MODEL_PIECES)


def _piece(model_bytes: bytes, field: _Field) -> Piece:
    values = _values(model_bytes, field)
    (score,) = _FLOAT.unpack(values.get(_PIECE_SCORE, bytes(4)))
    type = PieceType(values.get(_PIECE_TYPE, bytes([PieceType.NORMAL]))[0])
    return Piece(values.get(_PIECE_TEXT, b"").decode("utf-8"), score, type)


def _values(message: bytes, outer: _Field) -> dict[int, bytes]:
    """Return the raw values of the fields in a submessage; varints as their bytes."""
    return {field.number: message[field.start : field.stop] for field in _fields(message, outer.start, outer.stop)}


def _fields(message: bytes, position: int, stop: int) -> Iterator[_Field]:
    while position < stop:
        key, start = _varint(message, position)
        wire_type = key & 7
        if wire_type == _VARINT:
            _, position = _varint(message, start)
        elif wire_type == _LENGTH_DELIMITED:
            length, start = _varint(message, start)
            position = start + length
        else:
            position = start + {_FIXED_32: 4, _FIXED_64: 8}[wire_type]
        yield _Field(key >> 3, start, position)


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Decode a varint (seven bits per byte, lowest first); return its value and the position after it."""
    value = shift = 0
    while message[position] & 0x80:
        value |= (message[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | message[position] << shift, position + 1
