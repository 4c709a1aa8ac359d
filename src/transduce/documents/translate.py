"""Translate documents: a user's own files, or untrusted uploads."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol

import msgspec
import torch

from transduce.atomic_io import lock_output, write_file
from transduce.documents.formats import read_document
from transduce.documents.limits import LOCAL_LIMITS, Limits
from transduce.documents.markup import markup_plan, translate_markup
from transduce.documents.markup_tokens import MarkupSettings
from transduce.documents.units import Document, DocumentSettings, Unit, UnitKind
from transduce.errors import TransduceError
from transduce.inference.batching import Documents
from transduce.inference.glossary_search import GlossaryLike, as_glossary
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.text.text_settings import TextSettings

UNIT_MARKUP = {
    "xml": MarkupSettings(kind="xliff"),
    "html": MarkupSettings(attributes=("alt", "aria-label", "placeholder", "title")),
}
"""Settings for the texts of documents that have tags, by the kind of the text."""

_PORTION_CHARACTERS = 20_000  # characters that are translated together, and after which progress is stored


class TranslateTexts(Protocol):
    """A function that translates texts of one kind, such as a model or a server's queue."""

    def __call__(self, texts: Sequence[str], kind: UnitKind) -> Sequence[str]:
        """Return the translation of each text, in order; the tags of `xml` and `html` texts are kept."""


Observer = Callable[[Sequence[Unit], Sequence[str]], None]
"""A function that is called after each translated group of a document's units, with these and their translations."""


def translate_upload(
    content: bytes,
    name: str,
    translate: TranslateTexts,
    settings: DocumentSettings | None = None,
    limits: Limits | None = None,
) -> bytes:
    """Translate an untrusted document in memory, and return the translated document.

    Args:
        content: the document.
        name: its file name, of which only the suffix is used.
        translate: translates texts.
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
    observe: Observer | None = None,
    finished: Sequence[Sequence[str]] = (),
) -> bytes:
    """Translate a document that was read, and return the translated document.

    Args:
        document: the document.
        translate: translates texts.
        observe: called after each group of texts that is translated together.
        finished: translations of the first groups, which are not translated again.
    """
    translations: list[str] = []
    for number, portion in enumerate(portions(document.units)):
        if number < len(finished):
            done: Sequence[str] = finished[number]
            if isinstance(translate, ModelTexts):
                for unit, text in zip(portion, done, strict=True):
                    translate.remember([unit.text], [text], unit.kind)
        else:
            done = translate_units(portion, translate)
        translations += done
        if observe is not None:
            observe(portion, done)
    return document.write(translations)


def portions(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Yield a document's units (texts) in groups of some thousand characters, which are translated together."""
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
    """Return each unit's translation.

    Equal units are translated only once, unless the model reads earlier text as context.
    """
    if isinstance(translate, ModelTexts) and translate.reads_context:
        return [
            text
            for kind, group in groupby(units, key=lambda unit: unit.kind)
            for text in translate([unit.text for unit in group], kind)
        ]
    translations: dict[Unit, str] = {}
    for kind in ("text", "xml", "html"):
        chosen = list(dict.fromkeys(unit for unit in units if unit.kind == kind))
        if chosen:
            texts = translate([unit.text for unit in chosen], kind)
            translations |= dict(zip(chosen, texts, strict=True))
    return [translations[unit] for unit in units]


class ModelTexts:
    """Implements `TranslateTexts` for a translator."""

    def __init__(
        self,
        translator: Translator,
        search: SearchSettings | None = None,
        *,
        glossary: GlossaryLike = None,
        text_settings: TextSettings | None = None,
    ) -> None:
        """Store the arguments of `Translator.translate`; None: the translator's defaults."""
        self.translator = translator
        self.search = search or translator.search
        self.glossary = glossary
        self.text_settings = text_settings
        self._before: list[tuple[str, str]] = []
        """The last texts of the document with their translations, for a model that reads earlier sentences."""

    @property
    def reads_context(self) -> bool:
        """True if the model reads earlier sentences of a document before each sentence."""
        return self.translator.context is not None

    def remember(self, texts: Sequence[str], translations: Sequence[str], kind: UnitKind) -> None:
        """Store texts and their translations as context for the texts that are translated next."""
        if self.translator.context is not None:
            max_sentences = self.translator.context.before
            sides = ([_plain_text(text, kind) for text in side[-max_sentences:]] for side in (texts, translations))
            self._before = [*self._before, *zip(*sides, strict=True)][-max_sentences:]

    def __call__(self, texts: Sequence[str], kind: UnitKind) -> list[str]:
        """Return the model's translation of each text, in order; the texts of all calls are one document."""
        if kind == "text":
            found = self.translator.translate(
                texts,
                self.search,
                glossary=self.glossary,
                text_settings=self.text_settings,
                documents=Documents([bool(self._before), *(True for _ in texts[1:])][: len(texts)], self._before),
            )
            translations = [each.text for each in found]
        else:
            translations = translate_markup(
                self.translator,
                texts,
                UNIT_MARKUP[kind],
                search=self.search,
                glossary=self.glossary,
                text_settings=self.text_settings,
                before=self._before if self.reads_context else None,
            )
        self.remember(texts, translations, kind)
        return translations


