"""Typed messages for the part of OpenAI's chat API that this server implements."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Choices = Annotated[int, Meta(ge=1, le=1000, description="Number of translations, best first.")]


class ChatPart(msgspec.Struct, kw_only=True, frozen=True):
    """A part of a message with several parts."""

    type: Annotated[str, Meta(max_length=64, description="`text`; other types are refused.")]
    text: str = ""


class ChatMessage(msgspec.Struct, kw_only=True, frozen=True):
    """A message of the conversation."""

    role: Annotated[str, Meta(max_length=64, description="The last message of a `user` is translated.")]
    content: str | list[ChatPart] | None = None


class ChatRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `POST /v1/chat/completions`; OpenAI's further options are ignored."""

    model: Annotated[str, Meta(description="An `id` from `GET /v1/models`.")]
    messages: list[ChatMessage]
    stream: Annotated[bool, Meta(description="Answer with server-sent events that add text once it is final.")] | (
        None
    ) = False
    n: Choices | None = 1


class ChatAnswer(msgspec.Struct, kw_only=True, frozen=True):
    """A translation, in the form of an assistant's message."""

    content: str
    role: Literal["assistant"] = "assistant"


class ChatChoice(msgspec.Struct, kw_only=True, frozen=True):
    """One of the returned translations."""

    index: int
    message: ChatAnswer
    finish_reason: Literal["stop"] = "stop"


class ChatCompletion(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `POST /v1/chat/completions` without streaming."""

    id: str
    created: int
    """Time of the response, in seconds since 1970."""
    model: str
    choices: list[ChatChoice]
    object: Literal["chat.completion"] = "chat.completion"


class ChatDelta(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The text that an event adds to the translation."""

    role: Literal["assistant"] | None = None
    """Set in the first event only."""
    content: str | None = None


class ChatDeltaChoice(msgspec.Struct, kw_only=True, frozen=True):
    """The translation in an event of a stream; a stream has exactly one."""

    delta: ChatDelta
    index: Literal[0] = 0
    finish_reason: Literal["stop"] | None = None
    """Set in the last event only."""


class ChatChunk(msgspec.Struct, kw_only=True, frozen=True):
    """The data of an event of a streamed response."""

    id: str
    created: int
    model: str
    choices: list[ChatDeltaChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class ChatModel(msgspec.Struct, kw_only=True, frozen=True):
    """A model, named by its source and target language."""

    id: str
    created: int
    """Time of the server's start, in seconds since 1970."""
    object: Literal["model"] = "model"
    owned_by: Literal["transduce"] = "transduce"


class ChatModels(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `GET /v1/models`."""

    data: list[ChatModel]
    object: Literal["list"] = "list"


class ChatFault(msgspec.Struct, kw_only=True, frozen=True):
    """The reason why a request failed."""

    message: str
    """One sentence that describes the error."""
    type: Literal["invalid_request_error", "server_error"]
    param: None = None
    code: None = None


class ChatError(msgspec.Struct, kw_only=True, frozen=True):
    """The response to a request under `/v1` that failed."""

    error: ChatFault
