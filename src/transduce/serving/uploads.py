"""Translate uploaded documents in the background, and keep a limited number of results for a limited time."""

import asyncio
import hmac
import html
import logging
import re
import secrets
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Literal, NamedTuple

import msgspec

from transduce.documents.formats import read_document
from transduce.documents.limits import Limits
from transduce.documents.translate import (
    UNIT_MARKUP,
    ContextTexts,
    document_notes,
    translate_content,
)
from transduce.documents.units import DocumentSettings, Unit, UnitKind
from transduce.errors import TransduceError
from transduce.inference.quality_estimation import without_protected
from transduce.serving.batching import ClientGoneError, call_in_loop, deadline_error
from transduce.serving.messages import RequestError, UploadedFile, invalid_request
from transduce.serving.service import Answer, Service, TranslationRequest, describe_warning
from transduce.serving.settings import ServingSettings
from transduce.text.glossary import Glossary
from transduce.text.languages import is_sign

_LOG = logging.getLogger("transduce.serving")
DocumentState = Literal["queued", "translating", "done", "error"]
_RETRY_SECONDS = 0.5  # while the queue is full
_MAX_READERS = 2  # documents that are parsed at once: parsing takes the interpreter's lock


class DocumentOrder(NamedTuple):
    """A request to translate an uploaded document, with its languages and its glossary."""

    file: UploadedFile
    source: str
    """A language code, or `auto` to detect the language."""
    target: str
    """A language code."""
    glossary: Glossary | None = None
    """The terms to use; None: the model's own glossary."""
    settings: DocumentSettings = DocumentSettings()
    """The document's format and encoding, and which of its texts are translated."""


