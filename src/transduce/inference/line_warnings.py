"""Warnings about lines that a command translates: another language, letters new to the model, lost sentences."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path

from transduce.inference.bulk_files import Portion
from transduce.inference.quality_estimation import describe_wrong_language, plural
from transduce.interop.hugging_face.imported_tokenizer import ImportedVocabulary, load_tokenizer
from transduce.model_folder.hugging_face import is_hugging_face_folder
from transduce.model_folder.read import MANIFEST, Manifest, outline_imported
from transduce.model_folder.safety import read_json
from transduce.text.protected import find_protected
from transduce.text.sentences import find_lost_sentences
from transduce.text.vocabulary import Vocabulary, byte_of
from transduce.ui_language import localized

Languages = tuple[str | None, str | None]
MAX_SHOWN = 5  # line numbers, and letters


class LineWarnings:
    """A collector of line numbers with translation problems; `str` gives one warning for each kind of problem."""

    def __init__(
        self,
        source_language: str | None,
        target_language: str | None,
        *,
        unknown_characters: Callable[[str], Iterable[str]] | None = None,
        noun: str = "line",
    ) -> None:
        """Create a collector that has no line numbers yet.

        Args:
            source_language: language code of the source; None: unknown.
            target_language: language code of the target; None: unknown.
            unknown_characters: returns the characters or words of a text that the model's vocabulary lacks; None: not
                checked.
            noun: the word for a line in the warnings, in the singular.
        """
        self._noun = noun
        self._unknown_characters = unknown_characters
        self._unknown: dict[int, list[str]] = {}
        self._source_language = source_language
        known = None not in (source_language, target_language)
        self._finds_lost = known and source_language != target_language
        self._other_language: dict[str, list[int]] = {}
        self._lost: list[int] = []

    def add(self, number: int, source: str, translation: str | None) -> None:
        """Check one line, and record its number (from 1) for each problem that it has.

        Problems are a wrong source language, letters that the vocabulary lacks, and sentences lost in the translation.
        A line in a wrong language is not checked for others. If `translation` is None, lost sentences are not looked
        for.
        """
        reason = describe_wrong_language(source, self._source_language)
        if reason is not None:
            self._other_language.setdefault(reason, []).append(number)
            return
        if self._unknown_characters is not None and (letters := _letters(self._unknown_characters(source), source)):
            self._unknown[number] = letters
        if translation is not None and self._finds_lost and find_lost_sentences(source, translation) is not None:
            self._lost.append(number)

    def __str__(self) -> str:
        """Return the text of the warnings, one line for each kind of problem; empty if there are none.

        There is one line for each wrong language, the most frequent first.
        """
        by_count = sorted(self._other_language.items(), key=lambda entry: -len(entry[1]))
        warnings = [
            f"warning: {self._lines(numbers)} {reason if len(numbers) == 1 else plural(reason)}: the "
            "translation is then fluent nonsense; use a model that reads this language.\n"
            for reason, numbers in by_count
        ]
        if self._unknown:
            verb, letters = "has" if len(self._unknown) == 1 else "have", dict.fromkeys(chain(*self._unknown.values()))
            shown = ", ".join(list(letters)[:MAX_SHOWN]) + (", …" if len(letters) > MAX_SHOWN else "")
            noun = "letters" if all(len(each) == 1 for each in letters) else "words"
            warnings.append(
                f"warning: {self._lines(list(self._unknown))} {verb} {noun} that the vocabulary lacks ({shown}): do "
                "not rely on these translations, which are outside of what the model has learned.\n"
            )
        if self._lost:
            verb = "has" if len(self._lost) == 1 else "have"
            warnings.append(
                f"warning: {self._lines(self._lost)} {verb} fewer sentences in the translation than in the source: use "
                "--split-sentences always, or put each sentence on a line of its own.\n"
            )
        return "".join(warnings)

    def _lines(self, numbers: list[int]) -> str:
        shown = ", ".join(f"{number:,}" for number in numbers[:MAX_SHOWN])
        if len(numbers) == 1:
            return f"{self._noun} {shown}"
        more = ", …" if len(numbers) > MAX_SHOWN else ""
        return f"{len(numbers):,} {self._noun}s ({shown}{more})"


def _letters(unknown: Iterable[str], source: str) -> list[str]:
    """Return those of `unknown` (characters or words) that have a letter and are not only in protected spans.

    Protected spans of the source, such as URLs, are copied, so the model need not know their letters.
    """
    letters = [each for each in unknown if any(map(str.isalpha, each))]
    if not letters:
        return []
    for span in reversed(find_protected(source)):
        source = source[: span.start] + source[span.end :]
    return [each for each in letters if each in source]


def with_warnings(
    portions: Iterable[tuple[Portion, str]], make: Callable[[], LineWarnings], *, is_line_by_line: bool
) -> Iterator[tuple[Portion, str]]:
    """Yield translated portions (groups of lines) unchanged; finally write warnings about the lines to standard error.

    Args:
        portions: groups of input lines, and the text that is written for each group.
        make: creates an empty `LineWarnings`; called after the first group, when the model folder is validated.
        is_line_by_line: True if exactly one line is written for each input line, not several alternatives.
    """
    warnings = None
    for portion, text in portions:
        warnings = warnings or make()
        yield portion, text
        translations: list[str] | list[None]
        translations = text.split("\n") if is_line_by_line else [None] * len(portion.lines)
        for index, line, translation in zip(portion.indices, portion.lines, translations, strict=False):
            warnings.add(index + 1, line, translation)
    sys.stderr.write(localized(str(warnings or "")))


def resolve_languages(folder: Path, source: str | None = None, target: str | None = None) -> Languages:
    """Return the source and target language of a model folder: each argument if it is set, else that of the manifest.

    A language is None if neither specifies it, or if the folder has no manifest.

    Raises:
        TransduceError: the manifest is damaged.
    """
    if not (folder / MANIFEST).is_file():
        return source, target
    manifest = read_json(folder, MANIFEST, Manifest)
    return source or manifest.source_language, target or manifest.target_language


def unknown_characters_of(folder: Path) -> Callable[[str], list[str]]:
    """Return a function that lists the characters of a text that a model's source vocabulary lacks (`unknown_letters`).

    Raises:
        TransduceError: the tokenizer's files are missing or damaged.
    """
    is_imported_on_use = is_hugging_face_folder(folder)
    tokenizer = outline_imported(folder)[0].tokenizer if is_imported_on_use else load_tokenizer(folder)
    return unknown_letters(tokenizer.source)


def unknown_letters(vocabulary: Vocabulary) -> Callable[[str], list[str]]:
    """Return a function that finds the characters of a text that a vocabulary lacks, and letters spelled in bytes.

    For an imported vocabulary, such as a word list, it finds the words that contain an unknown token.
    """

    @cache
    def is_spelled_in_bytes(letter: str) -> bool:
        return any(byte_of(piece) is not None for piece in vocabulary.token_texts(vocabulary.encode(letter)))

    def find(text: str) -> list[str]:
        unknown = vocabulary.unknown_characters(text)
        parts = unknown.split() if isinstance(vocabulary, ImportedVocabulary) else list(unknown)
        return [*parts, *(each for each in text if each.isalpha() and is_spelled_in_bytes(each))]

    return find
