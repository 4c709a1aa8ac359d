"""Who may ask, and how often."""

import asyncio
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from transduce.errors import TransduceError
from transduce.serving.messages import RequestError

# --- admission ---
# Who is let in when more requests arrive at once than there is room for.
# The requests of a burst are all there in one turn of the event loop, before the first of them has been parsed and
# has taken its place in the queue. To parse them all, only to refuse most of them then, would keep every one of
# them waiting. So no more are let in per turn than there are places; the others are looked at again in the next
# turn, when those before them have taken their places or left them.


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


# --- access ---
# A model that several threads compute with, and that one of them may have to change for a moment.


class Access:
    """Any number of threads share it, or one has it alone. Who wants it alone goes before those who come later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = 0
        self._wanting_alone = 0
        self._is_alone = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Within it nobody is alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_alone and not self._wanting_alone)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within it there is nobody else."""
        with self._changed:
            self._wanting_alone += 1
            self._changed.wait_for(lambda: not self._is_alone and not self._sharing)
            self._wanting_alone -= 1
            self._is_alone = True
        try:
            yield
        finally:
            with self._changed:
                self._is_alone = False
                self._changed.notify_all()


# --- limits ---


_SCHEMES = ("bearer ", "deepl-auth-key ")
_REMEMBERED_CLIENTS = 10_000


class ApiKeys:
    """The keys that are good; without any, everybody is welcome."""

    def __init__(self, keys: Iterable[str]) -> None:
        # Digests are compared in place of keys, so how long it takes says nothing about how a key begins.
        self._digests = {_digest(key) for key in keys}

    @property
    def are_required(self) -> bool:
        """Whether one is needed."""
        return bool(self._digests)

    def check(self, headers: Mapping[str, str], said: str | None = None) -> None:
        """Lets a request pass whose key is good: in its Authorization header, or said in its fields.

        Raises:
            RequestError: 403.
        """
        key = said or _authorization(headers)
        if not self._digests or (key is not None and _digest(key) in self._digests):
            return
        if key is None:
            raise RequestError(403, "An API key is needed here: send it as api_key, or in the Authorization header.")
        raise RequestError(403, "The API key is not a valid one: ask whoever runs this server for one.")


def _authorization(headers: Mapping[str, str]) -> str | None:
    said = headers.get("authorization", "")
    scheme = next((scheme for scheme in _SCHEMES if said.lower().startswith(scheme)), None)
    return None if scheme is None else said[len(scheme) :].strip()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def read_api_keys(path: str | Path) -> tuple[str, ...]:
    """The keys in a file, one a line; empty lines and those that begin with # are left out.

    Raises:
        TransduceError: the file cannot be read, or holds none.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise TransduceError(
            f"{path} must be a text file with an API key a line, but cannot be read ({reason}): name another."
        ) from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise TransduceError(f"{path} must hold an API key a line, but holds none: nobody could translate.")
    return keys


class RateLimiter:
    """A bucket of requests for each client, which fills up evenly (a token bucket)."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        """0 a minute means: no limit."""
        self.per_minute = per_minute
        self._clock = clock
        # Address to requests left and when that was so. Who was not seen for longest is forgotten first; by then its
        # bucket is full again, or there are more clients than any limit of this kind can hold back.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Counts a request.

        Raises:
            RequestError: 429, the client has made too many.
        """
        if not self.per_minute:
            return
        now, per_second = self._clock(), self.per_minute / 60.0
        left, seen_at = self._buckets.pop(client, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - seen_at) * per_second)
        allowed = left >= 1.0
        self._buckets[client] = (left - 1.0 if allowed else left, now)
        if len(self._buckets) > _REMEMBERED_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise RequestError(
                429,
                f"Slowdown: {self.per_minute} requests a minute are allowed.",
                retry_after_seconds=(1.0 - left) / per_second,
            )
