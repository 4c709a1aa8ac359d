"""Who may ask, and how often."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from transduce.errors import TransduceError
from transduce.serving.request_error import RequestError

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
