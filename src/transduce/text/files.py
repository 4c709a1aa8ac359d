"""Read the lines of a text file, plain or compressed, one by one or in blocks.

Text is split only at line feeds: U+2028, U+0085 or a carriage return inside a line are characters of that line.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from transduce.errors import TransduceError, count_noun, import_extra, not_utf8, wide_encoding

# --- spreadsheets ---


def is_spreadsheet(path: str | Path) -> bool:
    """Return whether a file's name ends as those of spreadsheets do, such as pairs.xlsx."""
    return str(path).lower().endswith((".xlsx", ".xlsm", ".xls", ".ods"))


def spreadsheet_error(path: str | Path) -> TransduceError:
    """Return the error, to be raised by the caller, that a spreadsheet cannot be read as text."""
    return TransduceError(f"{path} is a spreadsheet, which is not read: save it in Excel as CSV UTF-8.")


_DOCTOR_SHOWS = "`transduce doctor` shows them and looks for swapped and misaligned pairs."


# --- canonical form ---
# Canonically equivalent texts, such as é and e with a combining accent, must have the same tokens. So vocabularies are
# learned from composed text (Unicode NFC), and texts are composed before they are tokenized. Compatible characters
# such as ½ and ２ stay as they are, unlike in NFKC.


_MOST_MARKS = 300
# All marks are among these characters, which few texts have many of in a row.
_MANY_SIGNS = re.compile(rf"(?<![^\w\s\x00-\x7f])[^\w\s\x00-\x7f]{{{_MOST_MARKS + 1}}}")


def compose(text: str) -> str:
    """Return the canonical composition (Unicode NFC) of a text: é instead of e with a combining accent.

    Sequences of more than 300 marks, which no language has, stay as they are: sorting them takes quadratic time.
    """
    if len(text) <= _MOST_MARKS or text.isascii() or _MANY_SIGNS.search(text) is None:
        return unicodedata.normalize("NFC", text)
    composed, before = list[str](), list[str]()
    for are_marks, characters in groupby(text, is_mark):
        part = "".join(characters)
        if are_marks and len(part) > _MOST_MARKS:
            composed += [unicodedata.normalize("NFC", "".join(before)), part]
            before = []
        else:
            before.append(part)
    return "".join([*composed, unicodedata.normalize("NFC", "".join(before))])


def is_composed(text: str) -> bool:
    """Return whether `compose` leaves a text as it is."""
    if len(text) <= _MOST_MARKS or text.isascii() or _MANY_SIGNS.search(text) is None:
        return unicodedata.is_normalized("NFC", text)
    return compose(text) == text


def is_mark(character: str) -> bool:
    """Return whether a character is a combining mark or decomposes into combining marks.

    Composition may change the order of such characters.
    """
    return unicodedata.combining(unicodedata.normalize("NFD", character)[0]) > 0


# --- lines of a file ---


_MAGIC = {
    "gzip": re.compile(rb"\x1f\x8b"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
    "bzip2": re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),  # the second is an empty file's
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "zip": re.compile(rb"PK\x03\x04"),
}
COMPRESSED_SUFFIXES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SURROGATE = re.compile("[\ud800-\udfff]")
# A file is refused if at least this many lines, and more than this share of those decoded so far, are not UTF-8.
_MANY_LINES, _MANY_SHARE = 20, 0.05
_CHUNK = 1 << 20
TEXT_START = 4096
"""The number of bytes at the start of a file that are checked for UTF-16, UTF-32 and binary formats."""
_SPREADSHEET_STARTS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # .xlsx and .ods, and .xls


