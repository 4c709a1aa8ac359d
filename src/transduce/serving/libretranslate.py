"""The LibreTranslate API: translation, language detection, and the server's languages and settings."""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from transduce.errors import TransduceError
from transduce.inference.glossary_search import as_glossary
from transduce.inference.quality_estimation import QualityWarning
from transduce.serving.languages import Routes, language_name
from transduce.serving.messages import (
    DetectedLanguage,
    DetectRequest,
    FrontendSettings,
    Language,
    LanguageChoice,
    LanguageChoices,
    RequestError,
    TranslateRequest,
    TranslateResponse,
    invalid_request,
)
from transduce.serving.openapi import Operation
from transduce.serving.request_bodies import as_list
from transduce.serving.responses import json_response
from transduce.serving.service import Answer, RequestChecks, TranslationRequest, language_warnings, watch_disconnect
from transduce.serving.streaming import ProgressBuffer, stream_response
from transduce.text.glossary import Glossary

_FRONTEND_TIMEOUT_MILLISECONDS = 500

OPERATIONS = (
    Operation(
        "post", "/translate", "Translate texts.", TranslateResponse, TranslateRequest, needs_key=True, streams=True
    ),
    Operation(
        "post", "/detect", "Detect the language of a text.", list[DetectedLanguage], DetectRequest, needs_key=True
    ),
    Operation("get", "/languages", "List the languages with their target languages.", list[Language]),
    Operation("get", "/frontend/settings", "Return the settings for a web page.", FrontendSettings),
)


class LibreTranslateHandlers:
    """Handlers of LibreTranslate's routes."""

    def __init__(self, checks: RequestChecks) -> None:
        self.checks = checks
        self.service = checks.service

    async def translate(self, request: Request) -> Response:
        """Answer `POST /translate`."""
        message = await self.checks.read(request, TranslateRequest)
        self.checks.check_key(request, message.api_key)
        translation_request = TranslationRequest(
            texts=as_list(message.q),
            source=message.source,
            target=message.target,
            format=message.format or "text",
            alternatives=message.alternatives or 0,
            timeout_seconds=message.timeout,
            quality_warnings=message.doubts,
            glossary=_glossary(message),
        )
        disconnected = watch_disconnect(request)
        if message.stream:
            latest = ProgressBuffer()
            answering = asyncio.ensure_future(self._answer(message, translation_request, disconnected, latest))
            return await stream_response(answering, latest, disconnected.cancel)
        try:
            return json_response(await self._answer(message, translation_request, disconnected))
        finally:
            disconnected.cancel()

    async def _answer(
        self,
        message: TranslateRequest,
        translation_request: TranslationRequest,
        disconnected: asyncio.Future[None],
        latest: ProgressBuffer | None = None,
    ) -> TranslateResponse:
        answers = await self.service.translate(
            translation_request, disconnected, None if latest is None else latest.put
        )
        is_list = not isinstance(message.q, str)
        return TranslateResponse(
            translated_text=[answer.text for answer in answers] if is_list else answers[0].text,
            detected_language=_detected_languages(answers, self.service.routes, is_list=is_list),
            alternatives=_alternatives(answers, is_list=is_list) if translation_request.alternatives else UNSET,
            doubts=_quality_warnings(answers, is_list=is_list) if translation_request.quality_warnings else UNSET,
            warnings=language_warnings(answers) or UNSET,
        )

    async def detect(self, request: Request) -> Response:
        """Answer `POST /detect`."""
        message = await self.checks.read(request, DetectRequest)
        self.checks.check_key(request, message.api_key)
        if len(message.q) > self.service.settings.max_characters:
            raise RequestError(
                400,
                f"Invalid request: request ({len(message.q)}) exceeds text limit "
                f"({self.service.settings.max_characters} characters)",
            )
        detected = self.service.detector.detect(message.q)
        return json_response([_with_own_code(language, self.service.routes) for language in detected])

    async def languages(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /languages`."""
        routes = self.service.routes
        return json_response(
            [
                Language(
                    code=routes.own_code(code),
                    name=language_name(code),
                    targets=[routes.own_code(target) for target in routes.targets(code)],
                )
                for code in routes.codes
            ]
        )

    async def frontend_settings(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /frontend/settings`."""
        keys = self.service.keys.are_required
        source, target = self.service.routes.default_pair
        return json_response(
            FrontendSettings(
                char_limit=self.service.settings.max_characters,
                frontend_timeout=_FRONTEND_TIMEOUT_MILLISECONDS,
                api_keys=keys,
                key_required=keys,
                suggestions=False,
                files_translation=False,
                supported_files_format=[],
                language=LanguageChoices(source=self._language_choice(source), target=self._language_choice(target)),
            )
        )

    def _language_choice(self, code: str) -> LanguageChoice:
        return LanguageChoice(code=self.service.routes.own_code(code), name=language_name(code))

    async def disabled(self, request: Request) -> Response:
        """Refuse a request to one of LibreTranslate's optional routes, which this server does not offer."""
        raise RequestError(403, f"{request.url.path} is not offered by this server: POST /translate takes texts.")


def _glossary(message: TranslateRequest) -> Glossary | None:
    try:
        return as_glossary(message.glossary)
    except TransduceError as error:
        raise invalid_request(str(error)) from None


def _with_own_code(language: DetectedLanguage, routes: Routes) -> DetectedLanguage:
    return msgspec.structs.replace(language, language=routes.own_code(language.language))


def _detected_languages(
    answers: Sequence[Answer], routes: Routes, *, is_list: bool
) -> DetectedLanguage | list[DetectedLanguage] | UnsetType:
    detected = [_with_own_code(answer.detected, routes) for answer in answers if answer.detected is not None]
    if not detected:
        return UNSET
    return detected if is_list else detected[0]


def _alternatives(answers: Sequence[Answer], *, is_list: bool) -> list[str | list[str]]:
    return [answer.alternatives for answer in answers] if is_list else [*answers[0].alternatives]


def _quality_warnings(answers: Sequence[Answer], *, is_list: bool) -> list[QualityWarning | list[QualityWarning]]:
    return [list(answer.quality_warnings) for answer in answers] if is_list else [*answers[0].quality_warnings]
