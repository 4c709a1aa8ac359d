"""What travels in the LibreTranslate API, typed: requests are checked against it, and the OpenAPI document says it.

Field names are LibreTranslate's (version 1.9). Its clients do not send what is ours: `stream`, `timeout`, `doubts` and
`glossary`.
"""

import math
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from transduce.inference.quality_estimation import QualityWarning

Seconds = Annotated[float, Meta(gt=0, le=3600)]
Number = Annotated[int, Meta(ge=0, le=1_000_000)]
Token = Annotated[str, Meta(max_length=200)]
Alternatives = Annotated[
    int, Meta(ge=0, le=1000, description="The beam is as wide as for so many further translations.")
]


class TranslateRequest(msgspec.Struct, kw_only=True, frozen=True):
    """What `POST /translate` is sent."""

    q: Annotated[str | list[str], Meta(description="A text, or several; lines are translated one by one.")]
    source: Annotated[str, Meta(description="A language code, or `auto`.", examples=["auto"])]
    target: Annotated[str, Meta(description="A language code.")]
    format: Annotated[
        Literal["text", "html"] | None, Meta(description="In `html`, tags are kept and what they mark is translated.")
    ] = "text"
    alternatives: (
        Annotated[int, Meta(ge=0, le=1000, description="How many further translations of each text.")] | None
    ) = 0
    api_key: Annotated[str, Meta(description="Where the server asks for one.")] | None = None
    stream: Annotated[
        bool, Meta(description="Answer with server-sent events: `progress` with what is certain so far, then `result`.")
    ] = False
    timeout: Annotated[Seconds, Meta(description="Give up after so many seconds.")] | None = None
    doubts: Annotated[bool, Meta(description="Tell what speaks against each translation.")] = False
    glossary: (
        Annotated[
            dict[str, str | list[str]],
            Meta(
                description="Terms, and what translations contain of those in their texts: a text, or several of which "
                "any will do. In place of the server's own glossary, also where there are none. In JSON alone.",
                examples=[{"Hund": ["dog", "dogs"]}],
            ),
        ]
        | None
    ) = None


class DetectedLanguage(msgspec.Struct, kw_only=True, frozen=True):
    """A language that a text may be in."""

    language: str
    confidence: Annotated[float, Meta(ge=0, le=100, description="In percent.")]


