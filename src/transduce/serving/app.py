"""The server as an ASGI application: the handler of each address, and the conversion of errors into responses."""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from transduce.errors import TransduceError
from transduce.serving import deepl, inspection_api, libretranslate, ollama, openai
from transduce.serving.batching import ClientGoneError, shutdown_error
from transduce.serving.completions import Completions
from transduce.serving.deepl import DeepLHandlers
from transduce.serving.inspection_api import InspectionHandlers, InspectionViews
from transduce.serving.libretranslate import LibreTranslateHandlers
from transduce.serving.messages import Health, Operation, RequestError, document
from transduce.serving.metrics import CONTENT_TYPE
from transduce.serving.ollama import OllamaHandlers
from transduce.serving.openai import OpenAIHandlers
from transduce.serving.responses import ResponseMiddleware, error_response, json_response
from transduce.serving.service import RequestChecks, Service
from transduce.serving.uploads import DocumentStore

OPERATIONS = (
    *libretranslate.OPERATIONS,
    *deepl.OPERATIONS,
    *openai.OPERATIONS,
    *ollama.OPERATIONS,
    Operation("get", "/health", "Return 200 while the server can translate.", Health),
    Operation("get", "/metrics", "Figures for Prometheus.", "text/plain", needs_key=True),
    Operation("get", "/spec", "This document.", "application/json"),
)
_SENTENCES = {
    404: "There is nothing at this address: GET /spec lists what there is.",
    405: "This address takes another method: GET /spec lists which.",
}
_WITHOUT_PAGE = "POST /translate translates; GET /spec describes everything.\n"
# No site may frame the page. Browsers revalidate it, since a restarted server may have other models.
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_CLIENT_GONE = 499  # nginx's status for a client that has disconnected; only the metrics show it

Handler = Callable[[Request], Awaitable[Response]]