def _plain_text(text: str, kind: UnitKind) -> str:
    """Return the text of a unit without its tags."""
    return text if kind == "text" else " ".join(markup_plan(text, UNIT_MARKUP[kind], spaced=True).sentences)


Progress = Callable[[int, int], None]
"""A function that is called with the number of translated characters and the number of all characters."""


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
    progress: Progress | None = None,
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
        progress: called after each group of texts that is translated together.

    Returns:
        The path of the translated document.

    Raises:
        TransduceError: the format is unknown, the document is damaged, or an argument does not fit it.
    """
    source = Path(source)
    path = Path(target) if target is not None else target_path(source, translator.target_language)
    if path == source or (path.exists() and source.exists() and path.samefile(source)):
        raise TransduceError(f"{path} is the document itself: choose another name for the translation.")
    settings = settings or DocumentSettings()
    if settings.target_language is None and translator.target_language is not None:
        settings = msgspec.structs.replace(settings, target_language=translator.target_language)
    content = source.read_bytes()
    document = read_document(source.name, content, settings, LOCAL_LIMITS)
    translate = ModelTexts(translator, search, glossary=glossary, text_settings=text_settings)
    identity = content + msgspec.json.encode(settings) + _identity(translate)
    observe = None if progress is None else _counted(document, progress)
    write_translated(document, path, translate, identity=identity, resume=resume, observe=observe)
    return path


def _identity(translate: "ModelTexts") -> bytes:
    """Return bytes that represent the models, the tokenizer and the settings that determine translations."""
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


def _counted(document: Document, progress: Progress) -> Observer:
    """Return an observer that reports the number of translated characters."""
    total, done = sum(len(unit.text) for unit in document.units), 0

    def observe(units: Sequence[Unit], _: Sequence[str]) -> None:
        nonlocal done
        done += sum(len(unit.text) for unit in units)
        progress(done, total)

    return observe


def target_path(source: Path, language: str | None) -> Path:
    """Return the default path of a translation: the language is added before the suffix."""
    return source.with_name(f"{source.stem}.{language or 'translated'}{source.suffix}")


def write_translated(
    document: Document,
    path: Path,
    translate: TranslateTexts,
    *,
    identity: bytes,
    resume: bool = False,
    observe: Observer | None = None,
) -> None:
    """Translate a document and write it; translations are stored beside it until it is complete.

    Args:
        document: the document that was read.
        path: the file to write.
        translate: translates texts.
        identity: bytes that represent all that determines the translation; a resumed translation needs equal ones.
        resume: continue an interrupted translation.
        observe: called after each group of texts that is translated together.

    Raises:
        TransduceError: there is an interrupted translation and `resume` is False, or it is of another document, or
            another process writes the file.
    """
    with lock_output(path):
        store = _Store(path, hashlib.sha256(identity).hexdigest(), resume=resume)
        finished = list(store.portions)

        def store_and_observe(units: Sequence[Unit], translations: Sequence[str]) -> None:
            store.add(translations)
            if observe is not None:
                observe(units, translations)

        write_file(path, translate_content(document, translate, observe=store_and_observe, finished=finished))
        store.delete()


class _Store:
    """The file beside a document that is being translated, with the translations that are finished."""

    def __init__(self, path: Path, digest: str, *, resume: bool) -> None:
        self.path = path.with_name(f"{path.name}.partial")
        self.portions: list[list[str]] = []
        """Translations of the units of each group that was finished earlier."""
        self._added = 0
        if self.path.exists():
            self._read(digest, resume=resume)
        else:
            self.path.write_bytes(msgspec.json.encode(digest) + b"\n")

    def _read(self, digest: str, *, resume: bool) -> None:
        if not resume:
            raise TransduceError(
                f"{self.path} has parts of an interrupted translation: pass --resume to continue, or delete it."
            )
        content = self.path.read_bytes()
        lines = content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]  # without a line that was cut short
        try:
            stored = msgspec.json.decode(lines[0], type=str) if lines else ""
            self.portions = [msgspec.json.decode(line, type=list[str]) for line in lines[1:]]
        except msgspec.MsgspecError as error:
            raise TransduceError(f"{self.path} cannot be read ({error}): delete it to start again.") from None
        if stored != digest:
            raise TransduceError(
                f"{self.path} was started with another document, model or settings: use the same, or delete it."
            )
        self.path.write_bytes(b"".join(line + b"\n" for line in lines))

    def add(self, translations: Sequence[str]) -> None:
        """Store the translations of the next group of units, unless they were stored earlier."""
        self._added += 1
        if self._added > len(self.portions):
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(list(translations)) + b"\n")

    def delete(self) -> None:
        """Delete the file with the finished translations."""
        self.path.unlink(missing_ok=True)
