"""Send 68 hostile requests to a server, which must answer each with 4xx and a JSON error, or disconnect.

    python benchmarks/serving_hostile.py http://127.0.0.1:5000

`hostile_studies` returns more requests, for a server with the web page, which inspects translations.
"""

import gzip
import io
import json
import socket
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

_MEGABYTE = 1 << 20
_SECONDS = 30.0


class Hostile(NamedTuple):
    """A raw request that a server must refuse."""

    name: str
    chunks: Callable[[], Iterator[bytes]]
    """A function that returns the bytes to send."""
    is_http: bool = True
    """True if the request is HTTP, so that an answer is possible."""


class Verdict(NamedTuple):
    """The server's reaction to a hostile request."""

    name: str
    status: int | None
    """The status of the answer; None if the server disconnected without one."""
    error: str | None
    """The error message in the answer's JSON."""
    is_right: bool


def judge(url: str, hostile: Hostile) -> Verdict:
    """Send a request, and judge the answer."""
    received = _exchange(url, hostile)
    head, _, body = received.partition(b"\r\n\r\n")
    status = int(head[9:12]) if head.startswith(b"HTTP/1.1 ") else None
    error = _sentence(body)
    refused = status is not None and 400 <= status < 500 and error is not None
    return Verdict(hostile.name, status, error, refused or (not hostile.is_http and status is None))


def _sentence(body: bytes) -> str | None:
    try:
        content = json.loads(body)
    except ValueError:
        return None
    is_error = isinstance(content, dict) and set(content) - {"message"} == {
        "error"
    }  # /v2 repeats the error as `message`
    error = content["error"] if is_error else None
    return error if isinstance(error, str) else None


def _exchange(url: str, hostile: Hostile) -> bytes:
    """Return all data that the server sends before it closes the connection or completes the announced body."""
    address = urlsplit(url)
    received = b""
    with socket.create_connection((address.hostname or "", address.port or 80), timeout=_SECONDS) as connection:
        try:
            for chunk in hostile.chunks():
                connection.sendall(chunk)
        except OSError:
            pass  # the server disconnected; its answer may still be readable
        try:
            while not _is_whole(received) and (chunk := connection.recv(65536)):
                received += chunk
        except OSError:
            pass
    return received


def _is_whole(received: bytes) -> bool:
    head, separator, body = received.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return bool(separator) and len(body) >= int(line.partition(b":")[2])
    return False


# --- the requests ---


def _post(
    body: bytes, kind: str = "application/json", path: str = "/translate", length: int | None = None, more: str = ""
) -> Callable[[], Iterator[bytes]]:
    announced = len(body) if length is None else length
    content_type = f"Content-Type: {kind}\r\n" if kind else ""
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\n{content_type}{more}Content-Length: {announced}\r\n\r\n"
    return lambda: iter([head.encode("latin-1"), body])


def _chunked(pieces: Callable[[], Iterator[bytes]], more: str = "") -> Callable[[], Iterator[bytes]]:
    head = f"POST /translate HTTP/1.1\r\nHost: a\r\n{more}Transfer-Encoding: chunked\r\n\r\n"

    def chunks() -> Iterator[bytes]:
        yield head.encode("ascii")
        for piece in pieces():
            yield b"%x\r\n%s\r\n" % (len(piece), piece)
        yield b"0\r\n\r\n"

    return chunks


def _raw(text: bytes) -> Callable[[], Iterator[bytes]]:
    return lambda: iter([text])


def _json(languages: tuple[str, str] = ("de", "en"), /, **fields: object) -> bytes:
    return json.dumps({"q": "a", "source": languages[0], "target": languages[1]} | fields).encode()


def _repeated(piece: bytes, count: int) -> Callable[[], Iterator[bytes]]:
    return lambda: (piece for _ in range(count))


def _bomb() -> bytes:
    """Return a gigabyte of zeros compressed to a megabyte."""
    squeezer = zlib.compressobj(9, zlib.DEFLATED, 31)
    zeros = bytes(_MEGABYTE)
    return b"".join([*(squeezer.compress(zeros) for _ in range(1000)), squeezer.flush()])[: _MEGABYTE - 1]


_GZIP = "Content-Encoding: gzip\r\n"
_FORM = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data; boundary=b"


def hostile_requests(megabytes: int = 30) -> list[Hostile]:
    """Return all 68 requests; the largest have this many megabytes."""
    return [
        *_large(megabytes * _MEGABYTE),
        *_compressed(),
        *_wrong_values(),
        *_wrong_json(),
        *_wrong_forms(),
        *_wrong_http(),
        *_wrong_uploads(),
    ]


def _wrong_uploads() -> list[Hostile]:
    entity = b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><xliff version="1.2"><file><body/></file></xliff>'
    return [
        Hostile("a ZIP bomb as .docx", _upload("a.docx", _zip({"word/document.xml": bytes(300 * _MEGABYTE)}))),
        Hostile("ten thousand files as .docx", _upload("a.docx", _zip({f"word/{n}": b"" for n in range(10_000)}))),
        Hostile("a path out of the archive", _upload("a.docx", _zip({"../../etc/passwd": b"a"}))),
        Hostile("an external entity", _upload("a.xliff", entity)),
        Hostile("deeply nested JSON", _upload("a.json", b"[" * 100_000)),
        Hostile("a program", _upload("../../a.exe", b"MZ")),
        Hostile("a document without a name", _upload("", b"a")),
        Hostile("half an archive", _upload("a.epub", _zip({"mimetype": b"application/epub+zip"})[:40])),
    ]


