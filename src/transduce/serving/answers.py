"""HTTP responses with JSON bodies, and errors in the format that each API's clients expect."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from transduce.serving.chat_messages import ChatError, ChatFault
from transduce.serving.messages import ErrorMessage
from transduce.serving.request_error import RequestError


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response whose body is the message as JSON in UTF-8."""
    return Response(msgspec.json.encode(content), status, headers=dict(headers or {}), media_type="application/json")


def error_answer(error: RequestError, path: str) -> Response:
    """Return an error response in the format of the API that the path belongs to."""
    if path.startswith("/v1/"):
        return json_answer(chat_error(error), error.status, error.headers)
    message = error.sentence if path.startswith("/v2/") else msgspec.UNSET
    return json_answer(ErrorMessage(error=error.sentence, message=message), error.status, error.headers)


def chat_error(error: RequestError) -> ChatError:
    """Return an error as the message that OpenAI's clients read."""
    is_server_error = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return ChatError(
        error=ChatFault(message=error.sentence, type="server_error" if is_server_error else "invalid_request_error")
    )
