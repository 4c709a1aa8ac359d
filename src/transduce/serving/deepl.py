"""As much of DeepL's API (version 2) as its official clients need to translate text."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from transduce.serving.languages import AUTO, base, language_name
from transduce.serving.messages import invalid
from transduce.serving.openapi import Operation
from transduce.serving.request_bodies import listed
from transduce.serving.responses import json_answer
from transduce.serving.service import Gate, Wish, watch

# --- deepl messages ---
# What travels in the part of DeepL's API (version 2) that its official clients need for translating text.


class DeepLRequest(msgspec.Struct, kw_only=True, frozen=True):
    """What `POST /v2/translate` is sent; further options of DeepL are ignored."""

    text: Annotated[str | list[str], Meta(description="A text, or several.")]
    target_lang: str
    source_lang: Annotated[str | None, Meta(description="Detected where nothing is said.")] = None
    tag_handling: Annotated[
        Literal["html", "xml"] | None, Meta(description="Keep tags and translate what they mark.")
    ] = None
    glossary_id: Annotated[
        str | None, Meta(description="Refused: the glossary is the server's own, for all requests.")
    ] = None


class DeepLTranslation(msgspec.Struct, kw_only=True, frozen=True):
    """One text's translation."""

    detected_source_language: str
    text: str
    billed_characters: int


class DeepLResponse(msgspec.Struct, kw_only=True, frozen=True):
    """What it answers."""

    translations: list[DeepLTranslation]


class DeepLLanguagesRequest(msgspec.Struct, kw_only=True, frozen=True):
    """What `/v2/languages` is sent."""

    type: Literal["source", "target"] = "source"


class DeepLLanguage(msgspec.Struct, kw_only=True, frozen=True):
    """A language of `/v2/languages`."""

    language: str
    name: str
    supports_formality: bool | UnsetType = UNSET


class DeepLUsage(msgspec.Struct, kw_only=True, frozen=True):
    """What `/v2/usage` answers: there is no quota, so the limit is a number that nobody reaches."""

    character_count: int
    character_limit: int


# --- deepl ---


_NO_LIMIT = 10**12
# Its clients refuse these languages as a target without a region, so both regions of each are offered.
_REGIONS = {"en": ("EN-GB", "EN-US"), "pt": ("PT-BR", "PT-PT")}

OPERATIONS = (
    Operation(
        "post", "/v2/translate", "Translate texts, for DeepL's clients.", DeepLResponse, DeepLRequest, needs_key=True
    ),
    Operation("get", "/v2/languages", "Source or target languages.", list[DeepLLanguage], DeepLLanguagesRequest),
    Operation("get", "/v2/usage", "Characters translated since the start.", DeepLUsage, needs_key=True),
)


class DeepL:
    """Its handlers."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.service = gate.service

    async def translate(self, request: Request) -> Response:
        """POST /v2/translate."""
        message = await self.gate.read(request, DeepLRequest)
        self.gate.check_key(request)
        if message.glossary_id is not None:  # to leave it out silently would be worse
            raise invalid(
                f"there is no glossary `{message.glossary_id}`; what the server was started with holds for all "
                "requests, and POST /translate takes terms of its own"
            )
        wish = Wish(
            texts=listed(message.text),
            source=message.source_lang or AUTO,
            target=message.target_lang,
            format="html" if message.tag_handling else "text",
        )
        gone = watch(request)
        try:
            answers = await self.service.translate(wish, gone)
        finally:
            gone.cancel()
        translations = [
            DeepLTranslation(
                detected_source_language=base(answer.source).upper(), text=answer.text, billed_characters=len(text)
            )
            for answer, text in zip(answers, wish.texts, strict=True)
        ]
        return json_answer(DeepLResponse(translations=translations))

    async def languages(self, request: Request) -> Response:
        """GET or POST /v2/languages; the official client sends a GET with a form as its body."""
        message = await self.gate.read_message(request, DeepLLanguagesRequest)
        routes = self.service.routes
        if message.type == "source":
            codes = sorted({base(code).upper() for code in routes.sources})
            return json_answer([DeepLLanguage(language=code, name=language_name(code.lower())) for code in codes])
        targets = {code for target in routes.all_targets for code in _target_codes(target)}
        return json_answer(
            [
                DeepLLanguage(language=code, name=language_name(code.lower()), supports_formality=False)
                for code in sorted(targets)
            ]
        )

    async def usage(self, request: Request) -> Response:
        """GET or POST /v2/usage."""
        self.gate.check_key(request)
        count = int(self.service.metrics.value("transduce_characters_total"))
        return json_answer(DeepLUsage(character_count=count, character_limit=_NO_LIMIT))


def _target_codes(target: str) -> tuple[str, ...]:
    return _REGIONS.get(target, (target.upper(),))
