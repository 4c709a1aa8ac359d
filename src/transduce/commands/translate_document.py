"""The part of `transduce translate` that translates documents, such as Word files, e-books and subtitles."""

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from transduce.atomic_io import is_special_file, name_path_in_errors
from transduce.commands.options import check_writable, load_translator, option_of, print_bytes, refuse_options
from transduce.documents.formats import (
    FORMATS,
    START_BYTES,
    Format,
    format_of_name,
    known_suffixes,
    read_document,
    recognize,
    recognize_text,
)
from transduce.documents.limits import LOCAL_LIMITS
from transduce.documents.text_formats import PLURAL_FORMS, lacking_plural_forms
from transduce.documents.units import Document, DocumentSettings, Unit, plain_text
from transduce.errors import TransduceError, count_noun, shown_names
from transduce.text.glossary import Glossary, TermTally
from transduce.ui_language import localized

if TYPE_CHECKING:
    from transduce.inference.bulk_files import LineOptions
    from transduce.inference.translator import Translator

_SETTINGS = ("columns", "fields", "keep_source", "overwrite", "overwrite_fuzzy", "mark_fuzzy", "encoding")
_LINE_OPTIONS: dict[str, object] = {
    "phrases": None,
    "shard": "1/1",
    "workers": 1,
    "prefix": "",
    "must_contain": [],
    "redecode": False,
    "join_lines": False,
    "n_best": None,
}
"""Options that apply to lines of text only, and are refused for documents: name → value if it is not set."""


