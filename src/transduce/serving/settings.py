"""Define the settings of the HTTP server: address, API keys and limits, whose defaults suit a public server."""

import ipaddress
import re

import msgspec

from transduce.errors import TransduceError

_MAX_WORKERS = 256  # more than useful on any machine; some ten thousand threads could not be started

_MAY_BE_ZERO = ("port", "requests_per_minute", "max_waiting", "gather_milliseconds", "max_alternatives")
"""The names of the numbers that may be 0; all others are greater."""
_ROOT_PATH = re.compile(r"(/[\w.~-]+)+", re.ASCII)


class ServingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of the HTTP server: the options of `transduce serve`."""

    host: str = "127.0.0.1"
    """The address to listen on. The default accepts clients on this machine only."""
    port: int = 5000
    """The port to listen on; the default is LibreTranslate's; 0 lets the system choose."""
    unix_socket: str | None = None
    """Path of a Unix domain socket to listen on instead of `host` and `port`. The peer is a trusted proxy."""
    tls_certificate: str | None = None
    """File with the server's certificate chain (PEM), with which it speaks HTTPS; needs `tls_key`. None: HTTP."""
    tls_key: str | None = None
    """File with the private key of the certificate (PEM)."""
    api_keys: tuple[str, ...] = ()
    """Valid API keys; if there are none, requests need no key."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses of proxies whose X-Forwarded-For header names the client."""
    requests_per_minute: int | None = None
    """Maximum number of requests per client and minute; 0: no limit. None: no limit for a loopback `host`, else 300."""

    max_running: int = 64
    """Maximum number of requests decoded at once."""
    max_waiting: int = 128
    """Maximum number of requests that wait in the queue; further ones are refused at once."""
    workers: int = 1
    """Number of decoding threads, each with its own batch; busy threads share the cores."""
    overtaking: bool = True
    """True if one more thread decodes short requests that wait while all workers decode much longer ones."""
    batch_tokens: int = 2048
    """Maximum number of source tokens × hypotheses in a batch, with padding; a longer sentence has its own batch."""
    gather_milliseconds: float = 3.0
    """Time that an idle worker waits for further requests before it decodes the first one."""

    queue_seconds: float = 15.0
    """Time in queue after which a request is refused, if it has not started decoding."""
    deadline_seconds: float = 60.0
    """Time from acceptance after which a request is given up; requests may set a shorter time."""
    read_seconds: float = 10.0
    """Time in which a request's head, and then its body, must arrive."""
    upload_seconds: float = 60.0
    """Time in which an uploaded document must arrive."""
    shutdown_seconds: float = 30.0
    """Time to finish accepted requests when the server shuts down."""

    max_connections: int = 1024
    """Maximum number of open connections; further ones are refused."""
    max_body_bytes: int = 1 << 20
    """Maximum size of a request's body in bytes, both compressed and decompressed."""
    max_texts: int = 128
    """Maximum number of texts in one request."""
    max_characters: int = 20_000
    """Maximum number of characters of all texts in one request."""
    max_alternatives: int = 3
    """Maximum number of translations of a text besides the best one."""
    max_inspection_tokens: int = 256
    """Maximum number of tokens of a sentence to inspect, since the attention weights of all layers take memory."""
    max_new_tokens: int = 1000
    """Maximum number of tokens that a language model generates for a prompt."""

    max_upload_bytes: int = 10 << 20
    """Maximum size of an uploaded document in bytes."""
    max_expanded_bytes: int = 100 << 20
    """Maximum size in bytes of all files in an uploaded archive, such as .docx, after decompression."""
    max_document_characters: int = 1_000_000
    """Maximum number of characters of a document's text."""
    max_documents: int = 16
    """Maximum number of uploaded documents in memory, with their translations; further ones are refused."""
    document_seconds: float = 600.0
    """Time in which a document must be translated."""
    file_seconds: float = 600.0
    """Time for which a translated document is kept after a client last asked for it."""
    glossary_folder: str | None = None
    """Folder for the glossaries that clients create; None: in memory, until the server ends."""
    suggestions: str | None = None
    """File to which suggested translations are appended; None: suggestions are refused."""
    root_path: str = ""
    """Path under which a proxy offers the server, such as `/translate`."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise TransduceError(f"`port` must be between 0 and 65535, but is {self.port}.")
        for name, value in msgspec.structs.asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if name not in _MAY_BE_ZERO and not value > 0:
                raise TransduceError(f"`{name}` must be greater than 0, but is {value}.")
            if not value >= 0:
                raise TransduceError(f"`{name}` must not be negative, but is {value}.")
        if self.workers > _MAX_WORKERS:
            raise TransduceError(f"`workers` must be at most {_MAX_WORKERS}, but is {self.workers:,}.")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise TransduceError("`tls_certificate` and `tls_key` belong together: set both, or neither.")
        if self.root_path and not _ROOT_PATH.fullmatch(self.root_path):
            raise TransduceError(
                f"`root_path` must be a path such as `/translate` (--root-path), with a slash at its start and none at "
                f"its end, but is {self.root_path!r}."
            )
        if any(not key.strip() for key in self.api_keys):
            raise TransduceError("`api_keys` must not hold an empty key: remove it.")

    @property
    def client_rate(self) -> int:
        """The requests per minute that one client may send; 0 means no limit.

        If the setting `requests_per_minute` is None, the rate depends on the server's address. It is 0 for an address
        that only this machine can reach, such as 127.0.0.1. For other addresses and for Unix sockets, it is 300.
        """
        if self.requests_per_minute is not None:
            return self.requests_per_minute
        return 0 if is_loopback(self.host) and self.unix_socket is None else 300


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, which other machines cannot reach.

    `host` is an IP address or a name. Of all names, only `localhost` counts as a loopback address.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
