"""Server processes, and clients with little overhead, for serving.py."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import urlsplit

from report import REPOSITORY

_HEAD = "POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
_START_SECONDS = 300.0


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    """The HTTP status; 0 if the connection was closed."""
    seconds: float
    body: bytes
    headers: dict[str, str]

    @property
    def is_refusal_as_it_should_be(self) -> bool:
        """True if the answer is a 429 or 503 with an error message and a Retry-After header."""
        try:
            has_sentence = list(json.loads(self.body)) == ["error"]
        except ValueError:
            return False
        return self.status in (429, 503) and has_sentence and self.headers.get("retry-after", "").isdigit()


class Process:
    """A running server, observed from outside."""

    def __init__(self, popen: subprocess.Popen[str], url: str) -> None:
        self.popen = popen
        self.url = url

    def say(self, command: str) -> None:
        """Write a line to the server's standard input."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(command + "\n")
        self.popen.stdin.flush()

    def memory_megabytes(self, name: str = "VmRSS") -> float:
        """Return the resident memory, or its peak (`VmHWM`), from Linux's /proc."""
        lines = Path(f"/proc/{self.popen.pid}/status").read_text("ascii").split("\n")
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) / 1024.0

    def forget_peak(self) -> None:
        """Reset the peak memory to the current memory."""
        Path(f"/proc/{self.popen.pid}/clear_refs").write_text("5", "ascii")

    def processor_seconds(self) -> float:
        """Return the processor time of all threads so far."""
        tasks = Path(f"/proc/{self.popen.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text("ascii").split()[0]) for task in tasks) / 1e9

    def open_files(self) -> int:
        """Return the number of open file descriptors."""
        return len(list(Path(f"/proc/{self.popen.pid}/fd").iterdir()))

    def threads(self) -> int:
        """Return the number of threads."""
        return len(list(Path(f"/proc/{self.popen.pid}/task").iterdir()))


@contextlib.contextmanager
def running(command: Sequence[str | Path], *, announces_on: str) -> Iterator[Process]:
    """Run a server within the context, from when it prints its address on `stdout` or `stderr`."""
    path = os.pathsep.join(filter(None, [str(REPOSITORY / "src"), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [str(part) for part in command],
        text=True,
        encoding="utf-8",
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if announces_on == "stdout" else None,
        stderr=subprocess.PIPE if announces_on == "stderr" else None,
    ) as popen:
        try:
            stream = popen.stdout if announces_on == "stdout" else popen.stderr
            assert stream is not None
            yield Process(popen, _read_address(stream))
        finally:
            popen.terminate()
            popen.communicate(timeout=60)


def _read_address(stream: IO[str]) -> str:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and (line := stream.readline()):
        for word in line.split():
            if word.startswith("http://"):
                return word
    raise SystemExit("The server did not start.")


def gated(*arguments: str) -> contextlib.AbstractContextManager[Process]:
    """Run `serving_gated.py` within the context."""
    script = REPOSITORY / "benchmarks" / "serving_gated.py"
    return running([sys.executable, script, *arguments], announces_on="stdout")


def transduce_serve(*arguments: str | Path) -> contextlib.AbstractContextManager[Process]:
    """Run `transduce serve` on a free port within the context."""
    return running([sys.executable, "-m", "transduce", "serve", *arguments, "--port", "0"], announces_on="stderr")


# --- clients ---


class Client:
    """A client with one persistent connection."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connect(self) -> None:
        """Open the connection, so that measurements can exclude connecting."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._address.hostname, self._address.port)

    async def translate(self, text: str, source: str, target: str, *, hang_up_after: float | None = None) -> Answer:
        """Send POST /translate and return the answer; the client may disconnect earlier, after `hang_up_after`
        seconds.
        """
        body = json.dumps({"q": text, "source": source, "target": target}).encode()
        head = f"{_HEAD}Content-Length: {len(body)}\r\n\r\n"
        started_at = time.monotonic()
        try:
            await self.connect()
            assert self._streams is not None
            reader, writer = self._streams
            writer.write(head.encode("ascii") + body)
            async with asyncio.timeout(hang_up_after):
                status, headers, content = await _read(reader)
        except (OSError, EOFError, TimeoutError):
            self.close()
            return Answer(0, time.monotonic() - started_at, b"", {})
        if headers.get("connection") == "close":
            self.close()
        return Answer(status, time.monotonic() - started_at, content, headers)

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


async def _read(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    status, headers = _parse_head((await reader.readuntil(b"\r\n\r\n"))[:-4])
    return status, headers, await reader.readexactly(int(headers["content-length"]))


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in fields}


def parse_answer(received: bytes, seconds: float) -> Answer | None:
    """Parse an answer; return None if it is incomplete."""
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        return None
    status, headers = _parse_head(head)
    return None if len(body) < int(headers["content-length"]) else Answer(status, seconds, body, headers)


async def ask_all(
    url: str, texts: Sequence[str], *, clients: int, languages: tuple[str, str] = ("zh", "en")
) -> list[Answer]:
    """Return one answer per text, by concurrent clients that each send the next text after an answer."""
    answers: list[Answer | None] = [None] * len(texts)
    numbers = iter(range(len(texts)))

    async def work() -> None:
        client = Client(url)
        for number in numbers:
            answers[number] = await client.translate(texts[number], *languages)
        client.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    return [answer for answer in answers if answer is not None]
