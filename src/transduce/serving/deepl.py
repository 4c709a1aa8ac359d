"""DeepL's API (version 2): texts, documents, glossaries, languages and usage, for its official clients.

A request is refused if it sets a field that is not implemented and would change the result. Other fields that are not
implemented have no effect.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from transduce.documents.markup_tokens import MarkupSettings
from transduce.serving.glossaries import StoredGlossary, as_glossary, entries_as_tsv, parse_entries
from transduce.serving.languages import AUTO, language_name
from transduce.serving.messages import (
    LIMITED_TEXT,
    Operation,
    RequestError,
    UploadedFile,
    UploadRequest,
    decoding_operation,
    invalid_request,
    refuse_fields,
    refusing_errors,
)
from transduce.serving.request_bodies import RequestChecks, as_list
from transduce.serving.responses import file_response, json_response, watching_disconnect
from transduce.serving.service import TranslationRequest, warning_header, warning_headers
from transduce.serving.uploads import DocumentOrder, DocumentState, DocumentStore
from transduce.text.glossary import Glossary
from transduce.text.languages import canonical, is_same_language, short_code
from transduce.text.text_settings import TextSettings

# --- messages ---

Formality = Literal["default", "more", "less", "prefer_more", "prefer_less"]
Tags = Annotated[str | list[str], Meta(description="Names of tags, as a list or separated by commas.")]


class DeepLRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v2/translate`: texts to translate, their languages, and options."""

    text: Annotated[str | list[str], LIMITED_TEXT, Meta(description="A text, or several.")]
    target_lang: str
    source_lang: Annotated[str | None, Meta(description="Detected if it is not set.")] = None
    split_sentences: Annotated[
        Literal["0", "1", "nonewlines"] | None,
        Meta(description="`0`: no splitting; `1`: at punctuation and line ends; `nonewlines`: at punctuation."),
    ] = None
    tag_handling: Annotated[
        Literal["html", "xml"] | None, Meta(description="Keep the tags and translate the text between them.")
    ] = None
    tag_handling_version: Annotated[
        Literal["v1", "v2"] | None, Meta(description="Accepted; both versions are the same here.")
    ] = None
    outline_detection: Annotated[bool | None, Meta(description="XML: find the tags that divide sentences.")] = None
    non_splitting_tags: Tags | None = None
    splitting_tags: Tags | None = None
    ignore_tags: Tags | None = None
    glossary_id: Annotated[str | None, Meta(description="From `POST /v2/glossaries`; needs `source_lang`.")] = None
    glossary_ids: Annotated[list[str] | None, Meta(description="At most one is possible.")] = None
    formality: Annotated[Formality | None, Meta(description="`more` and `less` are refused.")] = None
    custom_instructions: Annotated[list[str] | None, Meta(description="Refused unless empty.")] = None
    style_id: Annotated[str | None, Meta(description="Refused.")] = None
    translation_memory_id: Annotated[str | None, Meta(description="Refused.")] = None
    translation_memory_threshold: Annotated[float | None, Meta(description="Accepted without effect.")] = None
    context: Annotated[str | None, Meta(description="Accepted without effect: the models translate sentences.")] = None
    model_type: Annotated[str | None, Meta(description="Accepted without effect.")] = None
    preserve_formatting: Annotated[bool | None, Meta(description="Accepted: formatting is always preserved.")] = None
    show_billed_characters: Annotated[bool | None, Meta(description="Add the number of characters.")] = None
    enable_beta_languages: Annotated[bool | None, Meta(description="Accepted without effect.")] = None
    auth_key: Annotated[str | None, Meta(description="The API key; a header is better.")] = None


class DeepLTranslation(msgspec.Struct, kw_only=True, frozen=True):
    """The translation of one text in the response of `POST /v2/translate`."""

    detected_source_language: str
    """Code of the source language, named or detected, in upper case. It has no region, unless several served languages
    fit the code without one.
    """
    text: str
    billed_characters: int | UnsetType = UNSET
    """The number of characters of the source text, if the request asked for it."""