MARKUP = re.compile(r"&(?:[a-zA-Z]{2,8}|#\d{2,6}|#x[0-9a-fA-F]{2,6});|</?[a-zA-Z][^<>]{0,80}>")
"""A pattern of HTML entities and tags, for counting texts that contain them by mistake."""
# Continuation bytes of UTF-8 as Latin-1 or Windows-1252 shows them.
_CONTINUATION = "[\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ]"
DAMAGED = re.compile(
    "\ufffd|[ÃÂ][\u0080-\u00bf]|â€[\u0080-\u00ff™œ˜“”]|[ÐÑ][\u0080-\u00bf]|[\u00c2-\u00f4][\u0080-\u009f]"
    rf"|(?:[ã-é]{_CONTINUATION}{{2}}){{2}}|锟斤拷|[锛銆鈥][\u4e00-\u9fff\u3040-\u30ff\ue000-\uf8ff]"
)
"""A pattern of replacement characters (in GBK, their bytes are 锟斤拷), and of UTF-8 that was decoded as Latin-1,
Windows-1252 or, with full-width punctuation or quotation marks, as GBK, and encoded again.
"""
INVISIBLE = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff]")


@dataclass
class LineNotes:
    """Counts of what was removed, replaced, skipped or noticed while lines of text were read, for reports."""

    line_end: str = "\n"
    r"""The end of the first line read: "\n" or "\r\n"."""
    carriage_returns: int = 0
    """The number of carriage returns that were removed at line ends."""
    byte_order_marks: int = 0
    """The number of byte order marks that were removed at file starts."""
    line_feeds: int = 0
    """The number of texts of JSON lines whose line feeds became spaces."""
    kept_line_feeds: int = 0
    """The number of texts of JSON lines whose line feeds were kept."""
    skipped_lines: int = 0
    """The number of lines in tables that are not pairs: headers, and lines without exactly two columns."""
    quoted_files: list[str] = field(default_factory=list)
    """The paths of tables whose fields are quoted as in CSV."""
    first_pairs: list[tuple[str, str]] = field(default_factory=list)
    """A list of (path, first line) for each table whose first line is read as a pair although it may name columns."""
    space_marks: int = 0
    """The number of texts with ▁ (U+2581), which vocabularies read as a space."""
    repeated_spaces: int = 0
    """The number of texts with leading, trailing or repeated spaces, which most vocabularies collapse."""
    decomposed: int = 0
    """The number of texts that are not in composed form (Unicode NFC), into which most vocabularies convert them."""
    marked_up: int = 0
    """The number of texts with HTML tags or entities."""
    damaged: int = 0
    """The number of texts with replacement characters, or with characters that were encoded twice."""
    invisible: int = 0
    """The number of texts with invisible characters, such as zero-width spaces."""
    unused_fields: dict[str, str] = field(default_factory=dict)
    """A dict from the name of each field of JSON objects that is not used to the file and line of its first
    occurrence.
    """

    def notices(self, *, writes_text: bool = True) -> list[str]:
        """Return a list of messages about text that is not taken literally, such as CSV quotes, ▁ and unused fields.

        `writes_text` is False for a model that writes no text, such as a classifier; some messages are then left out.
        """
        notices = [
            f"{path} quotes its fields as CSV does: the quotes are not part of the texts." for path in self.quoted_files
        ]
        notices += [
            f"{path}:1: “{first}” is read as a pair: if it names the columns, remove the line, or pass --columns."
            for path, first in self.first_pairs
        ]
        if self.line_feeds:
            count = count_noun(self.line_feeds, "text")
            notices.append(
                f"{count} had line feeds, which became spaces; translation keeps line feeds, as it translates each "
                "line apart. With --line-feeds (`tokenizer.line_feeds`) they are tokens."
                if writes_text
                else f"{count} had line feeds, which became spaces."
            )
        if self.kept_line_feeds:
            notices.append(f"{count_noun(self.kept_line_feeds, 'text')} with line feeds, which are tokens.")
        if self.space_marks:
            notices.append(
                f"{count_noun(self.space_marks, 'text')} with ▁ (U+2581): the vocabulary reads it as a space, so the "
                "model does not learn to write it."
            )
        if self.repeated_spaces:
            notices.append(
                f"{count_noun(self.repeated_spaces, 'text')} with outer or repeated spaces: the vocabulary collapses "
                f"them, so the model {'writes' if writes_text else 'reads'} single ones."
            )
        if writes_text and self.marked_up:
            notices.append(f"Unchanged: {count_noun(self.marked_up, 'text')} with tags or entities. {_DOCTOR_SHOWS}")
        if writes_text and self.damaged:
            notices.append(f"Unchanged: {count_noun(self.damaged, 'text')} with damaged characters. {_DOCTOR_SHOWS}")
        if writes_text and self.invisible:
            counted = count_noun(self.invisible, "text")
            notices.append(f"Unchanged: {counted} with invisible characters. {_DOCTOR_SHOWS}")
        if self.decomposed:
            notices.append(
                f"{count_noun(self.decomposed, 'text')} with letters and accents as separate characters: a vocabulary "
                "that is learned composes them (Unicode NFC)."
            )
        if self.unused_fields:
            named = ", ".join(f'"{name}" ({where})' for name, where in self.unused_fields.items())
            notices.append(f"Fields of JSON objects that are not used (first place): {named}.")
        return notices


