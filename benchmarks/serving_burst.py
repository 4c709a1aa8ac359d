"""Send many requests at once, and measure each answer's time by the kernel's clock.

The time is from just before a request is passed to the kernel until the kernel has received the answer, so a client
that is busy with other connections does not add to the server's time. If the kernel does not report arrival times
(Linux does), the time of reading is used.
"""

import json
import select
import socket
import struct
import sys
import time
from collections.abc import Callable

from serving_load import Answer, Process, parse_answer

_SO_TIMESTAMPNS = 35  # Linux: every read reports the arrival time of its data
_TIMESPEC = struct.Struct("@ll")  # seconds and nanoseconds
_SECONDS = 30.0


class _Request:
    """A client that sends one request."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._received = b""
        self._sent_at = self._arrived_at = 0.0
        self.answer: Answer | None = None

    def connect(self) -> socket.socket:
        """Open the connection unless it is open."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=_SECONDS)
            if sys.platform == "linux":
                self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        return self._socket

    def send(self, request: bytes) -> socket.socket:
        """Send the request; its time includes connecting, if that is necessary."""
        self._sent_at = time.time()
        self.connect().sendall(request)
        return self.connect()

    def read(self) -> bool:
        """Read available data, and return whether the answer is complete."""
        chunk, ancillary, _, _ = self.connect().recvmsg(1 << 16, 256)
        times = [data for level, kind, data in ancillary if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS)]
        seconds, nanoseconds = _TIMESPEC.unpack(times[0]) if times else divmod(time.time_ns(), 10**9)
        self._received += chunk
        self.answer = parse_answer(self._received, seconds + nanoseconds / 1e9 - self._sent_at)
        if not chunk and self.answer is None:
            self.answer = Answer(0, 0.0, b"", {})  # disconnected
        return self.answer is not None

    def close(self) -> None:
        """Close the connection."""
        self.connect().close()


def send_burst(
    server: Process, count: int, *, accepted: int, are_connected: bool, let_through: Callable[[], None]
) -> list[Answer]:
    """Send many equal requests at once, and return all answers.

    Args:
        server: a server with a model that waits at a gate.
        count: the number of requests.
        accepted: the number of requests that get no answer before `let_through` is called.
        are_connected: whether connections are opened before the first request is sent.
        let_through: opens the gate.
    """
    host, port = server.url.removeprefix("http://").split(":")
    requests = [_Request((host, int(port))) for _ in range(count)]
    if are_connected:
        for request in requests:
            request.connect()
        time.sleep(0.5)  # until the server has accepted all connections
    content = json.dumps({"q": "ein Satz", "source": "de", "target": "en"}).encode()
    head = f"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    sent = head.encode("ascii") + b"\r\n\r\n" + content
    arrivals = select.poll()
    waiting = {}
    for request in requests:
        opened = request.send(sent)
        waiting[opened.fileno()] = request
        arrivals.register(opened, select.POLLIN)
    _read(arrivals, waiting, until=accepted)
    time.sleep(0.2)
    let_through()
    _read(arrivals, waiting, until=0)
    for request in requests:
        request.close()
    return [request.answer for request in requests if request.answer is not None]


def _read(arrivals: select.poll, waiting: dict[int, _Request], *, until: int) -> None:
    """Read answers until only `until` requests are unanswered."""
    while len(waiting) > until:
        ready = arrivals.poll(1000 * _SECONDS)
        if not ready:
            raise SystemExit(f"{len(waiting)} of a burst of requests were not answered.")
        for descriptor, _ in ready:
            if waiting[descriptor].read():
                arrivals.unregister(descriptor)
                del waiting[descriptor]
