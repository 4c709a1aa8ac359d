"""Opening a model folder, whatever kind of model it holds."""

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
"""What an opened model does."""

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
    """Opens a model folder: a `Translator`, or what its model was trained for.

    A language model is a `Generator`, a masked one a `Filler`; there are a `Classifier`, a `Parser` and a `Forecaster`.

    Args:
        folder: what `transduce train` or `import` wrote, or one of Hugging Face's; of several, which translate
            together, all must have the same vocabulary.
        task: what the model must be for; a folder of another one is refused. With it, a type checker knows what comes
            back: `load(folder, task="translation")` is a `Translator`.
        precision: "fp32", "bf16", or "auto": bf16 where the hardware multiplies it faster; for a translator also
            "int8".
        device: "cpu", "cuda", or "auto": the GPU where there is one.
        threads: threads to compute with, in the whole process; None: as OMP_NUM_THREADS says, or all usable cores.
        source_language: of what is translated, where the model has tags for languages (NLLB, mBART, M2M100).
        target_language: to translate into, where it has.
        examples: a file of pairs that a translator's model remembers (`transduce remember`): it translates by them.

    Raises:
        TransduceError: a folder or an option is not what it should be.
    """
    if task is not None and task not in get_args(Task):
        raise TransduceError(f"`task` must be one of {', '.join(get_args(Task))}, but is `{task}`.")
    folders = as_paths(folder, "A model's folder")
    found = _task_of(folders[0]) if isinstance(folder, str | Path) else "translation"
    if task is not None and task != found:
        raise TransduceError(f"`task` is `{task}`, but the model in {folder} is for `{found}`: name another folder.")
    if found != "translation":
        if source_language is not None or target_language is not None:
            raise TransduceError(
                f"Languages are told to models that translate, but the one in {folder} is for `{found}`: leave "
                f"`{source_language or target_language}` out."
            )
        if examples is not None:
            raise TransduceError(
                f"Examples are for models that translate, but the one in {folder} is for `{found}`: leave them out."
            )
        return _LOADERS[found](folder, precision=precision, device=device, threads=threads)
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
    """What the model in a folder is for: one that reads a text and writes another translates."""
    kind, card = model_kind(folder), find_task_card(folder)
    if card is not None:
        return card.kind
    if kind == "encoder":
        raise TransduceError(
            f"The model in {folder} is an encoder, and nothing there says what for: train it with `--task "
            "classification`, or open it with `transduce.runtime.folder.read_any_model_folder`."
        )
    return "language-model" if kind == "decoder" else "translation"