class Application:
    """An ASGI application that answers HTTP requests of all APIs with the served models."""

    def __init__(self, service: Service, views: InspectionViews | None = None) -> None:
        """Build the routes and the OpenAPI document.

        Args:
            service: the service that translates and detects languages for all protocols.
            views: the web page and the inspection functions behind it; None: the server offers neither.
        """
        self.service = service
        self.views = views
        self.checks = RequestChecks(service)
        self.is_draining = False
        """True once the server is shutting down, when every new request is refused."""
        operations = OPERATIONS if views is None else (*OPERATIONS, *inspection_api.operations(views))
        self._spec = msgspec.json.encode(document(operations, service.settings))
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
        self._app = ResponseMiddleware(
            starlette,
            service.metrics,
            paths=["/", *(operation.path for operation in operations)],
            send_seconds=service.settings.read_seconds,
            refuse=self._refuse,
            root_path=service.settings.root_path,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request by the protocol of ASGI, as the server calls the application for each request."""
        await self._app(scope, receive, send)

    def _refuse(self) -> RequestError | None:
        return shutdown_error() if self.is_draining else None

    def _routes(self) -> list[Route]:
        documents = DocumentStore(self.service)
        libre_handlers = LibreTranslateHandlers(self.checks, documents)
        deepl_handlers = DeepLHandlers(self.checks, documents)
        completions = Completions(self.service)
        openai_handlers = OpenAIHandlers(self.checks, completions)
        ollama_handlers = OllamaHandlers(self.checks, completions)
        return [
            _get("/", self.page),
            _post("/translate", libre_handlers.translate),
            _post("/detect", libre_handlers.detect),
            _get("/languages", libre_handlers.languages),
            _get("/frontend/settings", libre_handlers.frontend_settings),
            _post("/translate_file", libre_handlers.translate_file),
            _get("/download_file/{key}/{name}", libre_handlers.download_file),
            _post("/suggest", libre_handlers.suggest),
            _post("/v2/translate", deepl_handlers.translate),
            Route("/v2/languages", deepl_handlers.languages, methods=["GET", "POST"]),
            _get("/v2/glossary-language-pairs", deepl_handlers.glossary_pairs),
            Route("/v2/glossaries", deepl_handlers.glossaries, methods=["GET", "POST"]),
            Route("/v2/glossaries/{id}", deepl_handlers.glossary, methods=["GET", "DELETE"]),
            _get("/v2/glossaries/{id}/entries", deepl_handlers.glossary_entries),
            _post("/v2/document", deepl_handlers.document),
            _post("/v2/document/{id}", deepl_handlers.document_status),
            _post("/v2/document/{id}/result", deepl_handlers.document_result),
            Route("/v2/usage", deepl_handlers.usage, methods=["GET", "POST"]),
            _post("/v1/chat/completions", openai_handlers.chat),
            _post("/v1/completions", openai_handlers.text),
            _get("/v1/models", openai_handlers.models),
            _get("/v1/models/{id}", openai_handlers.model),
            _post("/api/chat", ollama_handlers.chat),
            _post("/api/generate", ollama_handlers.generate),
            _get("/api/tags", ollama_handlers.tags),
            _get("/api/ps", ollama_handlers.tags),
            _post("/api/show", ollama_handlers.show),
            _get("/api/version", ollama_handlers.version),
            _get("/health", self.health),
            _get("/metrics", self.metrics),
            _get("/spec", self.spec),
            *self._inspection_routes(),
        ]

    def _inspection_routes(self) -> list[Route]:
        if self.views is None:
            return []
        handlers = InspectionHandlers(self.checks, self.views)
        return [_post("/inspect", handlers.inspect), _post("/intervene", handlers.intervene)]

    async def page(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /` with the web page, or with one line of text if there is no page or no translation model."""
        if self.views is None or not self.service.routes.pairs:
            return Response(_WITHOUT_PAGE, media_type="text/plain")
        return Response(self.views.page(self.service.page_settings()), headers=_PAGE_HEADERS, media_type="text/html")

    async def health(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /health` with the status `ok`, or with status 503 if a decoding thread has ended."""
        if not self.service.engine.workers.all_alive:
            raise RequestError(503, "The server cannot translate any more: start it again.")
        return json_response(Health())

    async def metrics(self, request: Request) -> Response:
        """Answer `GET /metrics`, which needs a key, with the server's counters and gauges in Prometheus' format."""
        self.checks.check_key(request)
        batcher = self.service.engine.batcher
        gauges = {
            "transduce_requests_running": ("Requests being decoded.", float(batcher.running)),
            "transduce_requests_waiting": ("Requests waiting for the first batch.", float(batcher.waiting)),
        }
        return Response(self.service.metrics.render(gauges), headers={"Content-Type": CONTENT_TYPE})

    async def spec(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /spec` with the OpenAPI document of the served routes, as JSON."""
        return Response(self._spec, media_type="application/json")


def _get(path: str, handler: Handler) -> Route:
    return Route(path, handler, methods=["GET"])


def _post(path: str, handler: Handler) -> Route:
    return Route(path, handler, methods=["POST"])


async def _answer_error(request: Request, error: Exception) -> Response:
    """Return the response for an exception that a handler raised: a status and one sentence for the client.

    An unexpected exception becomes status 500 without details; if the client has gone, the response is empty.
    """
    path = request.url.path
    match error:
        case RequestError():
            return error_response(error, path)
        case HTTPException():
            sentence = _SENTENCES.get(error.status_code, error.detail)
            answer = error_response(RequestError(error.status_code, sentence), path)
            answer.headers.update(error.headers or {})  # `Allow`, for a status 405
            return answer
        case TransduceError():
            return error_response(RequestError(400, str(error)), path)
        case ClientGoneError() | ClientDisconnect():
            return Response(status_code=_CLIENT_GONE)
        case _:
            return error_response(RequestError(500, "The server failed; its log has the details."), path)
