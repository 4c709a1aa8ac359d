"""Warnings about lines that a command translates: another language, letters new to the model, lost sentences."""

import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from transduce.inference.bulk_files import Portion
from transduce.inference.quality_estimation import describe_wrong_language, plural
from transduce.interop.hugging_face.imported_tokenizer import ImportedVocabulary, load_tokenizer
from transduce.model_folder.hugging_face import is_hugging_face_folder
from transduce.model_folder.load import choose_direction
from transduce.model_folder.read import MANIFEST, Manifest, describe_imported, read_directions
from transduce.model_folder.safety import read_json
from transduce.text.files import compose
from transduce.text.protected import find_protected
from transduce.text.sentences import find_lost_sentences
from transduce.text.vocabulary import Vocabulary, byte_of
from transduce.ui_language import localized

Languages = tuple[str | None, str | None]
MAX_SHOWN = 5  # line numbers, and letters
_KINDS = ("unknown", "in_bytes", "decomposed", "empty", "lost", "broken")  # of problems, in the order of the warnings


class UnknownLetters(NamedTuple):
    """The letters of a text that a vocabulary has no tokens for, so that its model has not learned them."""

    lacking: Iterable[str]
    """Characters that become the unknown token; for a vocabulary that is a list of words, whole words."""
    in_bytes: Iterable[str] = ()
    """Characters that are spelled by the tokens of their UTF-8 bytes."""


class LineWarnings:
    """A collector of the numbers of lines with translation problems; `str` gives a warning for each kind of problem."""

    def __init__(
        self,
        source_language: str | None,
        target_language: str | None,
        *,
        unknown_characters: Callable[[str], UnknownLetters] | None = None,
        noun: str = "line",
    ) -> None:
        """Create an empty collector of the numbers of lines whose translation has a problem.

        Args:
            source_language: language code of the source; None: unknown.
            target_language: language code of the target; None: unknown.
            unknown_characters: returns what the model's vocabulary has no tokens for in a text; None: not checked.
            noun: the word for a line in the warnings, in the singular.
        """
        self._noun = noun
        self._unknown_characters = unknown_characters
        self._languages = (source_language, target_language)
        known = None not in (source_language, target_language)
        self._finds_lost = known and source_language != target_language
        self._found: dict[str, dict[int, list[str]]] = {kind: {} for kind in _KINDS}
        """Dict: kind of problem → number of each line that has it → the letters or words concerned, if any."""
        self._other_language: dict[str, dict[int, list[str]]] = {}
        """Dict: reason why lines seem to be in another language → their numbers, as in `_found`."""

    def add(self, number: int, source: str, translation: str | None) -> None:
        """Check one line, and record its number (from 1) for each problem that it has.

        Problems of the source are a wrong language, and letters that the vocabulary lacks. Problems of the translation
        are no text, lost sentences, and broken characters.

        If the source is in a wrong language, the only other check is for broken characters. If `translation` is None,
        only the source is checked.
        """
        if translation is not None and "\ufffd" in translation and "\ufffd" not in source:
            self._found["broken"][number] = []
        reason = describe_wrong_language(source, self._languages[0])
        if reason is not None:
            self._other_language.setdefault(reason, {})[number] = []
            return
        self._add_letters(number, source)
        if translation is not None and not translation.strip() and any(map(str.isalnum, source)):
            self._found["empty"][number] = []
        elif translation is not None and self._finds_lost and find_lost_sentences(source, translation, self._languages):
            self._found["lost"][number] = []

    def _add_letters(self, number: int, source: str) -> None:
        """Record the letters of a line that the vocabulary has no tokens for, under the line's number.

        A letter can consist of several characters, such as a and U+0308. If the vocabulary has a token for the composed
        letter, it is recorded as another kind of problem, because the user can compose the text.
        """
        if self._unknown_characters is None:
            return
        found = self._letters_of(source)
        if any(found) and (composed := compose(source)) != source:
            apart = found
            found = self._letters_of(composed)
            letters = [compose(each) for each in _CLUSTER.findall(source)]
            if letters and sum(map(len, found)) < sum(map(len, apart)):
                self._found["decomposed"][number] = [each for each in letters if len(each) == 1]
        for letters, kind in zip(found, ("unknown", "in_bytes"), strict=True):
            if letters:
                self._found[kind][number] = letters

    def _letters_of(self, source: str) -> tuple[list[str], list[str]]:
        assert self._unknown_characters is not None
        found = self._unknown_characters(source)
        return _letters(found.lacking, source), _letters(found.in_bytes, source)

    def __str__(self) -> str:
        """Return the text of the warnings, one line for each kind of problem; empty if there are none.

        There is one line for each wrong language, the most frequent first.
        """
        unknown, in_bytes, decomposed, empty, lost, broken = (self._found[kind] for kind in _KINDS)
        by_count = sorted(self._other_language.items(), key=lambda entry: -len(entry[1]))
        warnings = [
            f"warning: {self._lines(numbers)} {reason if len(numbers) == 1 else plural(reason)}: the "
            "translation is then fluent nonsense; use a model that reads this language.\n"
            for reason, numbers in by_count
        ]
        if unknown:
            verb = "has" if len(unknown) == 1 else "have"
            noun = "letters" if all(len(each) == 1 for each in chain(*unknown.values())) else "words"
            shown = _shown(unknown)
            warnings.append(
                f"warning: {self._lines(unknown)} {verb} {noun} that the vocabulary lacks ({shown}): do "
                "not rely on these translations, which are outside of what the model has learned.\n"
            )
        if in_bytes:
            shown, where = _shown(in_bytes), self._lines(in_bytes)
            warnings.append(
                f"warning: the vocabulary spells some letters in bytes ({shown}), as the training text had few or none "
                f"of them: check the translations of {where}.\n"
            )
        if decomposed:
            shown, where = _shown(decomposed), self._lines(decomposed)
            warnings.append(
                f"warning: letters and their accents are separate characters ({shown}), which the model has not "
                "learned: convert the text to Unicode's composed form (NFC), and translate it again, as "
                f"the translation of {where} cannot be relied on.\n"
            )
        if empty:
            warnings.append(
                f"warning: the translation of {self._lines(empty)} is empty: the model has learned too little, "
                "or from pairs with empty translations.\n"
            )
        if lost:
            verb = "has" if len(lost) == 1 else "have"
            warnings.append(
                f"warning: {self._lines(lost)} {verb} fewer sentences in the translation than in the source: use "
                "--split-sentences always, or put each sentence on a line of its own.\n"
            )
        if broken:
            where = self._lines(broken)
            warnings.append(
                f"warning: the model wrote bytes that are no UTF-8 characters (U+FFFD) in the translation of {where}: "
                "write the missing characters by hand, or try another beam size.\n"
            )
        return "".join(warnings)

    @property
    def shown_numbers(self) -> list[int]:
        """The numbers of the lines that the warnings name, a sorted list: at most five for each kind of problem."""
        kinds = (*self._found.values(), *self._other_language.values())
        return sorted({number for numbers in kinds for number in islice(numbers, MAX_SHOWN)})

    def _lines(self, numbers: Collection[int]) -> str:
        """Return a noun phrase for lines by their numbers, such as "line 3" or "7 lines (1, 2, 3, 4, 5, …)"."""
        shown = ", ".join(f"{number:,}" for number in islice(numbers, MAX_SHOWN))
        if len(numbers) == 1:
            return f"{self._noun} {shown}"
        more = ", …" if len(numbers) > MAX_SHOWN else ""
        return f"{len(numbers):,} {self._noun}s ({shown}{more})"