def _upload(name: str, content: bytes) -> Callable[[], Iterator[bytes]]:
    fields = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{code}\r\n'
        for field, code in (("source", "de"), ("target", "en"))
    )
    head = f'{fields}--b\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return _post(head.encode() + content + b"\r\n--b--\r\n", _MULTIPART, "/translate_file")


def _zip(files: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return written.getvalue()


def _large(size: int) -> list[Hostile]:
    return [
        Hostile("far too much JSON", _post(b'{"q":"' + b"a" * size + b'"}')),
        Hostile("far too much form", _post(b"q=" + b"a" * size, _FORM)),
        Hostile("far too much multipart", _post(b"--b\r\n" + b"a" * size, _MULTIPART)),
        Hostile("far too much of nothing known", _post(bytes(size), "application/octet-stream")),
        Hostile("far too much in chunks without a length", _chunked(_repeated(b"a" * 65536, size // 65536))),
        Hostile("far too much to /detect", _post(b'{"q":"' + b"a" * size + b'"}', path="/detect")),
        Hostile("far too much to /v2/translate", _post(b'{"text":"' + b"a" * size, path="/v2/translate")),
        Hostile("a body that is just too large", _post(b'{"q":"' + b"a" * _MEGABYTE + b'"}')),
        Hostile("a text that is too long", _post(_json(q="a" * 100_000))),
        Hostile("a million texts", _post(b'{"q":[' + b'"",' * 340_000 + b'""],"source":"de","target":"en"}')),
        Hostile("millions of numbers", _post(b'{"q":[' + b"1," * (size // 2) + b"1]}")),
        Hostile(
            "a query of 100,000 characters",
            _raw(b"POST /translate?q=" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"),
        ),
        Hostile("a head without end", _raw(b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 300_000)),
        Hostile("ten thousand headers", _raw(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 60_000)),
    ]


def _compressed() -> list[Hostile]:
    bomb = _bomb()
    return [
        Hostile("a gzip bomb", _post(bomb, more=_GZIP)),
        Hostile("a gzip bomb in chunks", _chunked(lambda: iter([bomb]), _GZIP)),
        Hostile("a gzip bomb with a form", _post(bomb, _FORM, more=_GZIP)),
        Hostile("gzip within gzip", _post(gzip.compress(gzip.compress(_json())), more=_GZIP)),
        Hostile("what is no gzip", _post(_json(), more=_GZIP)),
        Hostile("half a gzip", _post(gzip.compress(_json())[:20], more=_GZIP)),
        Hostile("gzip with something after it", _post(gzip.compress(_json()) + b"x", more=_GZIP)),
        Hostile("an unknown compression", _post(_json(), more="Content-Encoding: br\r\n")),
        Hostile("two compressions", _post(_json(), more="Content-Encoding: gzip, gzip\r\n")),
    ]


def _wrong_values() -> list[Hostile]:
    return [
        Hostile("a billion alternatives", _post(_json(alternatives=10**9))),
        Hostile("1e9 alternatives", _post(b'{"q":"a","source":"de","target":"en","alternatives":1e9}')),
        Hostile(
            "10^400 alternatives", _post(b'{"q":"a","source":"de","target":"en","alternatives":1' + b"0" * 400 + b"}")
        ),
        Hostile("alternatives as text", _post(_json(alternatives="x"))),
        Hostile("too many alternatives", _post(_json(alternatives=1001))),
        Hostile("q as a number", _post(_json(q=5))),
        Hostile("q as null", _post(_json(q=None))),
        Hostile("q as an object", _post(_json(q={"a": "b"}))),
        Hostile("q as a list of lists", _post(_json(q=[["a"]]))),
        Hostile("a language that is a path", _post(_json(source="../../etc/passwd"))),
        Hostile("a language of 100,000 letters", _post(_json(target="e" * 100_000))),
        Hostile("a language that is no text", _post(_json(source=["de"]))),
        Hostile("an unknown format", _post(_json(format="exe"))),
        Hostile("an endless time-out", _post(_json(timeout=1e300))),
        Hostile("a negative time-out", _post(_json(timeout=-1))),
        Hostile("a stream that is no truth value", _post(_json(stream="perhaps"))),
    ]


def _wrong_json() -> list[Hostile]:
    return [
        Hostile("JSON 100,000 deep", _post(b'{"q":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
        Hostile("JSON 100,000 deep where nobody looks", _post(b'{"x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001)),
        Hostile("a key twice", _post(b'{"q":"a","q":"b","source":"de","target":"en"}')),
        Hostile("NaN", _post(b'{"q":"a","source":"de","target":"en","timeout":NaN}')),
        Hostile("Infinity", _post(b'{"q":"a","source":"de","target":"en","timeout":Infinity}')),
        Hostile("bytes that are no UTF-8", _post(b'{"q":"\xff\xfe","source":"de","target":"en"}')),
        Hostile("half a character", _post(b'{"q":"\\ud800","source":"de","target":"en"}')),
        Hostile("half an object", _post(b'{"q":"a"')),
        Hostile("an empty body", _post(b"")),
        Hostile("a list", _post(b"[]")),
    ]


def _wrong_forms() -> list[Hostile]:
    return [
        Hostile("a form that is no UTF-8", _post(b"q=%ff%fe&source=de&target=en", _FORM)),
        Hostile("a form of 100,000 fields", _post(b"&".join([b"q=a"] * 100_000), _FORM)),
        Hostile("a multipart form without a boundary", _post(b"--b\r\n", "multipart/form-data")),
        Hostile(
            "a multipart form without an end",
            _post(b'--b\r\nContent-Disposition: form-data; name="q"\r\n\r\na', _MULTIPART),
        ),
        Hostile("a multipart form of 100,000 parts", _post(b"--b\r\n\r\n\r\n" * 80_000 + b"--b--", _MULTIPART)),
        Hostile("a type that nobody knows", _post(b"a", "application/x-python-pickle")),
    ]


def _wrong_http() -> list[Hostile]:
    lying = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 9\r\n\r\n12345"
    return [
        Hostile("an unknown method", _raw(b"BREW /translate HTTP/1.1\r\nHost: a\r\n\r\n")),
        Hostile("a path out of the folder", _raw(b"GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n")),
        Hostile("two lengths", _raw(lying), is_http=False),
        Hostile("a negative length", _post(_json(), length=-1), is_http=False),
        Hostile("no HTTP", _raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10 + b"\r\n\r\n"), is_http=False),
    ]


def hostile_studies(languages: tuple[str, str], megabytes: int = 30) -> list[Hostile]:
    """Return hostile requests to /inspect and /intervene; `languages` is a pair that the server translates."""

    def study(path: str, **fields: object) -> Callable[[], Iterator[bytes]]:
        return _post(_json(languages, **fields), path=path)

    head = {"kind": "encoder", "layer": 0, "head": 0}
    million = b'{"q":"a","source":"%s","target":"%s",' % tuple(language.encode() for language in languages)
    deep = b"[" * 100_000 + b"]" * 100_000
    return [
        Hostile(
            "far too much to look into", _post(b'{"q":"' + b"a" * (megabytes * _MEGABYTE) + b'"}', path="/inspect")
        ),
        Hostile("a bomb to look into", _post(_bomb(), path="/inspect", more=_GZIP)),
        Hostile("a text of 800,000 characters", study("/inspect", q="a b " * 200_000)),
        Hostile("a text of 19,999 characters", study("/inspect", q="q " * 9_999 + "q")),
        Hostile("10,000 rare characters", study("/inspect", q="\U0001f40d " * 10_000)),
        Hostile("many lines", study("/inspect", q="a\n" * 5000)),
        Hostile("nothing", study("/inspect", q="")),
        Hostile("spaces", study("/inspect", q=" " * 20_000)),
        Hostile("a list of texts", study("/inspect", q=["a"] * 1000)),
        Hostile("a billion alternatives", study("/inspect", alternatives=10**9)),
        Hostile("deep JSON", _post(b'{"q":' + deep + b"}", path="/inspect")),
        Hostile("deep JSON in heads", _post(million + b'"heads_off":' + deep + b"}", path="/intervene")),
        Hostile("a million heads", _post(million + b'"heads_off":[' + b"{}," * 340_000 + b"{}]}", path="/intervene")),
        Hostile("1,001 heads", study("/intervene", heads_off=[head] * 1001)),
        Hostile("a head far away", study("/intervene", heads_off=[head | {"layer": 10**6}])),
        Hostile("a head beyond all numbers", study("/intervene", heads_off=[head | {"head": 10**400}])),
        Hostile("a head before the first", study("/intervene", heads_off=[head | {"head": -1}])),
        Hostile("a head of no kind", study("/intervene", heads_off=[head | {"kind": "../../etc"}])),
        Hostile(
            "a million forbidden tokens", _post(million + b'"forbid":[' + b'"",' * 340_000 + b'""]}', path="/intervene")
        ),
        Hostile("a forced token of 900,000 letters", study("/intervene", step=0, force="x" * 900_000)),
        Hostile("a position far away", study("/intervene", step=10**6, force="s")),
        Hostile("an infinite position", _post(million + b'"step":1e999}', path="/intervene")),
        Hostile("another source that is too long", study("/intervene", changed="q " * 9_999)),
    ]


def main() -> int:
    """Send all requests to a server, and return 1 if one is handled wrongly."""
    verdicts = [judge(sys.argv[1], hostile) for hostile in hostile_requests()]
    for verdict in verdicts:
        print("right" if verdict.is_right else "WRONG", verdict.status, verdict.name, "·", verdict.error)
    print(sum(verdict.is_right for verdict in verdicts), "of", len(verdicts))
    return int(not all(verdict.is_right for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