def add_documents(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `transduce translate` for documents, such as --format, --columns and --keep-source."""
    group = parser.add_argument_group(
        "documents", f"files that end in {known_suffixes()}; only their text is translated"
    ).add_argument
    group(
        "--format",
        choices=FORMATS,
        help="format of the file (default: by its name and content; txt: translate the lines of any text file)",
    )
    group(
        "--columns",
        action="append",
        metavar="NAME",
        help="csv and tsv: translate this column, by its name in the first row or its number; can be repeated",
    )
    group(
        "--fields",
        action="append",
        metavar="PATH",
        help="json and jsonl: translate only these values, such as items.*.title; can be repeated",
    )
    group(
        "--keep-source",
        action="store_true",
        help="subtitles and txt: write each translation below its source (po and xliff have both anyway)",
    )
    group("--overwrite", action="store_true", help="po and xliff: translate what has a translation, too")
    group(
        "--overwrite-fuzzy",
        action="store_true",
        help="po: translate entries that are flagged `fuzzy`, too, and remove the flag",
    )
    group("--mark-fuzzy", action="store_true", help="po: give new translations the flag `fuzzy`, for review")
    group("--encoding", metavar="NAME", help="encoding of a document of text (default: UTF-8 or as it says)")


def document_format(file: str | None, options: argparse.Namespace) -> Format | None:
    """Return the format of the input if it is a document, such as a Word file; None if it is lines to translate.

    Plain text is a document if --encoding or --keep-source is set.

    Args:
        file: the input; None: standard input, whose lines are translated.
        options: the options of `transduce translate`.

    Raises:
        TransduceError: the file is in a format that cannot be translated, or its content is another than its name
            says, or an option for documents has no effect.
    """
    found = None
    if file is not None and not is_special_file(Path(file)):
        with Path(file).open("rb") as stream:
            start = stream.read(START_BYTES)
        named = format_of_name(file)
        if options.format is None and (named is None or named.name == "txt"):
            recognize_text(file, start)
        elif options.format != "txt":
            content = start if len(start) < START_BYTES else Path(file).read_bytes()
            found = recognize(file, content, options.format)
        if found is None and (options.encoding or options.keep_source):
            found = FORMATS["txt"]
    if file is None and options.format not in (None, "txt"):
        raise TransduceError("--format describes a file, but the input is standard input: name the file.")
    if found is None:
        refuse_options(
            options, _SETTINGS, "`{option}` applies to documents, but the input is lines of text: leave it out."
        )
    return found


def translate_file(
    options: argparse.Namespace, folders: list[str], file: str, format: Format, job: "LineOptions", identity: bytes
) -> None:
    """Translate a document, write it to --output, and report warnings on standard error.

    Without --output, text goes to standard output, and an archive such as .docx beside the document, with the target
    language in its name.

    Args:
        options: the command's options.
        folders: the model folders; several are an ensemble.
        file: the document.
        format: the document's format.
        job: search settings, glossary and settings for texts.
        identity: bytes that represent the models and options, by which an interrupted translation is recognized.

    Raises:
        TransduceError: an option does not apply to documents, or the document cannot be read or written.
    """
    from transduce.documents.translate import ModelTexts, count_texts, target_path, translate_content, write_translated

    for name, unset in _LINE_OPTIONS.items():
        if vars(options)[name] != unset and (name != "join_lines" or format.name != "txt"):
            raise TransduceError(f"`{option_of(name)}` applies to lines of text, not to documents: leave it out.")
    output = Path(options.output) if options.output and not is_special_file(Path(options.output)) else None
    named = None if output is None else format_of_name(output.name)
    if named not in (None, format) and options.format != "txt":
        raise TransduceError(
            f"{output} would be {named.name} by its name, but the document stays {format.name}: let its name end in "
            f"{format.suffixes[0]}."
        )
    translator = load_translator(folders, options)
    if format.is_archive and options.output is None:
        output = target_path(Path(file), translator.target_language)
        if output.exists():
            raise TransduceError(f"{output} exists already: name the file to write by --output.")
        check_writable(str(output))
    settings = DocumentSettings(
        format=format.name,
        columns=tuple(options.columns or ()),
        fields=tuple(options.fields or ()),
        target_language=translator.target_language,
        **{name: vars(options)[name] for name in ("join_lines", *_SETTINGS) if name not in ("columns", "fields")},
    )
    content, started_at = Path(file).read_bytes(), time.monotonic()
    document = read_document(file, content, settings, LOCAL_LIMITS)
    translate = ModelTexts(translator, job.search, glossary=job.glossary, text_settings=job.text_settings)
    warnings = _UnitWarnings(document, translator, job.glossary)
    with _progress_bar(document, Path(file).name) as advance:

        def observe(units: Sequence[Unit], translations: Sequence[str]) -> None:
            warnings.add(units, translations)
            advance(units)

        if output is None:
            result = translate_content(document, translate, observe=observe)
            _write_stream(options.output, result)
        else:
            identity += msgspec.json.encode(settings) + content
            write_translated(document, output, translate, identity=identity, resume=options.resume, observe=observe)
    sys.stderr.write(localized(str(warnings)))
    if output is not None:
        seconds = time.monotonic() - started_at
        sys.stderr.write(localized(f"{count_noun(count_texts(document), 'text')} in {output}, {seconds:.1f} s\n"))
    notes = (_message_notes(document, translator.target_language), _unit_notes(document), _plural_notes(document))
    for note in chain.from_iterable(notes):
        sys.stderr.write(localized(f"{note}\n"))
    if document.kept_fuzzy:
        sys.stderr.write(
            localized(
                f"Kept with the flag `fuzzy`: {count_noun(document.kept_fuzzy, 'translation')}. Programs use them only "
                "after a review; --overwrite-fuzzy translates them again.\n"
            )
        )


_MAX_SHOWN = 3  # messages or units that are listed
_MAX_MESSAGE = 60  # characters of one


def _message_notes(document: Document, language: str | None) -> Iterator[str]:
    """Yield lines for the user about the ICU messages of a document.

    The lines name the messages that stay as they are, and the plural forms that are missing.

    Args:
        document: the document, after it was written.
        language: code of the target language; None: unknown.
    """
    record = document.messages
    kept = [] if record is None else [*record.kept, *record.lost]
    if kept:
        count = count_noun(len(kept), "ICU message")
        yield f"Kept, because the branches cannot be translated one by one: {count}."
        for text in kept[:_MAX_SHOWN]:
            yield f"  this message stays: {_shortened(text)}"
    missing = [lacking_plural_forms(forms, language) for forms in ([] if record is None else record.plural_forms)]
    if any(missing):
        names = shown_names([f"`{name}`" for name in PLURAL_FORMS if any(name in each for each in missing)])
        yield (
            f"{count_noun(sum(map(bool, missing)), 'plural')} in ICU messages without forms of the target language "
            f"({names}): add these, since their numbers get the form `other` now."
        )


def _plural_notes(document: Document) -> Iterator[str]:
    """Yield lines that tell the user which plural forms of a PO file to check or to add."""
    if document.same_plurals:
        yield (
            f"Plural forms of {count_noun(document.same_plurals, 'text')}: all but the form of the number 1 "
            "are the translation of one text. Check them."
        )
    if document.guesses_singular:
        yield (
            "The header of the catalog has no valid rule for plural forms (`plural=`): `msgstr[0]` is assumed to be "
            "the form of the number 1. Check these entries, or correct the header and translate again."
        )
    if document.lacks_plural_rule:
        yield (
            "The header of the catalog has no plural forms, and those of the target language are not known: run "
            "`msginit` first, and translate the file that it writes."
        )


def _unit_notes(document: Document) -> Iterator[str]:
    """Yield lines for the user about things to check in a translated document.

    The lines are about a file for another target language, formulas that name translated texts, and XLIFF units that
    stay partly untranslated.
    """
    from transduce.documents.translate import document_notes

    for note, texts in document_notes(document):
        yield note
        for text in map(_shortened, texts[:_MAX_SHOWN]):
            yield f"  this unit stays: {text}" if texts is document.kept_units else f"  this formula stays: {text}"


def _shortened(text: str) -> str:
    """Return a text in one line, cut after 60 characters."""
    shown = " ".join(text.split())
    return shown if len(shown) <= _MAX_MESSAGE else f"{shown[:_MAX_MESSAGE]}…"


_SETTING = re.compile(f"`({'|'.join((*_SETTINGS, 'format'))})`")


@contextlib.contextmanager
def naming_options(file: str) -> Iterator[None]:
    """Rewrite messages of errors about a document, in a `with` block, so that they name options and the file.

    The original messages name settings, such as `columns`, and call the file "The document".
    """
    try:
        yield
    except TransduceError as error:
        message = _SETTING.sub(lambda match: f"`--{match[1].replace('_', '-')}`", str(error))
        message = re.sub(r"\AThe document\b", lambda _: Path(file).name, message)
        if message == str(error):
            raise
        raise TransduceError(message) from None


def _write_stream(path: str | None, content: bytes) -> None:
    """Write the bytes of a document to a device such as /dev/stdout; a path of None is standard output."""
    if path is None:
        print_bytes(content)
    else:
        with name_path_in_errors(path), Path(path).open("wb") as stream:
            stream.write(content)


class _UnitWarnings:
    """A collector of warnings about the translations of a document's texts, which are numbered from 1.

    `str` lists the warnings, and glossary terms that are missing.
    """

    def __init__(self, document: Document, translator: "Translator", glossary: Glossary | None) -> None:
        from transduce.commands.line_warnings import LineWarnings, unknown_letters

        self._warnings = LineWarnings(
            translator.source_language,
            translator.target_language,
            unknown_characters=unknown_letters(translator.tokenizer.source),
            noun="text",
        )
        self._tally = None if glossary is None else TermTally(glossary, of_document=True)
        self._kept = frozenset() if document.messages is None else frozenset(document.messages.kept)
        self._units = document.units
        self._count = 0

    def add(self, units: Sequence[Unit], translations: Sequence[str]) -> None:
        """Check the translations of the document's next texts, and collect the warnings about them.

        In texts of the kind `html`, and in ICU messages that stay as they are, only glossary terms are checked.
        """
        from transduce.documents.translate import text_without_markup

        for unit, translation in zip(units, translations, strict=True):
            self._count += 1
            if self._tally is not None:
                pair = (text_without_markup(each, unit.kind) for each in (unit.text, translation))
                self._tally.add(self._count, *pair)
            if unit.kind != "html" and unit.text not in self._kept:
                self._warnings.add(self._count, *(plain_text(each, unit.kind) for each in (unit.text, translation)))

    def __str__(self) -> str:
        texts = ((number, self._units[number - 1]) for number in self._warnings.shown_numbers)
        shown = "".join(
            f"  text {number:,} of the document: {_shortened(plain_text(unit.text, unit.kind))}\n"
            for number, unit in texts
        )
        return str(self._warnings) + shown + ("" if self._tally is None else f"{self._tally}\n")


@contextlib.contextmanager
def _progress_bar(document: Document, name: str) -> Iterator[Callable[[Sequence[Unit]], None]]:
    """Show a progress bar in a `with` block while a document is translated, if standard error is a terminal.

    Yields a function to call with the texts (units) that are finished; without a terminal the function does nothing.

    Args:
        document: the document, whose characters are the total.
        name: the file's name, shown beside the bar.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    total = sum(len(unit.text) for unit in document.units)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda units: bar.advance(task, sum(len(unit.text) for unit in units))
