"""Generate the OpenAPI 3.1 document from the typed messages and the table of operations."""

import re
from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Literal, NamedTuple, get_type_hints

import msgspec

from transduce.serving.messages import ErrorMessage, UploadedFile
from transduce.serving.settings import ServingSettings

_JSON = "application/json"
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_TEMPLATE = "#/components/schemas/{name}"
# Fields that hold text to translate, by the name of their message.
_TEXTS = (
    ("TranslateRequest", "q"),
    ("DetectRequest", "q"),
    ("DeepLRequest", "text"),
    ("SuggestRequest", "q"),
    ("ChatMessage", "content"),
    ("ChatPart", "text"),
    ("CompletionsRequest", "prompt"),
    ("OllamaMessage", "content"),
    ("OllamaGenerateRequest", "prompt"),
    ("InspectRequest", "q"),
    ("InterveneRequest", "q"),
    ("InterveneRequest", "changed"),
)


_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


class Operation(NamedTuple):
    """A path and method of the API, with the types of its request and its response."""

    method: Literal["delete", "get", "post"]
    path: str
    summary: str
    answer: type | str
    """Type of a successful response's JSON, or the content type of a response that is not JSON."""
    message: type | None = None
    """Type of the request: the body of a POST, the query of a GET."""
    needs_key: bool = False
    """True if requests need a key when the server has API keys."""
    streams: bool = False
    """True if the response may be a stream instead of JSON."""
    stream_type: str = "text/event-stream"
    """Content type of a stream."""
    status: int = 200
    """Status of a successful response."""
    error: type = ErrorMessage
    """Type of an error response."""


def document(operations: Sequence[Operation], settings: ServingSettings) -> dict[str, Any]:
    """Return the OpenAPI document of the operations as JSON values."""
    types = [type_of_operation for o in operations for type_of_operation in (o.error, o.message or o.error, o.answer)]
    message_types = list(dict.fromkeys(type for type in types if not isinstance(type, str)))
    schemas, components = msgspec.json.schema_components(message_types, ref_template=_TEMPLATE)
    by_type = dict(zip(message_types, schemas, strict=True))
    _apply_limits(components, settings)
    components[UploadedFile.__name__] = {"type": "string", "format": "binary"}
    paths: dict[str, Any] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, by_type, components, settings)
    security = {key: {"type": "http", "scheme": "bearer"} for key in ["key"] if settings.api_keys}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "transduce",
            "version": version("transduce"),
            "description": "Translation by LibreTranslate's API; /v2 is DeepL's, /v1 OpenAI's, and /api Ollama's.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        **({"servers": [{"url": settings.root_path}]} if settings.root_path else {}),
        "paths": paths,
        "components": {"schemas": components} | ({"securitySchemes": security} if security else {}),
    }


def _apply_limits(components: dict[str, Any], settings: ServingSettings) -> None:
    """Write the limits of the settings into the schemas, so that clients can respect them."""
    for name, field in _TEXTS:
        schema = components.get(name, {}).get("properties", {}).get(field, {})
        for variant in schema.get("anyOf", [schema]):
            if variant.get("type") == "array":
                variant["maxItems"] = settings.max_texts
            elif variant.get("type") == "string":
                variant["maxLength"] = settings.max_characters
    for component in components.values():
        for field, maximum in (("alternatives", settings.max_alternatives), ("n", settings.max_alternatives + 1)):
            for variant in component.get("properties", {}).get(field, {}).get("anyOf", []):
                if variant.get("type") == "integer":
                    variant["maximum"] = maximum


def _operation(
    operation: Operation, schemas: dict[type, Any], components: dict[str, Any], settings: ServingSettings
) -> dict[str, Any]:
    result: dict[str, Any] = {"summary": operation.summary, "operationId": _identifier(operation)}
    if operation.message is not None and operation.method == "post":
        hints = get_type_hints(operation.message).values()
        kinds = _FORMS[1:] if UploadedFile in hints else (_JSON, *_FORMS)
        content = {content_type: {"schema": schemas[operation.message]} for content_type in kinds}
        result["requestBody"] = {"required": True, "content": content}
    elif operation.message is not None:
        properties = components[operation.message.__name__]["properties"]
        result["parameters"] = [
            {"name": name, "in": "query", "required": False, "schema": schema} for name, schema in properties.items()
        ]
    names = _PATH_PARAMETER.findall(operation.path)
    if names:
        result["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if operation.needs_key and settings.api_keys:
        result["security"] = [{"key": []}]
    error = {_JSON: {"schema": schemas[operation.error]}}
    result["responses"] = {
        str(operation.status): {"description": "Success."} | _success(operation, schemas),
        "4XX": {"description": "The request is invalid; the error says why.", "content": error},
        "5XX": {
            "description": "The server is busy or shutting down (503), or the deadline has passed (504).",
            "content": error,
        },
    }
    return result


def _success(operation: Operation, schemas: dict[type, Any]) -> dict[str, Any]:
    if operation.status == HTTPStatus.NO_CONTENT:
        return {}
    if isinstance(operation.answer, str):
        return {"content": {operation.answer: {"schema": {"type": "string"}}}}
    content = {_JSON: {"schema": schemas[operation.answer]}}
    return {"content": content | ({operation.stream_type: {"schema": {"type": "string"}}} if operation.streams else {})}


def _identifier(operation: Operation) -> str:
    words = re.sub(r"\W+", "_", operation.path).strip("_") or "page"
    return f"{operation.method}_{words}"
