"""Answer requests of the inspection API: how a sentence was translated, and how interventions change its translation.

Serving does not import inspection: the functions and the types of their results are passed in as `InspectionViews`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from transduce.inference.translator import Translator
from transduce.search.scorer import Observer
from transduce.search.settings import SearchSettings
from transduce.serving.jobs import FunctionJob
from transduce.serving.messages import (
    Handler,
    InspectRequest,
    InterveneRequest,
    Operation,
    PageSettings,
    RequestError,
    SentenceRequest,
    check_characters,
    decoding_operation,
    invalid_request,
    operations_of,
)
from transduce.serving.models import ServedModel
from transduce.serving.request_bodies import RequestChecks
from transduce.serving.responses import watching_disconnect
from transduce.serving.service import with_alternatives

# The keys of version 0.1, which answers have beside the current ones until version 0.3.
_OLD_KEYS = {
    "token": "piece",
    "tokens": "pieces",
    "token_log_probabilities": "piece_log_probabilities",
    "source_tokens": "source_pieces",
    "target_tokens": "target_pieces",
}


class InspectionViews(NamedTuple):
    """The functions that draw the server's web page and inspect translations for it, and the types of their results."""

    page: Callable[[PageSettings], str]
    """Function that returns the HTML of the web page at `/`."""
    inspect: Callable[[Translator, InspectRequest, SearchSettings, Observer], msgspec.Struct]
    """Function that returns a sentence's translation, with data on how the model produced it."""
    inspection: type[msgspec.Struct]
    """Type of the result of `inspect`."""
    intervene: Callable[[Translator, InterveneRequest, SearchSettings, Observer], msgspec.Struct]
    """Function that returns a translation without and with an intervention.

    It modifies the model meanwhile, so the caller must hold the model's lock exclusively.
    """
    comparison: type[msgspec.Struct]
    """Type of the result of `intervene`."""


class InspectionHandlers:
    """Handlers of `POST /inspect` and `POST /intervene`, which share queue, limits and deadlines with translations."""

    def __init__(self, checks: RequestChecks, views: InspectionViews) -> None:
        self.checks = checks
        self.service = checks.service
        self.views = views

    def operations(self) -> list[tuple[Operation, Handler]]:
        """Return a list of the inspection API's operations, each paired with its handler.

        The type of each answer is the one that the views define.
        """
        types = {"/inspect": self.views.inspection, "/intervene": self.views.comparison}
        return [
            (replace(each, answer=types[each.path], old_keys=_OLD_KEYS), handler)
            for each, handler in operations_of(self)
        ]

    @decoding_operation("/inspect", "Show how a sentence is translated.", msgspec.Struct, InspectRequest)
    async def inspect(self, request: Request) -> Response:
        """Answer `POST /inspect` with a sentence's translation, and how the model and the search produced it.

        Raises:
            RequestError: the request is invalid, exceeds a limit or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        message = await self.checks.read(request, InspectRequest)
        model, search = self._select_model(message)

        def work(observer: Observer) -> bytes:
            with model.access.hold_shared():
                return _encoded(self.views.inspect(model.translator, message, search, observer))

        return await self._answer(request, message, model, search, work)

    @decoding_operation(
        "/intervene",
        "Compare a sentence's translation with that under heads switched off, a token forced or forbidden, or another "
        "source.",
        msgspec.Struct,
        InterveneRequest,
    )
    async def intervene(self, request: Request) -> Response:
        """Answer `POST /intervene` with a sentence's translations without and with a change, such as disabled heads.

        No other request uses the model meanwhile.

        Raises:
            RequestError: the request is invalid, exceeds a limit or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        message = await self.checks.read(request, InterveneRequest)
        self._check_text("changed", message.changed or "")
        model, search = self._select_model(message)
        self._check_tokens("changed", message.changed or "", model)

        def work(observer: Observer) -> bytes:
            with model.access.hold_exclusively():
                return _encoded(self.views.intervene(model.translator, message, search, observer))

        return await self._answer(request, message, model, search, work)

    def _select_model(self, message: SentenceRequest) -> tuple[ServedModel, SearchSettings]:
        """Return the model that translates a sentence to inspect, and search settings with the requested alternatives.

        Raises:
            RequestError: a language is not served, both languages are the same, there is no model for them, the model
                cannot be inspected, the sentence has several lines, or the request exceeds a limit.
        """
        self._check_text("q", message.q)
        alternatives = message.alternatives or 0
        if alternatives > self.service.settings.max_alternatives:
            raise invalid_request(
                f"alternatives ({alternatives}) exceeds limit ({self.service.settings.max_alternatives})"
            )
        routes = self.service.routes
        model = routes.model(routes.find(message.source), routes.find(message.target))
        if model is None:
            raise invalid_request("`source` and `target` are the same language, so there is no translation to inspect")
        if not isinstance(model, ServedModel):
            raise RequestError(400, "This model cannot be inspected: it can only translate.")
        self._check_tokens("q", message.q, model)
        return model, with_alternatives(model.search, alternatives)

    def _check_text(self, name: str, text: str) -> None:
        check_characters(len(text), self.service.settings.max_characters, f"`{name}`")
        if "\n" in text or "\r" in text:
            raise invalid_request(f"`{name}` must be one line: only one line is inspected at a time")

    def _check_tokens(self, name: str, text: str, model: ServedModel) -> None:
        limit = self.service.settings.max_inspection_tokens
        tokens = model.count_tokens([text])[0] - 1  # without the end symbol
        if tokens > limit:
            raise invalid_request(
                f"`{name}` must have at most {limit} tokens to be inspected, but has {tokens}: shorten it"
            )

    async def _answer(
        self,
        request: Request,
        message: SentenceRequest,
        model: ServedModel,
        search: SearchSettings,
        work: Callable[[Observer], bytes],
    ) -> Response:
        """Call a function on a decoding thread, and return its result as the HTTP response.

        Args:
            request: the HTTP request.
            message: the sentence to inspect, with its time limit.
            model: the model that the function uses.
            search: the search settings of the job.
            work: the function, which returns the response's body as JSON.

        Raises:
            RequestError: the queue is full, the request was not decoded in time, or the function failed.
            ClientGoneError: the client disconnected before the answer.
        """
        seconds = self.service.settings.deadline_seconds
        job = FunctionJob(model, message.q, search, seconds=seconds, work=work).limit(message.timeout)
        self.service.metrics.characters.inc(len(message.q))
        with watching_disconnect(request) as disconnected:
            ((content,),) = await self.service.engine.decode([job], disconnected)
        return Response(content, media_type="application/json")


def _encoded(answer: msgspec.Struct) -> bytes:
    """Return the bytes of an answer as JSON, in which renamed keys also occur under their old names."""
    return msgspec.json.encode(_with_old_keys(msgspec.to_builtins(answer)))


def _with_old_keys(answer: Any) -> Any:
    if isinstance(answer, dict):
        content = {key: _with_old_keys(value) for key, value in answer.items()}
        return content | {_OLD_KEYS[key]: value for key, value in content.items() if key in _OLD_KEYS}
    return [_with_old_keys(each) for each in answer] if isinstance(answer, list | tuple) else answer
