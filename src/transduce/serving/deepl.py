"""The part of DeepL's API (version 2) that its official clients need to translate text."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from transduce.serving.languages import AUTO, base, language_name
from transduce.serving.messages import invalid_request
from transduce.serving.openapi import Operation
from transduce.serving.request_bodies import as_list
from transduce.serving.responses import json_response
from transduce.serving.service import RequestChecks, TranslationRequest, watch_disconnect

# --- deepl messages ---
# Typed messages for the part of DeepL's API (version 2) that this server implements.


class DeepLRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `POST /v2/translate`; DeepL's further options are ignored."""

    text: Annotated[str | list[str], Meta(description="A text, or several.")]
    target_lang: str
    source_lang: Annotated[str | None, Meta(description="Detected if it is not set.")] = None
    tag_handling: Annotated[
        Literal["html", "xml"] | None, Meta(description="Keep the tags and translate the text between them.")
    ] = None
    glossary_id: Annotated[
        str | None, Meta(description="Refused: the server's own glossary applies to all requests.")
    ] = None


class DeepLTranslation(msgspec.Struct, kw_only=True, frozen=True):
    """The translation of one text."""

    detected_source_language: str
    text: str
    billed_characters: int


class DeepLResponse(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `POST /v2/translate`."""

    translations: list[DeepLTranslation]


class DeepLLanguagesRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The parameters of `/v2/languages`."""

    type: Literal["source", "target"] = "source"


class DeepLLanguage(msgspec.Struct, kw_only=True, frozen=True):
    """A language of `/v2/languages`."""

    language: str
    name: str
    supports_formality: bool | UnsetType = UNSET


class DeepLUsage(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `/v2/usage`. There is no quota, so the limit is a number that no client reaches."""

    character_count: int
    character_limit: int


# --- handlers ---

_NO_LIMIT = 10**12
# DeepL's clients reject these target languages without a region, so both regions of each are offered.
_REGIONS = {"en": ("EN-GB", "EN-US"), "pt": ("PT-BR", "PT-PT")}

OPERATIONS = (
    Operation(
        "post", "/v2/translate", "Translate texts, for DeepL's clients.", DeepLResponse, DeepLRequest, needs_key=True
    ),
    Operation("get", "/v2/languages", "Source or target languages.", list[DeepLLanguage], DeepLLanguagesRequest),
    Operation("get", "/v2/usage", "Characters translated since the start.", DeepLUsage, needs_key=True),
)


class DeepLHandlers:
    """Handlers of the routes under `/v2`, for DeepL's clients."""

    def __init__(self, checks: RequestChecks) -> None:
        self.checks = checks
        self.service = checks.service

    async def translate(self, request: Request) -> Response:
        """Answer `POST /v2/translate`."""
        message = await self.checks.read(request, DeepLRequest)
        self.checks.check_key(request)
        if message.glossary_id is not None:  # ignoring it silently would give wrong terms
            raise invalid_request(
                f"there is no glossary `{message.glossary_id}`: the server's own glossary applies to all requests; "
                "to send terms with a request, use POST /translate"
            )
        translation_request = TranslationRequest(
            texts=as_list(message.text),
            source=message.source_lang or AUTO,
            target=message.target_lang,
            format="html" if message.tag_handling else "text",
        )
        disconnected = watch_disconnect(request)
        try:
            answers = await self.service.translate(translation_request, disconnected)
        finally:
            disconnected.cancel()
        translations = [
            DeepLTranslation(
                detected_source_language=base(answer.source).upper(), text=answer.text, billed_characters=len(text)
            )
            for answer, text in zip(answers, translation_request.texts, strict=True)
        ]
        return json_response(DeepLResponse(translations=translations))

    async def languages(self, request: Request) -> Response:
        """Answer `GET` or `POST /v2/languages`; DeepL's official client sends a GET with a form as its body."""
        message = await self.checks.read_message(request, DeepLLanguagesRequest)
        routes = self.service.routes
        if message.type == "source":
            codes = sorted({base(code).upper() for code in routes.sources})
            return json_response([DeepLLanguage(language=code, name=language_name(code.lower())) for code in codes])
        targets = {code for target in routes.targets_of_any for code in _target_codes(target)}
        return json_response(
            [
                DeepLLanguage(language=code, name=language_name(code.lower()), supports_formality=False)
                for code in sorted(targets)
            ]
        )

    async def usage(self, request: Request) -> Response:
        """Answer `GET` or `POST /v2/usage`."""
        self.checks.check_key(request)
        count = int(self.service.metrics.value("transduce_characters_total"))
        return json_response(DeepLUsage(character_count=count, character_limit=_NO_LIMIT))


def _target_codes(target: str) -> tuple[str, ...]:
    return _REGIONS.get(target, (target.upper(),))
