"""`pipeline("translation", folder)`: the one line that people knew from transformers before its version 5.

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
    """One translation, under the names that people know."""

    translation_text: str
    translation_token_ids: list[int]


class TranslationPipeline:
    """Strings in, dictionaries out."""

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
        """Translates a string, or a list of strings.

        Args:
            inputs: what to translate.
            num_beams: hypotheses kept at each step; 1 is greedy search. The model's own where nothing is said.
            num_return_sequences: translations of each string, best first; at most `num_beams`.
            max_length: pieces of a translation with start and end symbols, as transformers counts them.
            max_new_tokens: the same without the start symbol; goes before `max_length`.
            min_length: pieces of a translation at least, with start and end symbols.
            no_repeat_ngram_size: no run of so many pieces comes twice; 0: it may.
            return_text: gives "translation_text".
            return_tensors: gives "translation_token_ids", the pieces' ids.

        Returns:
            A dictionary for each string; a list of them for each where several translations of several strings were
            asked for.

        Raises:
            TransduceError: an option is out of its range.
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
        found = self._translate(as_texts(inputs), search)
        answers = [self._answers(each, return_text=return_text, return_tensors=return_tensors) for each in found]
        if isinstance(inputs, str):
            return answers[0]
        return answers if num_return_sequences > 1 else [each[0] for each in answers]

    def _search(self, said: dict[str, int | None]) -> SearchSettings:
        return msgspec.structs.replace(
            self.translator.search, **{name: value for name, value in said.items() if value is not None}
        )

    def _translate(self, sentences: list[str], search: SearchSettings) -> list[Translation]:
        """As the translator does, but for texts of which a greatest length would leave nothing.

        Search prefers what has ended, even if that is no text at all, to the beginning of one; to transformers the
        better score counts alone.
        """
        found = self.translator.translate(sentences, search)
        empty = [number for number, each in enumerate(found) if sentences[number].strip() and not each.text]
        if empty and search.max_length is not None and search.generate is None:
            never_written = tuple(self.translator.models[0].config.never_written)
            theirs = msgspec.structs.replace(search, generate=GenerateSettings(forbidden_ids=never_written))
            again = self.translator.translate([sentences[number] for number in empty], theirs)
            for number, other in zip(empty, again, strict=True):
                found[number] = other
        return found

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
    """A model folder behind the interface that transformers' translation pipeline had.

    Args:
        task: "translation", or "translation_zh_to_en" with the model's own languages.
        model: a model folder.
        device: "cpu", "cuda", "auto"; or a number: that GPU, and the CPU for -1.

    Raises:
        TransduceError: the task is another one, or not this model's.
    """
    languages = re.fullmatch(r"translation(?:_([^_]+)_to_([^_]+))?", as_text(task))
    if languages is None:
        raise TransduceError(f"A pipeline's task must be `translation` or `translation_XX_to_YY`, but is `{task}`.")
    if isinstance(device, int):
        device = "cpu" if device < 0 else f"cuda:{device}"
    translator = load(model, device=device)
    own = (translator.source_language, translator.target_language)
    if languages[1] is not None and None not in own and languages.groups() != own:
        raise TransduceError(f"The task is `{task}`, but {model} translates {own[0]} to {own[1]}: say `translation`.")
    return TranslationPipeline(translator)
