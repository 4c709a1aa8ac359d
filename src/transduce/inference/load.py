"""Load model folders of any kind."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args, overload

from typing_extensions import Unpack

from transduce.argument_checks import as_paths
from transduce.deprecation import renamed_arguments
from transduce.errors import TransduceError, explain_wrong_types
from transduce.inference.batching import DocumentContext
from transduce.inference.classifier import Classifier, load_classifier
from transduce.inference.embedder import Embedder, load_embedder
from transduce.inference.forecaster import Forecaster, load_forecaster
from transduce.inference.generator import Generator, load_generator
from transduce.inference.mask_filler import Filler, load_filler
from transduce.inference.parser import Parser, load_parser
from transduce.inference.retrieval import read_datastore
from transduce.inference.tagger import Tagger, load_tagger
from transduce.inference.translator import Translator
from transduce.machine import Precision
from transduce.model_folder.cards import find_task_card, refuse_parsers
from transduce.model_folder.load import (
    LoadOptions,
    check_ensemble,
    load_models_at,
    read_max_source_tokens,
    read_search_settings,
    with_languages,
)
from transduce.model_folder.read import model_kind, read_context, read_encoder_decoder_folder
from transduce.text.text_settings import TrainingLines

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
    folders = as_paths(folder, "A model's folder")
    if not folders:
        raise TransduceError("At least one model folder is needed, but none was named.")
    refuse_parsers(folders)
    opened = load_models_at(read_encoder_decoder_folder, folders, precision=precision, device=device, threads=threads)
    contents = [with_languages(each, source_language, target_language) for each in opened]
    check_ensemble(folders, contents)
    first, *further_models = (each.model for each in contents)
    measured = [lines for each in folders if (lines := TrainingLines.load(each)) is not None]
    translator = Translator(
        first,
        contents[0].tokenizer,
        source_language=contents[0].manifest.source_language,
        target_language=contents[0].manifest.target_language,
        search=read_search_settings(folders[0]),
        ensemble=further_models,
        max_source_tokens=min(map(read_max_source_tokens, folders)),
        datastore=None if datastore is None else read_datastore(datastore, first),
        # An ensemble translates whole only what each of its models does.
        training_lines=min(measured, key=lambda lines: (lines.multi_sentence_share, lines.tokens))
        if len(measured) == len(folders)
        else None,
        document_context=_shared_context(folders),
        directions=contents[0].directions,
    )
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
