"""What a request passes before anything is done for it: the rate limit, room, the body's limits, its form, the key."""

import asyncio
from typing import TypeVar

from starlette.requests import Request

from transduce.serving.bodies import read_body
from transduce.serving.clients import RateLimiter
from transduce.serving.encodings import read_message
from transduce.serving.service import Service

_Message = TypeVar("_Message")


class Gate:
    """The way in."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.limiter = RateLimiter(service.settings.client_rate)

    async def read(self, request: Request, message: type[_Message]) -> _Message:
        """What a client asks for that may ask, while there is room.

        Raises:
            RequestError: one of these is not so.
        """
        self.limiter.take(request.client.host if request.client else "")
        self.service.engine.check_room()
        return await self.read_message(request, message)

    async def read_message(self, request: Request, message: type[_Message]) -> _Message:
        """The same for what costs next to nothing to answer."""
        body = await read_body(request, self.service.settings)
        query = request.scope["query_string"].decode("latin-1")
        return read_message(body, request.headers.get("content-type", ""), query, message)

    def check_key(self, request: Request, said: str | None = None) -> None:
        """Raises RequestError where the key is missing or wrong."""
        self.service.keys.check(request.headers, said)


def watch(request: Request) -> asyncio.Future[None]:
    """Is done when the client has gone; the request's body must have been read. Cancel it in the end."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return asyncio.ensure_future(disconnected())