class DocumentTranslation:
    """The translation of an uploaded document in a thread of its own.

    The document's texts go through the queue of all requests.
    """

    def __init__(self, order: DocumentOrder, service: Service, readers: threading.Semaphore) -> None:
        """Prepare the translation of a document; `start` begins the translation.

        An event loop must be running.

        Args:
            order: the document, its languages and its glossary.
            service: translates the document's texts.
            readers: limits how many documents are read and translated at once.
        """
        self.id = secrets.token_hex(16).upper()
        self.key = secrets.token_hex(32).upper()
        """Secret (64 hexadecimal digits) that the client must show to get the result."""
        self.order = order
        self.state: DocumentState = "queued"
        self.error: RequestError | None = None
        self.characters = 0
        """Number of characters of the document's texts, without tags; 0 until they are translated."""
        self.warnings: list[str] = []
        """Sentences about texts that seem not to be in the client's source language, or that stay untranslated."""
        self.result = b""
        self.touched_at = time.monotonic()
        """Time (`time.monotonic`) of the last change or request of the client, after which the result is kept for a
        while.
        """
        self.is_downloaded = False
        """True once a client has downloaded the result, which may then be deleted if other documents need the space."""
        self.finished = asyncio.Event()
        self._service = service
        # The whole document is translated by the same model. Deleted in the end, since a new one may be loaded then.
        self._served = service.served
        self._readers = readers
        self._source = order.source
        self._num_texts = 0
        self._sent_characters = 0  # equal texts are sent once
        self._loop = asyncio.get_running_loop()
        self._canceled: asyncio.Future[None] = self._loop.create_future()
        self._deadline = time.monotonic() + service.settings.document_seconds

    @property
    def target_name(self) -> str:
        """The name of the translated file, with the target language before the suffix."""
        path = PurePath(self.order.file.name or "document")
        return f"{path.stem}.{self.order.target.lower()}{path.suffix}"

    def start(self) -> None:
        """Begin to translate the document in a daemon thread."""
        threading.Thread(target=self._run, name="document", daemon=True).start()

    def cancel(self) -> None:
        """Stop the translation of the document, which then ends with an error."""
        if not self._canceled.done():
            self._canceled.set_result(None)

    def matches(self, key: str) -> bool:
        """Return whether a client's key is the secret key of this document translation."""
        return hmac.compare_digest(self.key.encode(), key.encode("utf-8", "surrogatepass"))

    def _run(self) -> None:
        result, error = b"", None
        try:
            with self._readers:
                result = self._translate()
        except RequestError as failure:
            # Not `failure` itself, whose traceback would keep the models in memory as long as the document.
            error = RequestError(failure.status, failure.sentence, retry_after_seconds=failure.retry_after_seconds)
        except TransduceError as failure:
            error = RequestError(400, str(failure))
        except ClientGoneError:
            error = RequestError(503, "The translation was canceled.")
        except Exception as failure:  # noqa: BLE001 - a damaged document must not end in silence
            place = traceback.extract_tb(failure.__traceback__)[-1]
            # Neither the error's text nor its whole traceback, which may hold the document's text or fill the log.
            kind = type(failure).__name__
            _LOG.warning("A document could not be translated (%s at %s:%s).", kind, place.filename, place.lineno)
            error = RequestError(
                400, "The document is damaged, or has a form that cannot be translated: save it again."
            )
        call_in_loop(self._loop, self._finish, result, error)

    def _translate(self) -> bytes:
        settings = self._service.settings
        limits = Limits(
            max_bytes=settings.max_upload_bytes,
            max_expanded_bytes=settings.max_expanded_bytes,
            max_characters=settings.max_document_characters,
        )
        names = msgspec.structs.replace(self.order.settings, target_language=self.order.target)
        document = read_document(self.order.file.name, self.order.file.content, names, limits)
        self.warnings += [note for note, _ in document_notes(document)]
        result = translate_content(document, _QueuedTexts(self, self._loop, self._context_before()))
        self.characters = sum(_count_characters(unit) for unit in document.units)
        self._service.metrics.characters.inc(max(0, self.characters - self._sent_characters))
        return result

    def _context_before(self) -> int:
        """Return how many earlier sentences the document's model reads as context.

        If the source language is still to be detected, the model is not known yet. The result is then the largest
        number among all models into the target language.
        """
        routes = self._served.routes
        target = routes.find(self.order.target)
        sources = routes.sources_of(target) if self._source == "auto" else [routes.find(self._source)]
        models = [routes.model(source, target) for source in sources]
        return max((model.context_before for model in models if model is not None), default=0)

    async def queue_texts(self, texts: Sequence[str], kind: UnitKind, before: Sequence[tuple[str, str]]) -> list[str]:
        """Return a list of translations of consecutive texts of the document, made through the queue of all requests.

        Args:
            texts: the texts; a plain text without words, such as `B`, stays as it is.
            kind: the kind of all texts: plain text, XML or HTML.
            before: the context: earlier texts of the document, each with its translation. Models that read no context
                ignore it.

        Raises:
            RequestError: the deadline of the document has passed, or the request is refused.
            ClientGoneError: the translation was canceled.
        """
        self.state = "translating"
        first = self._num_texts + 1
        self._num_texts += len(texts)
        translations = list(texts)
        chosen = [index for index, text in enumerate(texts) if kind != "text" or not is_sign(text)]
        source = self._detected_source(" ".join(texts[index] for index in chosen)) if chosen else self._source
        # Texts that are context of others are translated together.
        max_texts = max(1, len(chosen)) if self._context_before() else self._service.settings.max_texts
        for start in range(0, len(chosen), max_texts):
            indices = chosen[start : start + max_texts]
            request = TranslationRequest(
                texts=[texts[index] for index in indices],
                source=source,
                target=self.order.target,
                format="text" if kind == "text" else "html",
                markup=UNIT_MARKUP.get(kind),
                glossary=self.order.glossary,
                timeout_seconds=max(0.001, self._deadline - time.monotonic()),
                is_document=True,
                before=before,
            )
            for index, answer in zip(indices, await self._when_free(request), strict=True):
                translations[index] = answer.text
                if answer.language_warning is not None and self.order.source != "auto":
                    self.warnings.append(describe_warning(first + index, answer.language_warning))
            self._sent_characters += sum(map(len, request.texts))
        return translations

    def _detected_source(self, text: str) -> str:
        """Return the document's source language, which is detected from `text` if it is `auto`.

        The language that is detected from the first text with letters is kept for the whole document.

        Raises:
            RequestError: the text seems to be in a language that is not translated into the target language.
        """
        if self._source != "auto":
            return self._source
        routes, detector = self._served
        found = routes.identify_source(text, routes.find(self.order.target), detector).language
        if any(map(str.isalpha, without_protected(text))):
            self._source = found
        return found

    async def _when_free(self, request: TranslationRequest) -> list[Answer]:
        """Wait until the queue has a free slot, then translate texts of the document; return a list of the answers.

        Raises:
            RequestError: the deadline of the document has passed, or the request is refused.
            ClientGoneError: the translation was canceled.
        """
        while not self._canceled.done():
            if time.monotonic() >= self._deadline:
                raise deadline_error()
            if self._service.engine.batcher.free_slots():
                return await self._service.translate(request, self._canceled, served=self._served)
            await asyncio.sleep(_RETRY_SECONDS)
        raise ClientGoneError

    def _finish(self, result: bytes, error: RequestError | None) -> None:
        self.result, self.error = result, error
        del self._served
        self.order = self.order._replace(file=UploadedFile(self.order.file.name, b""))  # the source is not needed again
        self.state = "done" if error is None else "error"
        self.touched_at = time.monotonic()
        self.finished.set()


_TAGS = re.compile(r"<[^<>]*>")


def _count_characters(unit: Unit) -> int:
    """Return the number of characters of a unit's text, without the tags of markup."""
    return len(unit.text if unit.kind == "text" else html.unescape(_TAGS.sub("", unit.text)))


