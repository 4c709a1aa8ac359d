"""Opening a model folder, whatever kind of model it holds."""

from collections.abc import Callable, Sequence
from pathlib import Path

from transduce.errors import TransduceError
from transduce.runtime.classifier import Classifier, load_classifier
from transduce.runtime.filler import Filler, load_filler
from transduce.runtime.folder import model_kind
from transduce.runtime.forecaster import Forecaster, load_forecaster
from transduce.runtime.generator import Generator, load_generator
from transduce.runtime.machine import Precision
from transduce.runtime.parser import Parser, load_parser
from transduce.runtime.task_card import find_task_card
from transduce.runtime.translator import Translator
from transduce.runtime.translator import load as load_translator

_BY_TASK: dict[str, Callable[..., Filler | Classifier | Parser | Forecaster]] = {
    "masked-language-model": load_filler,
    "classification": load_classifier,
    "parsing": load_parser,
    "time-series": load_forecaster,
}


def load(
    folder: str | Path | Sequence[str | Path],
    *,
    precision: Precision | str = "auto",
    device: str = "auto",
    threads: int | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> Translator | Generator | Filler | Classifier | Parser | Forecaster:
    """Opens a model folder: a `Translator`, or what its model was trained for.

    A language model is a `Generator`, a masked one a `Filler`; there are a `Classifier`, a `Parser` and a `Forecaster`.

    Args:
        folder: what `transduce train` or `import` wrote, or one of Hugging Face's; of several, which translate
            together, all must have the same vocabulary.
        precision: "fp32", "bf16", or "auto": bf16 where the hardware multiplies it faster.
        device: "cpu", "cuda", or "auto": the GPU where there is one.
        threads: threads to compute with, in the whole process; None: all cores that the process may use.
        source_language: of what is translated, where the model has tags for languages (NLLB, mBART, M2M100).
        target_language: to translate into, where it has.

    Raises:
        TransduceError: a folder or an option is not what it should be.
    """
    if isinstance(folder, str | Path):
        kind, card = model_kind(Path(folder)), find_task_card(Path(folder))
        if card is not None:
            return _BY_TASK[card.kind](folder, precision=precision, device=device, threads=threads)
        if kind == "decoder":
            return load_generator(folder, precision=precision, device=device, threads=threads)
        if kind == "encoder":
            raise TransduceError(
                f"The model in {folder} is an encoder, and nothing there says what for: train it with `--task "
                "classification`, or open it with `transduce.runtime.folder.read_any_model_folder`."
            )
    return load_translator(
        folder,
        precision=precision,
        device=device,
        threads=threads,
        source_language=source_language,
        target_language=target_language,
    )
