"""Who is let in when more requests arrive at once than there is room for.

The requests of a burst are all there in one turn of the event loop, before the first of them has been parsed and has
taken its place in the queue. To parse them all, only to refuse most of them then, would keep every one of them waiting.
So no more are let in per turn than there are places; the others are looked at again in the next turn, when those before
them have taken their places or left them.
"""

import asyncio
from collections.abc import Callable

from transduce.serving.request_error import RequestError

# What translating begins with.
_COSTLY = tuple(f"POST {path}".encode() for path in ("/translate", "/v2/translate", "/inspect", "/intervene"))


class Admission:
    """One for all connections of a server."""

    def __init__(self, room: Callable[[], int], refusal: Callable[[str], RequestError]) -> None:
        """`room` tells how many more requests the queue would take; `refusal` what is told whom it has no room for."""
        self.room = room
        self.refusal = refusal
        self._entering = 0
        """Let in during this turn of the event loop."""

    def enter(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Lets one more in, if fewer were in this turn than there are places."""
        if self._entering >= self.room():
            return False
        if not self._entering:
            loop.call_soon(self._begin_turn)
        self._entering += 1
        return True

    def _begin_turn(self) -> None:
        self._entering = 0


def costly_path(data: bytes) -> str | None:
    """The path of a request that wants something costly, or what it begins with; None where it wants nothing such."""
    start = next((start for start in _COSTLY if data.startswith(start)), None)
    return None if start is None else start.decode().partition(" ")[2]
