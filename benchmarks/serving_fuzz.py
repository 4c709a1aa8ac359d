"""Fuzz a server with requests generated from its OpenAPI document, and check the answers against the document.

    python benchmarks/serving_fuzz.py http://127.0.0.1:5000 --cases 5000 --mutations 2000

Requests cover every operation of the document. Most are valid; some lack a field or have a value of another type. Bar:
no request causes a server error, and every answer conforms to the document. Mutations are raw requests with bytes
changed, removed and inserted: the server may answer or disconnect, but neither fail nor hang.
"""

import argparse
import http.client
import json
import random
import re
import socket
import sys
from collections import Counter
from contextlib import closing
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_SECONDS = 20.0

Schema = dict[str, Any]


class Finding(NamedTuple):
    """A request that the server handled wrongly."""

    request: str
    status: int | None
    reason: str


_PATH_PARAMETER = re.compile(r"\{\w+\}")


class Request(NamedTuple):
    """An HTTP request."""

    method: str
    path: str
    body: bytes
    content_type: str | None


class Document:
    """An OpenAPI document, supporting the features that transduce's document uses."""

    def __init__(self, content: dict[str, Any], likely: dict[str, list[Any]]) -> None:
        """Store the document, and `likely` values of fields by name, without which most requests would be refused."""
        self.content = content
        self.likely = likely

    def resolve(self, schema: Schema) -> Schema:
        """Return the schema that a reference refers to."""
        while "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            schema = self.content["components"]["schemas"][name]
        return schema

    def operations(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return path, method and description of each operation."""
        return [
            (path, method, operation)
            for path, methods in self.content["paths"].items()
            for method, operation in methods.items()
        ]

    def requests(self, path: str, method: str, operation: dict[str, Any]) -> st.SearchStrategy[Request]:
        """Return a strategy for requests of an operation."""
        if "requestBody" not in operation:
            parameters = operation.get("parameters", [])
            query = {entry["name"]: self.values(entry["schema"]) for entry in parameters if entry["in"] == "query"}
            path = _PATH_PARAMETER.sub("0-0", path)
            asked = st.fixed_dictionaries({}, optional=query).map(
                lambda values: "?" + urlencode(_texts(values)) if values else ""
            )
            return asked.map(lambda text: Request(method.upper(), path + text, b"", None))
        schema = next(iter(operation["requestBody"]["content"].values()))["schema"]
        path = _PATH_PARAMETER.sub("0-0", path)
        return st.builds(lambda fields, form: _with_body(path, fields, form=form), self._fields(schema), st.booleans())

    def _fields(self, schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
        """Return a strategy for message bodies, some of which are invalid."""
        schema = self.resolve(schema)
        required = set(schema.get("required", []))
        properties = self._properties(schema)
        right = st.fixed_dictionaries(
            {name: value for name, value in properties.items() if name in required},
            optional={name: value for name, value in properties.items() if name not in required},
        )
        wrong = st.builds(
            lambda fields, name, value: fields | {name: value}, right, st.sampled_from(sorted(properties)), _anything()
        )
        missing = st.builds(
            lambda fields, name: {key: value for key, value in fields.items() if key != name},
            right,
            st.sampled_from(sorted(properties)),
        )
        return st.one_of(right, right, right, right, wrong, missing)

    def _properties(self, schema: Schema) -> dict[str, st.SearchStrategy[Any]]:
        """Return a strategy for each property; two of three values are likely ones if these are known."""
        properties = {name: self.values(value) for name, value in schema["properties"].items()}
        for name in properties.keys() & self.likely.keys():
            likely = st.sampled_from(self.likely[name])
            properties[name] = likely | likely | properties[name]
        return properties

    def values(self, schema: Schema) -> st.SearchStrategy[Any]:
        """Return a strategy for values that a schema allows."""
        schema = self.resolve(schema)
        if "anyOf" in schema:
            return st.one_of([self.values(kind) for kind in schema["anyOf"]])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        kind = schema.get("type")
        if kind == "string":
            return st.text(max_size=min(schema.get("maxLength", 200), 200))
        if kind == "integer":
            return st.integers(schema.get("minimum", -5), schema.get("maximum", 5))
        if kind == "number":
            # A timeout must be too long to expire.
            most = schema.get("maximum", 100.0)
            return st.floats(min(10.0, most), most, allow_nan=False)
        if kind == "object":
            return self._objects(schema)
        if kind == "array":
            return st.lists(self.values(schema.get("items", {})), max_size=min(schema.get("maxItems", 5), 5))
        return st.booleans() if kind == "boolean" else st.none()

    def _objects(self, schema: Schema) -> st.SearchStrategy[dict[str, Any]]:
        if "properties" in schema:
            return st.fixed_dictionaries(self._properties(schema))
        return st.dictionaries(st.text(max_size=20), self.values(schema.get("additionalProperties", {})), max_size=3)

    def mismatch(self, value: Any, schema: Schema, place: str = "$") -> str | None:
        """Return how a value violates a schema, or None."""
        schema = self.resolve(schema)
        if "anyOf" in schema:
            found = [self.mismatch(value, kind, place) for kind in schema["anyOf"]]
            return None if None in found else f"{place} is none of {len(found)} kinds"
        if "enum" in schema:
            return None if value in schema["enum"] else f"{place} is none of {schema['enum']}"
        if "type" not in schema:
            return None
        kinds: dict[str, type | tuple[type, ...]] = {
            "string": str,
            "integer": int,
            "number": (int, float),
            "boolean": bool,
            "array": list,
            "object": dict,
            "null": type(None),
        }
        if not isinstance(value, kinds[schema["type"]]):
            return f"{place} is no {schema['type']}"
        if isinstance(value, list):
            kinds_of = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
            if len(kinds_of) != len(value):
                return f"{place} has {len(value)} entries"
            entries = enumerate(zip(value, kinds_of, strict=True))
            return next(filter(None, (self.mismatch(v, k, f"{place}[{n}]") for n, (v, k) in entries)), None)
        if isinstance(value, dict):
            return self._object_mismatch(value, schema, place)
        return None

    def _object_mismatch(self, value: dict[str, Any], schema: Schema, place: str) -> str | None:
        if "properties" not in schema:
            return None
        missing = [name for name in schema.get("required", []) if name not in value]
        unknown = [name for name in value if name not in schema["properties"]]
        if missing or unknown:
            return f"{place} lacks {missing}, has {unknown}"
        inner = (self.mismatch(entry, schema["properties"][name], f"{place}.{name}") for name, entry in value.items())
        return next(filter(None, inner), None)


def _anything() -> st.SearchStrategy[Any]:
    simple = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
    return st.recursive(
        simple, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    )


def _with_body(path: str, fields: dict[str, Any], *, form: bool) -> Request:
    if form:
        return Request("POST", path, urlencode(_texts(fields), doseq=True).encode(), _FORM)
    return Request("POST", path, json.dumps(fields).encode(), _JSON)


def _texts(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields as strings, as forms encode them."""
    return {
        name: [str(entry) for entry in value] if isinstance(value, list) else "" if value is None else str(value)
        for name, value in fields.items()
    }


def fuzz(url: str, cases: int, *, start: int = 1) -> tuple[Counter[int], list[Finding]]:
    """Send generated requests; return how often each status occurred, and the findings."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_SECONDS)
    document = Document(_read_json(connection, "/spec"), _likely(connection))
    statuses: Counter[int] = Counter()
    findings: list[Finding] = []
    strategies = [
        (operation, document.requests(path, method, operation)) for path, method, operation in document.operations()
    ]
    # Test POST requests more often, because they have more fields.
    weighted = [entry for entry in strategies for _ in range(5 if "requestBody" in entry[0] else 1)]
    cases_of = st.one_of([st.tuples(st.just(number), weighted[number][1]) for number in range(len(weighted))])

    @seed(start)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases_of)
    def one(case: tuple[int, Request]) -> None:
        number, request = case
        try:
            status, kind, body = _send_again(connection, request)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            findings.append(Finding(repr(request), None, f"no answer: {error!r}"))
            return
        statuses[status] += 1
        reason = _judge(document, weighted[number][0], status, kind, body)
        if reason:
            findings.append(Finding(repr(request), status, reason))

    one()
    connection.close()
    return statuses, findings


def _read_json(connection: http.client.HTTPConnection, path: str) -> Any:
    connection.request("GET", path)
    return json.loads(connection.getresponse().read())


def _likely(connection: http.client.HTTPConnection) -> dict[str, list[Any]]:
    """Return languages that the server knows, and heads, positions and tokens that most models have."""
    chosen = _read_json(connection, "/frontend/settings")["language"]
    source, target = chosen["source"]["code"], chosen["target"]["code"]
    return {
        "source": [source, source, "auto"],
        "target": [target],
        "source_lang": [source.upper()],
        "target_lang": [target.upper()],
        "model": [model["id"] for model in _read_json(connection, "/v1/models")["data"]],
        "role": ["user"],
        "n": [1, None],
        "layer": [0],
        "head": [0],
        "step": [0, 1, 2, None],
        "force": ["▁the", "s", ".", None],
        "forbid": [["▁the"], [".", "▁a"], []],
    }


def _send_again(connection: http.client.HTTPConnection, request: Request) -> tuple[int, str, bytes]:
    """Send a request, again on a new connection if the old one was closed as idle; return status, type and body."""
    try:
        return _send(connection, request)
    except (ConnectionError, http.client.RemoteDisconnected):
        connection.close()
        return _send(connection, request)


def _send(connection: http.client.HTTPConnection, request: Request) -> tuple[int, str, bytes]:
    headers = {"Content-Type": request.content_type} if request.content_type else {}
    connection.request(request.method, request.path, request.body or None, headers)
    answer = connection.getresponse()
    return answer.status, answer.getheader("Content-Type", "").partition(";")[0], answer.read()


def _judge(document: Document, operation: dict[str, Any], status: int, kind: str, body: bytes) -> str | None:
    if status >= 500:
        return body[:200].decode(errors="replace")
    family = str(status) if status < 300 else f"{status // 100}XX"
    response = operation["responses"].get(family)
    if response is not None and "content" not in response:
        return "this answer has no content" if body else None
    content = (response or {}).get("content", {})
    if kind not in content:
        return f"the document knows no {kind} with status {status}"
    return (
        document.mismatch(json.loads(body), content[kind]["schema"])
        if kind == _JSON and status >= 300
        else (_success_mismatch(document, content[kind]["schema"], kind, body))
    )


def _success_mismatch(document: Document, schema: Schema, kind: str, body: bytes) -> str | None:
    """Return how a successful answer violates its schema, or None; texts have no schema to check."""
    if kind == "text/event-stream":
        return None if re.fullmatch(rb"((event: \w+\n)?data: [^\n]*\n\n)+", body) else "these are no server-sent events"
    if kind == "application/x-ndjson":
        return None if all(isinstance(json.loads(line), dict) for line in body.splitlines()) else "a line is no object"
    if kind != _JSON or schema == {"type": "string"}:
        return None
    return document.mismatch(json.loads(body), schema)


# --- bytes ---


def _post(path: str, content: bytes, headers: bytes = b"Content-Type: application/json\r\n") -> bytes:
    length = b"Content-Length: %d\r\n" % len(content)
    return b"POST %s HTTP/1.1\r\nHost: a\r\n%s%s\r\n%s" % (path.encode("ascii"), headers, length, content)


def _seeds(source: bytes, target: bytes) -> list[bytes]:
    """Return raw requests, most of them valid."""
    pair = b'"source":"%s","target":"%s"' % (source, target)
    sentence = b'{"q":"ein Satz",%s}' % pair
    change = b'{"q":"ein Satz",%s,"heads_off":[{"kind":"encoder","layer":0,"head":0}],"step":1,"forbid":["s"]}' % pair
    chunks = b"POST /translate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    return [
        b"GET /languages HTTP/1.1\r\nHost: a\r\n\r\n",
        _post("/translate", sentence),
        _post("/inspect", sentence),
        _post("/intervene", change),
        _post("/v2/translate", b"text=ein+Satz&target_lang=%s" % target, b""),
        chunks % (len(sentence), sentence),
        _post("/translate", b"abc", b"Content-Encoding: gzip\r\nConnection: close\r\n"),
    ]


def mutate(url: str, cases: int, *, start: int = 1) -> tuple[Counter[str], list[Finding]]:
    """Send damaged requests; return how often each outcome occurred, and the requests that made the server fail or
    hang.
    """
    randomness = random.Random(start)
    outcomes: Counter[str] = Counter()
    findings: list[Finding] = []
    address = urlsplit(url)
    with closing(http.client.HTTPConnection(address.hostname or "", address.port, timeout=_SECONDS)) as connection:
        chosen = _likely(connection)
    seeds = _seeds(chosen["source"][0].encode(), chosen["target"][0].encode())
    for _ in range(cases):
        sent = _damaged(randomness.choice(seeds), randomness)
        status, is_hanging = _exchange(url, sent)
        outcomes["hung up" if status is None else str(status)] += 1
        if is_hanging or (status is not None and status >= 500):
            findings.append(Finding(repr(sent), status, "it hangs" if is_hanging else "a server error"))
    return outcomes, findings


def _damaged(text: bytes, randomness: random.Random) -> bytes:
    damaged = bytearray(text)
    for _ in range(randomness.randint(1, 6)):
        offset = randomness.randrange(len(damaged))
        match randomness.randrange(4):
            case 0:
                damaged[offset] = randomness.randrange(256)
            case 1:
                del damaged[offset : offset + randomness.randint(1, 8)]
            case 2:
                damaged[offset:offset] = randomness.randbytes(randomness.randint(1, 8))
            case _:
                damaged[offset:offset] = damaged[offset : offset + randomness.randint(1, 40)]
    return bytes(damaged)


def _exchange(url: str, sent: bytes) -> tuple[int | None, bool]:
    """Return the status of the first answer or None, and whether the server kept the connection open until the
    timeout.
    """
    address = urlsplit(url)
    received = b""
    with socket.create_connection((address.hostname or "", address.port or 80), timeout=_SECONDS) as connection:
        try:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)  # tells the server that the request is complete
            while chunk := connection.recv(65536):
                received += chunk
        except TimeoutError:
            return None, True
        except OSError:
            pass
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", received)
    return (int(found[1]) if found else None), False


def main() -> int:
    """Print the outcomes, and return 1 if there are findings."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("url")
    options.add_argument("--cases", type=int, default=5000)
    options.add_argument("--mutations", type=int, default=2000)
    args = options.parse_args()
    statuses, findings = fuzz(args.url, args.cases)
    outcomes, more = mutate(args.url, args.mutations)
    print(dict(sorted(statuses.items())), dict(sorted(outcomes.items())))
    for finding in [*findings, *more][:20]:
        print(finding)
    return int(bool(findings or more))


if __name__ == "__main__":
    sys.exit(main())
