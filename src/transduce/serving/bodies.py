"""Read a request's body within limits on its time and on its size, both compressed and decompressed."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from transduce.serving.request_error import RequestError
from transduce.serving.settings import ServingSettings

# An oversized body is read and discarded up to this size, so that the client gets to read the refusal.
_MAX_DRAINED_BYTES = 64 << 20
# zlib's `wbits`: 16 + 15 for a gzip header; 15 for a zlib header, which HTTP calls `deflate`.
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class Incoming(Protocol):
    """A request whose body can be read: the part of Starlette's `Request` that this module uses."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Return the headers by lower-case name."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the body in chunks as they arrive."""


async def read_body(request: Incoming, settings: ServingSettings) -> bytes:
    """Return the whole body of a request, decompressed.

    Raises:
        RequestError: the body is too large, arrives too slowly, or is not compressed as its header says.
    """
    chunks = request.stream()
    try:
        async with asyncio.timeout(settings.read_seconds):
            return await _collect(chunks, _make_decoder(request.headers), _content_length(request.headers), settings)
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
    max_bytes = settings.max_body_bytes
    body, received = bytearray(), 0
    if announced > max_bytes:
        raise too_large(max_bytes)
    async for chunk in chunks:
        received += len(chunk)
        body += decoder.decode(chunk, max_bytes + 1 - len(body))
        if max(received, len(body)) > max_bytes:
            raise too_large(max_bytes)
    decoder.finish()
    return bytes(body)


def too_large(most: int) -> RequestError:
    """Return the error for a body with more than `most` bytes."""
    return RequestError(413, f"The request's body must have at most {most:,} bytes, also when it is uncompressed.")


async def _drain(chunks: AsyncIterator[bytes], seconds: float) -> bool:
    """Read and discard the rest of a body, and return whether its end was reached."""
    drained = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in chunks:
                drained += len(chunk)
                if drained > _MAX_DRAINED_BYTES:
                    return False
    except TimeoutError:
        return False
    return True


def _content_length(headers: Mapping[str, str]) -> int:
    length = headers.get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() else 0


class Decoder:
    """A decoder of a body that is not compressed."""

    def decode(self, chunk: bytes, most: int) -> bytes:  # noqa: ARG002
        """Return the decoded bytes of a chunk; subclasses stop after about `most` bytes."""
        return chunk

    def finish(self) -> None:
        """Check that the body is complete; a RequestError says what is missing."""


class Inflater(Decoder):
    """A decoder of gzip or deflate that never decompresses more bytes than requested."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._zlib = zlib.decompressobj(_WINDOW_BITS[name])

    def decode(self, chunk: bytes, most: int) -> bytes:
        """Return at most `most` decompressed bytes of a chunk, and leave the rest undecoded."""
        if most <= 0:
            return b""
        try:
            return self._zlib.decompress(chunk, most)
        except zlib.error:
            raise RequestError(400, f"The request's body is not {self.name}, as its header says.") from None

    def finish(self) -> None:
        """Check that the compressed data has ended, with nothing after its end."""
        if not self._zlib.eof or self._zlib.unused_data:
            raise RequestError(400, f"The request's body is not one complete {self.name} stream.")


def _make_decoder(headers: Mapping[str, str]) -> Decoder:
    name = headers.get("content-encoding", "identity").strip().lower()
    if name in ("identity", ""):
        return Decoder()
    if name in _WINDOW_BITS:
        return Inflater(name)
    raise RequestError(415, "The request's body must be plain, gzip or deflate.")