class _QueuedTexts(ContextTexts):
    """A callable that translates an uploaded document's texts in order, and stores them as context for later texts."""

    def __init__(self, document: DocumentTranslation, loop: asyncio.AbstractEventLoop, max_sentences: int) -> None:
        super().__init__(max_sentences)
        self._document = document
        self._loop = loop

    def __call__(self, texts: Sequence[str], kind: UnitKind) -> list[str]:
        """Return a list with the translation of each text.

        The calls translate the texts of one document in order. A call runs in the document's thread, and waits until
        the event loop has the translations.

        Raises:
            RequestError: the deadline of the document has passed, or a request is refused.
            ClientGoneError: the translation was canceled.
        """
        queued = self._document.queue_texts(texts, kind, self.before)
        translations = asyncio.run_coroutine_threadsafe(queued, self._loop).result()
        self.remember(texts, translations, kind)
        return translations


class DocumentStore:
    """The uploaded documents that are being translated or wait to be downloaded; old ones are deleted."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._documents: dict[str, DocumentTranslation] = {}
        self._readers = threading.Semaphore(_MAX_READERS)

    @property
    def _settings(self) -> ServingSettings:
        return self._service.settings

    def start(self, order: DocumentOrder) -> DocumentTranslation:
        """Store an uploaded document and begin its translation in the background.

        Returns:
            The `DocumentTranslation`, which has the identifier and the secret key for the client.

        Raises:
            RequestError: the languages are not served, the file is empty, or too many documents are stored.
        """
        routes = self._service.routes
        target = routes.find(order.target)
        if order.source == "auto":
            routes.sources_of(target)
        elif routes.model(routes.find(order.source), target) is None:
            raise invalid_request("the source and the target language must differ")
        if not order.file.content:
            raise invalid_request("empty file")
        self._delete_old()
        if len(self._documents) >= self._settings.max_documents:
            self._delete_downloaded()
        if len(self._documents) >= self._settings.max_documents:
            raise RequestError(503, "The server has too many documents: try again later.", retry_after_seconds=30)
        translation = DocumentTranslation(order, self._service, self._readers)
        self._documents[translation.id] = translation
        translation.start()
        self._delete_later(translation.id, self._settings.file_seconds)
        return translation

    def _delete_later(self, id: str, seconds: float) -> None:
        """Delete an uploaded document when its time is over, which is checked after `seconds`.

        A document that is still being translated, or that the client has used since, is checked again later. `id` is
        the document's identifier.
        """

        def delete() -> None:
            self._delete_old()
            translation = self._documents.get(id)
            if translation is not None:
                unused = time.monotonic() - translation.touched_at
                left = self._settings.file_seconds - (unused if translation.finished.is_set() else 0)
                self._delete_later(id, max(left, _RETRY_SECONDS))

        asyncio.get_running_loop().call_later(seconds, delete)

    def get(self, id: str, key: str) -> DocumentTranslation:
        """Return the `DocumentTranslation` of an uploaded document, if the client knows its secret key.

        The time after which the result is deleted starts again.

        Args:
            id: the document's identifier.
            key: the secret key that the client got with it.

        Raises:
            RequestError: status 404, there is no such document, or the key is not the document's.
        """
        self._delete_old()
        translation = self._documents.get(id)
        if translation is None or not translation.matches(key):
            raise RequestError(404, "There is no such document, or it was downloaded or expired: upload it again.")
        translation.touched_at = time.monotonic()
        return translation

    def delete(self, translation: DocumentTranslation) -> None:
        """Delete an uploaded document with its translation, which is stopped if it is running."""
        translation.cancel()
        self._documents.pop(translation.id, None)

    def _delete_old(self) -> None:
        oldest = time.monotonic() - self._settings.file_seconds
        for translation in list(self._documents.values()):
            if translation.state in ("done", "error") and translation.touched_at < oldest:
                self.delete(translation)

    def _delete_downloaded(self) -> None:
        """Delete the downloaded document that was last used the longest time ago, if any document was downloaded."""
        downloaded = [each for each in self._documents.values() if each.is_downloaded]
        if downloaded:
            self.delete(min(downloaded, key=lambda each: each.touched_at))

    async def wait(self, translation: DocumentTranslation, disconnected: asyncio.Future[None]) -> None:
        """Wait until an uploaded document is translated; if its client disconnects before, delete it.

        Args:
            translation: the document.
            disconnected: done once the client has disconnected.

        Raises:
            RequestError: the document could not be translated, and is deleted.
            ClientGoneError: the client disconnected.
        """
        finished = asyncio.ensure_future(translation.finished.wait())
        try:
            waited_for: set[asyncio.Future[Any]] = {finished, disconnected}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished.cancel()
        if not translation.finished.is_set():
            self.delete(translation)
            raise ClientGoneError
        if translation.error is not None:
            self.delete(translation)
            raise translation.error
