"""Translate whole documents with a model, keeping their formatting: a user's own files, or untrusted uploads."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, get_args

import msgspec
import torch

from transduce.atomic_io import lock_output, name_path_in_errors, write_file
from transduce.documents.formats import read_document
from transduce.documents.limits import LOCAL_LIMITS, Limits
from transduce.documents.markup import markup_plan, translate_markup
from transduce.documents.markup_tokens import MarkupSettings
from transduce.documents.units import Document, DocumentSettings, Unit, UnitKind, plain_text
from transduce.errors import TransduceError, count_noun, explain_wrong_types
from transduce.inference.batching import Documents
from transduce.inference.glossary_search import GlossaryLike, as_glossary
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.text.files import missing_file
from transduce.text.languages import is_sign
from transduce.text.text_settings import TextSettings

_ATTRIBUTES = (
    *("alt", "content", "label", "placeholder", "title", "value"),
    *("aria-description", "aria-label", "aria-placeholder", "aria-roledescription", "aria-valuetext"),
)
UNIT_MARKUP = {
    "xml": MarkupSettings(kind="xliff", split_lines=True),
    "html": MarkupSettings(attributes=_ATTRIBUTES),
    "message": MarkupSettings(attributes=_ATTRIBUTES, split_lines=True),
}
"""Settings for translating texts with XML or HTML tags: a dict from a text's kind (not plain) to `MarkupSettings`."""

_PORTION_CHARACTERS = 20_000  # characters that are translated together, and after which progress is stored


class TranslateTexts(Protocol):
    """A protocol of functions that translate texts of one kind, such as by a model or a server's queue."""

    def __call__(self, texts: Sequence[str], kind: UnitKind) -> Sequence[str]:
        """Return a sequence of the translations of texts, in order.

        Args:
            texts: the texts.
            kind: what all of them are, such as plain text or HTML; the translations keep tags.
        """


TextsCallback = Callable[[Sequence[Unit], Sequence[str]], None]
"""A function that is called after each group of a document's texts, with its units and their translations."""


def translate_upload(
    content: bytes,
    name: str,
    translate: TranslateTexts,
    settings: DocumentSettings | None = None,
    limits: Limits | None = None,
) -> bytes:
    """Translate an untrusted document in memory, and return the bytes of the translated document.

    Args:
        content: the bytes of the document.
        name: its file name, used for its suffix and for error messages.
        translate: a function that translates texts of one kind, such as plain text or HTML.
        settings: the format, and which texts to translate; None: the defaults.
        limits: limits on size; None: the defaults for uploads.

    Raises:
        TransduceError: the format is unknown, or the document is damaged or exceeds a limit.
    """
    document = read_document(name, content, settings or DocumentSettings(), limits or Limits())
    return translate_content(document, translate)


def translate_content(
    document: Document,
    translate: TranslateTexts,
    *,
    observe: TextsCallback | None = None,
    finished: Sequence[Sequence[str]] = (),
) -> bytes:
    """Translate the texts of a document that was read, and return the bytes of the translated document.

    Args:
        document: the document. Its texts are translated in groups of up to 20,000 characters (`portions`).
        translate: a function that translates texts of one kind.
        observe: a function called after each group with its texts and their translations; None: none. Groups of
            `finished` are included.
        finished: the translations of the first groups, from an interrupted run. These groups are not translated again.
    """
    translations: list[str] = []
    for number, portion in enumerate(portions(document.units)):
        if number < len(finished):
            done: Sequence[str] = finished[number]
            if isinstance(translate, ContextTexts):
                for unit, text in zip(portion, done, strict=True):
                    translate.remember([unit.text], [text], unit.kind)
        else:
            done = translate_units(portion, translate)
        translations += done
        if observe is not None:
            observe(portion, done)
    return document.write(translations)


