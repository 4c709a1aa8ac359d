"""Read files from untrusted folders: within size limits, inside the folder, and without running code.

A model folder may come from anywhere. Nothing in it is unpickled or executed. The remaining risks are names that lead
out of the folder, files larger than expected, and sizes that would exhaust memory.
"""

import math
import struct
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from transduce.errors import TransduceError, decode_utf8, shell_word

T = TypeVar("T")

MAX_JSON_BYTES = 4 << 20
MAX_VOCABULARY_BYTES = 64 << 20
_LONGEST_NAME = 255
# Characters that are path separators or invalid in file names on some system.
_FORBIDDEN = frozenset('/\\:\x7f"<>|?*') | {chr(code) for code in range(32)}
_DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_WHOLE_NUMBER_BYTES = {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
# Magic bytes of pickles, zip archives (PyTorch's format) and gzip files.
_WEIGHTS_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".pkl", ".safetensors", ".npz", ".h5", ".onnx")
_MAGICS = {b"\x80": "a pickle", b"PK": "a zip archive", b"\x1f\x8b": "gzip"}


def refuse_weights_file(path: Path, advice: str = "") -> None:
    """Raise an error if a path leads to a file of weights, because a model is a folder.

    Args:
        path: a path that should lead to a folder or to another kind of file.
        advice: what else the caller accepts, appended to the message.

    Raises:
        TransduceError: the path is a file of weights by its suffix or by its first bytes.
    """
    if not path.is_file():
        return
    with path.open("rb") as file:
        is_pickled = file.read(2).startswith(tuple(_MAGICS))
    if not is_pickled and path.suffix not in _WEIGHTS_SUFFIXES:
        return
    if (path.parent / "config.json").is_file():
        raise TransduceError(f"{path} is one file of a model folder: name the folder, {path.parent}.{advice}")
    raise TransduceError(
        f"{path} is a file, and a model is a folder with its vocabulary and settings. If the file has the weights of a "
        f"translator written after a tutorial, convert it by `transduce import-tutorial {shell_word(path)} OUT --style "
        f"STYLE --heads N --words LIST`, and name OUT.{advice}"
    )


def file_inside(folder: Path, name: str) -> Path:
    """Return the path of a file in a folder for an untrusted file name, after checking that it does not lead outside.

    Raises:
        TransduceError: the name is not a plain file name, or is a link that leads out of the folder.
    """
    is_plain = (
        0 < len(name.encode("utf-8", "replace")) <= _LONGEST_NAME
        and not _FORBIDDEN & set(name)
        and name.strip(" .") != ""
        and name == name.rstrip(" .")
    )
    if not is_plain:
        shown = name if name.isprintable() and len(name) < 200 else ascii(name[:200])
        raise TransduceError(f"{folder} must list files of its own folder, but lists `{shown}`: remove it there.")
    path = folder / name
    if not _resolve(path).is_relative_to(_resolve(folder)):
        raise TransduceError(
            f"{path} is a link that leads out of its folder, so it is not read: put a copy of the file in its place."
        )
    return path


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
        raise TransduceError(f"{path} cannot be followed ({error}): put a copy of the file in its place.") from error


def read_bounded(folder: Path, name: str, max_bytes: int) -> bytes:
    """Return the content of a file in an untrusted folder, as bytes, with a limit on its size.

    Raises:
        TransduceError: the file is missing, not a regular file, or larger than `max_bytes`.
    """
    path = file_inside(folder, name)
    if not path.is_file():
        raise TransduceError(f"{path} cannot be read: there is no such file; copy the folder again.")
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise TransduceError(f"{path} cannot be read: {error.strerror}.") from error
    if len(content) > max_bytes:
        raise TransduceError(f"{path} may have {max_bytes:,} bytes at most, but has more: it is not what it is named.")
    return content


def read_json(folder: Path, name: str, type: type[T], purpose: str = "") -> T:
    """Decode a JSON file of an untrusted folder, of at most 4 MiB, to the given type, and return it.

    `purpose` is added to error messages after "cannot be read".

    Raises:
        TransduceError: the file cannot be read, or does not match the type.
    """
    try:
        return msgspec.json.decode(read_bounded(folder, name, MAX_JSON_BYTES), type=type)
    except msgspec.MsgspecError as error:
        raise TransduceError(f"{folder / name} cannot be read{purpose}: {error}.") from error
    except UnicodeDecodeError as error:
        raise TransduceError(f"{folder / name} cannot be read{purpose}: it is not UTF-8.") from error
    except RecursionError as error:
        raise TransduceError(f"{folder / name} cannot be read{purpose}: it is nested too deeply.") from error


