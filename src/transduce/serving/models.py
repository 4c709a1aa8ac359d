"""A translator as serving sees it."""

from collections.abc import Sequence
from pathlib import Path

from transduce.errors import TransduceError
from transduce.inference.glossary_search import check_glossary
from transduce.inference.translation import Translation
from transduce.inference.translator import Translator
from transduce.search.scorer import Observer
from transduce.search.settings import SearchSettings
from transduce.serving.limits import Access
from transduce.text.glossary import Glossary
from transduce.text.languages import LanguageProfiles
from transduce.text.word_spans import Span


class ServedModel:
    """Implements `jobs.Model`."""

    def __init__(
        self,
        translator: Translator,
        *,
        search: SearchSettings | None = None,
        languages: tuple[str, str] | None = None,
        profiles: LanguageProfiles | None = None,
    ) -> None:
        """Wraps a translator.

        Args:
            translator: opened.
            search: how to translate; the translator's own way where nothing is said.
            languages: what it translates from and to, where its folder does not say so, or says something else.
            profiles: of its languages, by which texts are told apart.

        Raises:
            TransduceError: the languages are not known.
        """
        source, target = languages or (translator.source_language, translator.target_language)
        if not source or not target:
            raise TransduceError(
                "A served model must have a source and a target language, but its folder names none: "
                "say them before the folder, as in zh:en=models/mine."
            )
        self.translator = translator
        self.source_language = source
        self.target_language = target
        self.search = search or translator.search
        self.profiles = profiles
        self.glossary: Glossary | None = None
        self.access = Access()
        """Whoever computes with the model has it."""

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        """The pieces of each sentence, end symbol included."""
        return [len(ids) + 1 for ids in self.translator.tokenizer.source.encode_batch(sentences)]

    @property
    def longest_source(self) -> int:
        """Pieces of the longest sentence that is translated in one part, without the end symbol."""
        return self.translator.longest_source

    def use(self, glossary: Glossary | None) -> None:
        """Translates terms as it says from now on, where a request brings none.

        Raises:
            TransduceError: as `check`.
        """
        if glossary is not None:
            self.check(glossary, self.search)
        self.glossary = glossary

    def check(self, glossary: Glossary, search: SearchSettings) -> None:
        """Raises TransduceError where it cannot write what stands for a term, or not with this search."""
        check_glossary(glossary, search, self.translator.tokenizer.target)

    def translate(
        self,
        sentences: list[str],
        search: SearchSettings,
        places: Sequence[int],
        observer: Observer,
        glossary: Glossary | None,
    ) -> list[Translation]:
        """Translations of a batch, in order; `places` are those in the requests."""
        with self.access.shared():
            return self.translator.translate(sentences, search, places=places, observer=observer, glossary=glossary)

    def locate(
        self, translations: Sequence[Translation], spans: Sequence[Sequence[Span]], glossary: Glossary | None
    ) -> list[list[Span]]:
        """Where parts of sentences are in the best alternatives of their translations."""
        with self.access.shared():
            return self.translator.locate(translations, spans, glossary=glossary)

    def text(self, ids: Sequence[int]) -> str:
        """The target text that pieces spell."""
        return self.translator.tokenizer.target.decode(ids)

    def unread(self, sentence: str) -> str:
        """The characters of a source that no piece spells."""
        return self.translator.tokenizer.source.unknown_characters(sentence)


def parse_model(said: str) -> tuple[tuple[str, str] | None, Path]:
    """A model, or what belongs to one, as it is named on the command line: PATH, or SOURCE:TARGET=PATH.

    Raises:
        TransduceError: what stands before the path are not two languages.
    """
    languages, equals, folder = said.rpartition("=")
    if not equals or Path(said).exists():
        return None, Path(said)
    source, _, target = languages.partition(":")
    if not source or not target or not folder:
        raise TransduceError(
            f"What is named by a path may have two languages before it, as in zh:en=models/mine, but here is `{said}`: "
            "write both, or the path alone."
        )
    return (source, target), Path(folder)
