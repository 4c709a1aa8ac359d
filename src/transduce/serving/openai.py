"""The part of OpenAI's chat API that its clients need to have the user's last message translated.

A model is named by its language pair, such as `zh-en`. It translates the last message of the role `user` and ignores
earlier messages and instructions.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from transduce.serving.messages import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatDeltaChoice,
    ChatError,
    ChatMessage,
    ChatModel,
    ChatModels,
    ChatRequest,
    Progress,
    RequestError,
    invalid_request,
)
from transduce.serving.openapi import Operation
from transduce.serving.responses import chat_error, json_response
from transduce.serving.service import Answer, RequestChecks, TranslationRequest, watch_disconnect
from transduce.serving.streaming import EventFormatter, ProgressBuffer, stream_response

_MAX_SHOWN = 64  # characters of an unknown model name that an error quotes

OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Translate the user's last message, for OpenAI's clients.",
        ChatCompletion,
        ChatRequest,
        needs_key=True,
        streams=True,
        error=ChatError,
    ),
    Operation(
        "get", "/v1/models", "List the models, which are named by their language pairs.", ChatModels, error=ChatError
    ),
)


class OpenAIHandlers:
    """Handlers of the routes under `/v1`, for OpenAI's clients."""

    def __init__(self, checks: RequestChecks) -> None:
        self.checks = checks
        self.service = checks.service
        self._started_at = int(time.time())

    async def completions(self, request: Request) -> Response:
        """Answer `POST /v1/chat/completions`."""
        message = await self.checks.read(request, ChatRequest)
        self.checks.check_key(request)
        source, target = self._language_pair(message.model)
        choices, max_choices = message.n or 1, 1 if message.stream else self.service.settings.max_alternatives + 1
        if choices > max_choices:
            reason = ", as only one text can be streamed" if message.stream else ""
            raise invalid_request(f"`n` must be at most {max_choices}, but is {choices}{reason}")
        translation_request = TranslationRequest(
            [last_user_message(message.messages)], source=source, target=target, alternatives=choices - 1
        )
        name, created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        disconnected = watch_disconnect(request)
        if message.stream:
            latest = ProgressBuffer()
            answering = asyncio.ensure_future(self.service.translate(translation_request, disconnected, latest.put))
            formatter = OpenAIEventFormatter(
                ChatChunk(id=name, created=created, model=message.model, choices=[]), translation_request.texts[0]
            )
            return await stream_response(answering, latest, disconnected.cancel, formatter)
        try:
            (answer,) = await self.service.translate(translation_request, disconnected)
        finally:
            disconnected.cancel()
        texts = [answer.text, *answer.alternatives]
        return json_response(
            ChatCompletion(
                id=name,
                created=created,
                model=message.model,
                choices=[ChatChoice(index=n, message=ChatAnswer(content=text)) for n, text in enumerate(texts)],
            )
        )

    async def models(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /v1/models`."""
        names = [f"{source}-{target}" for source, target in self.service.routes.named_pairs]
        return json_response(ChatModels(data=[ChatModel(id=name, created=self._started_at) for name in names]))

    def _language_pair(self, name: str) -> tuple[str, str]:
        """Return the source and target language of the model with this name.

        Raises:
            RequestError: no model has this name.
        """
        for source, target in self.service.routes.named_pairs:
            if name.lower() == f"{source}-{target}".lower():
                return source, target
        raise RequestError(404, f"There is no model `{name[:_MAX_SHOWN]}`: GET /v1/models lists what is served.")


def last_user_message(messages: Sequence[ChatMessage]) -> str:
    """Return the text of the conversation's last message with the role `user`.

    Raises:
        RequestError: there is no such message, or it has a part that is not text.
    """
    content = next((message.content for message in reversed(messages) if message.role == "user"), None)
    if content is None:
        raise invalid_request("there must be a message of the role `user`, whose content is translated")
    if isinstance(content, str):
        return content
    if other_type := next((part.type for part in content if part.type != "text"), None):
        raise invalid_request(f"a message must be text, but a part of one is of the type `{other_type}`")
    return "".join(part.text for part in content)


class OpenAIEventFormatter(EventFormatter):
    """A formatter of OpenAI's server-sent events: chunks of text, then `[DONE]`."""

    def __init__(self, chunk: ChatChunk, text: str) -> None:
        """Create a formatter for one streamed translation.

        Args:
            chunk: template of the events, without choices.
            text: the text that is translated.
        """
        self._chunk = chunk
        self._sent: str | None = None
        # OpenAI's clients append chunks, so several lines, which finish in any order, are sent at the end only.
        self._is_single_line = "\n" not in text

    def progress(self, progress: Progress) -> bytes:
        """Return an event with the text that became final since the last event, or nothing for a multi-line text."""
        return self._new_text(progress.text) if self._is_single_line else b""

    def result(self, answer: Sequence[Answer]) -> bytes:
        """Return the events with the rest of the text and the end of the stream."""
        rest = self._new_text(answer[0].text)
        end = ChatDeltaChoice(delta=ChatDelta(), finish_reason="stop")
        return rest + _event(msgspec.structs.replace(self._chunk, choices=[end])) + b"data: [DONE]\n\n"

    def error(self, error: RequestError) -> bytes:
        """Return an event with the error that ends the stream."""
        return _event(chat_error(error))

    def _new_text(self, text: str) -> bytes:
        if text == self._sent:
            return b""
        delta = ChatDelta(role="assistant" if self._sent is None else None, content=text[len(self._sent or "") :])
        self._sent = text
        return _event(msgspec.structs.replace(self._chunk, choices=[ChatDeltaChoice(delta=delta)]))


def _event(data: Any) -> bytes:
    """Return one server-sent event; JSON needs no escaping because it contains no line breaks."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
