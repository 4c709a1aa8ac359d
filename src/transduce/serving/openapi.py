"""The OpenAPI 3.1 document, made from the typed messages and the table of operations that the routes are made from."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import msgspec

from transduce.serving.messages import ErrorMessage
from transduce.serving.settings import ServingSettings

_JSON = "application/json"
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_TEMPLATE = "#/components/schemas/{name}"
# Fields that hold text to translate, by the name of their message.
_TEXTS = (
    ("TranslateRequest", "q"),
    ("DetectRequest", "q"),
    ("DeepLRequest", "text"),
    ("ChatMessage", "content"),
    ("ChatPart", "text"),
    ("InspectRequest", "q"),
    ("InterveneRequest", "q"),
    ("InterveneRequest", "changed"),
)


class Operation(NamedTuple):
    """What can be done at one path by one method."""

    method: Literal["get", "post"]
    path: str
    summary: str
    answer: type | str
    """The type of a successful answer's JSON, or the content type of one that is no JSON."""
    message: type | None = None
    """What is sent: in the body of a POST, in the query of a GET."""
    needs_key: bool = False
    """Where the server has API keys."""
    streams: bool = False
    """Whether server-sent events may come in place of JSON."""
    error: type = ErrorMessage
    """What an answer is that is no success."""


def document(operations: Sequence[Operation], settings: ServingSettings) -> dict[str, Any]:
    """The document as JSON values."""
    types = [each for o in operations for each in (o.error, o.message or o.error, o.answer)]
    known = list(dict.fromkeys(type for type in types if not isinstance(type, str)))
    schemas, components = msgspec.json.schema_components(known, ref_template=_TEMPLATE)
    by_type = dict(zip(known, schemas, strict=True))
    _apply_limits(components, settings)
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, by_type, components, settings)
    security = {key: {"type": "http", "scheme": "bearer"} for key in ["key"] if settings.api_keys}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "transduce",
            "version": version("transduce"),
            "description": "Translation by the LibreTranslate API; /v2 is for DeepL's clients, /v1 for OpenAI's.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": paths,
        "components": {"schemas": components} | ({"securitySchemes": security} if security else {}),
    }


def _apply_limits(components: dict[str, Any], settings: ServingSettings) -> None:
    """What the settings allow stands in the schemas, so that a client can keep to it."""
    for name, field in _TEXTS:
        schema = components.get(name, {}).get("properties", {}).get(field, {})
        for kind in schema.get("anyOf", [schema]):
            if kind.get("type") == "array":
                kind["maxItems"] = settings.max_texts
            elif kind.get("type") == "string":
                kind["maxLength"] = settings.max_characters
    for component in components.values():
        for field, most in (("alternatives", settings.max_alternatives), ("n", settings.max_alternatives + 1)):
            for kind in component.get("properties", {}).get(field, {}).get("anyOf", []):
                if kind.get("type") == "integer":
                    kind["maximum"] = most


def _operation(
    operation: Operation, schemas: dict[type, Any], components: dict[str, Any], settings: ServingSettings
) -> dict[str, Any]:
    described: dict[str, Any] = {"summary": operation.summary, "operationId": _identifier(operation)}
    if operation.message is not None and operation.method == "post":
        content = {kind: {"schema": schemas[operation.message]} for kind in (_JSON, *_FORMS)}
        described["requestBody"] = {"required": True, "content": content}
    elif operation.message is not None:
        properties = components[operation.message.__name__]["properties"]
        described["parameters"] = [
            {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()
        ]
    if operation.needs_key and settings.api_keys:
        described["security"] = [{"key": []}]
    error = {_JSON: {"schema": schemas[operation.error]}}
    described["responses"] = {
        "200": {"description": "Done.", "content": _success(operation, schemas)},
        "4XX": {"description": "The request is at fault; the sentence says how.", "content": error},
        "5XX": {"description": "The server is busy or ending (503), or out of time (504).", "content": error},
    }
    return described


def _success(operation: Operation, schemas: dict[type, Any]) -> dict[str, Any]:
    if isinstance(operation.answer, str):
        return {operation.answer: {"schema": {"type": "string"}}}
    content = {_JSON: {"schema": schemas[operation.answer]}}
    return content | ({"text/event-stream": {"schema": {"type": "string"}}} if operation.streams else {})


def _identifier(operation: Operation) -> str:
    words = operation.path.strip("/").replace("/", "_").replace("-", "_") or "page"
    return f"{operation.method}_{words}"