def is_decodable(text: str) -> bool:
    """Return whether a text has no lone surrogates.

    A lone surrogate represents a byte that is not UTF-8, or comes from an escape in JSON.
    """
    return _SURROGATE.search(text) is None


def has_many_undecodable(count: int, lines: int) -> bool:
    """Return whether so many lines are not UTF-8 that the whole text must be in another encoding.

    That is at least 20 lines and over 5 % of the lines read.

    Args:
        count: the number of lines that are not UTF-8.
        lines: the number of lines read.
    """
    return count >= _MANY_LINES and count > lines * _MANY_SHARE


def read_lines(path: str | Path, notes: LineNotes | None = None, *, keep_undecodable: bool = False) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, plain or compressed, without their line feeds.

    A byte order mark at the start and a carriage return before a line feed are removed and counted in ``notes``. An
    empty file has no lines. With ``keep_undecodable``, bytes that are not UTF-8 become lone surrogates (see
    ``is_decodable``), so that the lines of two files still correspond; a file with many such lines is refused all the
    same.

    Raises:
        TransduceError: the file, or a line of it, cannot be read.
    """
    return decode_lines(_raw_lines(Path(path)), str(path), notes, keep_undecodable=keep_undecodable)


def decode_lines(
    raw_lines: Iterable[bytes], name: str, notes: LineNotes | None = None, *, keep_undecodable: bool = False
) -> Iterator[str]:
    """Decode lines of UTF-8 bytes, and yield the texts without line feeds; errors call the file ``name``.

    Byte order marks, carriage returns and bytes that are not UTF-8 are treated as by ``read_lines``.
    """
    decoder = _Decoder(name, notes if notes is not None else LineNotes(), keep_undecodable=keep_undecodable)
    for raw in raw_lines:
        yield decoder.decode_line(raw)


class LineBlocks:
    """A reader of a file's lines in blocks, used in a ``with`` statement.

    It is several times as fast as reading line by line. Line feeds, carriage returns before line feeds, and a byte
    order mark at the start are removed, as by ``read_lines``.
    """

    def __init__(self, path: str | Path, notes: LineNotes | None = None, *, keep_undecodable: bool = False) -> None:
        """Create a reader for a file of text; the file is opened by the ``with`` statement."""
        self._path = Path(path)
        self.checksum = 0
        """The CRC-32 of all lines read or skipped so far, as bytes of the (uncompressed) file."""
        notes = notes if notes is not None else LineNotes()
        self._decoder = _Decoder(str(path), notes, keep_undecodable=keep_undecodable)
        self._exit = ExitStack()

    def __enter__(self) -> "LineBlocks":
        with _explained(self._path, self._decoder):
            plain = self._exit.enter_context(self._path.open("rb"))
            try:
                self._stream = self._exit.enter_context(_uncompressed(plain, self._path, is_text=True))
            except BaseException:
                self._exit.close()
                raise
        return self

    def __exit__(self, *failure: object) -> None:
        self._exit.close()

    def read(self, max_lines: int) -> list[str]:
        """Return a list of the next ``max_lines`` lines of the file, or of all that are left; empty at its end.

        Raises:
            TransduceError: the file, or a line of it, cannot be read.
        """
        return self._decoder.decode_block(self._next_lines(max_lines))

    def skip(self, max_lines: int) -> int:
        """Skip up to ``max_lines`` lines of the file without decoding them. Return how many lines were skipped."""
        raw_lines = self._next_lines(max_lines)
        self._decoder.skip(raw_lines)
        return len(raw_lines)

    def _next_lines(self, max_lines: int) -> list[bytes]:
        raw_lines: list[bytes] = []
        with _explained(self._path, self._decoder, raw_lines):
            raw_lines.extend(islice(self._stream, max_lines))
        self.checksum = zlib.crc32(b"".join(raw_lines), self.checksum)
        return raw_lines


class _Decoder:
    """A decoder of a file's lines, in order, that tracks line number and offset for error messages."""

    def __init__(self, name: str, notes: LineNotes, *, keep_undecodable: bool = False) -> None:
        self._name, self._notes = name, notes
        self._keep_undecodable, self._undecodable_lines = keep_undecodable, 0
        self.lines = 0
        self.skipped = 0  # those of `lines` that were not decoded
        self._offset = 0  # offset of the next line's first byte in the (uncompressed) file

    def decode_line(self, raw: bytes) -> str:
        """Decode the file's next line, bytes that may end with a line feed, and return its text without the line end.

        Raises:
            TransduceError: the line is not UTF-8 and such lines are not kept, or there are too many of them.
        """
        line = self._without_mark(raw)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            offset = self._offset + len(raw) - len(line) + error.start
            encoding = None if self.lines else wide_encoding(raw)
            if encoding or not self._keep_undecodable:
                what = f"this one is {encoding}" if encoding else f"this line is not (the byte at offset {offset})"
                raise not_utf8(f"{self._name}:{self.lines + 1}", what, encoding) from None
            self._count_undecodable()
            text = line.decode("utf-8", "surrogateescape")
        self._refuse_other_ends(text)
        if self.lines == 0 and text.endswith("\r\n"):
            self._notes.line_end = "\r\n"
        self.lines += 1
        self._offset += len(raw)
        if text.endswith("\r\n"):
            self._notes.carriage_returns += 1
            text = text[:-2]
        return text.removesuffix("\n")

    def _count_undecodable(self) -> None:
        self._undecodable_lines += 1
        number = self.lines + 1
        if has_many_undecodable(self._undecodable_lines, number - self.skipped):
            raise not_utf8(f"{self._name}:{number}", f"{self._undecodable_lines} of the first {number} lines are not")

    def decode_block(self, raw_lines: list[bytes]) -> list[str]:
        """Decode a list of the file's next lines at once, and return a list of their texts without line ends.

        Decoding one line at a time is slower; it is done only for a block that is not all UTF-8.

        Raises:
            TransduceError: a line is not UTF-8 and such lines are not kept, or there are too many of them.
        """
        if not raw_lines:
            return []
        content = b"".join(raw_lines)
        has_mark = self.lines == 0 and content.startswith(_BYTE_ORDER_MARK)
        try:
            text = (content[len(_BYTE_ORDER_MARK) :] if has_mark else content).decode("utf-8")
        except UnicodeDecodeError:
            return [self.decode_line(raw) for raw in raw_lines]  # finds the line at fault
        self._notes.byte_order_marks += has_mark
        self._refuse_other_ends(text)
        if self.lines == 0 and raw_lines[0].endswith(b"\r\n"):
            self._notes.line_end = "\r\n"
        self.lines += len(raw_lines)
        self._offset += len(content)
        if "\r\n" in text:
            self._notes.carriage_returns += text.count("\r\n")
            text = text.replace("\r\n", "\n")
        return text.removesuffix("\n").split("\n")

    def skip(self, raw_lines: Sequence[bytes]) -> None:
        """Count the file's next lines without decoding them, so that later errors name the right line and offset."""
        self.skipped += len(raw_lines)
        self.lines += len(raw_lines)
        self._offset += sum(map(len, raw_lines))

    def _refuse_other_ends(self, text: str) -> None:
        """Raise an error if the text at the start of a file has several carriage returns but no line feed.

        Such a file would be read as a single line.
        """
        if not self.lines and text.count("\r") > 1 and "\n" not in text:
            raise TransduceError(
                f"{self._name} ends its lines with carriage returns alone, so it is one line: end them with line feeds."
            )

    def _without_mark(self, content: bytes) -> bytes:
        """Remove a byte order mark at the start of the file from `content`, and count it.

        Other bytes, and bytes from a later part of the file, are returned unchanged.
        """
        if self.lines or not content.startswith(_BYTE_ORDER_MARK):
            return content
        self._notes.byte_order_marks += 1
        return content[len(_BYTE_ORDER_MARK) :]


