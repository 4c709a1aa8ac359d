"""Typed messages of LibreTranslate's and the inspection API, errors, and the OpenAPI document of all APIs.

LibreTranslate's field names are those of its version 1.9. `stream`, `timeout`, `quality_warnings` and `glossary` are
extensions that its clients do not send.
"""

import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from importlib.metadata import version
from types import FunctionType
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from transduce.documents.units import DocumentSettings
from transduce.errors import TransduceError
from transduce.inference.quality_estimation import QualityWarning
from transduce.serving.settings import ServingSettings

_LIMITED = "x-limited"
LIMITED_TEXT = Meta(extra_json_schema={_LIMITED: True})
"""The annotation of a request's fields that hold text to translate, whose limits the OpenAPI document states."""
Seconds = Annotated[float, Meta(gt=0, le=3600)]
Number = Annotated[int, Meta(ge=0, le=1_000_000)]
Token = Annotated[str, Meta(max_length=200)]
Alternatives = Annotated[
    int, Meta(ge=0, le=1000, description="The beam is as wide as for this number of further translations.")
]


class UploadedFile(msgspec.Struct, frozen=True):
    """A file in a multipart form: its name and its content."""

    name: str
    """The file name that the client sent, which is not trusted; its suffix shows the format."""
    content: bytes


class TranslateRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `POST /translate`: texts to translate, their languages, and options."""

    q: Annotated[
        str | list[str], LIMITED_TEXT, Meta(description="A text, or several; lines are translated one by one.")
    ]
    source: Annotated[str, Meta(description="A language code, or `auto`.", examples=["auto"])]
    target: Annotated[str, Meta(description="A language code.")]
    format: Annotated[
        Literal["text", "html", "markdown", ""] | None,
        Meta(description="`html` keeps the tags and translates the text between them; `markdown` keeps the markup."),
    ] = "text"
    alternatives: Annotated[int, Meta(le=1000, description="Number of further translations of each text.")] | None = 0
    api_key: Annotated[str, Meta(description="Required if the server has API keys.")] | None = None
    stream: Annotated[
        bool, Meta(description="Answer with server-sent events: `progress` with the final text so far, then `result`.")
    ] = False
    timeout: Annotated[Seconds, Meta(description="Give up after this number of seconds.")] | None = None
    quality_warnings: Annotated[bool, Meta(description="Return quality warnings for each translation.")] = False
    doubts: Annotated[
        bool, Meta(description="The old name of `quality_warnings`, until version 0.3; they return as `doubts`.")
    ] = False
    glossary: Annotated[
        dict[str, str | list[str]] | None,
        Meta(
            description="Source terms with the required translation of each: a text, or several alternatives. "
            "It replaces the server's own glossary, even if it is empty. Only in JSON requests.",
            examples=[{"Hund": ["dog", "dogs"]}],
        ),
    ] = None


class DetectedLanguage(msgspec.Struct, kw_only=True, frozen=True):
    """A language that a text may be in, by its code, with the detector's confidence."""

    language: str
    confidence: Annotated[float, Meta(ge=0, le=100, description="In percent.")]


