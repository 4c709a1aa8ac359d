"""Build JSON, error, file and streamed responses; add headers to all of them and drop clients that stop reading."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.serving.batching import ClientGoneError
from transduce.serving.messages import (
    ErrorMessage,
    LineProgress,
    OpenAIError,
    OpenAIFault,
    RequestError,
    error_type,
    invalid_request,
)
from transduce.serving.metrics import Metrics

# --- JSON bodies, and errors in the format that each API's clients expect ---


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an HTTP response whose body is `content` as JSON in UTF-8.

    Args:
        content: a struct or anything else that msgspec can encode.
        status: the HTTP status.
        headers: further headers; None: none.
    """
    return Response(msgspec.json.encode(content), status, headers=dict(headers or {}), media_type="application/json")


def file_response(content: bytes, name: str, more_headers: Mapping[str, str]) -> Response:
    """Return an HTTP response that a browser saves as a file of this name and never shows, whatever it contains.

    Args:
        content: the file.
        name: its name.
        more_headers: further headers of the response.
    """
    headers = {
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }
    return Response(content, headers=headers | dict(more_headers), media_type="application/octet-stream")


def error_response(error: RequestError, path: str) -> Response:
    """Return an error as an HTTP response in the format of the API that the request's path belongs to."""
    return json_response(error_content(error, path), error.status, error.headers)


def error_content(error: RequestError, path: str) -> ErrorMessage | OpenAIError:
    """Return the body of an error response in the format of the API that the request's path belongs to.

    Errors under DeepL's `/v2/` also have a field `message`.
    """
    if error_type(path) is OpenAIError:
        return openai_error(error)
    return ErrorMessage(error=error.sentence, message=error.sentence if path.startswith("/v2/") else msgspec.UNSET)


def openai_error(error: RequestError) -> OpenAIError:
    """Return an error as the JSON message that OpenAI's clients read.

    Its type is `server_error` from status 500 on, otherwise `invalid_request_error`.
    """
    is_server_error = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return OpenAIError(
        error=OpenAIFault(message=error.sentence, type="server_error" if is_server_error else "invalid_request_error")
    )


# --- middleware around the application ---

_LOG = logging.getLogger("transduce.serving")
# Pages of any origin may send requests: there are no cookies that they could abuse.
_CROSS_ORIGIN = {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "Transduce-Warning"}
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "DELETE, GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": "86400",
}


# A request may name the whole URL, as for a proxy (RFC 9112, 3.2.2).
_FIELD = re.compile(r"\\\{\w+\\\}")  # of a path's pattern that `re.escape` has escaped
_ORIGIN = re.compile(r"\Ahttps?://[^/]*", re.IGNORECASE)


class ResponseMiddleware:
    """ASGI middleware around the whole server: adds headers, counts requests and limits the time to send an answer.

    It also answers preflight requests of browsers, and refuses all requests while the server shuts down.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        *,
        paths: Collection[str],
        send_seconds: float,
        refuse: Callable[[], RequestError | None],
        root_path: str = "",
    ) -> None:
        """Wrap an application.

        Args:
            app: the application that answers all requests, with an error response where necessary.
            metrics: the metrics that count the requests.
            paths: the paths that are counted separately in the metrics. They may have fields such as `{id}`. All other
                paths are counted together as "other".
            send_seconds: a connection is dropped if its client reads nothing for this long.
            refuse: function that is called for each request. If it returns an error, the error is the answer. If it
                returns None, the application answers.
            root_path: path under which a proxy offers the application; it is removed from the paths of requests.
        """
        self.app = app
        self.metrics = metrics
        self.paths = frozenset(paths)
        self._patterns = [(re.compile(_FIELD.sub("[^/]+", re.escape(path))), path) for path in paths if "{" in path]
        self.send_seconds = send_seconds
        self.refuse = refuse
        self.root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request by the protocol of ASGI, with the common headers and within the time limit.

        Raises:
            TimeoutError: the client read nothing of the answer for `send_seconds`.
        """
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = {**scope, "path": _ORIGIN.sub("", scope["path"]) or "/"}
        if self.root_path and scope["path"].startswith(f"{self.root_path}/"):
            scope = {**scope, "path": scope["path"].removeprefix(self.root_path)}
        exchange = _Exchange(send, self.send_seconds)
        started_at = time.monotonic()
        try:
            await self._select_app(scope)(scope, receive, exchange.send)
        except TimeoutError:
            _LOG.info("A client read nothing of its answer for %g seconds", self.send_seconds)
            raise
        except Exception:
            _LOG.exception("A request failed")
            raise
        finally:
            self.metrics.requests.labels(self._label(scope["path"]), exchange.status).inc()
            self.metrics.request_seconds.observe(time.monotonic() - started_at)

    def _label(self, path: str) -> str:
        """Return the metrics' label of a request's path: the path, its pattern such as `/v2/document/{id}`, or "other".

        Unknown paths share the label "other", because clients could otherwise make the metrics grow without bound.
        """
        if path in self.paths:
            return path
        return next((label for pattern, label in self._patterns if pattern.fullmatch(path)), "other")

    def _select_app(self, scope: Scope) -> ASGIApp:
        refusal = self.refuse()
        if refusal is not None:
            return error_response(refusal, scope["path"])
        if {b"transfer-encoding", b"content-length"} <= {name for name, _ in scope["headers"]}:
            # A proxy in front may read another length, and take the rest for a request of its own (RFC 9112, 6.1).
            error = invalid_request("it must have a Transfer-Encoding or a Content-Length, not both.")
            error.close_connection = True
            return error_response(error, scope["path"])
        if scope["method"] == "OPTIONS":
            return Response(status_code=204, headers=_PREFLIGHT)
        return self.app


