"""A model folder of any kind, put where and in what it computes."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import torch

from transduce.errors import TransduceError
from transduce.model.build import Model
from transduce.model.encoder import Encoder
from transduce.model.precision import Precision
from transduce.runtime.folder import ModelFolder, read_any_model_folder
from transduce.runtime.machine import detect_machine
from transduce.runtime.precision import at_precision, check_precision
from transduce.text.tokenizer import Tokenizer

Placed = TypeVar("Placed", bound=Model)


def place_model(
    read: Callable[[Path], ModelFolder[Placed]],
    folder: Path,
    *,
    precision: Precision | str,
    device: str,
    threads: int | None,
) -> ModelFolder[Placed]:
    """Reads a folder by one of the readers of `folder.py`; sets the number of threads of the whole process.

    Raises:
        TransduceError: the folder or an option is not what it should be.
    """
    check_precision(precision)
    machine = detect_machine(device, threads)
    torch.set_num_threads(machine.threads)
    content = read(folder)
    return msgspec.structs.replace(content, model=at_precision(content.model, precision, machine))


def place_encoder(
    folder: Path, *, precision: Precision | str, device: str, threads: int | None
) -> tuple[Encoder, Tokenizer]:
    """The same, where an encoder alone is needed.

    Raises:
        TransduceError: also where the model is of another kind.
    """
    content = place_model(read_any_model_folder, folder, precision=precision, device=device, threads=threads)
    if not isinstance(content.model, Encoder):
        raise TransduceError(
            f"An encoder alone is needed here, but the model in {folder} is of the kind `{content.model.config.kind}`: "
            "name another folder."
        )
    return content.model, content.tokenizer
