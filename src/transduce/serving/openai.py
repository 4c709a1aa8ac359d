"""As much of OpenAI's API as its clients need to have a text translated: the last thing that a user said.

A model is named by its languages, zh-en. It reads that text and nothing else: neither what was said before, nor
instructions.
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
    invalid,
)
from transduce.serving.openapi import Operation
from transduce.serving.responses import chat_error, json_answer
from transduce.serving.service import Answer, Gate, Wish, watch
from transduce.serving.streaming import LatestProgress, Wording, stream_answer

_MOST_SHOWN = 64  # characters of a name that a stranger invented

OPERATIONS = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Translate what a user said last, for OpenAI's clients.",
        ChatCompletion,
        ChatRequest,
        needs_key=True,
        streams=True,
        error=ChatError,
    ),
    Operation("get", "/v1/models", "The models, by their languages.", ChatModels, error=ChatError),
)


class Chat:
    """Its handlers."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.service = gate.service
        self._started_at = int(time.time())

    async def completions(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        message = await self.gate.read(request, ChatRequest)
        self.gate.check_key(request)
        source, target = self._pair(message.model)
        choices, most = message.n or 1, 1 if message.stream else self.service.settings.max_alternatives + 1
        if choices > most:
            reason = ", as one text alone can be told while it is made" if message.stream else ""
            raise invalid(f"`n` must be at most {most}, but is {choices}{reason}")
        wish = Wish([said_last(message.messages)], source=source, target=target, alternatives=choices - 1)
        name, created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        gone = watch(request)
        if message.stream:
            latest = LatestProgress()
            answering = asyncio.ensure_future(self.service.translate(wish, gone, latest.put))
            wording = ChatWording(ChatChunk(id=name, created=created, model=message.model, choices=[]), wish.texts[0])
            return await stream_answer(answering, latest, gone.cancel, wording)
        try:
            (answer,) = await self.service.translate(wish, gone)
        finally:
            gone.cancel()
        texts = [answer.text, *answer.alternatives]
        return json_answer(
            ChatCompletion(
                id=name,
                created=created,
                model=message.model,
                choices=[ChatChoice(index=n, message=ChatAnswer(content=text)) for n, text in enumerate(texts)],
            )
        )

    async def models(self, request: Request) -> Response:  # noqa: ARG002
        """GET /v1/models."""
        names = [f"{source}-{target}" for source, target in self.service.routes.named]
        return json_answer(ChatModels(data=[ChatModel(id=name, created=self._started_at) for name in names]))

    def _pair(self, name: str) -> tuple[str, str]:
        """The languages of a model.

        Raises:
            RequestError: there is none of this name.
        """
        for source, target in self.service.routes.named:
            if name.lower() == f"{source}-{target}".lower():
                return source, target
        raise RequestError(404, f"There is no model `{name[:_MOST_SHOWN]}`: GET /v1/models lists what is served.")


def said_last(messages: Sequence[ChatMessage]) -> str:
    """The text of a user's last message.

    Raises:
        RequestError: there is none, or it is not all text.
    """
    content = next((message.content for message in reversed(messages) if message.role == "user"), None)
    if content is None:
        raise invalid("there must be a message of the role `user`, whose content is translated")
    if isinstance(content, str):
        return content
    if other := next((part.type for part in content if part.type != "text"), None):
        raise invalid(f"a message must be text, but a part of one is of the type `{other}`")
    return "".join(part.text for part in content)


class ChatWording(Wording):
    """Events that add to a text, and the mark of the end."""

    def __init__(self, chunk: ChatChunk, text: str) -> None:
        """Of a stream's chunk, still without choices, and of the text that is translated."""
        self._chunk = chunk
        self._sent: str | None = None
        # Of several lines nobody knows what stands between them until all are there.
        self._is_line = "\n" not in text

    def progress(self, progress: Progress) -> bytes:
        """What has become certain since the last time."""
        return self._more(progress.text) if self._is_line else b""

    def result(self, answer: Sequence[Answer]) -> bytes:
        """The rest, and the end."""
        rest = self._more(answer[0].text)
        end = ChatDeltaChoice(delta=ChatDelta(), finish_reason="stop")
        return rest + _event(msgspec.structs.replace(self._chunk, choices=[end])) + b"data: [DONE]\n\n"

    def error(self, error: RequestError) -> bytes:
        """Why nothing more comes."""
        return _event(chat_error(error))

    def _more(self, text: str) -> bytes:
        if text == self._sent:
            return b""
        delta = ChatDelta(role="assistant" if self._sent is None else None, content=text[len(self._sent or "") :])
        self._sent = text
        return _event(msgspec.structs.replace(self._chunk, choices=[ChatDeltaChoice(delta=delta)]))


def _event(data: Any) -> bytes:
    """JSON has no line ends in it."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"