class TranslateResponse(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What it answers: lists where `q` was a list."""

    translated_text: str | list[str]
    detected_language: DetectedLanguage | list[DetectedLanguage] | UnsetType = UNSET
    """Where the source was `auto`."""
    alternatives: list[str | list[str]] | UnsetType = UNSET
    """Where some were asked for; best first, none of them twice."""
    doubts: list[QualityWarning | list[QualityWarning]] | UnsetType = UNSET
    """Where they were asked for."""


class Progress(msgspec.Struct, kw_only=True, frozen=True):
    """The data of a `progress` event: how far a line of a text is."""

    index: int
    """Which of the texts."""
    line: int
    """Which of its lines that are not empty."""
    text: str
    """What is certain: it only grows, and the result begins with it."""
    draft: str
    """The same, and the best guess for what comes next, which may still change."""


class DetectRequest(msgspec.Struct, kw_only=True, frozen=True):
    """What `POST /detect` is sent."""

    q: str
    api_key: str | None = None


class Language(msgspec.Struct, kw_only=True, frozen=True):
    """A language of `GET /languages`."""

    code: str
    name: str
    targets: list[str]
    """What it is translated to."""


class LanguageChoice(msgspec.Struct, kw_only=True, frozen=True):
    """A language to begin with."""

    code: str
    name: str


class LanguageChoices(msgspec.Struct, kw_only=True, frozen=True):
    """On both sides."""

    source: LanguageChoice
    target: LanguageChoice


class FrontendSettings(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What `GET /frontend/settings` tells a page."""

    char_limit: int
    frontend_timeout: int
    """Milliseconds that a page waits after a keystroke before it asks for a translation."""
    api_keys: bool
    key_required: bool
    suggestions: bool
    files_translation: bool
    supported_files_format: list[str]
    language: LanguageChoices


class InspectRequest(msgspec.Struct, kw_only=True, frozen=True):
    """What `POST /inspect` is sent."""

    q: Annotated[str, Meta(description="One sentence, in one line.")]
    source: Annotated[str, Meta(description="Its language.")]
    target: Annotated[str, Meta(description="The language of the translation.")]
    alternatives: Alternatives | None = 0
    api_key: Annotated[str, Meta(description="Where the server asks for one.")] | None = None
    timeout: Annotated[Seconds, Meta(description="Give up after so many seconds.")] | None = None


class HeadOff(msgspec.Struct, kw_only=True, frozen=True):
    """A head that is to be switched off, counted from 0."""

    kind: Annotated[Literal["encoder", "decoder", "memory"], Meta(description="`memory`: of target to source.")]
    layer: Number
    head: Number


class InterveneRequest(InspectRequest, kw_only=True, frozen=True):
    """What `POST /intervene` is sent: a sentence, and what is to be different."""

    heads_off: Annotated[list[HeadOff], Meta(max_length=1000, description="What they find is replaced by zeros.")] = []
    step: Annotated[Number, Meta(description="A place in the translation, from 0: what stands before it stays.")] | (
        None
    ) = None
    force: Annotated[Token, Meta(description="The piece that is written there, as the vocabulary spells it.")] | (
        None
    ) = None
    forbid: Annotated[list[Token], Meta(max_length=100, description="Pieces that are not written there.")] = []
    changed: Annotated[str, Meta(description="Another sentence in the place of `q`.")] | None = None


class PageSettings(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """What is written into the page that the server shows."""

    pairs: list[tuple[str, str]]
    """Codes of the source and the target language of each model."""
    most_characters: int
    most_alternatives: int
    needs_key: bool


class Health(msgspec.Struct, kw_only=True, frozen=True):
    """What `GET /health` answers while all is well."""

    status: Literal["ok"] = "ok"


class ErrorMessage(msgspec.Struct, kw_only=True, frozen=True):
    """What every answer is that is no success."""

    error: str
    """One sentence."""
    message: str | msgspec.UnsetType = msgspec.UNSET
    """The same below `/v2`, where DeepL's clients look for it."""


# --- chat messages ---
# What travels in the part of OpenAI's API that its clients need for a chat: a text, and its translation.


Choices = Annotated[int, Meta(ge=1, le=1000, description="How many translations, the best first.")]


class ChatPart(msgspec.Struct, kw_only=True, frozen=True):
    """A part of a message."""

    type: Annotated[str, Meta(max_length=64, description="`text`: others are refused.")]
    text: str = ""


class ChatMessage(msgspec.Struct, kw_only=True, frozen=True):
    """What somebody said."""

    role: Annotated[str, Meta(max_length=64, description="The last message of a `user` is translated.")]
    content: str | list[ChatPart] | None = None


class ChatRequest(msgspec.Struct, kw_only=True, frozen=True):
    """What `POST /v1/chat/completions` is sent; further options of OpenAI are ignored."""

    model: Annotated[str, Meta(description="One of `GET /v1/models`.")]
    messages: list[ChatMessage]
    stream: Annotated[bool, Meta(description="Answer with server-sent events, the text as it becomes certain.")] | (
        None
    ) = False
    n: Choices | None = 1


class ChatAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """A translation, as what an assistant says."""

    content: str
    role: Literal["assistant"] = "assistant"


class ChatChoice(msgspec.Struct, kw_only=True, frozen=True):
    """One of the translations."""

    index: int
    message: ChatAnswer
    finish_reason: Literal["stop"] = "stop"


class ChatCompletion(msgspec.Struct, kw_only=True, frozen=True):
    """What it answers."""

    id: str
    created: int
    """Seconds since 1970."""
    model: str
    choices: list[ChatChoice]
    object: Literal["chat.completion"] = "chat.completion"


class ChatDelta(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What an event adds to the translation."""

    role: Literal["assistant"] | None = None
    """In the first event alone."""
    content: str | None = None


class ChatDeltaChoice(msgspec.Struct, kw_only=True, frozen=True):
    """The only translation of a stream."""

    delta: ChatDelta
    index: Literal[0] = 0
    finish_reason: Literal["stop"] | None = None
    """In the last event alone."""


class ChatChunk(msgspec.Struct, kw_only=True, frozen=True):
    """The data of an event."""

    id: str
    created: int
    model: str
    choices: list[ChatDeltaChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class ChatModel(msgspec.Struct, kw_only=True, frozen=True):
    """A model, by the languages that it translates from and to."""

    id: str
    created: int
    """When the server was started."""
    object: Literal["model"] = "model"
    owned_by: Literal["transduce"] = "transduce"


class ChatModels(msgspec.Struct, kw_only=True, frozen=True):
    """What `GET /v1/models` answers."""

    data: list[ChatModel]
    object: Literal["list"] = "list"


class ChatFault(msgspec.Struct, kw_only=True, frozen=True):
    """Why a request was not granted."""

    message: str
    """One sentence."""
    type: Literal["invalid_request_error", "server_error"]
    param: None = None
    code: None = None


class ChatError(msgspec.Struct, kw_only=True, frozen=True):
    """What every answer below `/v1` is that is no success."""

    error: ChatFault


# --- request error ---
# A request that is not granted: a status, and one sentence that says why and what to do.


class RequestError(Exception):
    """Becomes `{"error": sentence}` with the status; who may come again learns when, in Retry-After."""

    def __init__(self, status: int, sentence: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.retry_after_seconds = retry_after_seconds
        self.close_connection = False
        """Where the rest of the request's body is not going to be read."""

    @property
    def headers(self) -> dict[str, str]:
        """What goes with the answer."""
        headers = {}
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_seconds)))
        if self.close_connection:
            headers["Connection"] = "close"
        return headers


def invalid(reason: str) -> RequestError:
    """What the client sent makes no sense."""
    return RequestError(400, f"Invalid request: {reason}")
