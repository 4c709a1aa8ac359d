"""How to serve: where, for whom, and how much at once. The limits hold for strangers; raise them for friends."""

import ipaddress

import msgspec

from transduce.errors import TransduceError

_MOST_WORKERS = 256  # more than any machine has cores for; of some ten thousand no thread can be started


class ServingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options of `transduce serve`."""

    host: str = "127.0.0.1"
    """The address to listen at. The default can be reached from this machine alone."""
    port: int = 5000
    """LibreTranslate's port; 0 lets the system choose."""
    api_keys: tuple[str, ...] = ()
    """Who sends one of them may translate; with none, everybody may."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses of proxies whose X-Forwarded-For names the client."""
    requests_per_minute: int | None = None
    """Of one client address, at once or spread; 0: no limit. None: no limit if only this machine can ask, else 300."""

    max_running: int = 64
    """Requests decoded at once."""
    max_waiting: int = 128
    """Requests that wait behind them; further ones are refused at once."""
    workers: int = 1
    """Threads that decode, each a batch of its own; those that have one share the cores."""
    batch_pieces: int = 2048
    """Source pieces times hypotheses in one batch, padding included; a longer sentence is a batch by itself."""
    gather_milliseconds: float = 3.0
    """How long an idle worker waits for company of the first request."""

    queue_seconds: float = 15.0
    """A request that was not begun by then is refused."""
    deadline_seconds: float = 60.0
    """A request is given up after so long, counted from when it was accepted; a request may ask for less."""
    read_seconds: float = 10.0
    """The time within which a request's head, and then its body, must have arrived."""
    shutdown_seconds: float = 30.0
    """How long accepted requests are waited for at the end."""

    max_connections: int = 1024
    """Open connections; further ones are refused."""
    max_body_bytes: int = 1 << 20
    """Of a request's body, before and after it is uncompressed."""
    max_texts: int = 128
    """Texts in one request."""
    max_characters: int = 20_000
    """Of all texts of a request together."""
    max_alternatives: int = 3
    """Further translations of a text."""
    max_study_pieces: int = 256
    """Of a sentence that is looked into: the attention of all layers and heads takes memory, and so does its answer."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise TransduceError(f"`port` must be between 0 and 65535, but is {self.port}.")
        if self.requests_per_minute is not None and self.requests_per_minute < 0:
            raise TransduceError(f"`requests_per_minute` must not be negative, but is {self.requests_per_minute}.")
        for name, value in self._positive().items():
            if not value > 0:
                raise TransduceError(f"`{name}` must be greater than 0, but is {value}.")
        if self.workers > _MOST_WORKERS:
            raise TransduceError(f"`workers` must be at most {_MOST_WORKERS}, but is {self.workers:,}.")
        for name, value in {"max_waiting": self.max_waiting, "max_alternatives": self.max_alternatives}.items():
            if value < 0:
                raise TransduceError(f"`{name}` must not be negative, but is {value}.")
        if self.gather_milliseconds < 0:
            raise TransduceError(f"`gather_milliseconds` must not be negative, but is {self.gather_milliseconds}.")
        if any(not key.strip() for key in self.api_keys):
            raise TransduceError("`api_keys` must not hold an empty key: remove it.")

    def _positive(self) -> dict[str, float]:
        return {
            "max_running": self.max_running,
            "workers": self.workers,
            "batch_pieces": self.batch_pieces,
            "queue_seconds": self.queue_seconds,
            "deadline_seconds": self.deadline_seconds,
            "read_seconds": self.read_seconds,
            "shutdown_seconds": self.shutdown_seconds,
            "max_connections": self.max_connections,
            "max_body_bytes": self.max_body_bytes,
            "max_texts": self.max_texts,
            "max_characters": self.max_characters,
            "max_study_pieces": self.max_study_pieces,
        }

    @property
    def client_rate(self) -> int:
        """Requests a minute that one client may make; 0: as many as it likes."""
        if self.requests_per_minute is not None:
            return self.requests_per_minute
        return 0 if is_loopback(self.host) else 300


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which nobody else can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
