"""Errors that refuse a request: an HTTP status and one sentence with the reason and the remedy."""

import math


class RequestError(Exception):
    """An error that becomes the response `{"error": sentence}` with a status and, optionally, a Retry-After header."""

    def __init__(self, status: int, sentence: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.retry_after_seconds = retry_after_seconds
        self.close_connection = False
        """True if the rest of the request's body will not be read."""

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of the error response."""
        headers = {}
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_seconds)))
        if self.close_connection:
            headers["Connection"] = "close"
        return headers


def invalid(reason: str) -> RequestError:
    """Return the error for a request that is malformed or exceeds a limit."""
    return RequestError(400, f"Invalid request: {reason}")