_CLUSTER = re.compile(r"\w[\u0300-\u036F\u3099\u309A]+")  # a letter with accents, or a kana with its voicing mark


def _shown(letters: Mapping[int, Iterable[str]]) -> str:
    """Return the first few different letters of several lines as text, separated by commas.

    `letters` has the letters of each line, by line number.
    """
    distinct = list(dict.fromkeys(chain(*letters.values())))
    return ", ".join(distinct[:MAX_SHOWN]) + (", …" if len(distinct) > MAX_SHOWN else "")


def _is_letter(character: str) -> bool:
    """Return whether a character is a letter or a combining mark.

    Variation selectors, which choose the form of an emoji, do not count.
    """
    is_mark = unicodedata.category(character) in ("Mn", "Mc") and not "\ufe00" <= character <= "\ufe0f"
    return character.isalpha() or is_mark


def _letters(unknown: Iterable[str], source: str) -> list[str]:
    """Return a list of those characters or words in `unknown` that have a letter and that the model must translate.

    Items that occur only in protected spans of the source, such as URLs, are left out: translation copies these spans.
    """
    letters = [each for each in unknown if any(map(_is_letter, each))]
    if not letters:
        return []
    for span in reversed(find_protected(source)):
        source = source[: span.start] + source[span.end :]
    source = f"{source}\n{compose(source)}"  # a vocabulary that composes texts lacks letters in their composed form
    return [each for each in letters if each in source]


def with_warnings(
    portions: Iterable[tuple[Portion, str]], make: Callable[[], LineWarnings], *, is_line_by_line: bool
) -> Iterator[tuple[Portion, str]]:
    """Yield translated groups of lines unchanged, and at the end write warnings about the lines to standard error.

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
    """Return the source and target language of a model folder: each argument if it is set, else the manifest's.

    A language is None if neither the argument nor the manifest specifies it. A folder may have no manifest. For a
    multilingual model, `choose_direction` finds the languages.

    Raises:
        TransduceError: the manifest is damaged, or the multilingual model does not know a language.
    """
    directions = read_directions(folder)
    if directions:
        return choose_direction(directions, source, target)
    if not (folder / MANIFEST).is_file():
        return source, target
    manifest = read_json(folder, MANIFEST, Manifest)
    return source or manifest.source_language, target or manifest.target_language


def unknown_characters_of(folder: Path) -> Callable[[str], UnknownLetters]:
    """Return a function that finds letters of a text that are missing from the model's source vocabulary.

    The function returns an `UnknownLetters`. `folder` is the model's folder.

    Raises:
        TransduceError: the tokenizer's files are missing or damaged.
    """
    is_imported_on_use = is_hugging_face_folder(folder)
    tokenizer = describe_imported(folder)[0].tokenizer if is_imported_on_use else load_tokenizer(folder)
    return unknown_letters(tokenizer.source)


def unknown_letters(vocabulary: Vocabulary) -> Callable[[str], UnknownLetters]:
    """Return a function that finds letters of a text that are missing from a vocabulary.

    The function returns an `UnknownLetters`: the letters that have no tokens at all, and those that are spelled in
    tokens of bytes. For an imported vocabulary, such as a word list, it finds whole words instead of letters without
    tokens.
    """

    def has_bytes(text: str) -> bool:
        return any(byte_of(token) is not None for token in vocabulary.token_texts(vocabulary.encode(text)))

    is_spelled_in_bytes = cache(has_bytes)

    def find(text: str) -> UnknownLetters:
        text = vocabulary.normalize(vocabulary.readable(text))
        unknown = vocabulary.unknown_characters(text)
        lacking = unknown.split() if isinstance(vocabulary, ImportedVocabulary) else list(unknown)
        # Tokens of several letters may have letters that are no tokens by themselves.
        letters = filter(_is_letter, text) if has_bytes(text) else ()
        return UnknownLetters(lacking, [each for each in letters if is_spelled_in_bytes(each)])

    return find
