"""Stream translations as server-sent events while they are decoded."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from transduce.serving.batching import ClientGoneError
from transduce.serving.messages import ErrorMessage, Progress, RequestError


class ProgressBuffer:
    """A buffer of the latest progress of each line, in which new progress replaces progress not sent yet."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], Progress] = {}
        self._arrived = asyncio.Event()

    def put(self, progress: Progress) -> None:
        """Store the progress of a line, which replaces earlier progress of this line."""
        self._latest[progress.index, progress.line] = progress
        self._arrived.set()

    async def wait_for_progress(self, answering: asyncio.Future[Any]) -> None:
        """Wait until new progress of a line is stored, or the answer is complete."""
        arrived = asyncio.ensure_future(self._arrived.wait())
        await asyncio.wait({arrived, answering}, return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()

    def take(self) -> list[Progress]:
        """Return the progress stored since the last call, at most one entry per line."""
        self._arrived.clear()
        progress = list(self._latest.values())
        self._latest.clear()
        return progress


class EventStream(Response):
    """A response that sends events as an iterator yields them; the iterator must watch for disconnected clients."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-store"}, media_type="text/event-stream")
        del self.headers["Content-Length"]
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the events of the stream to the client."""
        async with aclosing(self.events) as events:  # type: ignore[type-var]
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class EventFormatter:
    """A formatter of server-sent events: `progress`, then `result` or `error`."""

    def progress(self, progress: Progress) -> bytes:
        """Return the bytes of the server-sent event that reports a line's progress."""
        return server_event("progress", progress)

    def result(self, answer: Any) -> bytes:
        """Return the bytes of the server-sent event with the final answer."""
        return server_event("result", answer)

    def error(self, error: RequestError) -> bytes:
        """Return the bytes of the server-sent event with the error that ends the stream."""
        return server_event("error", ErrorMessage(error=error.sentence))


async def stream_response(
    answering: asyncio.Future[Any],
    latest: ProgressBuffer,
    finish: Callable[[], object],
    formatter: EventFormatter | None = None,
) -> EventStream:
    """Return a streamed response for an answer that is still being computed.

    Args:
        answering: the future of the answer.
        latest: collects the progress before the answer.
        finish: called once nothing more is sent, for whatever reason.
        formatter: formats the events; None: the default format.

    Raises:
        RequestError: the request is refused before any progress, so the response can still have the error's status.
    """
    try:
        await latest.wait_for_progress(answering)
        if answering.done():
            answering.result()
    except BaseException:
        answering.cancel()
        finish()
        raise
    return EventStream(_events(answering, latest, finish, formatter or EventFormatter()))


async def _events(
    answering: asyncio.Future[Any], latest: ProgressBuffer, finish: Callable[[], object], formatter: EventFormatter
) -> AsyncIterator[bytes]:
    try:
        while not answering.done():
            for progress in latest.take():
                yield formatter.progress(progress)
            await latest.wait_for_progress(answering)
        try:
            yield formatter.result(answering.result())
        except RequestError as error:
            yield formatter.error(error)
        except ClientGoneError:
            return
    finally:
        answering.cancel()
        finish()


def server_event(name: str, data: Any) -> bytes:
    """Return one server-sent event; JSON needs no escaping because it contains no line breaks."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
