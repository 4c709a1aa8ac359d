"""LibreTranslate's API: translation of texts and documents, detection, suggestions, languages and settings."""

import asyncio
import contextlib
import errno
import io
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from transduce.documents.formats import known_suffixes
from transduce.errors import TransduceError
from transduce.inference.glossary_search import as_glossary
from transduce.serving.glossaries import storage_error
from transduce.serving.languages import Routes, language_name
from transduce.serving.messages import (
    DetectedLanguage,
    DetectRequest,
    FrontendSettings,
    Language,
    LanguageChoice,
    LanguageChoices,
    Operation,
    RequestError,
    SuggestRequest,
    SuggestResponse,
    TranslateFileRequest,
    TranslateFileResponse,
    TranslateRequest,
    TranslateResponse,
    check_characters,
    decoding_operation,
    invalid_request,
    refusing_errors,
)
from transduce.serving.request_bodies import RequestChecks, as_list
from transduce.serving.responses import file_response, json_response, stream_response, watching_disconnect
from transduce.serving.service import Report, TranslationRequest, language_warnings, warning_header
from transduce.serving.uploads import DocumentOrder, DocumentStore

_FRONTEND_TIMEOUT_MILLISECONDS = 500
_TABLES = (".csv", ".tsv", ".tab")  # the web page has no field for the columns to translate
_MAX_SUGGESTIONS_BYTES = 64 << 20