class DeepLResponse(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `POST /v2/translate`: a translation for each text."""

    translations: list[DeepLTranslation]


class DeepLLanguagesRequest(msgspec.Struct, kw_only=True, frozen=True):
    """The parameters of `/v2/languages`: whether source or target languages are requested."""

    type: Literal["source", "target"] = "source"


class DeepLLanguage(msgspec.Struct, kw_only=True, frozen=True):
    """A language in the response of `/v2/languages`: its code in upper case and its English name."""

    language: str
    name: str
    supports_formality: bool | UnsetType = UNSET
    """False for target languages, as no model knows formality; unset for source languages."""


class DeepLUsage(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `/v2/usage`: the number of characters translated since the server's start.

    There is no quota, so the limit is a number that no client reaches.
    """

    character_count: int
    character_limit: int


class DeepLGlossaryPair(msgspec.Struct, kw_only=True, frozen=True):
    """A pair of languages for which glossaries can be created, as codes without regions."""

    source_lang: str
    target_lang: str


class DeepLGlossaryPairs(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `GET /v2/glossary-language-pairs`: the language pairs that glossaries may have."""

    supported_languages: list[DeepLGlossaryPair]


class DeepLGlossaryRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v2/glossaries`: the name, the languages and the terms of a new glossary."""

    name: str
    source_lang: str
    target_lang: str
    entries: Annotated[str, Meta(description="A term and its translation per line.")]
    entries_format: Literal["tsv", "csv"] = "tsv"


class DeepLGlossary(msgspec.Struct, kw_only=True, frozen=True):
    """A description, without the terms, of a glossary that a client created."""

    glossary_id: str
    name: str
    ready: bool
    source_lang: str
    target_lang: str
    creation_time: str
    """Time when the glossary was created, in UTC, in ISO 8601."""
    entry_count: int


class DeepLGlossaries(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `GET /v2/glossaries`: descriptions of the client's glossaries."""

    glossaries: list[DeepLGlossary]


class DeepLDocumentRequest(UploadRequest, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The multipart form of `POST /v2/document`: a document to translate, its languages, and options."""

    target_lang: str
    source_lang: str | None = None
    filename: Annotated[str | None, Meta(description="Replaces the name of the uploaded file.")] = None
    output_format: Annotated[str | None, Meta(description="Refused unless it is the format of the file.")] = None
    glossary_id: str | None = None
    glossary_ids: Annotated[str | None, Meta(description="At most one is possible.")] = None
    formality: Annotated[Formality | None, Meta(description="`more` and `less` are refused.")] = None
    style_id: Annotated[str | None, Meta(description="Refused.")] = None
    translation_memory_id: Annotated[str | None, Meta(description="Refused.")] = None
    translation_memory_threshold: Annotated[float | None, Meta(description="Accepted without effect.")] = None
    enable_beta_languages: Annotated[bool | None, Meta(description="Accepted without effect.")] = None
    enable_document_minification: Annotated[bool | None, Meta(description="Accepted without effect.")] = None
    auth_key: str | None = None


class DeepLDocumentHandle(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `POST /v2/document`: id and secret key, with which the client asks for state and result."""

    document_id: str
    document_key: str


class DeepLDocumentKey(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `POST /v2/document/{id}` and `POST /v2/document/{id}/result`: the document's secret key."""

    document_key: str
    auth_key: str | None = None


class DeepLDocumentStatus(msgspec.Struct, kw_only=True, frozen=True):
    """The response of `POST /v2/document/{id}`: the state of the document's translation."""

    document_id: str
    status: DocumentState
    seconds_remaining: int | UnsetType = UNSET
    """1 while the document is translated, so that the client asks again; the time is not estimated."""
    billed_characters: int | UnsetType = UNSET
    """The number of translated characters; unset until the whole document is translated."""
    error_message: str | UnsetType = UNSET
    """Why the document could not be translated."""


# --- handlers ---

_NO_LIMIT = 10**12
# DeepL's clients reject these target languages without a region, so both regions of each are offered.
_REGIONS = {"en": ("EN-GB", "EN-US"), "pt": ("PT-BR", "PT-PT")}
_TAG = re.compile(r"[\w:.-]{1,100}")
_MAX_TAGS = 200
_SPLITTING = {
    "0": TextSettings(split_sentences="never", lines="join"),
    "1": TextSettings(split_sentences="auto"),
    "nonewlines": TextSettings(split_sentences="auto", lines="join"),
}


class DeepLHandlers:
    """Handlers of the addresses under `/v2`, which answer DeepL's clients."""

    def __init__(self, checks: RequestChecks, documents: DocumentStore) -> None:
        self.checks = checks
        self.service = checks.service
        self.documents = documents

    # --- texts ---

    @decoding_operation("/v2/translate", "Translate texts, for DeepL's clients.", DeepLResponse, DeepLRequest)
    async def translate(self, request: Request) -> Response:
        """Answer `POST /v2/translate` with the translation of each text.

        Raises:
            RequestError: the request is invalid, exceeds a limit, or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        message = await self.checks.read(request, DeepLRequest)
        owner = self.checks.check_key(request, message.auth_key)
        refuse_fields(message, ("style_id", "translation_memory_id", "custom_instructions"))
        _check_formality(message.formality)
        translation_request = TranslationRequest(
            texts=as_list(message.text),
            source=self._source(message),
            target=message.target_lang,
            format=message.tag_handling or "text",
            glossary=self._glossary(message, owner),
            text_settings=_SPLITTING[message.split_sentences or "1"],
            markup=_markup_settings(message),
        )
        routes = self.service.routes  # those of the answers, also if the models are loaded again meanwhile
        with watching_disconnect(request) as disconnected:
            answers = await self.service.translate(translation_request, disconnected)
        translations = [
            DeepLTranslation(
                detected_source_language=routes.regionless_code(answer.source).upper(),
                text=answer.text,
                billed_characters=len(text) if message.show_billed_characters else UNSET,
            )
            for answer, text in zip(answers, translation_request.texts, strict=True)
        ]
        return json_response(DeepLResponse(translations=translations), headers=warning_headers(answers))

    def _source(self, message: DeepLRequest | DeepLDocumentRequest) -> str:
        """Return the canonical code of a request's source language, or `auto` if the request names none.

        DeepL's clients name source languages without a region, so several served languages may fit. Then the first one
        with a model for the target language is returned. If none has such a model, the first one is returned.

        Raises:
            RequestError: no served language fits the source or the target code, or several fit the target code.
        """
        if (message.source_lang or AUTO).lower() == AUTO:
            return AUTO
        routes = self.service.routes
        return routes.find_first_pair(message.source_lang or AUTO, routes.find(message.target_lang))[0]

    def _glossary(self, message: DeepLRequest | DeepLDocumentRequest, owner: str) -> Glossary | None:
        """Return the stored glossary that a request names by its id; None if it names none.

        Args:
            message: the request.
            owner: digest of the client's API key; "" if the server has no keys.

        Raises:
            RequestError: the client has no such glossary, the glossary is for other languages, or the request names
                several glossaries or no source language.
        """
        ids = _split(message.glossary_ids) or ([message.glossary_id] if message.glossary_id else [])
        if not ids:
            return None
        if len(ids) > 1 or (message.glossary_id and message.glossary_ids):
            raise invalid_request("only one glossary can be used at once: combine them into one")
        if not message.source_lang:
            raise invalid_request("`glossary_id` needs `source_lang`")
        stored = self.service.glossaries.get(ids[0], owner)
        pair = short_code(canonical(message.source_lang)), short_code(canonical(message.target_lang))
        if pair != (short_code(stored.source), short_code(stored.target)):
            raise invalid_request(
                f"the glossary is for {stored.source} → {stored.target}, but the request for {pair[0]} → {pair[1]}"
            )
        return self.service.glossaries.glossary(stored)

    @Operation("get", "/v2/languages", "Source or target languages.", list[DeepLLanguage], DeepLLanguagesRequest)
    @Operation("post", "/v2/languages", "Source or target languages.", list[DeepLLanguage], DeepLLanguagesRequest)
    async def languages(self, request: Request) -> Response:
        """Answer `GET` or `POST /v2/languages` with the source languages or the target languages.

        DeepL's official client sends a GET with a form as its body.

        Raises:
            RequestError: the request is invalid.
        """
        message = await self.checks.read_message(request, DeepLLanguagesRequest)
        routes = self.service.routes
        formality: bool | UnsetType = UNSET
        codes = {routes.regionless_code(code).upper() for code in routes.sources}
        if message.type == "target":
            formality = False
            codes = {code for target in routes.targets_of_any for code in _target_codes(target)}
        return json_response(
            [
                DeepLLanguage(language=code, name=language_name(code.lower()), supports_formality=formality)
                for code in sorted(codes)
            ]
        )

    @Operation("get", "/v2/usage", "Characters translated since the start.", DeepLUsage, needs_key=True)
    @Operation("post", "/v2/usage", "Characters translated since the start.", DeepLUsage, needs_key=True)
    async def usage(self, request: Request) -> Response:
        """Answer `GET` or `POST /v2/usage` with the number of characters translated since the server's start.

        Raises:
            RequestError: the API key is missing or invalid.
        """
        self.checks.check_key(request)
        count = int(self.service.metrics.value("transduce_characters_total"))
        return json_response(DeepLUsage(character_count=count, character_limit=_NO_LIMIT))

    # --- glossaries ---

    @Operation("get", "/v2/glossary-language-pairs", "Language pairs of glossaries.", DeepLGlossaryPairs)
    async def glossary_pairs(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /v2/glossary-language-pairs` with the language pairs of the served models."""
        routes = self.service.routes
        pairs = sorted(tuple(map(routes.regionless_code, pair)) for pair in routes.pairs)
        return json_response(
            DeepLGlossaryPairs(
                supported_languages=[
                    DeepLGlossaryPair(source_lang=source, target_lang=target) for source, target in pairs
                ]
            )
        )

    @Operation("get", "/v2/glossaries", "List your glossaries.", DeepLGlossaries, needs_key=True)
    @Operation(
        "post", "/v2/glossaries", "Create a glossary.", DeepLGlossary, DeepLGlossaryRequest, needs_key=True, status=201
    )
    async def glossaries(self, request: Request) -> Response:
        """List the client's glossaries for `GET /v2/glossaries`, or create a glossary for `POST /v2/glossaries`.

        Raises:
            RequestError: the API key is missing or invalid; or the request for a new glossary is invalid, exceeds a
                limit, or is for languages without a model; or the glossary cannot be stored.
        """
        if request.method != "POST":
            owner = self.checks.check_key(request)
            return json_response(
                DeepLGlossaries(glossaries=[_describe(stored) for stored in self.service.glossaries.list(owner)])
            )
        self.checks.take_from_rate(request)
        message = await self.checks.read_message(request, DeepLGlossaryRequest)
        owner = self.checks.check_key(request)
        terms = parse_entries(message.entries, message.entries_format)
        routes = self.service.routes
        source, target = routes.find_first_pair(message.source_lang, message.target_lang)
        model = routes.model(source, target)
        if model is None:
            raise invalid_request("`source_lang` and `target_lang` must differ")
        with refusing_errors():
            model.check(as_glossary(terms), model.search)
        stored = self.service.glossaries.add(message.name, short_code(source), short_code(target), terms, owner)
        return json_response(_describe(stored), 201)

    @Operation("get", "/v2/glossaries/{id}", "Describe a glossary.", DeepLGlossary, needs_key=True)
    @Operation("delete", "/v2/glossaries/{id}", "Delete a glossary.", "text/plain", needs_key=True, status=204)
    async def glossary(self, request: Request) -> Response:
        """Describe a glossary for `GET /v2/glossaries/{id}`, or delete it for `DELETE /v2/glossaries/{id}`.

        Raises:
            RequestError: the client has no such glossary (status 404), its file cannot be deleted, or the API key is
                missing or invalid.
        """
        owner, id = self.checks.check_key(request), request.path_params["id"]
        if request.method == "DELETE":
            self.service.glossaries.delete(id, owner)
            return Response(status_code=204)
        return json_response(_describe(self.service.glossaries.get(id, owner)))

    @Operation(
        "get", "/v2/glossaries/{id}/entries", "Return a glossary's terms.", "text/tab-separated-values", needs_key=True
    )
    async def glossary_entries(self, request: Request) -> Response:
        """Answer `GET /v2/glossaries/{id}/entries` with the glossary's terms.

        Each term is a line: the source text, a tab, and the translation.

        Raises:
            RequestError: the client has no such glossary (status 404), or the API key is missing or invalid.
        """
        owner = self.checks.check_key(request)
        stored = self.service.glossaries.get(request.path_params["id"], owner)
        return Response(entries_as_tsv(stored), media_type="text/tab-separated-values")

    # --- documents ---

    @Operation("post", "/v2/document", "Upload a document.", DeepLDocumentHandle, DeepLDocumentRequest, needs_key=True)
    async def document(self, request: Request) -> Response:
        """Answer `POST /v2/document` by starting the translation of the uploaded document.

        The response is sent at once. It has the document's id and secret key, with which the client asks for the
        result.

        Raises:
            RequestError: the request is invalid or exceeds a limit.
        """
        message = await self.checks.read_upload(request, DeepLDocumentRequest)
        owner = self.checks.check_key(request, message.auth_key)
        refuse_fields(message, ("style_id", "translation_memory_id"))
        _check_formality(message.formality)
        name = message.filename or message.file.name
        suffix = name.rpartition(".")[2].lower()
        if message.output_format and message.output_format.lower() != suffix:
            raise invalid_request(
                f"`output_format` must be the format of the file, {suffix}: documents are not converted"
            )
        order = DocumentOrder(
            UploadedFile(name, message.file.content),
            self._source(message),
            message.target_lang,
            self._glossary(message, owner),
            message.document_settings,
        )
        translation = self.documents.start(order)
        return json_response(DeepLDocumentHandle(document_id=translation.id, document_key=translation.key))

    @Operation(
        "post", "/v2/document/{id}", "State of a document.", DeepLDocumentStatus, DeepLDocumentKey, needs_key=True
    )
    async def document_status(self, request: Request) -> Response:
        """Answer `POST /v2/document/{id}` with the state of the document's translation.

        Raises:
            RequestError: there is no document with this id and secret key (status 404), or the request is invalid.
        """
        message = await self.checks.read_message(request, DeepLDocumentKey)
        self.checks.check_key(request, message.auth_key)
        translation = self.documents.get(request.path_params["id"], message.document_key)
        error = translation.error
        return json_response(
            DeepLDocumentStatus(
                document_id=translation.id,
                status=translation.state,
                seconds_remaining=1 if translation.state == "translating" else UNSET,
                billed_characters=translation.characters if translation.state == "done" else UNSET,
                error_message=UNSET if error is None else error.sentence,
            )
        )

    @Operation(
        "post",
        "/v2/document/{id}/result",
        "Download a translated document, which is then deleted.",
        "application/octet-stream",
        DeepLDocumentKey,
        needs_key=True,
    )
    async def document_result(self, request: Request) -> Response:
        """Answer `POST /v2/document/{id}/result` with the translated document, and delete it from the server.

        Raises:
            RequestError: there is no such document, it could not be translated, it is not translated yet (503), or the
                request is invalid.
        """
        message = await self.checks.read_message(request, DeepLDocumentKey)
        self.checks.check_key(request, message.auth_key)
        translation = self.documents.get(request.path_params["id"], message.document_key)
        if translation.error is not None:
            raise translation.error
        if translation.state != "done":
            raise RequestError(503, "The document is not translated yet: ask for its status.", retry_after_seconds=1)
        self.documents.delete(translation)
        return file_response(translation.result, translation.target_name, warning_header(translation.warnings))


def _check_formality(formality: Formality | None) -> None:
    if formality in ("more", "less"):
        raise invalid_request(f"`formality` must be `default` or `prefer_{formality}`: no model here knows formality")


def _split(value: str | Sequence[str] | None) -> list[str]:
    """Return a list of the names in a request's field, without empty names.

    Args:
        value: names separated by commas in one text or in several texts; None: the list is empty.
    """
    return [name.strip() for each in as_list(value or []) for name in each.split(",") if name.strip()]


def _tags(field: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return a tuple of the names of HTML or XML tags in a request's field.

    Args:
        field: the name of the field, for the error's text.
        value: tag names separated by commas in one text or in several texts; None: the tuple is empty.

    Raises:
        RequestError: a name is not valid as a tag's name, or there are too many names.
    """
    names = _split(value)
    if len(names) > _MAX_TAGS or not all(map(_TAG.fullmatch, names)):
        raise invalid_request(f"`{field}` must have at most {_MAX_TAGS} names of tags")
    return tuple(names)


def _markup_settings(message: DeepLRequest) -> MarkupSettings | None:
    """Return the settings with which a request's texts are read as HTML or XML; None for plain text.

    Raises:
        RequestError: a field with tag names is invalid, or is set without `tag_handling`.
    """
    kind = message.tag_handling
    fields = ("ignore_tags", "non_splitting_tags", "splitting_tags")
    names: dict[str, Any] = {field: _tags(field, getattr(message, field)) for field in fields}
    if kind is None:
        given = next((field for field in fields if names[field]), None)
        if given is not None:
            raise invalid_request(f"`{given}` needs `tag_handling`: set it to `xml` or `html`")
        return None
    if kind == "html":
        names = {field: tuple(name.lower() for name in each) for field, each in names.items()}
    return MarkupSettings(
        kind=kind,
        outline_detection=message.outline_detection is not False,
        split_lines=message.split_sentences == "1",
        **names,
    )


def _describe(stored: StoredGlossary) -> DeepLGlossary:
    created = datetime.fromtimestamp(stored.created_at, UTC)
    return DeepLGlossary(
        glossary_id=stored.id,
        name=stored.name,
        ready=True,
        source_lang=stored.source,
        target_lang=stored.target,
        creation_time=created.isoformat(timespec="milliseconds"),
        entry_count=len(stored.terms),
    )


def _target_codes(target: str) -> tuple[str, ...]:
    short, *others = short_code(target), *target.split("-")[1:]
    code = canonical(short) if is_same_language(target, short) else "-".join((short, *others))
    return _REGIONS.get(code, (code.upper(),))
