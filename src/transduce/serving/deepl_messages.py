"""What travels in the part of DeepL's API (version 2) that its official clients need for translating text."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType


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
