"""One text file → its lines; and files written whole or not at all.

Text is split at the line feed only: U+2028, U+0085 or a carriage return inside a line are characters of that
line.
"""

import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from transduce.errors import TransduceError

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass
class LineNotes:
    """What reading took away from the lines: counted here, so that it can be reported."""

    carriage_returns: int = 0
    byte_order_marks: int = 0


def read_lines(path: str | Path, notes: LineNotes | None = None) -> Iterator[str]:
    """Stream the lines of a UTF-8 file, plain or gzip, without their line feeds.

    A byte order mark at the start and a carriage return before a line feed are removed and counted in
    ``notes``. An empty file has no lines. Raises TransduceError naming file and line for whatever cannot be
    read.
    """
    return decode_lines(_raw_lines(Path(path)), str(path), notes)


def decode_lines(raw_lines: Iterable[bytes], name: str, notes: LineNotes | None = None) -> Iterator[str]:
    """Decode lines of bytes, such as a binary stream yields; ``name`` stands for the file in errors."""
    notes = notes if notes is not None else LineNotes()
    start = 0  # offset of the line's first byte in the (uncompressed) file
    for number, raw in enumerate(raw_lines, 1):
        line, skipped = raw, 0
        if number == 1 and raw.startswith(_BYTE_ORDER_MARK):
            notes.byte_order_marks += 1
            skipped = len(_BYTE_ORDER_MARK)
            line = raw[skipped:]
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _undecodable(raw, name, number, start + skipped + error.start) from None
        start += len(raw)
        if text.endswith("\r\n"):
            notes.carriage_returns += 1
            text = text[:-2]
        yield text.removesuffix("\n")


def _raw_lines(path: Path) -> Iterator[bytes]:
    number = 0
    try:
        with path.open("rb") as plain, _uncompressed(plain, path) as stream:
            for raw in stream:
                number += 1
                yield raw
    except FileNotFoundError:
        raise TransduceError(f"{path} does not exist: check the file's name.") from None
    except IsADirectoryError:
        raise TransduceError(f"{path} is a folder, but a text file is needed: name a file in it.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise TransduceError(
            f"{path} is not a whole gzip file, it breaks off after line {number}: copy or compress it again."
        ) from None
    except OSError as error:
        raise TransduceError(f"{path} cannot be read ({error.strerror}): check its permissions.") from None


def _uncompressed(plain: io.BufferedReader, path: Path) -> BinaryIO:
    compressed = plain.peek(2).startswith(_GZIP_MAGIC)
    if path.suffix == ".gz" and not compressed:
        raise TransduceError(f"{path} is not gzip although its name ends in .gz: compress or rename it.")
    # The buffer around it makes reading by lines several times faster.
    return cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=plain), 1 << 16)) if compressed else plain


def _undecodable(raw: bytes, name: str, number: int, offset: int) -> TransduceError:
    if number == 1 and raw.startswith(_UTF_16_MARKS):
        return TransduceError(f"{name}:1: files must be UTF-8, but this one begins as UTF-16: convert it first.")
    return TransduceError(
        f"{name}:{number}: files must be UTF-8, but the byte at offset {offset} does not continue a "
        "character: convert the file or mend the line."
    )