def _raw_lines(path: Path) -> Iterator[bytes]:
    counter = _Decoder(str(path), LineNotes())
    with _explained(path, counter), path.open("rb") as plain, _uncompressed(plain, path, is_text=True) as stream:
        for raw in stream:
            counter.lines += 1
            yield raw


def missing_file(path: str | Path) -> TransduceError:
    """Return the error that a file does not exist, to be raised by the caller.

    If the path is existing files joined by full-width commas, the message says to separate them by spaces.
    """
    names = re.split("[\uff0c\u3001\uff1b]\\s*", str(path))
    if len(names) > 1 and all(Path(name).exists() for name in names):
        return TransduceError(f"{path} does not exist: pass several files with a space between them: {' '.join(names)}")
    return TransduceError(f"{path} does not exist: check the file's name.")


@contextmanager
def _explained(path: Path, decoder: "_Decoder", taken: Sequence[bytes] = ()) -> Iterator[None]:
    """Convert errors of reading a file, in a ``with`` block, to TransduceErrors that name the file.

    For an incomplete compressed file, the message also names the line.

    Args:
        path: the file.
        decoder: the decoder, which counts the lines.
        taken: lines that were read but not decoded yet.
    """
    try:
        yield
    except FileNotFoundError:
        raise missing_file(path) from None
    except IsADirectoryError:
        raise TransduceError(f"{path} is a folder, but a text file is needed: name a file in it.") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError):
        raise _incomplete(path, decoder, taken) from None
    except OSError as error:
        if error.errno is None:  # the decompressor's
            raise _incomplete(path, decoder, taken) from None
        raise TransduceError(f"{path} cannot be read ({error.strerror}): check its permissions.") from None


