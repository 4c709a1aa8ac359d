"""Wrap translators and language models in the interfaces through which the server uses them."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

import torch
from typing_extensions import override

from transduce.errors import TransduceError
from transduce.inference.generator import DEFAULT_SEARCH, Generator
from transduce.inference.glossary_search import check_glossary
from transduce.inference.translation import Translation
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings
from transduce.serving.jobs import JobOptions, Model
from transduce.serving.limits import ReadersWriterLock
from transduce.text.glossary import Glossary
from transduce.text.languages import LanguageProfiles
from transduce.text.text_settings import TextSettings
from transduce.text.word_spans import Span


class ServedModel(Model):
    """A translation model that is served for one language pair, and translates with a `Translator`."""

    def __init__(
        self,
        translator: Translator,
        *,
        search: SearchSettings | None = None,
        languages: tuple[str, str] | None = None,
        profiles: LanguageProfiles | None = None,
        samples: Sequence[str] = (),
    ) -> None:
        """Wrap a translator.

        Args:
            translator: an open translator.
            search: search settings for requests without such settings; None: the translator's settings.
            languages: source and target language; None: the languages in the translator's folder.
            profiles: profiles of the translator's languages for language detection; None: it has none.
            samples: source sentences that the web page offers as examples.

        Raises:
            TransduceError: the languages are unknown.
        """
        source, target = languages or (translator.source_language, translator.target_language)
        if not source or not target:
            raise TransduceError(
                "A served model must have a source and a target language, but its folder names none: "
                "write them before the folder, as in zh:en=models/mine."
            )
        self.translator = translator
        self.source_language = source
        self.target_language = target
        self.search = search or translator.search
        self.profiles = profiles
        self.samples = tuple(samples)
        self.context_before = 0 if translator.document_context is None else translator.document_context.before
        self.glossary: Glossary | None = None
        self.access = ReadersWriterLock()
        """Lock that every computation with the model holds, shared or exclusively."""

    @property
    def device(self) -> torch.device:
        """The PyTorch device that the model computes on."""
        return self.translator.device

    @override
    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        return [len(ids) + 1 for ids in self.translator.tokenizer.source.encode_batch(sentences)]

    @property
    @override
    def max_source_tokens(self) -> int:
        return self.translator.max_sentence_tokens

    def use(self, glossary: Glossary | None) -> None:
        """Set the glossary for requests that have none of their own; None removes it.

        Raises:
            TransduceError: the model cannot produce the glossary's terms.
        """
        if glossary is not None:
            self.check(glossary, self.search)
        self.glossary = glossary

    @override
    def check(self, glossary: Glossary, search: SearchSettings) -> None:
        check_glossary(glossary, search, self.translator.tokenizer.target)

    @override
    def translate(
        self, sentences: list[str], search: SearchSettings, **options: Unpack[JobOptions]
    ) -> list[Translation]:
        with self.access.hold_shared():
            return self.translator.translate(sentences, search, **options)

    @override
    def is_plain_sentence(self, text: str, text_settings: TextSettings) -> bool:
        return self.translator.is_plain_sentence(text, text_settings)

    @override
    def align_spans(
        self, translations: Sequence[Translation], spans: Sequence[Sequence[Span]], glossary: Glossary | None
    ) -> list[list[Span]]:
        with self.access.hold_shared():
            return self.translator.locate(translations, spans, glossary=glossary)

    @override
    def encode_target(self, text: str) -> list[int]:
        return self.translator.tokenizer.target.encode(text)

    @override
    def decode_start(self, ids: Sequence[int], source: str) -> str:
        return self.translator.decode_start(ids, source)

    @override
    def unknown_characters(self, sentence: str) -> str:
        vocabulary = self.translator.tokenizer.source
        return vocabulary.unknown_characters(vocabulary.readable(sentence))


class ServedGenerator:
    """A language model that is served; clients name it by the name of its folder."""

    max_source_tokens = sys.maxsize

    def __init__(self, name: str, generator: Generator) -> None:
        self.name = name
        self.generator = generator
        self.search = DEFAULT_SEARCH
        """Search settings for requests that set none."""

    @property
    def device(self) -> torch.device:
        """The PyTorch device that the model computes on."""
        return self.generator.device

    def count_tokens(self, sentences: Sequence[str]) -> list[int]:
        """Return a list with the number of tokens of each prompt, including the model's start symbol, if it has one."""
        return [len(self.generator.prompt_ids(sentence)) for sentence in sentences]


def parse_model(argument: str) -> tuple[tuple[str, str] | None, Path]:
    """Parse an argument SOURCE:TARGET=PATH or PATH of `transduce serve`.

    The path is that of a model folder, or of a glossary file in the option for glossaries.

    Args:
        argument: the argument. If it is the path of an existing file or folder, it may contain an equals sign.

    Returns:
        The pair of language codes, or None for a path alone; and the path.

    Raises:
        TransduceError: the text before the equals sign is not two languages, or there is no path after it.
    """
    languages, equals, folder = argument.rpartition("=")
    if not equals or Path(argument).exists():
        return None, Path(argument)
    source, _, target = languages.partition(":")
    if not source or not target or not folder:
        raise TransduceError(
            f"A path may follow two languages, as in zh:en=models/mine, but here is `{argument}`: "
            "write both languages, or the path alone."
        )
    return (source, target), Path(folder)
