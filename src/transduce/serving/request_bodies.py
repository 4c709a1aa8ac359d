"""Read requests: check their limits and keys, read the body within limits on time and size, and parse it."""

import asyncio
import codecs
import json
import re
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from transduce.serving.batching import busy_error
from transduce.serving.limits import RateLimiter
from transduce.serving.messages import RequestError, UploadedFile, invalid_request

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

    from transduce.serving.service import Service


# --- parsing ---
# Parse a request's body as JSON, an URL-encoded form or a multipart form, or its query, into a typed message.


_Message = TypeVar("_Message")


_MAX_FIELDS = 1000
_FORM_BYTES = 64 << 10  # of a multipart form, besides the document in it
_MAX_SHOWN = 64  # characters of a key that an error quotes
_MISSING_FIELD = re.compile(r"Object missing required field `(\w+)`")


def read_message(body: bytes, content_type: str, query: str, message: type[_Message]) -> _Message:
    """Return the typed message of a request: an instance of the struct `message`.

    The message is read from the body if it is JSON. Otherwise it is read from the fields of the form and of the URL's
    query; the form's value counts if a field is in both.

    Args:
        body: the body, decompressed.
        content_type: the Content-Type header: JSON, a URL-encoded form or a multipart form. If the header is empty or
            names a URL-encoded form, as curl's default does, a body that starts with a brace is JSON.
        query: the URL's query; "" without one.
        message: the msgspec struct to read.

    Raises:
        RequestError: the body is malformed, has an unsupported content type, or does not fit the struct.
    """
    kind = content_type.partition(";")[0].strip().lower()
    # `curl -d '{…}'` names an URL-encoded form, in which the names of fields have no braces.
    is_untyped = kind in ("", "application/x-www-form-urlencoded")
    if kind == "application/json" or kind.endswith("+json") or (is_untyped and body.lstrip()[:1] == b"{"):
        return read_json(body, message)
    fields: _Fields
    if not body:
        fields = _with_query({}, query)
    elif kind == "application/x-www-form-urlencoded":
        fields = _with_query(read_form(body), query)
    elif kind == "multipart/form-data":
        files = [name for name, hint in get_type_hints(message).items() if UploadedFile in (hint, *get_args(hint))]
        fields = _with_query(read_multipart(body, content_type, files), query)
    else:
        raise RequestError(
            415,
            "The request's body must be application/json, application/x-www-form-urlencoded or multipart/form-data.",
        )
    return _convert(fields, message)


def read_json(body: bytes, message: type[_Message]) -> _Message:
    """Return the typed message in a JSON object: an instance of the struct `message`.

    Numbers and booleans may also be texts, such as "3", because LibreTranslate and DeepL accept both.

    Args:
        body: the JSON.
        message: the msgspec struct to read.

    Raises:
        RequestError: the body is not JSON in UTF-8, is nested too deeply, has an object in which a key occurs twice, or
            does not fit the struct.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    try:
        result = msgspec.json.decode(body, type=message, strict=False)
        json.loads(body, object_pairs_hook=_check_keys, parse_int=str, parse_float=str)
    except msgspec.ValidationError as error:
        raise _validation_error(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid_request(f"the body is not JSON in UTF-8 ({str(error).rstrip('.')}).") from None
    except RecursionError:
        raise invalid_request("the body is JSON that is nested too deeply.") from None
    return result


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    """Check that no key of a JSON object occurs twice, because decoders would keep only the last value.

    Args:
        pairs: keys and values of the object, in order.

    Raises:
        RequestError: a key is repeated.
    """
    counts = Counter(key for key, _ in pairs)
    if len(counts) < len(pairs):
        repeated = max(counts, key=counts.__getitem__)
        raise invalid_request(f"each key of a JSON object must occur once, but `{repeated[:_MAX_SHOWN]}` is repeated.")


def read_form(body: bytes) -> "_Fields":
    """Return a dict from the name of each field of a URL-encoded form to a list of the field's values.

    An ending "[]" is removed from names.

    Raises:
        RequestError: the form is not UTF-8, or has too many fields.
    """
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except UnicodeDecodeError:
        raise invalid_request("the form is not UTF-8.") from None
    except ValueError:
        raise invalid_request(f"the form has more than {_MAX_FIELDS} fields.") from None
    fields: _Fields = {}
    for name, value in pairs:
        fields.setdefault(name.removesuffix("[]"), []).append(value)
    return fields


_Fields = dict[str, list[str | UploadedFile]]


def read_multipart(body: bytes, content_type: str, file_fields: Collection[str] = ()) -> _Fields:
    """Return a dict from the name of each field of a multipart form (RFC 7578) to a list of the field's values.

    An ending "[]" is removed from names.

    Args:
        body: the form.
        content_type: the Content-Type header, which names the form's boundary.
        file_fields: names of the fields that are files; all others are texts.

    Raises:
        RequestError: the form is broken, has too many parts or a part without a name, or is not UTF-8.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise invalid_request("the multipart form must name its boundary.")
    collector = _Parts()
    try:
        parser = MultipartParser(boundary, collector.callbacks(), max_size=max(1, len(body)))
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise invalid_request("the multipart form is broken.") from None
    if not collector.has_ended:
        raise invalid_request("the multipart form must end with its boundary.")
    fields: _Fields = {}
    for part in collector.parts:
        try:
            name = part.name.decode("utf-8").removesuffix("[]")
            is_file = name in file_fields
            value = UploadedFile(part.file_name(), bytes(part.content)) if is_file else part.content.decode("utf-8")
            fields.setdefault(name, []).append(value)
        except UnicodeDecodeError:
            raise invalid_request("the multipart form is not UTF-8.") from None
    return fields