def document_notes(document: Document) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (sentence, texts) for each thing that the user should check in a translated document.

    The sentence says one of three things:

    * The file names another target language than the model's. There are no texts.
    * Formulas of a spreadsheet name translated texts. The texts are these formulas.
    * XLIFF units stay partly untranslated. The texts are these units.
    """
    if document.other_language is not None:
        note = (
            f"The file names `{document.other_language}` as the language of its translations, which is not the "
            "language that the model writes: check that the file and the model are the right ones."
        )
        yield note, ()
    if document.text_formulas:
        count = count_noun(len(document.text_formulas), "formula")
        yield (
            f"Formulas stay as they are, but some name texts that were translated, so check their results: {count}.",
            document.text_formulas,
        )
    if document.kept_units:
        count = count_noun(len(document.kept_units), "XLIFF unit")
        yield (
            f"Kept, because segments without a translation cannot be put between the tags around segments: {count}.",
            document.kept_units,
        )


def portions(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Yield lists of a document's units (texts), in order, each with up to 20,000 characters to translate at once.

    A longer unit is a list of its own; no unit is divided.
    """
    portion: list[Unit] = []
    size = 0
    for unit in units:
        if portion and size + len(unit.text) > _PORTION_CHARACTERS:
            yield portion
            portion, size = [], 0
        portion.append(unit)
        size += len(unit.text)
    if portion:
        yield portion


def translate_units(units: Sequence[Unit], translate: TranslateTexts) -> list[str]:
    """Return a list of the translations of a document's units (texts), in order.

    A unit whose translation is empty keeps its text. Equal units are translated only once, and all units of one kind
    together. If the model reads earlier sentences as context, units are translated in the document's order instead.
    """
    found = _translate_units(units, translate)
    return [new if plain_text(new, unit.kind).strip() else unit.text for unit, new in zip(units, found, strict=True)]


def _translate_units(units: Sequence[Unit], translate: TranslateTexts) -> list[str]:
    if isinstance(translate, ContextTexts) and translate.reads_context:
        return [
            text
            for kind, group in groupby(units, key=lambda unit: unit.kind)
            for text in translate([unit.text for unit in group], kind)
        ]
    translations: dict[Unit, str] = {}
    for kind in get_args(UnitKind):
        chosen = list(dict.fromkeys(unit for unit in units if unit.kind == kind))
        if chosen:
            texts = translate([unit.text for unit in chosen], kind)
            translations |= dict(zip(chosen, texts, strict=True))
    return [translations[unit] for unit in units]


class ContextTexts:
    """A store of the last texts of a document with their translations, for a model that reads them as context.

    Subclasses translate the texts of the document, as a callable (`TranslateTexts`).
    """

    def __init__(self, max_sentences: int) -> None:
        """Start a document that has no earlier texts yet.

        Args:
            max_sentences: how many earlier texts the model reads as context; 0: none.
        """
        self.max_sentences = max_sentences
        self.before: list[tuple[str, str]] = []
        """A list of (text, translation) for the last texts of the document, without tags."""

    @property
    def reads_context(self) -> bool:
        """True if the model reads earlier sentences of a document as context for each sentence."""
        return self.max_sentences > 0

    def remember(self, texts: Sequence[str], translations: Sequence[str], kind: UnitKind) -> None:
        """Store texts and their translations, without tags, as context for the texts that are translated next.

        Only the last ones are kept, as many as the model reads; for a model without context this does nothing.
        """
        if self.reads_context:
            last = [side[-self.max_sentences :] for side in (texts, translations)]
            sides = ([text_without_markup(text, kind) for text in side] for side in last)
            self.before = [*self.before, *zip(*sides, strict=True)][-self.max_sentences :]


class ModelTexts(ContextTexts):
    """A callable that translates plain, XML and HTML texts of one document by a `Translator` (a `TranslateTexts`)."""

    def __init__(
        self,
        translator: Translator,
        search: SearchSettings | None = None,
        *,
        glossary: GlossaryLike = None,
        text_settings: TextSettings | None = None,
    ) -> None:
        """Store the translator, with the settings and the glossary for all texts of the document.

        Args:
            translator: the model.
            search: search settings; None: the translator's own.
            glossary: terms that must be translated as specified; None: none.
            text_settings: settings for texts; None: the translator's own.
        """
        super().__init__(0 if translator.document_context is None else translator.document_context.before)
        self.translator = translator
        self.search = search or translator.search
        self.glossary = glossary
        self.text_settings = text_settings

    def __call__(self, texts: Sequence[str], kind: UnitKind) -> list[str]:
        """Return a list of the model's translations of texts, in order; the texts of all calls are one document.

        Plain texts that are only a sign, such as a number, are returned unchanged.

        Args:
            texts: the texts, which follow those of the call before if the model reads earlier sentences.
            kind: what all of them are, such as plain text or HTML; the translations keep tags.
        """
        if kind == "text":
            chosen = [text for text in texts if not is_sign(text)]
            found = self.translator.translate(
                chosen,
                self.search,
                glossary=self.glossary,
                text_settings=self.text_settings,
                documents=Documents([bool(self.before), *(True for _ in chosen[1:])][: len(chosen)], self.before),
            )
            new = (each.text for each in found)
            translations = [text if is_sign(text) else next(new) for text in texts]
        else:
            translations = translate_markup(
                self.translator,
                texts,
                UNIT_MARKUP[kind],
                search=self.search,
                glossary=self.glossary,
                text_settings=self.text_settings,
                before=self.before if self.reads_context else None,
            )
        self.remember(texts, translations, kind)
        return translations


