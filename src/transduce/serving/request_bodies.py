"""The body of a request, read within bounds: so many bytes, before and after uncompressing, within so many seconds."""

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from transduce.serving.messages import RequestError, invalid
from transduce.serving.settings import ServingSettings

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks


# --- encodings ---
# A request's body → a typed message, in the three encodings that clients use: JSON, form, multipart; or the query.


_Message = TypeVar("_Message")

_MOST_FIELDS = 1000
_MISSING_FIELD = re.compile(r"Object missing required field `(\w+)`")


def read_message(body: bytes, content_type: str, query: str, message: type[_Message]) -> _Message:
    """The message that a request holds.

    Args:
        body: uncompressed.
        content_type: as the header says it; where it says nothing, an opening brace means JSON.
        query: of the URL; its fields count where the body is a form and does not have them.
        message: a struct.

    Raises:
        RequestError: the body is broken, in no known encoding, or not such a message.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json") or (not kind and body.lstrip()[:1] == b"{"):
        return read_json(body, message)
    if not body:
        fields = read_form(query.encode())
    elif kind == "application/x-www-form-urlencoded":
        fields = _with_query(read_form(body), query)
    elif kind == "multipart/form-data":
        fields = _with_query(read_multipart(body, content_type), query)
    else:
        raise RequestError(
            415,
            "The request's body must be application/json, application/x-www-form-urlencoded or multipart/form-data.",
        )
    return _convert(fields, message)


def read_json(body: bytes, message: type[_Message]) -> _Message:
    """A JSON object, each key of which stands once."""
    try:
        found = msgspec.json.decode(body, type=message)
        compact = msgspec.json.format(body, indent=-1)
        keys = msgspec.json.decode(compact, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        raise _wrong(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise invalid("the body is not JSON in UTF-8.") from None
    except RecursionError:
        raise invalid("the body is JSON that is nested too deeply.") from None
    # Of a key that stands twice a dictionary keeps one, and so comes out shorter.
    if len(msgspec.json.encode(keys)) < len(compact):
        raise invalid("each key of the JSON object must stand once, and be written without escapes.")
    return found


def read_form(body: bytes) -> dict[str, list[str]]:
    """The fields of an URL-encoded form."""
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except UnicodeDecodeError:
        raise invalid("the form is not UTF-8.") from None
    except ValueError:
        raise invalid(f"the form has more than {_MOST_FIELDS} fields.") from None
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        fields.setdefault(name.removesuffix("[]"), []).append(value)
    return fields


def read_multipart(body: bytes, content_type: str) -> dict[str, list[str]]:
    """Return the fields of a multipart form as texts, files included (RFC 7578).

    Raises:
        RequestError: the form is broken, has too many parts, or is not UTF-8.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise invalid("the multipart form must name its boundary.")
    parts = _Parts()
    try:
        parser = MultipartParser(boundary, parts.callbacks(), max_size=max(1, len(body)))
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise invalid("the multipart form is broken.") from None
    if not parts.has_ended:
        raise invalid("the multipart form must end with its boundary.")
    fields: dict[str, list[str]] = {}
    for name, content in parts.found:
        try:
            fields.setdefault(name.decode("utf-8").removesuffix("[]"), []).append(content.decode("utf-8"))
        except UnicodeDecodeError:
            raise invalid("the multipart form is not UTF-8.") from None
    return fields


class _Parts:
    """Collects the parts of one multipart form from the events of python-multipart's parser."""

    def __init__(self) -> None:
        self.found: list[tuple[bytes, bytearray]] = []
        self.has_ended = False
        self._name: bytes | None = None
        self._header, self._value = bytearray(), bytearray()

    def callbacks(self) -> "MultipartCallbacks":
        """Return the handler of each event."""
        return {
            "on_header_field": self._add_to_header,
            "on_header_value": self._add_to_value,
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_content,
            "on_part_data": self._add_to_content,
            "on_end": self._end,
        }

    def _add_to_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _add_to_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._name = parse_options_header(bytes(self._value))[1].get(b"name")
        self._header.clear()
        self._value.clear()

    def _begin_content(self) -> None:
        if self._name is None:
            raise invalid("every part of the multipart form must have a name.")
        if len(self.found) == _MOST_FIELDS:
            raise invalid(f"the multipart form has more than {_MOST_FIELDS} parts.")
        self.found.append((self._name, bytearray()))
        self._name = None

    def _add_to_content(self, data: bytes, start: int, end: int) -> None:
        self.found[-1][1].extend(data[start:end])

    def _end(self) -> None:
        self.has_ended = True


def _with_query(fields: dict[str, list[str]], query: str) -> dict[str, list[str]]:
    return (read_form(query.encode("latin-1")) if query else {}) | fields


