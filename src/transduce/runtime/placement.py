"""Load a model of any kind at a precision and on a device."""

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
    """Read a model folder with a reader of `folder.py`, move the model to a device, and set the process's thread count.

    Args:
        read: a reader, such as `read_decoder_folder`.
        folder: the model folder.
        precision: "fp32", "bf16", "int8" or "auto".
        device: "cpu", "cuda" or "auto".
        threads: number of compute threads; None: $OMP_NUM_THREADS, or all usable cores.

    Raises:
        TransduceError: the folder cannot be read, or an option is invalid.
    """
    check_precision(precision)
    machine = detect_machine(device, threads)
    torch.set_num_threads(machine.threads)
    content = read(folder)
    return msgspec.structs.replace(content, model=at_precision(content.model, precision, machine))


def place_encoder(
    folder: Path, *, precision: Precision | str, device: str, threads: int | None
) -> tuple[Encoder, Tokenizer]:
    """Load an encoder-only model and its tokenizer at a precision and on a device.

    Raises:
        TransduceError: the model is of another kind, the folder cannot be read, or an option is invalid.
    """
    content = place_model(read_any_model_folder, folder, precision=precision, device=device, threads=threads)
    if not isinstance(content.model, Encoder):
        raise TransduceError(
            f"An encoder-only model is needed here, but the model in {folder} is of the kind "
            f"`{content.model.config.kind}`: name another folder."
        )
    return content.model, content.tokenizer