def text_without_markup(text: str, kind: UnitKind) -> str:
    """Return a document's text, or its translation, without XML or HTML tags; spaces replace tags that divide it.

    Plain text stays as it is.
    """
    return text if kind == "text" else " ".join(markup_plan(text, UNIT_MARKUP[kind], spaced=True).sentences)


def count_texts(document: Document) -> int:
    """Return the number of texts of a document that are translated; each paragraph of a page of HTML is one text."""
    pages = (markup_plan(unit.text, UNIT_MARKUP["html"], spaced=True) for unit in document.units if unit.kind == "html")
    return sum(unit.kind != "html" for unit in document.units) + sum(len(page.sentences) for page in pages)


CountCallback = Callable[[int, int], None]
"""A function that is called with two integers: the number of translated characters and the number of all."""


@explain_wrong_types
def translate_document(
    translator: Translator,
    source: str | Path,
    target: str | Path | None = None,
    *,
    settings: DocumentSettings | None = None,
    search: SearchSettings | None = None,
    glossary: GlossaryLike = None,
    text_settings: TextSettings | None = None,
    resume: bool = False,
    progress: CountCallback | None = None,
) -> Path:
    """Translate a document; only its text changes, and its structure and formatting stay the same.

    Args:
        translator: the model.
        source: the document, such as `report.docx`.
        target: the file to write; None: beside the source with the target language in its name (`report.de.docx`).
        settings: the format, and which texts to translate; None: the defaults.
        search: search settings; None: the translator's defaults.
        glossary: terms that must be translated as specified.
        text_settings: settings for texts; None: the translator's defaults.
        resume: continue an interrupted translation of the same document into the same target.
        progress: called with the numbers of translated and of all characters, after each group of texts that is
            translated together; None: nothing.

    Returns:
        The path of the translated document.

    Raises:
        TransduceError: the document cannot be read or is damaged, its format is unknown, an argument does not fit it,
            the target is the document itself, or there is an interrupted translation and `resume` is False.
    """
    source = Path(source)
    path = Path(target) if target is not None else target_path(source, translator.target_language)
    if path == source or (path.exists() and source.exists() and path.samefile(source)):
        raise TransduceError(f"{path} is the document itself: choose another name for the translation.")
    settings = settings or DocumentSettings()
    if settings.target_language is None and translator.target_language is not None:
        settings = msgspec.structs.replace(settings, target_language=translator.target_language)
    content = _read(source)
    document = read_document(source.name, content, settings, LOCAL_LIMITS)
    translate = ModelTexts(translator, search, glossary=glossary, text_settings=text_settings)
    identity = content + msgspec.json.encode(settings) + _identity(translate)
    observe = None if progress is None else _counted(document, progress)
    write_translated(document, path, translate, identity=identity, resume=resume, observe=observe)
    return path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise missing_file(path) from None
    except IsADirectoryError:
        raise TransduceError(f"{path} is a folder, but a document is needed: name a file in it.") from None
    except OSError as error:
        raise TransduceError(f"{path} cannot be read ({error.strerror}): check its permissions.") from None


def _identity(translate: "ModelTexts") -> bytes:
    """Return JSON bytes that represent what determines translations, so that only the same translation is resumed.

    The JSON contains a digest of the models' weights and the datastore, the tokenizer, the settings and the glossary.
    """
    translator, digest = translate.translator, hashlib.sha256()
    stored = translator.datastore
    weights = (tensor for model in translator.models for tensor in model.state_dict().values())
    for tensor in (*weights, *(() if stored is None else stored.tensors)):
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    glossary, source = as_glossary(translate.glossary), translator.tokenizer.source
    return msgspec.json.encode(
        (
            (digest.hexdigest(), None if stored is None else stored.card),
            (repr(translator), translator.tokenizer.fingerprint, source.before, translator.tokenizer.target.before),
            (translate.search, translate.text_settings or translator.text),
            None if glossary is None else glossary.terms,
        )
    )


