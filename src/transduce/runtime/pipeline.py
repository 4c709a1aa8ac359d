"""Offer the interface of the `translation` pipeline that transformers had before version 5.

>>> transduce.pipeline("translation", "models/zh-en")("我爱你")
[{'translation_text': 'I love you.'}]
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, overload

import msgspec

from transduce.errors import TransduceError
from transduce.given import as_text, as_texts, as_whole
from transduce.runtime.opening import load
from transduce.runtime.translation import Translation
from transduce.runtime.translator import Translator
from transduce.search.forced import GenerateSettings
from transduce.search.settings import SearchSettings


class Answer(TypedDict, total=False):
    """A translation, with the keys of transformers' pipeline."""

    translation_text: str
    translation_token_ids: list[int]


class TranslationPipeline:
    """A translation pipeline: call it with a text or a list of texts to get dictionaries."""

    def __init__(self, translator: Translator) -> None:
        self.translator = translator

    @overload
    def __call__(
        self,
        inputs: str,
        *,
        num_beams: int | None = ...,
        num_return_sequences: int = ...,
        max_length: int | None = ...,
        max_new_tokens: int | None = ...,
        min_length: int | None = ...,
        no_repeat_ngram_size: int | None = ...,
        return_text: bool = ...,
        return_tensors: bool = ...,
    ) -> list[Answer]: ...
    @overload
    def __call__(
        self,
        inputs: Sequence[str],
        *,
        num_beams: int | None = ...,
        num_return_sequences: int = ...,
        max_length: int | None = ...,
        max_new_tokens: int | None = ...,
        min_length: int | None = ...,
        no_repeat_ngram_size: int | None = ...,
        return_text: bool = ...,
        return_tensors: bool = ...,
    ) -> list[Answer] | list[list[Answer]]: ...
    def __call__(
        self,
        inputs: str | Sequence[str],
        *,
        num_beams: int | None = None,
        num_return_sequences: int = 1,
        max_length: int | None = None,
        max_new_tokens: int | None = None,
        min_length: int | None = None,
        no_repeat_ngram_size: int | None = None,
        return_text: bool = True,
        return_tensors: bool = False,
    ) -> list[Answer] | list[list[Answer]]:
        """Translate a text or a list of texts.

        Args:
            inputs: the texts to translate.
            num_beams: beam size; 1: greedy search; None: the model's default.
            num_return_sequences: number of translations of each text, best first; at most `num_beams`.
            max_length: maximum number of tokens, including start and end symbols, as transformers counts them.
            max_new_tokens: maximum number of tokens without the start symbol; overrides `max_length`.
            min_length: minimum number of tokens, including start and end symbols.
            no_repeat_ngram_size: length of token n-grams that may not repeat; 0: no limit.
            return_text: include "translation_text".
            return_tensors: include "translation_token_ids", the list of token ids.

        Returns:
            A list with a dictionary for each text; with several texts and `num_return_sequences` > 1, a list of lists.

        Raises:
            TransduceError: an option is out of range.
        """
        longest = None if max_length is None else as_whole(max_length, "max_length", least=2)
        search = self._search(
            {
                "beam_size": num_beams,
                "n_best": num_return_sequences,
                "max_length": max_new_tokens if max_new_tokens is not None or longest is None else longest - 1,
                "min_length": None if min_length is None else max(0, as_whole(min_length, "min_length", least=0) - 1),
                "no_repeated_ngrams": no_repeat_ngram_size,
            }
        )
        translations = self._translate(as_texts(inputs), search)
        answers = [self._answers(each, return_text=return_text, return_tensors=return_tensors) for each in translations]
        if isinstance(inputs, str):
            return answers[0]
        return answers if num_return_sequences > 1 else [each[0] for each in answers]

    def _search(self, options: dict[str, int | None]) -> SearchSettings:
        return msgspec.structs.replace(
            self.translator.search, **{name: value for name, value in options.items() if value is not None}
        )

    def _translate(self, sentences: list[str], search: SearchSettings) -> list[Translation]:
        """Translate sentences; empty translations that `max_length` caused are searched again by transformers' ranking.

        Our search prefers finished hypotheses, even an empty one, to truncated ones. Transformers ranks by score alone.
        """
        translations = self.translator.translate(sentences, search)
        empty = [number for number, each in enumerate(translations) if sentences[number].strip() and not each.text]
        if empty and search.max_length is not None and search.generate is None:
            never_written = tuple(self.translator.models[0].config.never_written)
            settings = msgspec.structs.replace(search, generate=GenerateSettings(forbidden_ids=never_written))
            again = self.translator.translate([sentences[number] for number in empty], settings)
            for number, translation in zip(empty, again, strict=True):
                translations[number] = translation
        return translations

    def _answers(self, translation: Translation, *, return_text: bool, return_tensors: bool) -> list[Answer]:
        answers: list[Answer] = []
        for alternative in translation.alternatives:
            answer = Answer()
            if return_tensors:
                answer["translation_token_ids"] = [self.translator.tokenizer.target.id(p) for p in alternative.pieces]
            if return_text:
                answer["translation_text"] = alternative.text
            answers.append(answer)
        return answers


def pipeline(task: str, model: str | Path, *, device: str | int = "auto") -> TranslationPipeline:
    """Load a model folder with the interface of transformers' translation pipeline.

    Args:
        task: "translation", or "translation_XX_to_YY" with the model's languages, such as "translation_zh_to_en".
        model: a model folder.
        device: "cpu", "cuda" or "auto"; or the number of a GPU, or -1 for the CPU.

    Returns:
        The pipeline.

    Raises:
        TransduceError: the task is unknown, or its languages are not the model's.
    """
    languages = re.fullmatch(r"translation(?:_([^_]+)_to_([^_]+))?", as_text(task))
    if languages is None:
        raise TransduceError(f"A pipeline's task must be `translation` or `translation_XX_to_YY`, but is `{task}`.")
    if isinstance(device, int):
        device = "cpu" if device < 0 else f"cuda:{device}"
    translator = load(model, device=device)
    model_languages = (translator.source_language, translator.target_language)
    if languages[1] is not None and None not in model_languages and languages.groups() != model_languages:
        raise TransduceError(
            f"The task is `{task}`, but {model} translates "
            f"{model_languages[0]} to {model_languages[1]}: use `translation`."
        )
    return TranslationPipeline(translator)
