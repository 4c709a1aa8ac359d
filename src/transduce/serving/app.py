"""The server as an ASGI application: the handler of each address, and the conversion of errors into responses."""

from collections.abc import Iterable

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from transduce.errors import TransduceError
from transduce.serving.batching import ClientGoneError, shutdown_error
from transduce.serving.completions import Completions
from transduce.serving.deepl import DeepLHandlers
from transduce.serving.inspection_api import InspectionHandlers, InspectionViews
from transduce.serving.libretranslate import LibreTranslateHandlers
from transduce.serving.messages import Handler, Health, Operation, RequestError, document, operations_of
from transduce.serving.metrics import CONTENT_TYPE
from transduce.serving.ollama import OllamaHandlers
from transduce.serving.openai import OpenAIHandlers
from transduce.serving.request_bodies import RequestChecks
from transduce.serving.responses import ResponseMiddleware, error_response, json_response
from transduce.serving.service import Service
from transduce.serving.uploads import DocumentStore

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
        self.operations = self._all_operations()
        """A list of all APIs' operations: the method and address of each, paired with the function that handles it."""
        operations = [operation for operation, _ in self.operations]
        self._spec = msgspec.json.encode(document(operations, service.settings))
        starlette = Starlette(
            routes=[Route("/", self.page, methods=["GET"]), *_routes(self.operations)],
            exception_handlers=dict.fromkeys(
                (RequestError, HTTPException, TransduceError, ClientGoneError, ClientDisconnect, Exception),
                _answer_error,
            ),
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
        """Answer one HTTP request by the protocol of ASGI, which the server calls for each request."""
        await self._app(scope, receive, send)

    def _refuse(self) -> RequestError | None:
        return shutdown_error() if self.is_draining else None

    def _all_operations(self) -> list[tuple[Operation, Handler]]:
        documents, completions = DocumentStore(self.service), Completions(self.service)
        apis = [
            LibreTranslateHandlers(self.checks, documents),
            DeepLHandlers(self.checks, documents),
            OpenAIHandlers(self.checks, completions),
            OllamaHandlers(self.checks, completions),
            self,
        ]
        inspection = [] if self.views is None else InspectionHandlers(self.checks, self.views).operations()
        return [*(each for api in apis for each in operations_of(api)), *inspection]

    async def page(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /` with the web page, or with one line of text if there is no page or no translation model."""
        if self.views is None or not self.service.routes.pairs:
            return Response(_WITHOUT_PAGE, media_type="text/plain")
        return Response(self.views.page(self.service.page_settings()), headers=_PAGE_HEADERS, media_type="text/html")

    @Operation("get", "/health", "Return 200 while the server can translate.", Health)
    async def health(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /health` with the status `ok`, or with status 503 if a decoding thread has ended."""
        if not self.service.engine.workers.all_alive:
            raise RequestError(503, "The server cannot translate any more: start it again.")
        return json_response(Health())

    @Operation("get", "/metrics", "Figures for Prometheus.", "text/plain", needs_key=True)
    async def metrics(self, request: Request) -> Response:
        """Answer `GET /metrics` with the server's counters and gauges in Prometheus' format.

        The request needs a key if the server has API keys.
        """
        self.checks.check_key(request)
        batcher = self.service.engine.batcher
        gauges = {
            "transduce_requests_running": ("Requests being decoded.", float(batcher.running)),
            "transduce_requests_waiting": ("Requests waiting for the first batch.", float(batcher.waiting)),
        }
        return Response(self.service.metrics.render(gauges), headers={"Content-Type": CONTENT_TYPE})

    @Operation("get", "/spec", "This document.", "application/json")
    async def spec(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /spec` with the OpenAPI document of the served routes, as JSON."""
        return Response(self._spec, media_type="application/json")


def _routes(operations: Iterable[tuple[Operation, Handler]]) -> list[Route]:
    methods: dict[tuple[str, Handler], list[str]] = {}
    for operation, handler in operations:
        methods.setdefault((operation.path, handler), []).append(operation.method.upper())
    return [Route(path, handler, methods=found) for (path, handler), found in methods.items()]


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