class _FormPart(NamedTuple):
    """A part of a multipart form as bytes: its name, the file name that the client sent (empty: none), its content."""

    name: bytes
    raw_file_name: bytes
    content: bytearray

    def file_name(self) -> str:
        """Return the uploaded file's name without folders; "" if the client sent none.

        Raises:
            UnicodeDecodeError: the name is not UTF-8.
        """
        return re.split(r"[/\\]", self.raw_file_name.decode("utf-8"))[-1]


class _Parts:
    """A collector of the parts of one multipart form from the events of python-multipart's parser."""

    def __init__(self) -> None:
        self.parts: list[_FormPart] = []
        self.has_ended = False
        self._options: Mapping[bytes, bytes] = {}
        self._header, self._value = bytearray(), bytearray()

    def callbacks(self) -> "MultipartCallbacks":
        """Return a dict from each event of python-multipart's parser to the method that handles it."""
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
            self._options = parse_options_header(bytes(self._value))[1]
        self._header.clear()
        self._value.clear()

    def _begin_content(self) -> None:
        name = self._options.get(b"name")
        if name is None:
            raise invalid_request("every part of the multipart form must have a name.")
        if len(self.parts) == _MAX_FIELDS:
            raise invalid_request(f"the multipart form has more than {_MAX_FIELDS} parts.")
        self.parts.append(_FormPart(name, self._options.get(b"filename", b""), bytearray()))
        self._options = {}

    def _add_to_content(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1].content.extend(data[start:end])

    def _end(self) -> None:
        self.has_ended = True


def _with_query(fields: _Fields, query: str) -> _Fields:
    return (read_form(query.encode("latin-1")) if query else {}) | fields


def _convert(fields: _Fields, message: type[_Message]) -> _Message:
    """Convert the fields of a form to a typed message.

    If a field of the message may be a text or a list, several values become a list, and a single value becomes a text.
    If it may be a list only, even a single value becomes a list. An empty value is ignored unless the field may be a
    text.

    Args:
        fields: the values of each field, which are texts or files.
        message: the msgspec struct to make.

    Raises:
        RequestError: a field occurs too often, or the fields do not fit the message.
    """
    hints = get_type_hints(message)
    values_by_name: dict[str, Any] = {}
    for name, values in fields.items():
        if values == [""] and name in hints and str not in (hints[name], *get_args(hints[name])):
            continue
        types = get_args(hints.get(name))
        if len(values) == 1 and (list[str] not in types or str in types):
            values_by_name[name] = values[0]
        elif list[str] in types:
            values_by_name[name] = values
        elif name in hints:
            raise invalid_request(f"the field `{name}` must occur once, but occurs {len(values)} times.")
    try:
        return msgspec.convert(values_by_name, message, strict=False)
    except msgspec.ValidationError as error:
        raise _validation_error(error) from None


