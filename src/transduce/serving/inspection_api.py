"""Looks into one translation: how it was made, and what it would be, had something been different.

Serving knows nothing of inspection: what is done for a request is handed in, and the types of its answers with it.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from transduce.inference.translator import Translator
from transduce.search.scorer import Observer
from transduce.search.settings import SearchSettings
from transduce.serving.jobs import Study
from transduce.serving.messages import InspectRequest, InterveneRequest, PageSettings, RequestError, invalid
from transduce.serving.models import ServedModel
from transduce.serving.openapi import Operation
from transduce.serving.service import Gate, watch, with_alternatives

_LINE_ENDS = ("\n", "\r")


class Views(NamedTuple):
    """What is handed in."""

    page: Callable[[PageSettings], str]
    """The page at the root, as HTML."""
    inspect: Callable[[Translator, InspectRequest, SearchSettings, Observer], msgspec.Struct]
    """How a sentence is translated."""
    inspection: type[msgspec.Struct]
    """What `inspect` returns."""
    intervene: Callable[[Translator, InterveneRequest, SearchSettings, Observer], msgspec.Struct]
    """A translation as it is, and as it would be. The model may be changed meanwhile: nobody else uses it."""
    comparison: type[msgspec.Struct]
    """What `intervene` returns."""


def operations(views: Views) -> tuple[Operation, ...]:
    """The addresses, for the OpenAPI document."""
    return (
        Operation(
            "post", "/inspect", "How a sentence is translated.", views.inspection, InspectRequest, needs_key=True
        ),
        Operation(
            "post",
            "/intervene",
            "A sentence's translation as it is, and with heads switched off, a piece forced or forbidden, or another "
            "source.",
            views.comparison,
            InterveneRequest,
            needs_key=True,
        ),
    )


class Studies:
    """The handlers. Their work waits in the queue of all requests, with the same limits and deadlines."""

    def __init__(self, gate: Gate, views: Views) -> None:
        self.gate = gate
        self.service = gate.service
        self.views = views

    async def inspect(self, request: Request) -> Response:
        """POST /inspect."""
        asked = await self.gate.read(request, InspectRequest)
        self.gate.check_key(request, asked.api_key)
        model, search = self._chosen(asked)

        def work(observer: Observer) -> bytes:
            with model.access.shared():
                return msgspec.json.encode(self.views.inspect(model.translator, asked, search, observer))

        return await self._answer(request, asked, self._study(asked, model, search, work))

    async def intervene(self, request: Request) -> Response:
        """POST /intervene."""
        asked = await self.gate.read(request, InterveneRequest)
        self.gate.check_key(request, asked.api_key)
        self._check_text("changed", asked.changed or "")
        model, search = self._chosen(asked)
        self._check_tokens("changed", asked.changed or "", model)

        def work(observer: Observer) -> bytes:
            with model.access.alone():
                return msgspec.json.encode(self.views.intervene(model.translator, asked, search, observer))

        return await self._answer(request, asked, self._study(asked, model, search, work))

    def _chosen(self, asked: InspectRequest) -> tuple[ServedModel, SearchSettings]:
        """The model that is asked about, and how it searches.

        Raises:
            RequestError: there is no such model, or the request goes beyond the limits.
        """
        self._check_text("q", asked.q)
        alternatives = asked.alternatives or 0
        if alternatives > self.service.settings.max_alternatives:
            raise invalid(f"alternatives ({alternatives}) exceeds limit ({self.service.settings.max_alternatives})")
        routes = self.service.routes
        model = routes.model(routes.find(asked.source), routes.find(asked.target))
        if model is None:
            raise invalid("`source` and `target` are the same language, so there is no translation to look into")
        if not isinstance(model, ServedModel):
            raise RequestError(400, "This model cannot be looked into: it can only translate.")
        self._check_tokens("q", asked.q, model)
        return model, with_alternatives(model.search, alternatives)

    def _check_text(self, name: str, text: str) -> None:
        limit = self.service.settings.max_characters
        if len(text) > limit:
            raise invalid(f"`{name}` ({len(text)}) exceeds text limit ({limit} characters)")
        if any(end in text for end in _LINE_ENDS):
            raise invalid(f"`{name}` must be one line: a line is looked into at a time")

    def _check_tokens(self, name: str, text: str, model: ServedModel) -> None:
        limit, tokens = self.service.settings.max_study_pieces, model.count_tokens([text])[0] - 1  # without the end
        if tokens > limit:
            raise invalid(f"`{name}` must have at most {limit} pieces to be looked into, but has {tokens}: shorten it")

    def _study(
        self,
        asked: InspectRequest,
        model: ServedModel,
        search: SearchSettings,
        work: Callable[[Observer], bytes],
    ) -> Study:
        seconds = self.service.settings.deadline_seconds
        return Study(model, asked.q, search, seconds=min(seconds, asked.timeout or seconds), work=work)

    async def _answer(self, request: Request, asked: InspectRequest, study: Study) -> Response:
        self.service.metrics.characters.inc(len(asked.q))
        gone = watch(request)
        try:
            ((content,),) = await self.service.engine.decode([study], gone)
        finally:
            gone.cancel()
        return Response(content, media_type="application/json")
