"""A request that is not granted: a status, and one sentence that says why and what to do."""

import math


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
