"""Checkpoints: everything that a run needs to go on as if it had never stopped.

A checkpoint is a folder ``step-000123`` of safetensors files, a JSON state and a manifest with the SHA-256 of each.
It is written under another name, flushed to disk, and renamed as the last act: a folder of that name is complete.
Random numbers need no state: they are seeded by (seed, step, micro-batch).
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from transduce.durable import file_sha256, sync_file, sync_folder
from transduce.errors import TransduceError

FORMAT_VERSION = 1
_PREFIX = "step-"


class RunState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a run stands, beside its tensors."""

    format_version: int = FORMAT_VERSION
    step: int
    updates: int
    """Steps that changed the weights; fewer than `step` where some were skipped."""
    steps: int | None
    """The last step; None while `minutes` has not become one."""
    best_step: int | None
    best_value: float | None
    validations_without_better: int
    elapsed_seconds: float
    """Of training, over all the run's processes so far."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint in memory."""

    state: RunState
    tensors: dict[str, dict[str, Tensor]]
    """By kind (weights, exp_avg, exp_avg_sq, average), then by parameter name."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Writes a checkpoint below `folder` and removes all but the newest `keep` up to its step.

    Later ones that stand there were refused when the run was resumed; each is replaced when its step comes again.

    Raises:
        TransduceError: it cannot be written; earlier checkpoints are untouched.
    """
    final = folder / f"{_PREFIX}{checkpoint.state.step:09d}"
    if _is_sound(final):
        return final
    partial = folder / f".partial-{final.name}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _write_files(partial, checkpoint)
        if final.exists():
            shutil.rmtree(final)
        os.rename(partial, final)
        sync_folder(folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise TransduceError(
            f"The checkpoint {final} could not be written ({error}); earlier checkpoints are untouched: make room or "
            "mend the folder, then go on with --resume."
        ) from error
    for old in [path for path in checkpoints(folder) if path.name <= final.name][keep:]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def _is_sound(path: Path) -> bool:
    """Whether this step was saved already. A damaged folder of that name may be replaced, a sound one never is."""
    try:
        load_checkpoint(path)
    except TransduceError:
        return False
    return True


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    state = folder / "state.json"
    state.write_bytes(msgspec.json.format(msgspec.json.encode(checkpoint.state)))
    for kind, tensors in checkpoint.tensors.items():
        path = folder / f"{kind}.safetensors"
        save_file({name: t.contiguous() for name, t in tensors.items()}, path)
        shutil.copymode(state, path)  # safetensors lets the owner alone read
    digests = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    (folder / "manifest.json").write_bytes(msgspec.json.format(msgspec.json.encode(digests)))
    for path in folder.iterdir():
        sync_file(path)
    sync_folder(folder)


def checkpoints(folder: Path) -> Iterator[Path]:
    """Complete checkpoints below a folder, the newest first."""
    if folder.is_dir():
        yield from sorted((p for p in folder.iterdir() if p.name.startswith(_PREFIX)), reverse=True)


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is undamaged, or None, and a sentence about each that had to be passed over."""
    refused: list[str] = []
    for path in checkpoints(folder):
        try:
            return load_checkpoint(path), refused
        except TransduceError as error:
            refused.append(str(error))
    return None, refused


def load_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint and checks every byte of it against its manifest.

    Raises:
        TransduceError: it is damaged, or was written by a version that this one cannot read.
    """
    try:
        digests = msgspec.json.decode((path / "manifest.json").read_bytes(), type=dict[str, str])
        for name, digest in digests.items():
            if Path(name).name != name or file_sha256(path / name) != digest:
                raise TransduceError(f"The checkpoint {path} is damaged: {name} is not what was written.")
        state = msgspec.json.decode((path / "state.json").read_bytes(), type=RunState)
        if state.format_version != FORMAT_VERSION:
            raise TransduceError(
                f"The checkpoint {path} has format {state.format_version}, and this version reads {FORMAT_VERSION}."
            )
        kinds = [name.removesuffix(".safetensors") for name in digests if name.endswith(".safetensors")]
        return Checkpoint(state, {kind: load_file(path / f"{kind}.safetensors") for kind in kinds})
    except (OSError, msgspec.MsgspecError, SafetensorError) as error:
        raise TransduceError(f"The checkpoint {path} is damaged: {error}.") from error