def _incomplete(path: Path, decoder: "_Decoder", taken: Sequence[bytes]) -> TransduceError:
    number = decoder.lines + len(taken) + 1  # the block in which the error occurred yields no lines
    kind = COMPRESSED_SUFFIXES.get(path.suffix, "compressed")
    return TransduceError(
        f"{path} is an incomplete {kind} file, which ends at about line {number}: copy or compress it again."
    )


def _uncompressed(plain: io.BufferedReader, path: Path, *, is_text: bool = False) -> BinaryIO:
    start = plain.peek(16)
    if is_spreadsheet(path) and start.startswith(_SPREADSHEET_STARTS):
        raise spreadsheet_error(path)
    compression = next((name for name, magic in _MAGIC.items() if magic.match(start)), None)
    expected = COMPRESSED_SUFFIXES.get(path.suffix)
    if expected is not None and compression != expected:
        raise TransduceError(
            f"{path} is not {expected} although its name ends in {path.suffix}: compress or rename it."
        )
    if compression is None:
        return _checked(plain, path) if is_text else plain
    if compression == "zip":
        raise TransduceError(f"{path} is a zip archive, which may hold several files: unpack it.")
    # The buffer around it makes reading by lines several times faster.
    buffered = io.BufferedReader(cast(io.RawIOBase, _OPENERS[compression](plain, path)), 1 << 16)
    return _checked(buffered, path) if is_text else cast(BinaryIO, buffered)