def _validation_error(error: msgspec.ValidationError) -> RequestError:
    """Return the `RequestError` (status 400) for a request that does not fit its struct.

    For a missing field the sentence is "missing NAME parameter", as LibreTranslate's clients expect.
    """
    missing = _MISSING_FIELD.match(str(error))
    if missing:
        return invalid_request(f"missing {missing[1]} parameter")
    reason = str(error).replace(" - at `$.", " in `").replace(" - at `$`", "")
    return invalid_request(reason[:1].lower() + reason[1:])


def as_list(texts: str | Sequence[str]) -> list[str]:
    """Return a list of texts, from one text or from a sequence of texts."""
    return [texts] if isinstance(texts, str) else list(texts)


# --- reading ---
# Read a body within limits on its time and on its size, both compressed and decompressed.

# An oversized body is read and discarded up to this size, so that the client gets to read the refusal.
_MAX_DRAINED_BYTES = 64 << 20
_MAX_MEMBERS = 64  # each is inflated by an object of its own
_IDLE_SECONDS = 1.0  # a client that sends nothing for so long seems to wait for the answer
# zlib's `wbits`: 16 + 15 for a gzip header; 15 for a zlib header, which HTTP calls `deflate`.
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


async def read_body(request: Request, max_bytes: int, seconds: float) -> bytes:
    """Return the whole body of a request, decompressed.

    Args:
        request: the request.
        max_bytes: maximum size of the body in bytes, both compressed and decompressed.
        seconds: time in which the body must arrive.

    Raises:
        RequestError: the body is too large, arrives too slowly, has an unsupported Content-Encoding, or is not
            compressed as its header says.
    """
    chunks = request.stream()
    try:
        async with asyncio.timeout(seconds):
            return await _collect(chunks, _make_inflater(request.headers), _content_length(request.headers), max_bytes)
    except TimeoutError:
        error = RequestError(408, f"The request's body must arrive within {seconds:g} seconds.")
        error.close_connection = True
        raise error from None
    except RequestError as error:
        # A client that waits for status 100 has not begun to send.
        waits = request.headers.get("expect", "").lower() == "100-continue"
        error.close_connection = waits or not await _drain(chunks, seconds)
        raise


async def _collect(chunks: AsyncIterator[bytes], inflater: "Inflater | None", announced: int, max_bytes: int) -> bytes:
    body, received = bytearray(), 0
    if announced > max_bytes:
        raise body_too_large_error(max_bytes)
    async for chunk in chunks:
        received += len(chunk)
        body += chunk if inflater is None else inflater.decode(chunk, max_bytes + 1 - len(body))
        if max(received, len(body)) > max_bytes:
            raise body_too_large_error(max_bytes)
    if inflater is not None:
        inflater.finish()
    return bytes(body)


def body_too_large_error(max_bytes: int) -> RequestError:
    """Return the `RequestError` (status 413) for a request whose body has more than `max_bytes` bytes."""
    return RequestError(413, f"The request's body must have at most {max_bytes:,} bytes, also when it is uncompressed.")


async def _drain(chunks: AsyncIterator[bytes], seconds: float) -> bool:
    """Read and discard the rest of a refused body, so that the client reads the error response.

    Args:
        chunks: the rest of the body.
        seconds: the maximum time.

    Returns:
        True if the end was reached; False after the maximum time, after 64 MiB, or if nothing arrived for a second.
    """
    drained, ends_at = 0, time.monotonic() + seconds
    try:
        while time.monotonic() < ends_at:
            async with asyncio.timeout(_IDLE_SECONDS):
                drained += len(await anext(chunks))
            if drained > _MAX_DRAINED_BYTES:
                return False
    except StopAsyncIteration:
        return True
    except TimeoutError:
        return False
    return False


def _content_length(headers: Mapping[str, str]) -> int:
    length = headers.get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() else 0


