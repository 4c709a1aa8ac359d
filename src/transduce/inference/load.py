"""Load model folders of any kind, also through the interface of transformers' `translation` pipeline before version 5.

>>> transduce.pipeline("translation", "models/zh-en")("我爱你")
[{'translation_text': 'I love you.'}]
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypedDict, get_args, overload

import msgspec
import torch
from typing_extensions import Unpack

from transduce.argument_checks import as_integer, as_paths, as_text, as_texts
from transduce.deprecation import renamed_arguments
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import DocumentContext
from transduce.inference.classifier import Classifier, load_classifier
from transduce.inference.decoding import read_max_source_tokens, read_search_settings
from transduce.inference.embedder import Embedder, load_embedder
from transduce.inference.forecaster import Forecaster, load_forecaster
from transduce.inference.generator import Generator, load_generator
from transduce.inference.mask_filler import Filler, load_filler
from transduce.inference.parser import Parser, load_parser
from transduce.inference.retrieval import read_datastore
from transduce.inference.tagger import Tagger, load_tagger
from transduce.inference.translation import Translation
from transduce.inference.translator import Translator
from transduce.machine import Precision, detect_machine
from transduce.model_folder.cards import find_task_card, refuse_parsers
from transduce.model_folder.load import (
    LoadOptions,
    check_ensemble,
    check_precision,
    read_at_precision,
    with_languages,
)
from transduce.model_folder.read import model_kind, read_context, read_encoder_decoder_folder
from transduce.search.rules import GenerateSettings
from transduce.search.settings import SearchSettings, override_with_warnings
from transduce.text.languages import fitting_code
from transduce.text.text_settings import TextSettings, TrainingLines

# --- translation models ---


@renamed_arguments(examples="datastore")
def open_translator(
    folder: str | Path | Sequence[str | Path],
    *,
    precision: Precision | str = "auto",
    device: str = "auto",
    threads: int | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    datastore: str | Path | None = None,
    tag: str | None = None,
) -> Translator:
    """Load a translation model as a `Translator`, or several as an ensemble with the first folder's search settings.

    Args:
        folder: a folder that `transduce train` or `transduce import` wrote, or a Hugging Face folder. The models of an
            ensemble must have the same vocabulary and languages.
        precision: "fp32", "bf16", "int8" (8-bit weights, for a CPU), or "auto": bf16 if the hardware multiplies it
            faster.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        threads: number of compute threads in the whole process; None: $OMP_NUM_THREADS, or all usable cores.
        source_language: source language, for models with language tags (NLLB, mBART, M2M100); None: the model's
            default.
        target_language: target language, for models with language tags; None: the model's default.
        datastore: a datastore file of `transduce build-datastore` for kNN retrieval; None: no retrieval.
        tag: tag of the texts, for models that were trained on tagged corpora; None: texts without a tag.

    Returns:
        The translator.

    Raises:
        TransduceError: a folder cannot be read, or an option is invalid.
    """
    check_precision(precision)
    folders = as_paths(folder, "A model's folder")
    if not folders:
        raise TransduceError("At least one model folder is needed, but none was named.")
    refuse_parsers(folders)
    machine = detect_machine(device, threads)
    torch.set_num_threads(machine.threads)
    if precision == "auto" and len(folders) > 1:
        precision = machine.precision  # one for all
    opened = [read_at_precision(read_encoder_decoder_folder, each, precision, machine) for each in folders]
    contents = [with_languages(each, source_language, target_language) for each in opened]
    check_ensemble(folders, contents)
    first, *further_models = (each.model for each in contents)
    translator = Translator(
        first,
        contents[0].tokenizer,
        source_language=contents[0].manifest.source_language,
        target_language=contents[0].manifest.target_language,
        search=read_search_settings(folders[0]),
        ensemble=further_models,
        max_source_tokens=min(map(read_max_source_tokens, folders)),
        datastore=None if datastore is None else read_datastore(datastore, first),
    )
    measured = [lines for each in folders if (lines := TrainingLines.load(each)) is not None]
    if len(measured) == len(folders):
        # An ensemble translates whole only what each of its models does.
        translator.training_lines = min(measured, key=lambda lines: (lines.multi_sentence_share, lines.tokens))
    translator.context = _shared_context(folders)
    translator.directions = contents[0].directions
    return translator if tag is None else translator.for_tag(tag)


def _shared_context(folders: Sequence[Path]) -> DocumentContext | None:
    """Return the document context that all models of an ensemble read: how many earlier sentences, on which sides.

    None: the models translate each sentence alone.

    Raises:
        TransduceError: the models read different context.
    """
    records = [read_context(folder) for folder in folders]
    if any(record != records[0] for record in records):
        raise TransduceError(
            "Models that translate together must read the same context of a document, but `data.context_before` or "
            "`data.context_sides` of these differ: use models that were trained alike."
        )
    return None if records[0] is None else DocumentContext(records[0].before, records[0].sides == "both")


# --- models of any kind ---


Task = Literal[
    "translation",
    "language-model",
    "masked-language-model",
    "classification",
    "tagging",
    "parsing",
    "time-series",
    "embedding",
]
"""The name of the task that a model was trained for, which decides the class that loads it."""

_LOADERS: dict[Task, Callable[..., Generator | Filler | Classifier | Tagger | Parser | Forecaster | Embedder]] = {
    "language-model": load_generator,
    "masked-language-model": load_filler,
    "classification": load_classifier,
    "tagging": load_tagger,
    "parsing": load_parser,
    "time-series": load_forecaster,
    "embedding": load_embedder,
}


class TranslatorOptions(LoadOptions, total=False):
    """Types of the keyword arguments of `load` for translation models; the docstring of `load` explains them."""

    source_language: str | None
    target_language: str | None
    datastore: str | Path | None
    tag: str | None


Folders = str | Path | Sequence[str | Path]


@overload
def load(folder: Folders, *, task: Literal["translation"], **options: Unpack[TranslatorOptions]) -> Translator: ...
@overload
def load(folder: str | Path, *, task: Literal["language-model"], **options: Unpack[LoadOptions]) -> Generator: ...
@overload
def load(folder: str | Path, *, task: Literal["masked-language-model"], **options: Unpack[LoadOptions]) -> Filler: ...
@overload
def load(folder: str | Path, *, task: Literal["classification"], **options: Unpack[LoadOptions]) -> Classifier: ...
@overload
def load(folder: str | Path, *, task: Literal["tagging"], **options: Unpack[LoadOptions]) -> Tagger: ...
@overload
def load(folder: str | Path, *, task: Literal["parsing"], **options: Unpack[LoadOptions]) -> Parser: ...
@overload
def load(folder: str | Path, *, task: Literal["time-series"], **options: Unpack[LoadOptions]) -> Forecaster: ...
@overload
def load(folder: str | Path, *, task: Literal["embedding"], **options: Unpack[LoadOptions]) -> Embedder: ...
@overload
def load(
    folder: Folders, *, task: Task | None = ..., **options: Unpack[TranslatorOptions]
) -> Translator | Generator | Filler | Classifier | Tagger | Parser | Forecaster | Embedder: ...
@renamed_arguments(examples="datastore")
@explain_wrong_types
def load(
    folder: str | Path | Sequence[str | Path],
    *,
    task: Task | None = None,
    precision: Precision | str = "auto",
    device: str = "auto",
    threads: int | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    datastore: str | Path | None = None,
    tag: str | None = None,
) -> Translator | Generator | Filler | Classifier | Tagger | Parser | Forecaster | Embedder:
    """Load a model folder for the task that the model was trained for.

    Translation models give a `Translator`, language models a `Generator`, and masked language models a `Filler`. The
    other tasks give a `Classifier`, a `Tagger`, a `Parser`, a `Forecaster` or an `Embedder`. Every encoder of text can
    also be loaded with the task "embedding".

    Args:
        folder: a folder that `transduce train` or `transduce import` wrote, or a Hugging Face folder. Several folders
            of translation models form an ensemble; they must have the same vocabulary and languages.
        task: the expected task; a folder for another task is refused. With `task`, type checkers know the result's
            type: `load(folder, task="translation")` is a `Translator`.
        precision: "fp32", "bf16", or "auto": bf16 if the hardware multiplies it faster; for a CPU also "int8".
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        threads: number of compute threads in the whole process; None: $OMP_NUM_THREADS, or all usable cores.
        source_language: source language, for models with language tags (NLLB, mBART, M2M100); None: the model's
            default.
        target_language: target language, for models with language tags; None: the model's default.
        datastore: a datastore file of `transduce build-datastore` for kNN retrieval, for translators; None: no
            retrieval.
        tag: tag of the texts, for translation models that were trained on tagged corpora; None: texts without a tag.

    Returns:
        The loaded model, ready to be called.

    Raises:
        TransduceError: a folder cannot be read, or an option is invalid.
    """
    if task is not None and task not in get_args(Task):
        raise TransduceError(f"`task` must be one of {', '.join(get_args(Task))}, but is `{task}`.")
    folders = as_paths(folder, "A model's folder")
    is_one = isinstance(folder, str | Path)
    if is_one and task == "embedding" and model_kind(folders[0]) == "encoder":
        model_task: Task = "embedding"
    else:
        model_task = task_of(folders[0]) if is_one else "translation"
    if task is not None and task != model_task:
        raise TransduceError(
            f"`task` is `{task}`, but the model in {folder} is for `{model_task}`: name another folder."
        )
    if model_task != "translation":
        if source_language is not None or target_language is not None:
            raise TransduceError(
                f"Languages are options of models that translate, but the one in {folder} is for `{model_task}`: leave "
                f"`{source_language or target_language}` out."
            )
        for name, value in (("A datastore", datastore), ("A tag", tag)):
            if value is not None:
                raise TransduceError(
                    f"{name} is for translation, but the model in {folder} is for `{model_task}`: leave it out."
                )
        return _LOADERS[model_task](folder, precision=precision, device=device, threads=threads)
    return open_translator(
        folder,
        precision=precision,
        device=device,
        threads=threads,
        source_language=source_language,
        target_language=target_language,
        datastore=datastore,
        tag=tag,
    )


def task_of(folder: Path) -> Task:
    """Return the task of the model in a folder: that of its task card (`find_task_card`), if there is one.

    Without a card, the task is "language-model" for decoders, and "translation" for encoder-decoder models.

    Raises:
        TransduceError: the model is an encoder without a task card.
    """
    kind, card = model_kind(folder), find_task_card(folder)
    if card is not None:
        return card.kind
    if kind == "encoder":
        raise TransduceError(
            f"The model in {folder} is an encoder, and the folder does not specify its task: train it with `--task "
            'classification`, or load it with `task="embedding"` for vectors of texts.'
        )
    return "language-model" if kind == "decoder" else "translation"


# --- pipeline of transformers ---


class Answer(TypedDict, total=False):
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
    def __call__(self, inputs: str, **options: Unpack[PipelineOptions]) -> list[Answer]: ...
    @overload
    def __call__(
        self, inputs: Sequence[str], **options: Unpack[PipelineOptions]
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
            A list of dictionaries, one for each translation of a single text, or one for each text of a list. With a
            list of texts and `num_return_sequences` > 1, a list of such lists.

        Raises:
            TransduceError: an option is out of range.
        """
        longest = None if max_length is None else as_integer(max_length, "max_length", minimum=2)
        search = self._search(
            {
                "beam_size": num_beams,
                "n_best": num_return_sequences,
                "max_length": max_new_tokens if max_new_tokens is not None or longest is None else longest - 1,
                "min_length": None
                if min_length is None
                else max(0, as_integer(min_length, "min_length", minimum=0) - 1),
                "no_repeated_ngrams": no_repeat_ngram_size,
            }
        )
        translations = self._translate(as_texts(inputs), search)
        answers = [self._answers(each, return_text=return_text, return_tensors=return_tensors) for each in translations]
        if isinstance(inputs, str):
            return answers[0]
        return answers if num_return_sequences > 1 else [each[0] for each in answers]

    def _search(self, options: dict[str, int | None]) -> SearchSettings:
        return override_with_warnings(self.translator.search, options)

    def _translate(self, sentences: list[str], search: SearchSettings) -> list[Translation]:
        """Translate texts, and return a `Translation` of each; if `max_length` makes one empty, search again for it.

        Search here prefers finished hypotheses, even an empty one, to truncated ones. The second search ranks as
        transformers does, by score alone.
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

    def _answers(self, translation: Translation, *, return_text: bool, return_tensors: bool) -> list[Answer]:
        answers: list[Answer] = []
        for alternative in translation.alternatives:
            answer = Answer()
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