class TranslateResponse(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The response of `POST /translate`: the translations; each field is a list if `q` was a list."""

    translated_text: str | list[str]
    detected_language: DetectedLanguage | list[DetectedLanguage] | UnsetType = UNSET
    """The detected source language, set if the source was `auto`."""
    alternatives: list[str | list[str]] | UnsetType = UNSET
    """Alternative translations, set if the request asked for some; best first, without duplicates unless they are
    sampled, and for a list of texts one list for each text."""
    quality_warnings: list[QualityWarning | list[QualityWarning]] | UnsetType = UNSET
    """Quality warnings, set if the request asked for them."""
    doubts: list[QualityWarning | list[QualityWarning]] | UnsetType = UNSET
    """Quality warnings, set if the request asked for them by their old name."""
    warnings: list[str] | UnsetType = UNSET
    """Warnings about texts that seem not to be in the language that the request names; unset if there are none."""


class LineProgress(msgspec.Struct, kw_only=True, frozen=True):
    """The data of a `progress` event of a streamed translation: how far one line of a text is translated."""

    index: int
    """Index of the text in the request."""
    line: int
    """Index of the line among the text's lines that are not empty."""
    text: str
    """The final part of the translation: it only grows, and the result starts with it."""
    draft: str
    """The final part, followed by the best guess for the rest, which may still change."""


class DetectRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `POST /detect`: the text whose language is to be detected."""

    q: Annotated[str, LIMITED_TEXT]
    api_key: str | None = None


class Language(msgspec.Struct, kw_only=True, frozen=True):
    """A served language in the response of `GET /languages`, with the languages that it can be translated to."""

    code: str
    name: str
    targets: list[str]
    """Codes of the languages that this language can be translated to; its own code is among them."""


class UploadRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The fields that the multipart forms with an uploaded document have in common."""

    file: Annotated[UploadedFile, Meta(description="The document; its suffix names the format.")]
    format: Annotated[str | None, Meta(description="The format, such as `srt`; by default the suffix names it.")] = None
    columns: Annotated[list[str] | None, Meta(description="Tables: names or numbers of columns to translate.")] = None
    fields: Annotated[list[str] | None, Meta(description="JSON: paths of the values to translate.")] = None
    encoding: Annotated[str | None, Meta(description="The encoding of a text file, such as `gb18030`.")] = None

    @property
    def document_settings(self) -> DocumentSettings:
        """The settings of the document; a field that is None or "" is not set."""
        return DocumentSettings(
            format=self.format or None,
            columns=tuple(self.columns or ()),
            fields=tuple(self.fields or ()),
            encoding=self.encoding or None,
        )


class TranslateFileRequest(UploadRequest, kw_only=True, frozen=True):
    """The multipart form of `POST /translate_file`: a document to translate, and its languages."""

    source: Annotated[str, Meta(description="A language code, or `auto`.")]
    target: str
    api_key: str | None = None


class TranslateFileResponse(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The response of `POST /translate_file`: the address of the translated document."""

    translated_file_url: str
    """Address of the translated document, which is kept for some minutes."""


class SuggestRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `POST /suggest`: a better translation of a text."""

    q: Annotated[str, LIMITED_TEXT, Meta(description="The source text.")]
    s: Annotated[str, Meta(description="The suggested translation.")]
    source: str
    target: str
    api_key: str | None = None


class SuggestResponse(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `POST /suggest`, which confirms that a user's better translation was stored."""

    success: Literal[True] = True


class LanguageChoice(msgspec.Struct, kw_only=True, frozen=True):
    """A language that LibreTranslate's web page selects by default: its code and its name."""

    code: str
    name: str


class LanguageChoices(msgspec.Struct, kw_only=True, frozen=True):
    """The source and target language that LibreTranslate's web page selects by default."""

    source: LanguageChoice
    target: LanguageChoice


class FrontendSettings(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The response of `GET /frontend/settings`: the server's limits and features, for LibreTranslate's web page."""

    char_limit: int
    """Maximum number of characters of a request."""
    frontend_timeout: int
    """Milliseconds that a page waits after a keystroke before it requests a translation."""
    api_keys: bool
    """True if the server has API keys."""
    key_required: bool
    """True if requests need a key; the same as `api_keys`."""
    suggestions: bool
    """True if suggested translations are stored."""
    files_translation: bool
    """True if documents can be uploaded."""
    supported_files_format: list[str]
    """Suffixes of the documents that can be translated, such as `.docx`."""
    language: LanguageChoices


class SentenceRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A sentence whose translation is to be inspected, with its languages and options."""

    q: Annotated[str, LIMITED_TEXT, Meta(description="One sentence, without line breaks.")]
    source: Annotated[str, Meta(description="The language of the sentence.")]
    target: Annotated[str, Meta(description="The language of the translation.")]
    alternatives: Alternatives | None = 0
    api_key: Annotated[str, Meta(description="Required if the server has API keys.")] | None = None
    timeout: Annotated[Seconds, Meta(description="Give up after this number of seconds.")] | None = None


class InspectRequest(SentenceRequest, kw_only=True, frozen=True):
    """The body of `POST /inspect`: a sentence whose translation is to be inspected."""

    attribution: Annotated[
        bool, Meta(description="Add the contributions of the source words, if the model supports that.")
    ] = False


class DisabledHead(msgspec.Struct, kw_only=True, frozen=True):
    """An attention head to switch off; layers and heads count from 0."""

    kind: Annotated[Literal["encoder", "decoder", "memory"], Meta(description="`memory` means cross-attention.")]
    layer: Number
    head: Number


class InterveneRequest(SentenceRequest, kw_only=True, frozen=True):
    """The body of `POST /intervene`: a sentence, and the changes under which its translation is compared."""

    heads_off: Annotated[
        list[DisabledHead], Meta(max_length=1000, description="Heads whose output is replaced by zeros.")
    ] = []
    step: Annotated[
        Number | None, Meta(description="A position in the translation, from 0; the tokens before it are kept.")
    ] = None
    force: Annotated[
        Token | None, Meta(description="The token to force at this position, as the vocabulary spells it.")
    ] = None
    forbid: Annotated[list[Token], Meta(max_length=100, description="Tokens to forbid at this position.")] = []
    changed: Annotated[
        str | None, LIMITED_TEXT, Meta(description="Another source sentence to translate instead of `q`.")
    ] = None


class PageSettings(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The settings that the server writes into its own web page."""

    pairs: list[tuple[str, str]]
    """Source and target language code of each model."""
    samples: list[tuple[str, ...]] = []
    """For each language pair, some source sentences; none for models that `transduce train` did not write."""
    max_characters: int
    """Maximum number of characters of a request."""
    max_alternatives: int
    """Maximum number of translations of a text besides the best one."""
    needs_key: bool
    """True if requests need an API key."""


class Health(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `GET /health` while the server can translate: the status `ok`."""

    status: Literal["ok"] = "ok"


class ErrorMessage(msgspec.Struct, kw_only=True, frozen=True):
    """The body of the response to a request that failed: one sentence that describes the error."""

    error: str
    """One sentence that describes the error."""
    message: str | msgspec.UnsetType = msgspec.UNSET
    """The sentence of `error`, in the field that DeepL's clients read; set under `/v2` only."""


# --- errors below /v1 ---


class OpenAIFault(msgspec.Struct, kw_only=True, frozen=True):
    """The reason why a request under `/v1` failed, in OpenAI's format."""

    message: str
    """One sentence that describes the error."""
    type: Literal["invalid_request_error", "server_error"]
    param: None = None
    code: None = None


class OpenAIError(msgspec.Struct, kw_only=True, frozen=True):
    """The response to a request under `/v1` that failed."""

    error: OpenAIFault


def error_type(path: str) -> type[ErrorMessage | OpenAIError]:
    """Return the type of the error responses to requests with this path."""
    return OpenAIError if path.startswith("/v1/") else ErrorMessage


# --- request error ---
# Errors that refuse a request: an HTTP status and one sentence with the reason and the remedy.


class RequestError(Exception):
    """An error that a client gets as the response to its request: an HTTP status and one sentence.

    The response has the format of the API that the request's path belongs to.
    """

    def __init__(self, status: int, sentence: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.retry_after_seconds = retry_after_seconds
        self.close_connection = False
        """True if the rest of the request's body will not be read."""

    @property
    def headers(self) -> dict[str, str]:
        """A dict of the HTTP headers of the error response.

        It has Retry-After (whole seconds) if `retry_after_seconds` is set, and Connection if the connection will be
        closed.
        """
        headers = {}
        if self.retry_after_seconds is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after_seconds)))
        if self.close_connection:
            headers["Connection"] = "close"
        return headers


def invalid_request(reason: str) -> RequestError:
    """Return the `RequestError` (status 400) for a request that is malformed or exceeds a limit, with the reason."""
    return RequestError(400, f"Invalid request: {reason}")


def unsupported_field(name: str) -> RequestError:
    """Return the `RequestError` (status 400) for a field that would change the answer, but is not supported."""
    return invalid_request(f"`{name}` is not supported by this server: leave it out")


@contextmanager
def refusing_errors() -> Iterator[None]:
    """In a `with` block, turn a `TransduceError` into the `RequestError` (status 400) of an invalid request."""
    try:
        yield
    except TransduceError as error:
        raise invalid_request(str(error)) from None


def refuse_fields(message: msgspec.Struct, names: Sequence[str]) -> None:
    """Refuse a request that sets an unsupported field to a value that is not empty.

    Args:
        message: the request.
        names: the names of unsupported fields; names that the message does not have are skipped.

    Raises:
        RequestError: one of these fields is set.
    """
    for name in names:
        if getattr(message, name, None):
            raise unsupported_field(name)


def check_characters(characters: int, limit: int, name: str = "request") -> None:
    """Check that a request, or a part of it, does not have too many characters.

    Args:
        characters: the number of characters.
        limit: the maximum number.
        name: what has these characters, for the error's text.

    Raises:
        RequestError: there are more than `limit` characters.
    """
    if characters > limit:
        raise invalid_request(f"{name} ({characters}) exceeds text limit ({limit} characters)")


# --- the OpenAPI document ---


_JSON = "application/json"
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_TEMPLATE = "#/components/schemas/{name}"
_PATH_PARAMETER = re.compile(r"\{(\w+)\}")


Handler = Callable[[Request], Awaitable[Response]]
_Method = TypeVar("_Method", bound=Callable[..., Awaitable[Response]])


class Operation(msgspec.Struct, frozen=True):
    """A path and method of the server, with the types of its request and its response.

    An instance is a decorator of the method that answers the requests. The server's routes and its OpenAPI document
    are made from all operations.
    """

    method: Literal["delete", "get", "post"]
    path: str
    summary: str
    answer: type | str
    """Type of a successful response's JSON, or the content type of a response that is not JSON."""
    message: type | None = None
    """Type of the request: the body of a POST, the query of a GET; None: the request has neither."""
    needs_key: bool = False
    """True if requests need a key when the server has API keys."""
    streams: bool = False
    """True if the response may be a stream instead of JSON."""
    stream_type: str = "text/event-stream"
    """Content type of a stream."""
    status: int = 200
    """Status of a successful response."""
    decodes: bool = False
    """True if requests need a decoding thread, so that a full queue refuses them before they are read."""
    old_keys: Mapping[str, str] = {}
    """Former names of fields of the response, by present name, which the response has as well."""

    def __call__(self, handler: _Method) -> _Method:
        """Let a method of an API's class of handlers answer the requests of this operation."""
        vars(handler).setdefault("operations", []).insert(0, self)
        return handler


def decoding_operation(path: str, summary: str, answer: type, message: type, **more: Any) -> Operation:
    """Return the operation of POST requests that need an API key and a decoding thread.

    Args:
        path: the path of the requests.
        summary: what they do, in one sentence.
        answer: the type of a successful response.
        message: the type of the requests.
        **more: further fields of the operation by name.
    """
    return Operation("post", path, summary, answer, message, needs_key=True, decodes=True, **more)


def operations_of(api: object) -> list[tuple[Operation, Handler]]:
    """Return a list of pairs for an object of handlers: each operation, and the method that answers it.

    The pairs are in the order in which the class defines the methods.
    """
    return [
        (operation, getattr(api, name))
        for name, member in vars(type(api)).items()
        if isinstance(member, FunctionType)
        for operation in vars(member).get("operations", ())
    ]


def document(operations: Sequence[Operation], settings: ServingSettings) -> dict[str, Any]:
    """Return the OpenAPI document, which describes the server's paths to programs, as a dict of JSON values.

    Args:
        operations: the paths and methods with their types of requests and responses.
        settings: the server's settings, whose limits and root path the document states.
    """
    types = [each for o in operations for each in (error_type(o.path), o.message, o.answer)]
    message_types = list(dict.fromkeys(each for each in types if each and not isinstance(each, str)))
    schemas, components = msgspec.json.schema_components(message_types, ref_template=_TEMPLATE)
    by_type = dict(zip(message_types, schemas, strict=True))
    _apply_limits(components, settings)
    for operation in operations:
        if operation.old_keys and not isinstance(operation.answer, str):
            _document_old_keys(operation.answer, components, operation.old_keys)
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


def _document_old_keys(answer: type, components: dict[str, Any], old_keys: Mapping[str, str]) -> None:
    """Add the former names of a response's fields to the schemas of an OpenAPI document, as deprecated.

    Args:
        answer: the type of the response; the types inside it are changed, too.
        components: the schema of each message by its name; changed in place.
        old_keys: the former names by present name.
    """
    for name in msgspec.json.schema_components([answer])[1]:
        properties = components[name].get("properties", {})
        former = {old_keys[name]: properties[name] for name in properties if name in old_keys}
        properties |= {old: {**present, "deprecated": True} for old, present in former.items()}


def _apply_limits(components: dict[str, Any], settings: ServingSettings) -> None:
    """Write the server's limits into the schemas of an OpenAPI document, so that clients can respect them.

    Args:
        components: the schema of each message by its name; changed in place.
        settings: the limits on texts, characters and alternatives.
    """
    for component in components.values():
        for schema in component.get("properties", {}).values():
            is_limited = schema.pop(_LIMITED, False)
            for variant in schema.get("anyOf", [schema]):
                variant_is_limited = variant.pop(_LIMITED, is_limited)
                if variant_is_limited and variant.get("type") == "array":
                    variant["maxItems"] = settings.max_texts
                elif variant_is_limited and variant.get("type") == "string":
                    variant["maxLength"] = settings.max_characters
        for field, maximum in (("alternatives", settings.max_alternatives), ("n", settings.max_alternatives + 1)):
            for variant in component.get("properties", {}).get(field, {}).get("anyOf", []):
                if variant.get("type") == "integer":
                    variant["maximum"] = maximum


def _operation(
    operation: Operation, schemas: dict[type, Any], components: dict[str, Any], settings: ServingSettings
) -> dict[str, Any]:
    operation_id = re.sub(r"\W+", "_", operation.method + operation.path).strip("_")
    result: dict[str, Any] = {"summary": operation.summary, "operationId": operation_id}
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
    error = {_JSON: {"schema": schemas[error_type(operation.path)]}}
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