class Inflater:
    """A decompressor of a request's body (gzip or deflate), chunk by chunk."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._zlib = zlib.decompressobj(_WINDOW_BITS[name])
        self._num_members = 1

    def decode(self, chunk: bytes, max_bytes: int) -> bytes:
        """Return the decompressed bytes of a chunk, but at most `max_bytes`.

        If a chunk has more, the caller must refuse the body, because the rest is lost.

        Raises:
            RequestError: the data is not compressed as the header says, or has too many gzip members.
        """
        if max_bytes <= 0:
            return b""
        try:
            decoded = self._zlib.decompress(chunk, max_bytes)
            while self.name != "deflate" and self._zlib.unused_data and len(decoded) < max_bytes:
                following = self._zlib.unused_data  # RFC 1952: a file of gzip may have several members
                self._num_members += 1
                if self._num_members > _MAX_MEMBERS:
                    raise RequestError(400, f"The request's body may have at most {_MAX_MEMBERS} members of gzip.")
                self._zlib = zlib.decompressobj(_WINDOW_BITS[self.name])
                decoded += self._zlib.decompress(following, max_bytes - len(decoded))
            return decoded
        except zlib.error:
            raise RequestError(400, f"The request's body is not {self.name}, as its header says.") from None

    def finish(self) -> None:
        """Check that the compressed data is complete, with nothing after its end.

        Raises:
            RequestError: the end is missing, or something follows it.
        """
        if not self._zlib.eof or self._zlib.unused_data:
            raise RequestError(400, f"The request's body is not one complete {self.name} stream.")


def _make_inflater(headers: Mapping[str, str]) -> Inflater | None:
    name = headers.get("content-encoding", "identity").strip().lower()
    if name in ("identity", ""):
        return None
    if name in _WINDOW_BITS:
        return Inflater(name)
    raise RequestError(415, "The request's body must be plain, gzip or deflate.")


# --- checks before decoding: rate limit, queue, size of the body, format and API key ---


class RequestChecks:
    """The checks of limits and API keys for requests of all APIs, and the parser of their bodies."""

    def __init__(self, service: "Service") -> None:
        self.service = service
        self.limiter = RateLimiter(service.settings.client_rate)

    async def read(self, request: Request, message: type[_Message]) -> _Message:
        """Return the typed message of a request that needs a decoding thread: an instance of the struct `message`.

        The rate limit and the queue are checked before the body is read. The API key is checked afterwards.

        Args:
            request: the request.
            message: the msgspec struct of its body or query.

        Raises:
            RequestError: a limit is exceeded, the queue is full, or the message or the API key is invalid.
        """
        self.take_from_rate(request)
        if not self.service.engine.batcher.free_slots():
            raise busy_error()
        return self._with_valid_key(request, await self.read_message(request, message))

    def _with_valid_key(self, request: Request, message: _Message) -> _Message:
        """Check the API key of a request, and return the request's message.

        The key is in a field of the message or in the Authorization header.

        Raises:
            RequestError: the key is missing or invalid.
        """
        self.check_key(request, getattr(message, "api_key", None) or getattr(message, "auth_key", None))
        return message

    async def read_message(self, request: Request, message: type[_Message], *, is_upload: bool = False) -> _Message:
        """Return the typed message of a request, without counting the request against the rate limit.

        Args:
            request: the request.
            message: the msgspec struct of its body or query.
            is_upload: the request contains a document, which has its own limits on size and time.

        Raises:
            RequestError: the body is too large, arrives too slowly, or is invalid.
        """
        settings = self.service.settings
        if is_upload:
            body = await read_body(request, settings.max_upload_bytes + _FORM_BYTES, settings.upload_seconds)
        else:
            body = await read_body(request, settings.max_body_bytes, settings.read_seconds)
        query = request.scope["query_string"].decode("latin-1")
        return read_message(body, request.headers.get("content-type", ""), query, message)

    async def read_upload(self, request: Request, message: type[_Message]) -> _Message:
        """Check the rate limit and the API key of a request with a document, and return its typed message.

        Args:
            request: the request.
            message: the msgspec struct of its form.

        Raises:
            RequestError: a limit is exceeded, or the message or the API key is invalid.
        """
        self.take_from_rate(request)
        return self._with_valid_key(request, await self.read_message(request, message, is_upload=True))

    def take_from_rate(self, request: Request) -> None:
        """Count a request against the rate limit of its client, which is identified by its address.

        Raises:
            RequestError: the client has sent too many requests.
        """
        self.limiter.take(request.client.host if request.client else "")

    def check_key(self, request: Request, key: str | None = None) -> str:
        """Check the API key of a request, and return the digest of the key, which identifies the client.

        The result is "" if the server has no keys.

        Args:
            request: the request, whose Authorization header may hold the key.
            key: the key in the request's fields; None: there is none.

        Raises:
            RequestError: the key is missing or invalid.
        """
        return self.service.keys.check(request.headers, key)