_OPENERS: dict[str, Callable[[io.BufferedReader, Path], Any]] = {
    "gzip": lambda plain, _: gzip.GzipFile(fileobj=plain),
    "bzip2": lambda plain, _: bz2.BZ2File(plain),
    "xz": lambda plain, _: lzma.LZMAFile(plain),  # noqa: SIM115  (the caller closes it)
    "zstd": lambda plain, path: (
        import_extra("zstandard", "data", str(path))
        .ZstdDecompressor()
        .stream_reader(plain, read_across_frames=True, closefd=False)
    ),
}
"""A dict from a kind of compression to a function that returns the stream of a file's decompressed bytes.

The function's arguments are the stream of the compressed bytes and the file's path.
"""
_BINARY_STARTS = {
    b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"GIF8": "GIF",
    b"%PDF-": "PDF",
    b"{\\rtf": "RTF",
    b"\xd0\xcf\x11\xe0": "DOC/XLS/PPT",
}


def _checked(stream: "io.BufferedReader[Any]", path: Path) -> BinaryIO:
    """Return a stream of text unchanged after checking its first bytes.

    Raises:
        TransduceError: the bytes are those of a picture, a document, UTF-16 or UTF-32.
    """
    start = stream.peek(TEXT_START)[:TEXT_START]
    kind = next((name for magic, name in _BINARY_STARTS.items() if start.startswith(magic)), None)
    if kind is not None:
        raise TransduceError(f"{path} is a file of the kind {kind}, but text is needed: name a text file in UTF-8.")
    encoding = wide_encoding(start)
    if encoding:
        raise not_utf8(f"{path}:1", f"this one is {encoding}", encoding)
    return cast(BinaryIO, stream)


@contextmanager
def open_uncompressed(path: str | Path, *, is_text: bool = False) -> Iterator[BinaryIO]:
    """Open a file, plain or compressed, as a context manager whose value is the stream of its uncompressed bytes.

    Raises:
        TransduceError: the file cannot be read, or `is_text` is true and it is UTF-16, UTF-32, a picture or a document.
    """
    path = Path(path)
    with (
        _explained(path, _Decoder(str(path), LineNotes())),
        path.open("rb") as plain,
        _uncompressed(plain, path, is_text=is_text) as stream,
    ):
        yield stream


def uncompressed_name(path: str | Path) -> Path:
    """Return a path without the suffix of a compressed file, if it has one: a.tsv for a.tsv.gz."""
    path = Path(path)
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED_SUFFIXES else path


def unique_suffixes(paths: Sequence[Path]) -> list[str]:
    """Return a list of the shortest path endings that distinguish the paths, such as `de/train.txt`, to show to users.

    All endings have the same number of path components.
    """
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(path_parts[-length:]) for path_parts in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return [str(path) for path in paths]


def content_sha256(path: str | Path) -> str:
    """Return the SHA-256 digest of a file's content, uncompressed, in hexadecimal.

    Raises:
        TransduceError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with open_uncompressed(path) as stream:
        while content := stream.read(_CHUNK):
            digest.update(content)
    return digest.hexdigest()


def count_lone_carriage_returns(path: str) -> int:
    """Return how many carriage returns of a file have no line feed after them; 0 if the path is not a regular file."""
    count, last = 0, b""
    if not Path(path).is_file():
        return 0
    with Path(path).open("rb") as plain, _uncompressed(plain, Path(path)) as stream:
        while content := last + stream.read(_CHUNK):
            last = content[-1:] if content.endswith(b"\r") and len(content) > 1 else b""
            complete = content.removesuffix(last)
            count += complete.count(b"\r") - complete.count(b"\r\n")
    return count
