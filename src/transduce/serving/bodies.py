"""The body of a request, read within bounds: so many bytes, before and after uncompressing, within so many seconds."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from transduce.serving.request_error import RequestError
from transduce.serving.settings import ServingSettings

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
