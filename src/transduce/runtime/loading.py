"""Load a model folder of any kind."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, get_args, overload

from transduce.errors import TransduceError
from transduce.given import as_paths
from transduce.model.precision import Precision
from transduce.runtime.classifier import Classifier, load_classifier
from transduce.runtime.filler import Filler, load_filler
from transduce.runtime.folder import model_kind
from transduce.runtime.forecaster import Forecaster, load_forecaster
from transduce.runtime.generator import Generator, load_generator
from transduce.runtime.opening import load as load_translator
from transduce.runtime.parser import Parser, load_parser
from transduce.runtime.task_card import find_task_card
from transduce.runtime.translator import Translator

Task = Literal["translation", "language-model", "masked-language-model", "classification", "parsing", "time-series"]
"""The task of a loaded model."""

_LOADERS: dict[Task, Callable[..., Generator | Filler | Classifier | Parser | Forecaster]] = {
    "language-model": load_generator,
    "masked-language-model": load_filler,
    "classification": load_classifier,
    "parsing": load_parser,
    "time-series": load_forecaster,
}


@overload
def load(
    folder: str | Path | Sequence[str | Path],
    *,
    task: Literal["translation"],
    precision: Precision | str = ...,
    device: str = ...,
    threads: int | None = ...,
    source_language: str | None = ...,
    target_language: str | None = ...,
    examples: str | Path | None = ...,
) -> Translator: ...
@overload
def load(
    folder: str | Path,
    *,
    task: Literal["language-model"],
    precision: Precision | str = ...,
    device: str = ...,
    threads: int | None = ...,
) -> Generator: ...
@overload
def load(
    folder: str | Path,
    *,
    task: Literal["masked-language-model"],
    precision: Precision | str = ...,
    device: str = ...,
    threads: int | None = ...,
) -> Filler: ...
@overload
def load(
    folder: str | Path,
    *,
    task: Literal["classification"],
    precision: Precision | str = ...,
    device: str = ...,
    threads: int | None = ...,
) -> Classifier: ...
@overload
def load(
    folder: str | Path,
    *,
    task: Literal["parsing"],
    precision: Precision | str = ...,
    device: str = ...,
    threads: int | None = ...,
) -> Parser: ...
@overload
def load(
    folder: str | Path,
    *,
    task: Literal["time-series"],
    precision: Precision | str = ...,
    device: str = ...,
    threads: int | None = ...,
) -> Forecaster: ...
@overload
def load(
    folder: str | Path | Sequence[str | Path],
    *,
    task: Task | None = ...,
    precision: Precision | str = ...,
    device: str = ...,
    threads: int | None = ...,
    source_language: str | None = ...,
    target_language: str | None = ...,
    examples: str | Path | None = ...,
) -> Translator | Generator | Filler | Classifier | Parser | Forecaster: ...
def load(
    folder: str | Path | Sequence[str | Path],
    *,
    task: Task | None = None,
    precision: Precision | str = "auto",
    device: str = "auto",
    threads: int | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    examples: str | Path | None = None,
) -> Translator | Generator | Filler | Classifier | Parser | Forecaster:
    """Load a model folder for the task that the model was trained for.

    Translation models give a `Translator`, language models a `Generator`, and masked language models a `Filler`. The
    other tasks give a `Classifier`, a `Parser` or a `Forecaster`.

    Args:
        folder: a folder that `transduce train` or `transduce import` wrote, or a Hugging Face folder. Several folders
            of translation models form an ensemble; they must have the same vocabulary.
        task: the expected task; a folder for another task is refused. With `task`, type checkers know the result's
            type: `load(folder, task="translation")` is a `Translator`.
        precision: "fp32", "bf16", or "auto": bf16 if the hardware multiplies it faster; for translators also "int8".
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        threads: number of compute threads in the whole process; None: $OMP_NUM_THREADS, or all usable cores.
        source_language: source language, for models with language tags (NLLB, mBART, M2M100).
        target_language: target language, for models with language tags.
        examples: a datastore file of `transduce remember` for kNN retrieval, for translators.

    Returns:
        The loaded model, ready to be called.

    Raises:
        TransduceError: a folder cannot be read, or an option is invalid.
    """
    if task is not None and task not in get_args(Task):
        raise TransduceError(f"`task` must be one of {', '.join(get_args(Task))}, but is `{task}`.")
    folders = as_paths(folder, "A model's folder")
    model_task = _task_of(folders[0]) if isinstance(folder, str | Path) else "translation"
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
        if examples is not None:
            raise TransduceError(
                f"A datastore is for translation, but the model in {folder} is for `{model_task}`: leave it out."
            )
        return _LOADERS[model_task](folder, precision=precision, device=device, threads=threads)
    return load_translator(
        folder,
        precision=precision,
        device=device,
        threads=threads,
        source_language=source_language,
        target_language=target_language,
        examples=examples,
    )


def _task_of(folder: Path) -> Task:
    """Return the task of the model in a folder; encoder-decoder models without a task file translate."""
    kind, card = model_kind(folder), find_task_card(folder)
    if card is not None:
        return card.kind
    if kind == "encoder":
        raise TransduceError(
            f"The model in {folder} is an encoder, and the folder does not specify its task: train it with `--task "
            "classification`, or open it with `transduce.runtime.folder.read_any_model_folder`."
        )
    return "language-model" if kind == "decoder" else "translation"
