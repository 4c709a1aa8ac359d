"""The application: which address leads where, and what becomes of errors."""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from transduce.errors import TransduceError
from transduce.serving import deepl, inspection_api, libretranslate, openai
from transduce.serving.batching import ClientGoneError, shutting_down
from transduce.serving.deepl import DeepL
from transduce.serving.inspection_api import Studies, Views
from transduce.serving.libretranslate import LibreTranslate
from transduce.serving.messages import Health, RequestError
from transduce.serving.metrics import CONTENT_TYPE
from transduce.serving.openai import Chat
from transduce.serving.openapi import Operation, document
from transduce.serving.responses import Envelope, error_answer, json_answer
from transduce.serving.service import Gate, Service

OPERATIONS = (
    *libretranslate.OPERATIONS,
    *deepl.OPERATIONS,
    *openai.OPERATIONS,
    Operation("get", "/health", "Whether translations can be had.", Health),
    Operation("get", "/metrics", "Figures for Prometheus.", "text/plain", needs_key=True),
    Operation("get", "/spec", "This document.", "application/json"),
)
_SENTENCES = {
    404: "There is nothing at this address: GET /spec lists what there is.",
    405: "This address takes another method: GET /spec lists which.",
}
_WITHOUT_PAGE = "POST /translate translates; GET /spec describes everything.\n"
# Nobody frames the page, and it is asked for again when the server was started anew, with other models perhaps.
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_CLIENT_GONE = 499  # as nginx counts it; nobody reads it

Handler = Callable[[Request], Awaitable[Response]]


class Application:
    """An ASGI application that serves some models."""

    def __init__(self, service: Service, views: Views | None = None) -> None:
        """`views` are the page, and what it needs besides translations; without them there is neither."""
        self.service = service
        self.views = views
        self.gate = Gate(service)
        self.is_draining = False
        """Once the server is about to end: every request is refused then."""
        operations = OPERATIONS if views is None else (*OPERATIONS, *inspection_api.operations(views))
        self._spec = msgspec.json.encode(document(operations, service.settings))
        self._page = _WITHOUT_PAGE if views is None else views.page(service.page_settings())
        starlette = Starlette(
            routes=self._routes(),
            exception_handlers={
                RequestError: _answer_error,
                HTTPException: _answer_error,
                TransduceError: _answer_error,
                ClientGoneError: _answer_error,
                ClientDisconnect: _answer_error,
                Exception: _answer_error,
            },
        )
        starlette.router.redirect_slashes = False
        self._app = Envelope(
            starlette,
            service.metrics,
            paths=["/", *(operation.path for operation in operations)],
            send_seconds=service.settings.read_seconds,
            refuse=self._refuse,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        await self._app(scope, receive, send)

    def _refuse(self) -> RequestError | None:
        return shutting_down() if self.is_draining else None

    def _routes(self) -> list[Route]:
        libre, deep, talk = LibreTranslate(self.gate), DeepL(self.gate), Chat(self.gate)
        return [
            _get("/", self.page),
            _post("/translate", libre.translate),
            _post("/detect", libre.detect),
            _get("/languages", libre.languages),
            _get("/frontend/settings", libre.frontend_settings),
            _post("/translate_file", libre.disabled),
            _get("/download_file/{name}", libre.disabled),
            _post("/suggest", libre.disabled),
            _post("/v2/translate", deep.translate),
            Route("/v2/languages", deep.languages, methods=["GET", "POST"]),
            Route("/v2/usage", deep.usage, methods=["GET", "POST"]),
            _post("/v1/chat/completions", talk.completions),
            _get("/v1/models", talk.models),
            _get("/health", self.health),
            _get("/metrics", self.metrics),
            _get("/spec", self.spec),
            *self._studies(),
        ]

    def _studies(self) -> list[Route]:
        if self.views is None:
            return []
        handlers = Studies(self.gate, self.views)
        return [_post("/inspect", handlers.inspect), _post("/intervene", handlers.intervene)]

    async def page(self, request: Request) -> Response:  # noqa: ARG002
        """What stands at the root."""
        if self.views is None:
            return Response(self._page, media_type="text/plain")
        return Response(self._page, headers=_PAGE_HEADERS, media_type="text/html")

    async def health(self, request: Request) -> Response:  # noqa: ARG002
        """GET /health."""
        if not self.service.engine.workers.are_alive:
            raise RequestError(503, "The server cannot translate any more: start it again.")
        return json_answer(Health())

    async def metrics(self, request: Request) -> Response:
        """GET /metrics."""
        self.gate.check_key(request)
        batcher = self.service.engine.batcher
        gauges = {
            "transduce_requests_running": ("Requests being decoded.", float(batcher.running)),
            "transduce_requests_waiting": ("Requests waiting for the first batch.", float(batcher.waiting)),
        }
        return Response(self.service.metrics.render(gauges), headers={"Content-Type": CONTENT_TYPE})

    async def spec(self, request: Request) -> Response:  # noqa: ARG002
        """GET /spec."""
        return Response(self._spec, media_type="application/json")


def _get(path: str, handler: Handler) -> Route:
    return Route(path, handler, methods=["GET"])


def _post(path: str, handler: Handler) -> Route:
    return Route(path, handler, methods=["POST"])


async def _answer_error(request: Request, error: Exception) -> Response:
    """Any error as one sentence; its details go to the log."""
    path = request.url.path
    match error:
        case RequestError():
            return error_answer(error, path)
        case HTTPException():
            sentence = _SENTENCES.get(error.status_code, error.detail)
            answer = error_answer(RequestError(error.status_code, sentence), path)
            answer.headers.update(error.headers or {})  # which methods an address takes
            return answer
        case TransduceError():
            return error_answer(RequestError(400, str(error)), path)
        case ClientGoneError() | ClientDisconnect():
            return Response(status_code=_CLIENT_GONE)
        case _:
            return error_answer(RequestError(500, "The server made a mistake; its log says more."), path)
