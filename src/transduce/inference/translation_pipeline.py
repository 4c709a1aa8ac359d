"""Translate through the interface of transformers' `translation` pipeline before version 5.

>>> transduce.pipeline("translation", "models/zh-en")("我爱你")
[{'translation_text': 'I love you.'}]
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, overload

import msgspec
from typing_extensions import Unpack

from transduce.argument_checks import as_integer, as_text, as_texts
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.load import open_translator
from transduce.inference.translation import Translation
from transduce.inference.translator import Translator
from transduce.search.rules import GenerateSettings
from transduce.search.settings import SearchSettings, override_with_warnings
from transduce.text.languages import fitting_code
from transduce.text.text_settings import TextSettings


class PipelineOutput(TypedDict, total=False):
    """A translation as transformers' pipeline returns it: "translation_text", "translation_token_ids", or both."""

    translation_text: str
    translation_token_ids: list[int]


_UNSPLIT = TextSettings(split_sentences="never", lines="join")


class PipelineOptions(TypedDict, total=False):
    """Types of the keyword arguments of a call of `TranslationPipeline`, whose docstring explains them."""

    num_beams: int | None
    num_return_sequences: int
    max_length: int | None
    max_new_tokens: int | None
    min_length: int | None
    no_repeat_ngram_size: int | None
    return_text: bool
    return_tensors: bool


class TranslationPipeline:
    """A translator with the interface of transformers: call it with a text or a list of texts to get dictionaries.

    As in transformers, a text is one input of the model, however many sentences it has, unless it is too long.
    """

    def __init__(self, translator: Translator) -> None:
        self.translator = translator

    @overload
    def __call__(self, inputs: str, **options: Unpack[PipelineOptions]) -> list[PipelineOutput]: ...
    @overload
    def __call__(
        self, inputs: Sequence[str], **options: Unpack[PipelineOptions]
    ) -> list[PipelineOutput] | list[list[PipelineOutput]]: ...
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
    ) -> list[PipelineOutput] | list[list[PipelineOutput]]:
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
            For one text, a list with a dictionary for each translation. For a list of texts, a list with a dictionary
            for each text; with `num_return_sequences` > 1, it has a list of dictionaries for each text.

        Raises:
            TransduceError: an item is not a text, or an option is out of range.
        """
        max_length = None if max_length is None else as_integer(max_length, "max_length", minimum=2)
        search = override_with_warnings(
            self.translator.search,
            {
                "beam_size": num_beams,
                "n_best": num_return_sequences,
                "max_length": max_new_tokens if max_new_tokens is not None or max_length is None else max_length - 1,
                "min_length": None
                if min_length is None
                else max(0, as_integer(min_length, "min_length", minimum=0) - 1),
                "no_repeated_ngrams": no_repeat_ngram_size,
            },
        )
        translations = self._translate(as_texts(inputs), search)
        answers = [self._answers(each, return_text=return_text, return_tensors=return_tensors) for each in translations]
        if isinstance(inputs, str):
            return answers[0]
        return answers if num_return_sequences > 1 else [each[0] for each in answers]

    def _translate(self, sentences: list[str], search: SearchSettings) -> list[Translation]:
        """Translate texts, and return a `Translation` of each.

        Search prefers finished hypotheses to truncated ones, even if a finished one is empty. If `max_length` makes a
        translation empty in this way, the text is searched again with transformers' ranking, by score alone.
        """
        translations = self.translator.translate(sentences, search, text_settings=_UNSPLIT)
        empty = [number for number, each in enumerate(translations) if sentences[number].strip() and not each.text]
        if empty and search.max_length is not None and search.generate is None:
            forbidden_tokens = tuple(self.translator.models[0].config.forbidden_tokens)
            settings = msgspec.structs.replace(search, generate=GenerateSettings(forbidden_ids=forbidden_tokens))
            again = self.translator.translate([sentences[number] for number in empty], settings, text_settings=_UNSPLIT)
            for number, translation in zip(empty, again, strict=True):
                translations[number] = translation
        return translations

    def _answers(self, translation: Translation, *, return_text: bool, return_tensors: bool) -> list[PipelineOutput]:
        answers: list[PipelineOutput] = []
        for alternative in translation.alternatives:
            answer = PipelineOutput()
            if return_tensors:
                answer["translation_token_ids"] = [self.translator.tokenizer.target.id(p) for p in alternative.tokens]
            if return_text:
                answer["translation_text"] = alternative.text
            answers.append(answer)
        return answers


@explain_wrong_types
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
    translator = open_translator(model, device=device)
    model_languages = (translator.source_language, translator.target_language)
    pairs = [(named, own) for named, own in zip(languages.groups(), model_languages, strict=True) if named and own]
    if any(fitting_code(named, [own]) is None for named, own in pairs):
        raise TransduceError(
            f"The task is `{task}`, but {model} translates "
            f"{model_languages[0]} to {model_languages[1]}: use `translation`."
        )
    return TranslationPipeline(translator)
