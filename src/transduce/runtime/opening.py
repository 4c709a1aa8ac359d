"""A model folder, opened to compute: on a device, in a precision, with so many threads."""

from pathlib import Path

import torch

from transduce.errors import TransduceError
from transduce.model.build import Model
from transduce.model.encoder import Encoder
from transduce.runtime.folder import read_any_model_folder
from transduce.runtime.machine import Precision, detect_machine
from transduce.text.tokenizer import Tokenizer

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def open_model(
    folder: Path, *, precision: Precision | str = "auto", device: str = "auto", threads: int | None = None
) -> tuple[Model, Tokenizer]:
    """A model of any kind, and its tokenizer.

    Args:
        folder: what `transduce train` wrote.
        precision: "fp32", "bf16", or "auto": bf16 where the hardware multiplies it faster.
        device: "cpu", "cuda", or "auto": the GPU where there is one.
        threads: threads to compute with, in the whole process; None: all cores that the process may use.

    Raises:
        TransduceError: the folder or an option is not what it should be.
    """
    if precision not in ("auto", *_DTYPES):
        raise TransduceError(f"`precision` must be `auto`, `fp32` or `bf16`, but is `{precision}`.")
    machine = detect_machine(device, threads)
    torch.set_num_threads(machine.threads)
    content = read_any_model_folder(folder)
    dtype = _DTYPES[machine.precision if precision == "auto" else precision]
    return content.model.to(device=machine.device, dtype=dtype), content.tokenizer


def open_encoder(
    folder: Path, *, precision: Precision | str = "auto", device: str = "auto", threads: int | None = None
) -> tuple[Encoder, Tokenizer]:
    """The same, of an encoder alone.

    Raises:
        TransduceError: also where the model is of another kind.
    """
    model, tokenizer = open_model(folder, precision=precision, device=device, threads=threads)
    if not isinstance(model, Encoder):
        raise TransduceError(
            f"An encoder alone is needed here, but the model in {folder} is of the kind `{model.config.kind}`: name "
            "another folder."
        )
    return model, tokenizer
