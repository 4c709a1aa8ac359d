"""Limit requests: admission under overload, exclusive use of a model, API keys and the rate limit per client."""

import asyncio
import hashlib
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from transduce.errors import TransduceError, decode_utf8
from transduce.serving.messages import RequestError

# --- admission ---
# Decide which requests are read when more arrive at once than the queue can take.
# All requests of a burst are in the sockets in one iteration of the event loop, before the first of them is parsed
# and queued. Parsing all of them only to refuse most would delay every client. So one iteration admits at most as
# many requests as the queue has free slots. The others are tried again in the next iteration.


class AdmissionCounter:
    """A counter of the requests that a server starts to read in one iteration of the event loop.

    It admits at most as many as the queue has free slots. So a burst of requests does not delay the server by reading
    requests that it must refuse.
    """

    def __init__(
        self,
        paths: Iterable[str],
        free_slots: Callable[[], int],
        make_refusal: Callable[[str], RequestError],
        root_path: str = "",
    ) -> None:
        """Create a counter.

        Args:
            paths: the paths of the requests that need a decoding thread, such as `/translate`.
            free_slots: function that returns the number of further requests that the queue would accept.
            make_refusal: function that takes the path of a request that the queue cannot take, and returns the error.
            root_path: path under which a proxy offers the server, which may precede the request's path.
        """
        path, root = b"|".join(re.escape(path).encode() for path in paths), re.escape(root_path).encode()
        self._start = re.compile(rb"POST (?:" + root + rb")?(?P<path>" + path + rb")[ ?]")
        self.free_slots = free_slots
        self.make_refusal = make_refusal
        self._admitted = 0
        """Number of requests admitted during the current iteration of the event loop."""

    def admit(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Count one more request if the queue still has a free slot for it, and return whether it was counted.

        The count starts again in each iteration of the event loop. The caller may try a rejected request again in the
        next iteration.

        Args:
            loop: the running event loop.
        """
        if self._admitted >= self.free_slots():
            return False
        if not self._admitted:
            loop.call_soon(self._reset)
        self._admitted += 1
        return True

    def _reset(self) -> None:
        self._admitted = 0

    def decoding_path(self, data: bytes) -> str | None:
        """Return the path of a POST request that needs a decoding thread, without the root path.

        The result is None for all other requests.

        Args:
            data: the first bytes of the request as received, with its request line.
        """
        match = self._start.match(data)
        return None if match is None else match["path"].decode()


# --- exclusive use of a model ---
# A readers-writer lock for a model that threads share and that one thread may have to modify for a moment.


class ReadersWriterLock:
    """A readers-writer lock: either several threads share it, or one thread holds it exclusively.

    For example, a thread that modifies a model holds it exclusively. While a thread waits to hold the lock exclusively,
    threads that want to share it wait, too.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sharing = 0
        self._waiting_for_exclusive = 0
        self._is_exclusive = False

    @contextmanager
    def hold_shared(self) -> Iterator[None]:
        """Share the lock with other threads in a `with` block.

        The call waits while another thread holds the lock exclusively or waits to do so.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_exclusive and not self._waiting_for_exclusive)
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._changed.notify_all()

    @contextmanager
    def hold_exclusively(self) -> Iterator[None]:
        """Hold the lock in a `with` block alone; wait until no other thread shares or holds it."""
        with self._changed:
            self._waiting_for_exclusive += 1
            self._changed.wait_for(lambda: not self._is_exclusive and not self._sharing)
            self._waiting_for_exclusive -= 1
            self._is_exclusive = True
        try:
            yield
        finally:
            with self._changed:
                self._is_exclusive = False
                self._changed.notify_all()


# --- API keys and rate limit ---

_SCHEMES = ("bearer ", "deepl-auth-key ")
_MAX_BUCKETS = 10_000


class ApiKeys:
    """The valid API keys of a server, stored as digests; if there are none, requests need no key."""

    def __init__(self, keys: Iterable[str]) -> None:
        # Comparing digests instead of keys leaks nothing about a key through the time of the comparison.
        self._digests = {_digest(key) for key in keys}

    @property
    def are_required(self) -> bool:
        """True if requests need an API key, because the server has some."""
        return bool(self._digests)

    def check(self, headers: Mapping[str, str], key: str | None = None) -> str:
        """Check the API key of a request, and return its digest (SHA-256, hexadecimal), which identifies the client.

        Args:
            headers: the request's headers, whose Authorization may hold the key (`Bearer`, `DeepL-Auth-Key`).
            key: the key in the request's fields, which takes precedence; None: there is none.

        Returns:
            The digest; "" if the server has no keys, whatever the request sends.

        Raises:
            RequestError: status 403, the key is missing or invalid.
        """
        key = key or _authorization(headers)
        if not self._digests:
            return ""
        if key is not None and (digest := _digest(key)) in self._digests:
            return digest.hex()
        if key is None:
            raise RequestError(403, "An API key is needed here: send it as api_key, or in the Authorization header.")
        raise RequestError(403, "The API key is not valid: ask the operator of this server for one.")


def _authorization(headers: Mapping[str, str]) -> str | None:
    header = headers.get("authorization", "")
    scheme = next((scheme for scheme in _SCHEMES if header.lower().startswith(scheme)), None)
    return None if scheme is None else header[len(scheme) :].strip()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def read_api_keys(path: str | Path) -> tuple[str, ...]:
    """Return a tuple of the API keys in a text file, one per line.

    Empty lines and lines that start with # are skipped.

    Raises:
        TransduceError: the file cannot be read, or holds no key.
    """
    try:
        lines = decode_utf8(Path(path).read_bytes(), path).split("\n")
    except OSError as error:
        raise TransduceError(
            f"{path} must be a text file with one API key per line, but cannot be read ({error.strerror}): pass "
            "another file."
        ) from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise TransduceError(f"{path} must hold one API key per line, but holds none: no client could translate.")
    return keys


class RateLimiter:
    """A limiter of each client's requests per minute, with a token bucket.

    Each request takes a token from its client's bucket, and tokens come back at an even rate.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a limiter.

        Args:
            per_minute: number of requests that each client may send a minute; 0: no limit.
            clock: returns the current time in seconds; tests replace it.
        """
        self.per_minute = per_minute
        self._clock = clock
        # Client address → (requests left, time of that count). The client seen longest ago is evicted first: its
        # bucket is full again, unless there are more active clients than such a limiter can handle.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Count a request of a client, named by its address, against the client's limit.

        If the limiter has no limit, nothing happens.

        Raises:
            RequestError: status 429, the client has sent too many requests.
        """
        if not self.per_minute:
            return
        now, per_second = self._clock(), self.per_minute / 60.0
        left, seen_at = self._buckets.pop(client, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - seen_at) * per_second)
        allowed = left >= 1.0
        self._buckets[client] = (left - 1.0 if allowed else left, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise RequestError(
                429,
                f"Slowdown: {self.per_minute} requests a minute are allowed.",
                retry_after_seconds=(1.0 - left) / per_second,
            )
