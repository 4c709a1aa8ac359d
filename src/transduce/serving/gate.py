"""Checks that a request passes before it is decoded: rate limit, queue, size of its body, format and API key."""

import asyncio
from typing import TypeVar

from starlette.requests import Request

from transduce.serving.bodies import read_body
from transduce.serving.clients import RateLimiter
from transduce.serving.encodings import read_message
from transduce.serving.service import Service

_Message = TypeVar("_Message")


class Gate:
    """The checks and the parsing that all protocols apply to their requests."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.limiter = RateLimiter(service.settings.client_rate)

    async def read(self, request: Request, message: type[_Message]) -> _Message:
        """Return the typed message of a request that needs decoding, after checking the rate limit and the queue.

        Raises:
            RequestError: a limit is exceeded, the queue is full, or the message is invalid.
        """
        self.limiter.take(request.client.host if request.client else "")
        self.service.engine.check_room()
        return await self.read_message(request, message)

    async def read_message(self, request: Request, message: type[_Message]) -> _Message:
        """Return the typed message of a request that costs almost nothing to answer, without a rate limit.

        Raises:
            RequestError: the body is too large, too slow, or invalid.
        """
        body = await read_body(request, self.service.settings)
        query = request.scope["query_string"].decode("latin-1")
        return read_message(body, request.headers.get("content-type", ""), query, message)

    def check_key(self, request: Request, said: str | None = None) -> None:
        """Check the API key of a request; `said` is the key in its fields, if any.

        Raises:
            RequestError: the key is missing or invalid.
        """
        self.service.keys.check(request.headers, said)


def watch(request: Request) -> asyncio.Future[None]:
    """Return a future that is done once the client has disconnected.

    The request's body must have been read before. The caller must cancel the future at the end.
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return asyncio.ensure_future(disconnected())
