"""Maintain model folders: verify every byte, and store quantized weights before the first use.

Opening a folder verifies a large file only if it has changed since it was last verified (`weight_cache.py`). This
detects changes by programs, but not a disk that returns other bytes than were written. `verify` reads everything again.
"""

import contextlib
from pathlib import Path

import msgspec

from transduce.argument_checks import as_path
from transduce.atomic_io import file_sha256
from transduce.errors import TransduceError, explain_wrong_types, shell_word
from transduce.interop.hugging_face.import_weights import all_finite
from transduce.machine import detect_machine
from transduce.model_folder.hugging_face import is_hugging_face_folder
from transduce.model_folder.load import read_at_precision
from transduce.model_folder.read import MANIFEST, WEIGHTS, Manifest, check_digests, read_any_model_folder
from transduce.model_folder.safety import read_json
from transduce.model_folder.tensor_files import MappedTensors
from transduce.model_folder.weight_cache import cache_folders

# --- verification ---


class VerifyReport(msgspec.Struct, frozen=True):
    """The result of `verify`, which reads all files of a model folder and compares them with their digests."""

    folder: str
    """The path of the model folder."""
    files: int
    """Number of checked files; all have the digests in the manifest."""
    megabytes: float
    """Size of the files with digests in the manifest, in 10⁶ bytes."""
    tensors: int
    """Number of tensors in the weights file, all of whose values are finite."""
    cached: tuple[str, ...]
    """The paths of the undamaged files with quantized weights in the folder's cache."""
    removed: tuple[str, ...]
    """The paths of the files with quantized weights that were damaged and removed; the next use creates them again."""

    def __str__(self) -> str:
        size = f"{self.files} files of {self.megabytes:,.1f} MB"
        lines = [f"{self.folder}: {size} are as they were written, and {self.tensors} tensors are finite"]
        lines += [f"{path}: whole" for path in self.cached]
        lines += [f"{path}: damaged, removed; it is made again when it is needed" for path in self.removed]
        return "\n".join(lines)


@explain_wrong_types
def verify(folder: str | Path) -> VerifyReport:
    """Read every byte of the files that a model folder's manifest lists, and compare them with its SHA-256 digests.

    The manifest lists configuration, weights and vocabularies, but not `task.json`, `directions.json` and other small
    files, which are checked when they are read. The quantized weights in the folder's cache are checked, too. A cached
    file that is damaged is removed.

    Args:
        folder: a folder that `transduce train`, `transduce import` or `save` wrote.

    Returns:
        A report of the files that were checked.

    Raises:
        TransduceError: a file is missing or damaged, a weight is not finite, or the folder has no manifest.
    """
    folder = as_path(folder, "The model's folder")
    if is_hugging_face_folder(folder):
        raise TransduceError(
            f"{folder} is a Hugging Face folder, which lists no digests to compare its files with: bring it in by "
            f"`transduce import {shell_word(folder)} OUT`, and verify that."
        )
    if not folder.is_dir():
        raise TransduceError(f"{folder} is not a folder: name the folder of a model.")
    manifest = read_json(folder, MANIFEST, Manifest)
    names = check_digests(folder, manifest, file_sha256)
    file = MappedTensors(folder, WEIGHTS, whole_numbers=None)
    for name in file.entries:
        if not all_finite(file.tensor(name)):
            raise TransduceError(f"{file.path}: {name} has values that are not finite (NaN or infinite).")
        file.release()
    cached = [path for cache in cache_folders(folder) for path in sorted(cache.glob("*.safetensors"))]
    whole = [path for path in cached if _is_whole(path)]
    removed = [path for path in cached if path not in whole]
    for path in removed:
        with contextlib.suppress(OSError):
            path.unlink()
    return VerifyReport(
        folder=str(folder),
        files=len(names),
        megabytes=round(sum((folder / name).stat().st_size for name in names) / 1e6, 1),
        tensors=len(file.entries),
        cached=tuple(map(str, whole)),
        removed=tuple(map(str, removed)),
    )


def _is_whole(path: Path) -> bool:
    """Return whether the data of a file with quantized weights match the digest in its header.

    The result is False if the file cannot be read.
    """
    try:
        header = MappedTensors(path.parent, path.name, whole_numbers=None).header
        return file_sha256(path, len(header.content)) == header.metadata.get("data")
    except (TransduceError, OSError):
        return False


# --- quantization ---


class QuantizeReport(msgspec.Struct, frozen=True):
    """A report of the file in which a model folder's quantized weights were stored."""

    folder: str
    """The path of the model folder."""
    file: str
    """The path of the file with the quantized weights."""
    megabytes: float
    """Size of the file with the quantized weights, in 10⁶ bytes."""

    def __str__(self) -> str:
        return f"{self.file}: {self.megabytes:,.1f} MB, which `--precision int8` maps on this kind of processor"


@explain_wrong_types
def quantize_folder(folder: str | Path) -> QuantizeReport:
    """Store a model's weights in 8 bits, so that it opens with `precision="int8"` in a fraction of a second.

    Without this call, a large model is quantized and stored when it is first opened with `precision="int8"`. The
    weights are stored in the folder `.transduce` of the model folder. If the model folder is read-only, they are stored
    in the user's cache. The stored file is for processors with the same instruction set. It is not used after the model
    has changed.

    Args:
        folder: a folder that `transduce train`, `transduce import` or `save` wrote.

    Returns:
        A report with the path and size of the file.

    Raises:
        TransduceError: the folder is not one of transduce, the model or this machine does not support `int8`, the file
            cannot be written, or another process is writing it.
    """
    folder = as_path(folder, "The model's folder")
    if is_hugging_face_folder(folder):
        raise TransduceError(
            f"{folder} is a Hugging Face folder, whose weights are converted whenever it is opened: bring it in by "
            f"`transduce import {shell_word(folder)} OUT`, and quantize that."
        )
    content = read_at_precision(read_any_model_folder, folder, "int8", detect_machine("cpu"), always_store=True)
    if content.prepacked is None:
        raise TransduceError(
            f"The 8-bit weights of {folder} were not stored, because another process stores them now: try again in a "
            "minute."
        )
    path = content.prepacked.path
    return QuantizeReport(str(folder), str(path), round(path.stat().st_size / 1e6, 1))
