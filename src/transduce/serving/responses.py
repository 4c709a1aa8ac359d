"""What surrounds every answer: cross-origin headers, the metrics, and an end to clients that take no answer."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from transduce.serving.messages import ChatError, ChatFault, ErrorMessage, RequestError
from transduce.serving.metrics import Metrics

# --- answers ---
# Answers on the wire: JSON, and errors in the form that all errors have.


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A message as JSON, in UTF-8."""
    return Response(msgspec.json.encode(content), status, headers=dict(headers or {}), media_type="application/json")


def error_answer(error: RequestError, path: str) -> Response:
    """One sentence, in the form that clients of this address know."""
    if path.startswith("/v1/"):
        return json_answer(chat_error(error), error.status, error.headers)
    message = error.sentence if path.startswith("/v2/") else msgspec.UNSET
    return json_answer(ErrorMessage(error=error.sentence, message=message), error.status, error.headers)


def chat_error(error: RequestError) -> ChatError:
    """As OpenAI's clients read it."""
    is_ours = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return ChatError(
        error=ChatFault(message=error.sentence, type="server_error" if is_ours else "invalid_request_error")
    )


# --- responses ---


_LOG = logging.getLogger("transduce.serving")
# Anybody's page may ask: there are no cookies here that could be abused.
_CROSS_ORIGIN = {"Access-Control-Allow-Origin": "*"}
_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
    "Access-Control-Max-Age": "86400",
}


class Envelope:
    """An ASGI application around another one."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        *,
        paths: Collection[str],
        send_seconds: float,
        refuse: Callable[[], RequestError | None],
    ) -> None:
        """Wraps an application.

        Args:
            app: what answers, errors included.
            metrics: what it counts in.
            paths: those that are counted by their name.
            send_seconds: a client that takes nothing for so long is left.
            refuse: what every request is told at this moment, if anything.
        """
        self.app = app
        self.metrics = metrics
        self.paths = frozenset(paths)
        self.send_seconds = send_seconds
        self.refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(send, self.send_seconds)
        started_at = time.monotonic()
        try:
            await self._app(scope)(scope, receive, exchange.send)
        except TimeoutError:
            _LOG.info("A client took no answer for %g seconds", self.send_seconds)
            raise
        except Exception:
            _LOG.exception("A request failed")
            raise
        finally:
            # Strangers invent addresses without end.
            route = scope["path"] if scope["path"] in self.paths else "other"
            self.metrics.requests.labels(route, exchange.status).inc()
            self.metrics.request_seconds.observe(time.monotonic() - started_at)

    def _app(self, scope: Scope) -> ASGIApp:
        refusal = self.refuse()
        if refusal is not None:
            return error_answer(refusal, scope["path"])
        if scope["method"] == "OPTIONS":
            return Response(status_code=204, headers=_PREFLIGHT)
        return self.app


class _Exchange:
    """Sends an answer, adding what all have, and remembers its status."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self.status = 0

    async def send(self, message: Message) -> None:
        """Sends a part of it."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message).update(_CROSS_ORIGIN)
        async with asyncio.timeout(self._seconds):
            await self._send(message)
