"""Decide which requests are read when more arrive at once than the queue can take.

All requests of a burst are in the sockets in one iteration of the event loop, before the first of them is parsed and
queued. Parsing all of them only to refuse most would delay every client. So one iteration admits at most as many
requests as the queue has free slots. The others are tried again in the next iteration.
"""

import asyncio
from collections.abc import Callable

from transduce.serving.request_error import RequestError

# First bytes of the requests that need a decoding thread.
_COSTLY_STARTS = tuple(f"POST {path}".encode() for path in ("/translate", "/v2/translate", "/inspect", "/intervene"))


class Admission:
    """A counter that limits the requests a server admits per event-loop iteration, shared by all its connections."""

    def __init__(self, room: Callable[[], int], refusal: Callable[[str], RequestError]) -> None:
        """Create a counter.

        Args:
            room: returns the number of further requests that the queue would accept.
            refusal: makes the error for a request to a path that the queue cannot take.
        """
        self.room = room
        self.refusal = refusal
        self._admitted = 0
        """Requests admitted during the current iteration of the event loop."""

    def enter(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Admit a request if this iteration has admitted fewer than the queue's free slots; return whether it was."""
        if self._admitted >= self.room():
            return False
        if not self._admitted:
            loop.call_soon(self._reset)
        self._admitted += 1
        return True

    def _reset(self) -> None:
        self._admitted = 0


def costly_path(data: bytes) -> str | None:
    """Return the path of a request whose first bytes ask for a decoding, or None for any other request."""
    start = next((start for start in _COSTLY_STARTS if data.startswith(start)), None)
    return None if start is None else start.decode().partition(" ")[2]