def _counted(document: Document, progress: CountCallback) -> TextsCallback:
    """Return a `TextsCallback` that adds up the source characters of translated groups of texts and reports the sum.

    Args:
        document: the document, whose characters are the total.
        progress: called after each group with the translated and the total number of characters.
    """
    total, done = sum(len(unit.text) for unit in document.units), 0

    def observe(units: Sequence[Unit], _: Sequence[str]) -> None:
        nonlocal done
        done += sum(len(unit.text) for unit in units)
        progress(done, total)

    return observe


def target_path(source: Path, language: str | None) -> Path:
    """Return the default path of a document's translation, with the language before the suffix (`report.de.docx`).

    Args:
        source: path of the document.
        language: code of the target language; None adds `translated` instead.
    """
    return source.with_name(f"{source.stem}.{language or 'translated'}{source.suffix}")


def write_translated(
    document: Document,
    path: Path,
    translate: TranslateTexts,
    *,
    identity: bytes,
    resume: bool = False,
    observe: TextsCallback | None = None,
) -> None:
    """Translate a document and write it, so that an interrupted translation can be resumed.

    Finished translations are stored beside the document in the file `PATH.partial`. The file is deleted at the end.
    After an error it stays, unless it has no translations yet.

    Args:
        document: the document that was read.
        path: the file to write. If it is a symbolic link, the link's target is replaced.
        translate: translates texts.
        identity: bytes that represent all that determines the translation. A resumed translation needs equal bytes.
        resume: continue an interrupted translation, if there is one.
        observe: called with each group of texts and their translations, those of the interrupted run too.

    Raises:
        TransduceError: another process writes the file, or an interrupted translation exists that cannot be continued:
            `resume` is False, its file is damaged, or it is of another document or has other settings.
    """
    path = path.resolve() if path.is_symlink() else path
    identity += msgspec.json.encode(document.units)
    with lock_output(path), _Store(path, hashlib.sha256(identity).hexdigest(), resume=resume) as store:
        finished = list(store.portions)

        def store_and_observe(units: Sequence[Unit], translations: Sequence[str]) -> None:
            store.add(translations)
            if observe is not None:
                observe(units, translations)

        write_file(path, translate_content(document, translate, observe=store_and_observe, finished=finished))


class _Store:
    """The file `PATH.partial` beside a document that is being written, which stores its finished translations.

    The file has a line of JSON with a digest of the document and the model, then a line for each group of translations.
    """

    def __init__(self, path: Path, digest: str, *, resume: bool) -> None:
        self.path = path.with_name(f"{path.name}.partial")
        self.portions: list[list[str]] = []
        """The groups of translations that an interrupted run finished, a list of lists of texts in the document's
        order.
        """
        self._added = 0
        content = self.path.read_bytes() if self.path.exists() else b""
        if b"\n" in content:
            self._read(content, digest, resume=resume)
        else:  # new, or cut short in its first line
            write_file(self.path, msgspec.json.encode(digest) + b"\n")

    def __enter__(self) -> Self:
        """Return this store.

        Its file is deleted at the end of the `with` block, except after an error with translations stored.
        """
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or not (self._added or self.portions):
            self.path.unlink(missing_ok=True)

    def _read(self, content: bytes, digest: str, *, resume: bool) -> None:
        if not resume:
            raise TransduceError(
                f"{self.path} has parts of an interrupted translation: pass --resume to continue, or delete it."
            )
        complete = content[: content.rfind(b"\n") + 1]  # without a line that was cut short
        lines = complete.split(b"\n")[:-1]
        try:
            stored = msgspec.json.decode(lines[0], type=str)
            self.portions = [msgspec.json.decode(line, type=list[str]) for line in lines[1:]]
        except msgspec.MsgspecError as error:
            raise TransduceError(f"{self.path} cannot be read ({error}): delete it to start again.") from None
        if stored != digest:
            raise TransduceError(
                f"{self.path} was started with another document, model or settings: use the same, or delete it."
            )
        os.truncate(self.path, len(complete))

    def add(self, translations: Sequence[str]) -> None:
        """Append the translations of the next group of texts to the file, unless an interrupted run stored them."""
        if self._added >= len(self.portions):
            with name_path_in_errors(self.path), self.path.open("ab") as file:
                file.write(msgspec.json.encode(list(translations)) + b"\n")
        self._added += 1
