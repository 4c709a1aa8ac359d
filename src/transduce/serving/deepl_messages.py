"""Typed messages for the part of DeepL's API (version 2) that this server implements."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType


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