def read_optional_json(folder: Path, name: str) -> dict[str, Any]:
    """Decode a JSON file of an untrusted folder to a dict, which is empty if there is no such file.

    Raises:
        TransduceError: the file cannot be read, or holds no JSON object.
    """
    return read_json(folder, name, dict[str, Any]) if (folder / name).is_file() else {}


def read_config_json(folder: Path) -> dict[str, Any]:
    """Decode the config.json of a model folder to a dict.

    Raises:
        TransduceError: the file cannot be read.
    """
    return read_json(folder, "config.json", dict[str, Any], " as a model's configuration")


def read_toml(folder: Path, name: str) -> dict[str, Any]:
    """Decode a TOML file of an untrusted folder, of at most 4 MiB, to a dict.

    Raises:
        TransduceError: the file cannot be read.
    """
    text = decode_utf8(read_bounded(folder, name, MAX_JSON_BYTES), folder / name)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TransduceError(f"{folder / name} cannot be read: {str(error).rstrip('.')}.") from error


class TensorEntry(msgspec.Struct, frozen=True):
    """A tensor's entry in the header of a safetensors file: its type, its shape, and the range of its data."""

    dtype: str
    """The tensor's data type, such as "F32"."""
    shape: list[int]
    data_offsets: tuple[int, int]
    """Start and end of the tensor's data in bytes, counted from the end of the header."""


class TensorHeader(NamedTuple):
    """The checked header of a safetensors file: the tensors' entries, free texts, and the header as bytes."""

    entries: dict[str, TensorEntry]
    """The entry of each tensor, by the tensor's name."""
    metadata: dict[str, str]
    """Free texts by name, which the file's writer added."""
    content: bytes
    """The whole header as it is in the file, its length included; the tensors' data follow it."""


def read_tensor_header(folder: Path, name: str, *, whole_numbers: Collection[str] | None = ()) -> TensorHeader:
    """Read the header of a safetensors file as a `TensorHeader`, checked against the file's size before allocation.

    Args:
        folder: the model folder.
        name: the file's name in the folder.
        whole_numbers: the names of tensors that may hold integers or booleans, such as a buffer of indices; None: all.

    Raises:
        TransduceError: the file is of another type or damaged, or holds tensors that are not floating-point.
    """
    path = file_inside(folder, name)
    if not path.is_file():
        raise TransduceError(f"{path} cannot be read: there is no such file; copy the folder again.")
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        kind = next((kind for magic, kind in _MAGICS.items() if start.startswith(magic)), None)
        is_plausible = 2 <= length <= min(MAX_JSON_BYTES, size - 8)
        header = file.read(length) if is_plausible else b""
    if not header.startswith(b"{"):
        what = f"it looks like {kind}, which is never opened" if kind else "its header is not one of safetensors"
        raise TransduceError(f"{path} cannot be read: {what}; copy the folder again or convert the weights.")
    entries, metadata = _decode_header(path, header)
    _check_layout(path, entries, size - 8 - length, whole_numbers)
    return TensorHeader(entries, metadata, start + header)


def _decode_header(path: Path, header: bytes) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop("__metadata__", msgspec.Raw(b"{}")), type=dict[str, str] | None)
        return {name: msgspec.json.decode(entry, type=TensorEntry) for name, entry in raw.items()}, metadata or {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TransduceError(f"{path} cannot be read: its header is not one of safetensors ({error}).") from error


def _check_layout(
    path: Path, entries: dict[str, TensorEntry], data_bytes: int, whole_numbers: Collection[str] | None
) -> None:
    """Check that the tensors of a safetensors file follow one another without gaps, with allowed types and right sizes.

    Together the tensors must fill `data_bytes` bytes.

    Raises:
        TransduceError: a tensor, or the number of bytes, is wrong.
    """
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        is_allowed = whole_numbers is None or name in whole_numbers
        sizes = _DTYPE_BYTES | (_WHOLE_NUMBER_BYTES if is_allowed else {})
        if entry.dtype not in sizes:
            raise TransduceError(
                f"{path}: weights must be {', '.join(_DTYPE_BYTES)}, but {name!r} is {entry.dtype!r}: convert them."
            )
        needed = math.prod(entry.shape, start=sizes[entry.dtype])
        start, stop = entry.data_offsets
        if min(entry.shape, default=0) < 0 or start != position or stop - start != needed:
            raise TransduceError(
                f"{path} is damaged: {name!r} of shape {_shown(entry.shape)} needs {needed:,} bytes from {position:,} "
                f"on, but its header says {start:,} to {stop:,}."
            )
        position = stop
    if position != data_bytes:
        raise TransduceError(
            f"{path} is damaged: its header describes {position:,} bytes of weights, but it has {data_bytes:,}."
        )


def _shown(shape: list[int]) -> str:
    return f"({', '.join(map(str, shape[:8]))}{', …' if len(shape) > 8 else ''})"
