"""Translations as they come about: server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from transduce.serving.batching import ClientGoneError
from transduce.serving.messages import ErrorMessage, Progress, RequestError


class LatestProgress:
    """How far each line is. A client that is slow to take it misses steps, and nothing piles up."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], Progress] = {}
        self._arrived = asyncio.Event()

    def put(self, progress: Progress) -> None:
        """Replaces what was known of the line."""
        self._latest[progress.index, progress.line] = progress
        self._arrived.set()

    async def wait_beside(self, answering: asyncio.Future[Any]) -> None:
        """Until there is something to take, or the answer has come."""
        arrived = asyncio.ensure_future(self._arrived.wait())
        await asyncio.wait({arrived, answering}, return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()

    def take(self) -> list[Progress]:
        """What has come since the last time, a line at most once."""
        self._arrived.clear()
        taken = list(self._latest.values())
        self._latest.clear()
        return taken


class EventStream(Response):
    """An answer that is sent as it comes about. Whether the client is still there is the producer's concern."""

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-store"}, media_type="text/event-stream")
        del self.headers["Content-Length"]
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Sends the events."""
        async with aclosing(self.events) as events:  # type: ignore[type-var]
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class Wording:
    """How events are written: `progress`, then `result` or `error`."""

    def progress(self, progress: Progress) -> bytes:
        """How far a line is."""
        return server_event("progress", progress)

    def result(self, answer: Any) -> bytes:
        """The answer."""
        return server_event("result", answer)

    def error(self, error: RequestError) -> bytes:
        """Why there is none."""
        return server_event("error", ErrorMessage(error=error.sentence))


async def stream_answer(
    answering: asyncio.Future[Any],
    latest: LatestProgress,
    finish: Callable[[], object],
    wording: Wording | None = None,
) -> EventStream:
    """The stream of an answer that is on its way.

    Args:
        answering: becomes the result.
        latest: what there is before it.
        finish: called when nothing more is sent, for whatever reason.
        wording: writes the events.

    Raises:
        RequestError: it is refused before there was anything to send, so that its status can be told.
    """
    try:
        await latest.wait_beside(answering)
        if answering.done():
            answering.result()
    except BaseException:
        answering.cancel()
        finish()
        raise
    return EventStream(_events(answering, latest, finish, wording or Wording()))


async def _events(
    answering: asyncio.Future[Any], latest: LatestProgress, finish: Callable[[], object], wording: Wording
) -> AsyncIterator[bytes]:
    try:
        while not answering.done():
            for progress in latest.take():
                yield wording.progress(progress)
            await latest.wait_beside(answering)
        try:
            yield wording.result(answering.result())
        except RequestError as error:
            yield wording.error(error)
        except ClientGoneError:
            return
    finally:
        answering.cancel()
        finish()


def server_event(name: str, data: Any) -> bytes:
    """One event; JSON has no line ends in it."""
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