class LibreTranslateHandlers:
    """Handlers of the addresses of LibreTranslate's API, each of which turns a request into a response."""

    def __init__(self, checks: RequestChecks, documents: DocumentStore) -> None:
        self.checks = checks
        self.service = checks.service
        self.documents = documents

    @decoding_operation("/translate", "Translate texts.", TranslateResponse, TranslateRequest, streams=True)
    async def translate(self, request: Request) -> Response:
        """Answer `POST /translate` with translations, or with a stream of events if the client asks for one.

        Raises:
            RequestError: the request is invalid, exceeds a limit, or was not decoded in time.
            ClientGoneError: the client disconnected before the answer.
        """
        message = await self.checks.read(request, TranslateRequest)
        _check_set(message, ("q", "source", "target"))
        with refusing_errors():
            glossary = as_glossary(message.glossary)
        translation_request = TranslationRequest(
            texts=as_list(message.q),
            source=message.source,
            target=message.target,
            format=message.format or "text",
            alternatives=max(0, message.alternatives or 0),
            timeout_seconds=message.timeout,
            quality_warnings=message.quality_warnings or message.doubts,
            glossary=glossary,
        )
        if message.stream:
            return await stream_response(request, partial(self._answer, message, translation_request))
        with watching_disconnect(request) as disconnected:
            return json_response(await self._answer(message, translation_request, disconnected))

    async def _answer(
        self,
        message: TranslateRequest,
        translation_request: TranslationRequest,
        disconnected: asyncio.Future[None],
        report: Report | None = None,
    ) -> TranslateResponse:
        routes = self.service.routes  # those of the answers, also if the models are loaded again meanwhile
        answers = await self.service.translate(translation_request, disconnected, report)
        is_list = not isinstance(message.q, str)

        def shaped(values: list[Any]) -> Any:
            """Return the values of a list of texts or, if the request has a single text, the only value."""
            return values if is_list else values[0]

        detected = [_with_own_code(answer.detected, routes) for answer in answers if answer.detected is not None]
        found = shaped([list(answer.quality_warnings) for answer in answers])
        return TranslateResponse(
            translated_text=shaped([answer.text for answer in answers]),
            detected_language=shaped(detected) if detected else UNSET,
            alternatives=shaped([answer.alternatives for answer in answers])
            if translation_request.alternatives
            else UNSET,
            quality_warnings=found if message.quality_warnings else UNSET,
            doubts=found if message.doubts else UNSET,
            warnings=language_warnings(answers) or UNSET,
        )

    @Operation(
        "post", "/detect", "Detect the language of a text.", list[DetectedLanguage], DetectRequest, needs_key=True
    )
    async def detect(self, request: Request) -> Response:
        """Answer `POST /detect` with the languages that a text may be in, likeliest first.

        Raises:
            RequestError: the request is invalid, or the text is too long.
        """
        message = await self.checks.read(request, DetectRequest)
        _check_set(message, ("q",))
        check_characters(len(message.q), self.service.settings.max_characters)
        detected = self.service.detector.detect(message.q)
        return json_response([_with_own_code(language, self.service.routes) for language in detected])

    @Operation("get", "/languages", "List the languages with their target languages.", list[Language])
    async def languages(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /languages` with all served languages, and the languages that each can be translated to."""
        routes = self.service.routes
        return json_response(
            [
                Language(
                    code=routes.own_code(code),
                    name=language_name(code),
                    targets=[routes.own_code(target) for target in routes.targets(code)],
                )
                for code in routes.codes
            ]
        )

    @Operation("get", "/frontend/settings", "Return the settings for a web page.", FrontendSettings)
    async def frontend_settings(self, request: Request) -> Response:  # noqa: ARG002
        """Answer `GET /frontend/settings` with the limits and features that LibreTranslate's web page reads."""
        keys = self.service.keys.are_required
        source, target = self.service.routes.default_pair
        return json_response(
            FrontendSettings(
                char_limit=self.service.settings.max_characters,
                frontend_timeout=_FRONTEND_TIMEOUT_MILLISECONDS,
                api_keys=keys,
                key_required=keys,
                suggestions=self.service.settings.suggestions is not None,
                files_translation=True,
                supported_files_format=[each for each in known_suffixes().split() if each not in _TABLES],
                language=LanguageChoices(source=self._language_choice(source), target=self._language_choice(target)),
            )
        )

    def _language_choice(self, code: str) -> LanguageChoice:
        return LanguageChoice(code=self.service.routes.own_code(code), name=language_name(code))

    @Operation(
        "post", "/translate_file", "Translate a document.", TranslateFileResponse, TranslateFileRequest, needs_key=True
    )
    async def translate_file(self, request: Request) -> Response:
        """Answer `POST /translate_file`, once the uploaded document is translated, with the address of the result.

        Raises:
            RequestError: the request is invalid, or the document cannot be translated.
            ClientGoneError: the client disconnected before; the document is deleted.
        """
        message = await self.checks.read_upload(request, TranslateFileRequest)
        _check_set(message, ("source", "target"))
        if not message.file.name:
            raise invalid_request("empty file")
        order = DocumentOrder(message.file, message.source, message.target, None, message.document_settings)
        translation = self.documents.start(order)
        with watching_disconnect(request) as disconnected:
            await self.documents.wait(translation, disconnected)
        address = f"{self.service.settings.root_path}/download_file/{translation.id}-{translation.key}"
        url = request.url.replace(path=f"{address}/{quote(translation.target_name)}", query="")
        return json_response(
            TranslateFileResponse(translated_file_url=str(url)), headers=warning_header(translation.warnings)
        )

    @Operation("get", "/download_file/{key}/{name}", "Download a translated document.", "application/octet-stream")
    async def download_file(self, request: Request) -> Response:
        """Answer `GET /download_file/{key}/{name}` with a translated document.

        `key` is the document's id and secret key, and `name` is not used.

        Raises:
            RequestError: status 404, there is no such translated document.
        """
        id, _, key = request.path_params["key"].partition("-")
        translation = self.documents.get(id, key)
        if translation.state != "done":
            raise RequestError(404, "The document is not translated.")
        translation.is_downloaded |= request.method == "GET"  # not HEAD
        return file_response(translation.result, translation.target_name, warning_header(translation.warnings))

    @Operation("post", "/suggest", "Suggest a better translation.", SuggestResponse, SuggestRequest)
    async def suggest(self, request: Request) -> Response:
        """Answer `POST /suggest` by appending a user's better translation to the server's file of suggestions.

        Raises:
            RequestError: the request is invalid or exceeds a limit, suggestions are disabled (status 403), the API key
                is missing or invalid (403), or the file is full or cannot be written (507).
        """
        self.checks.take_from_rate(request)
        message = await self.checks.read_message(request, SuggestRequest)
        _check_set(message, ("q", "s", "source", "target"))
        path = self.service.settings.suggestions
        if path is None:
            raise RequestError(403, "Suggestions are disabled on this server.")
        self.checks.check_key(request, message.api_key)
        routes = self.service.routes
        source, target = (routes.own_code(routes.find(code)) for code in (message.source, message.target))
        stored = {"q": message.q, "s": message.s, "source": source, "target": target}
        check_characters(len(message.q) + len(message.s), self.service.settings.max_characters)
        _append_line(Path(path), msgspec.json.encode(stored))
        return json_response(SuggestResponse())


def check_suggestions_file(path: Path) -> None:
    """Check that suggestions can be appended to a file.

    A missing file is created.

    Raises:
        TransduceError: the file cannot be opened for writing.
    """
    try:
        path.open("ab").close()
    except OSError as error:
        raise TransduceError(
            f"Suggestions cannot be stored in {path} ({error.strerror}): name another file by --suggestions."
        ) from None


def _append_line(path: Path, line: bytes) -> None:
    """Append a line and a line feed to a file of at most 64 MiB.

    If the line cannot be written as a whole, the file does not change. If the file does not end with a line feed, one
    is added first.

    Args:
        path: the file.
        line: the line, without its line feed.

    Raises:
        RequestError: status 507, the file is full or cannot be written; the log says why.
    """
    try:
        with path.open("a+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size + len(line) > _MAX_SUGGESTIONS_BYTES:
                raise OSError(errno.EFBIG, f"it has {_MAX_SUGGESTIONS_BYTES >> 20} MiB already")
            file.seek(max(0, size - 1))
            start = b"" if file.read(1) in (b"", b"\n") else b"\n"
            _write_whole(file, start + line + b"\n", size)
    except OSError as error:
        raise storage_error("store more suggestions", path, error) from None


def _write_whole(file: io.FileIO, content: bytes, size: int) -> None:
    """Append bytes to a file; if that fails, restore the file's old size.

    Args:
        file: the file, opened for appending.
        content: the bytes.
        size: the file's size before.

    Raises:
        OSError: the bytes cannot be written, or not all of them.
    """
    try:
        if file.write(content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(size)
        raise


def _check_set(message: msgspec.Struct, names: Sequence[str]) -> None:
    """Check that required fields of a request are neither empty nor null.

    The error has LibreTranslate's own message.

    Raises:
        RequestError: one of the fields `names` is empty or null.
    """
    for name in names:
        if not getattr(message, name):
            raise invalid_request(f"missing {name} parameter")


def _with_own_code(language: DetectedLanguage, routes: Routes) -> DetectedLanguage:
    return msgspec.structs.replace(language, language=routes.own_code(language.language))