def _convert(fields: dict[str, list[str]], message: type[_Message]) -> _Message:
    """A form has texts only. A field that stands several times is a list where the message takes one; one that was left
    empty was not said, where the message takes no text.
    """
    hints = get_type_hints(message)
    said: dict[str, Any] = {}
    for name, values in fields.items():
        if values == [""] and name in hints and str not in (hints[name], *get_args(hints[name])):
            continue
        if len(values) == 1:
            said[name] = values[0]
        elif list[str] in get_args(hints.get(name)):
            said[name] = values
        elif name in hints:
            raise invalid(f"the field `{name}` must stand once, but stands {len(values)} times.")
    try:
        return msgspec.convert(said, message, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong(error) from None


def _wrong(error: msgspec.ValidationError) -> RequestError:
    """In words that clients look for."""
    missing = _MISSING_FIELD.match(str(error))
    if missing:
        return invalid(f"missing {missing[1]} parameter")
    said = str(error).replace(" - at `$.", " in `").replace(" - at `$`", "")
    return invalid(said[:1].lower() + said[1:])


def listed(texts: str | Sequence[str]) -> list[str]:
    """One text or several, as a list."""
    return [texts] if isinstance(texts, str) else list(texts)


# --- request bodies ---


# What a client sends beyond the limit is thrown away up to here, so that it reads the refusal; then the line is cut.
_MOST_DRAINED_BYTES = 64 << 20
# wbits of zlib: 16 + 15 expects gzip's header, 15 zlib's, which `deflate` means.
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class Incoming(Protocol):
    """What is needed of a request."""

    @property
    def headers(self) -> Mapping[str, str]:
        """By lower-case name."""

    def stream(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""


async def read_body(request: Incoming, settings: ServingSettings) -> bytes:
    """The whole body, uncompressed.

    Raises:
        RequestError: it is too large, too slow, or not compressed as it says.
    """
    chunks = request.stream()
    try:
        async with asyncio.timeout(settings.read_seconds):
            return await _collect(chunks, _decoder(request.headers), _announced(request.headers), settings)
    except TimeoutError:
        error = RequestError(408, f"The request's body must arrive within {settings.read_seconds:g} seconds.")
        error.close_connection = True
        raise error from None
    except RequestError as error:
        error.close_connection = not await _drain(chunks, settings.read_seconds)
        raise


async def _collect(
    chunks: AsyncIterator[bytes], decoder: "Decoder", announced: int, settings: ServingSettings
) -> bytes:
    most = settings.max_body_bytes
    body, received = bytearray(), 0
    if announced > most:
        raise too_large(most)
    async for chunk in chunks:
        received += len(chunk)
        body += decoder.decode(chunk, most + 1 - len(body))
        if max(received, len(body)) > most:
            raise too_large(most)
    decoder.finish()
    return bytes(body)


def too_large(most: int) -> RequestError:
    """The body has too many bytes."""
    return RequestError(413, f"The request's body must have at most {most:,} bytes, also when it is uncompressed.")


async def _drain(chunks: AsyncIterator[bytes], seconds: float) -> bool:
    """Throws away what is left of a body, and tells whether that was all of it."""
    drained = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in chunks:
                drained += len(chunk)
                if drained > _MOST_DRAINED_BYTES:
                    return False
    except TimeoutError:
        return False
    return True


def _announced(headers: Mapping[str, str]) -> int:
    said = headers.get("content-length", "0")
    return int(said) if said.isascii() and said.isdigit() else 0


class Decoder:
    """Bytes as they are."""

    def decode(self, chunk: bytes, most: int) -> bytes:  # noqa: ARG002
        """At most so many bytes out of a chunk, or a few more."""
        return chunk

    def finish(self) -> None:
        """Raises RequestError where something is missing."""


class Inflater(Decoder):
    """Uncompresses, and never further than is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._zlib = zlib.decompressobj(_WINDOW_BITS[name])

    def decode(self, chunk: bytes, most: int) -> bytes:
        """At most so many bytes; whatever is compressed beyond them stays so."""
        if most <= 0:
            return b""
        try:
            return self._zlib.decompress(chunk, most)
        except zlib.error:
            raise RequestError(400, f"The request's body is not {self.name}, as its header says.") from None

    def finish(self) -> None:
        """Compressed data says where it ends."""
        if not self._zlib.eof or self._zlib.unused_data:
            raise RequestError(400, f"The request's body is not one whole piece of {self.name}.")


def _decoder(headers: Mapping[str, str]) -> Decoder:
    name = headers.get("content-encoding", "identity").strip().lower()
    if name in ("identity", ""):
        return Decoder()
    if name in _WINDOW_BITS:
        return Inflater(name)
    raise RequestError(415, "The request's body must be plain, gzip or deflate.")