class _Exchange:
    """The sending side of a response: adds cross-origin headers, records the status, limits the time of messages."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self.status = 0

    async def send(self, message: Message) -> None:
        """Send one ASGI message of the response.

        Raises:
            TimeoutError: the client does not read it in time.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message).update(_CROSS_ORIGIN)
        async with asyncio.timeout(self._seconds):
            await self._send(message)
        if message.get("more_body"):
            await asyncio.sleep(0)  # lets the server notice a closed connection, to which nothing more is written


# --- server-sent events ---


def watch_disconnect(request: Request) -> asyncio.Future[None]:
    """Return a future that is done once the client of a request has disconnected, so that its work can be stopped.

    The request's body must have been read before. The caller must cancel the future at the end.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return asyncio.ensure_future(disconnected())


@contextmanager
def watching_disconnect(request: Request) -> Iterator[asyncio.Future[None]]:
    """Yield the future of `watch_disconnect`, which is canceled when the body of `with` ends."""
    disconnected = watch_disconnect(request)
    try:
        yield disconnected
    finally:
        disconnected.cancel()


class ProgressBuffer:
    """A buffer of the progress of lines that was not sent to the client yet.

    New progress of a line replaces its earlier progress, so that a slow client gets fewer events.
    """

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], LineProgress] = {}
        self._arrived = asyncio.Event()

    def put(self, progress: LineProgress) -> None:
        """Store the progress of a line of a translation, which replaces earlier progress of this line."""
        self._latest[progress.index, progress.line] = progress
        self._arrived.set()

    async def wait_for_progress(self, answering: asyncio.Future[Any]) -> None:
        """Wait until new progress is stored or the answer is complete.

        Args:
            answering: the future of the complete answer.
        """
        arrived = asyncio.ensure_future(self._arrived.wait())
        await asyncio.wait({arrived, answering}, return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()

    def take(self) -> list[LineProgress]:
        """Return a list of the progress stored since the last call, and empty the buffer.

        The list has at most one entry per line.
        """
        self._arrived.clear()
        progress = list(self._latest.values())
        self._latest.clear()
        return progress


class EventStream(Response):
    """A streamed response of server-sent events, without a Content-Length header.

    An iterator yields the events. It must end when the client disconnects.
    """

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(headers={"Cache-Control": "no-store"}, media_type="text/event-stream")
        del self.headers["Content-Length"]
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send all events to the client by the protocol of ASGI, and close the iterator at the end."""
        async with aclosing(self.events) as events:  # type: ignore[type-var]
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class EventFormatter:
    """A formatter of a streamed translation as server-sent events: `progress` of lines, then `result` or `error`."""

    def progress(self, progress: LineProgress) -> bytes:
        """Return the bytes of the server-sent event that reports the progress of a line's translation."""
        return server_event("progress", progress)

    def result(self, answer: Any) -> bytes:
        """Return the bytes of the server-sent event with the complete answer, which ends the stream."""
        return server_event("result", answer)

    def error(self, error: RequestError) -> bytes:
        """Return the bytes of the server-sent event with the error that ends the stream."""
        return server_event("error", ErrorMessage(error=error.sentence))


async def stream_response(
    request: Request,
    compute: Callable[[asyncio.Future[None], Callable[[LineProgress], None]], Awaitable[Any]],
    formatter: EventFormatter | None = None,
) -> EventStream:
    """Return a response that streams the progress of an answer, and then the complete answer.

    The function waits for the first progress. So an error before it is still answered with the error's own status.

    Args:
        request: the client's request, whose body has been read.
        compute: computes the answer. Its arguments are a future that is done once the client has disconnected, and a
            function that receives the progress.
        formatter: formats the events; None: the default format.

    Raises:
        Exception: `compute` failed before any progress, for example with a `RequestError`.
    """
    disconnected, latest = watch_disconnect(request), ProgressBuffer()
    answering = asyncio.ensure_future(compute(disconnected, latest.put))
    try:
        await latest.wait_for_progress(answering)
        if answering.done():
            answering.result()
    except BaseException:
        answering.cancel()
        disconnected.cancel()
        raise
    return EventStream(_events(answering, latest, disconnected, formatter or EventFormatter()))


async def _events(
    answering: asyncio.Future[Any],
    latest: ProgressBuffer,
    disconnected: asyncio.Future[None],
    formatter: EventFormatter,
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
        disconnected.cancel()


def server_event(name: str, data: Any) -> bytes:
    """Return the bytes of one server-sent event.

    Args:
        name: the name of the event.
        data: its data, which is sent as JSON; that has no line breaks, so it needs no escaping.
    """
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
