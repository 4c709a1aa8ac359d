"""What travels in the part of OpenAI's API that its clients need for a chat: a text, and its translation."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

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
