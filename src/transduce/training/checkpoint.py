"""Write and read checkpoints, from which a run continues as if it had never stopped.

A checkpoint is a folder ``step-000123`` of safetensors files, a JSON state, and a manifest with the SHA-256 of each
file. It is written under a temporary name, flushed to disk and renamed last, so a folder of the final name is
complete. Random numbers need no state: they are seeded by (seed, step, micro-batch).
"""

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from transduce.atomic_io import file_sha256, sync_file, sync_folder
from transduce.deprecation import decode_stored, with_current_settings
from transduce.errors import TransduceError, writing_remedy
from transduce.training.distributed import Processes
from transduce.training.events import StepSums
from transduce.training.loss_spikes import LossWindow
from transduce.training.settings import BestBy, Kernels

# --- tensors cut by rows, one part in each process or in each file of a checkpoint ---


class RowRange(msgspec.Struct, frozen=True):
    """The rows of a tensor that one process or one file holds, if a model is divided among processes."""

    start: int
    """The index, in the complete tensor, of the first row that the file or process holds."""
    whole: list[int]
    """The shape of the complete tensor, of which a file or process holds some rows."""


class _RowFile(NamedTuple):
    """A file that holds the rows [start, stop) of a tensor."""

    path: Path
    start: int
    stop: int


class StoredTensor:
    """A tensor whose rows lie in several files, one from each process that wrote them, and are read on demand.

    The rows are read by slicing, as in `tensor[:]`.
    """

    def __init__(self, name: str, shape: Sequence[int]) -> None:
        self.name = name
        self.shape = shape
        self.parts: list[_RowFile] = []

    def __getitem__(self, rows: slice, /) -> Tensor:
        """Return a range of the complete tensor's rows, read from the files that hold them."""
        start, stop, _ = rows.indices(self.shape[0])
        parts = []
        for part in self.parts:
            first, last = max(start, part.start), min(stop, part.stop)
            if first < last:
                with safe_open(part.path, framework="pt") as file:
                    parts.append(file.get_slice(self.name)[first - part.start : last - part.start])
        return torch.cat(parts) if parts else torch.empty(0, *self.shape[1:])


def open_parts(paths: Sequence[Path]) -> dict[str, StoredTensor]:
    """Return a dict from names to tensors whose rows are spread over several files; no data are read yet.

    Args:
        paths: all files of one kind of tensors, written by all processes.
    """
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name, encoded in (file.metadata() or {}).items():
                rows = msgspec.json.decode(encoded, type=RowRange)
                length = file.get_slice(name).get_shape()[0]
                tensor = tensors.setdefault(name, StoredTensor(name, rows.whole))
                tensor.parts.append(_RowFile(path, rows.start, rows.start + length))
    for tensor in tensors.values():
        tensor.parts.sort(key=lambda part: part.start)
    return tensors


# --- environment ---


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The machine and library versions of a run, stored in every checkpoint.

    If the environment differs on resume, a message says so, since results are no longer equal bit for bit.
    """

    device: str
    """"cpu", or the GPU's name."""
    instructions: str
    """The CPU architecture and the instruction sets that PyTorch uses, such as "x86_64 AVX512 AMX"."""
    threads: int
    torch: str
    """The version of PyTorch."""
    kernels: Kernels = "torch"
    """The kernels that steps use: "torch" or "native"."""
    processes: int | None = None
    """The number of processes that train together; None in checkpoints that did not store it."""


def differences(before: Environment, now: Environment) -> Iterator[str]:
    """Yield a text for each property in which the environments of two parts of a run differ: "NAME OLD then, NEW now".

    A property that the older checkpoint did not store is left out.
    """
    for name in Environment.__struct_fields__:
        old, new = getattr(before, name), getattr(now, name)
        if old not in (new, None):
            yield f"{name} {old} then, {new} now"


# --- checkpoints ---


FORMAT_VERSION = 5
_READABLE = (1, 2, 3, 4, 5)  # fields that older formats lack take their defaults
_PREFIX = "step-"
_PARTIAL, _REMOVED = ".partial-", ".removed-"
WORST_LOSS = sys.float_info.max
"""The loss that stands for one that is not finite, since JSON in checkpoints cannot hold infinity."""


class Best(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best validation of a run so far, and what decides whether a later one is better or training stops."""

    step: int | None = None
    """The step of the best validation; None without a validation of finite loss."""
    value: float | None = None
    """The selection metric, greater is better; None: the next validation becomes the best."""
    loss: float = 0.0
    """The dev loss of the best validation; the lower loss wins if the difference of two metrics may be noise."""
    validations_since: int = 0
    """The number of validations after the warm-up since the last one that was better or had a new lowest loss."""
    perfect: int = 0
    """The number of latest validations in a row with a perfect result, which may stop training early."""
    highest: float = -WORST_LOSS
    """The highest selection metric since a validation last exceeded the best one by more than noise; the best
    validation's own metric may be slightly lower.
    """
    lowest_loss: float = WORST_LOSS
    """The lowest dev loss so far."""
    contributions: list[float] = []
    """The contribution of each dev sentence to the best metric (`ValidationEvent.contributions`), to estimate noise."""


class RunState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The progress of a run: everything a checkpoint stores besides tensors."""

    format_version: int = FORMAT_VERSION
    step: int
    updates: int
    """The number of steps that changed the weights; fewer than `step` if some were skipped."""
    steps: int | None
    """The last step of the run; None in a run limited by `minutes` that has not been converted to a number of steps
    yet.
    """
    best: Best = Best()
    """The best validation so far."""
    best_by: BestBy | None = None
    """The metric that `best.value` measures; None in checkpoints that did not store it."""
    elapsed_seconds: float
    """Seconds of training by the wall clock, summed over all processes that have continued this run one after another.
    """
    overhead_seconds: float = 0.0
    """Seconds of preparations, which count against `training.minutes`, summed over all processes that continued the
    run.
    """
    time_plan: list[tuple[int, int, int]] = []
    """The decisions (`Decision`) of the clock in a run with `training.minutes`; empty in other runs."""
    validation_due: bool = False
    """True if a signal interrupted the validation of this step, which is then repeated first on resume."""
    dropout_off: bool = False
    """True if dropout has been disabled for the rest of the run because it did harm (`DropoutMonitor`)."""
    report: StepSums = msgspec.field(default_factory=StepSums)
    """Sums, such as of losses, over the steps since the last report, so that the next report includes these steps."""
    loss_window: LossWindow = msgspec.field(default_factory=LossWindow)
    """The window of recent losses that detects loss spikes."""
    environment: Environment | None = None
    """The environment of the last steps; None in checkpoints that did not store it."""
    settings: dict[str, Any] = {}
    """The settings of the last steps, nested as in a settings file; empty in checkpoints that did not store them."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The tensors and the state of a checkpoint, in memory."""

    state: RunState
    tensors: dict[str, dict[str, Tensor]]
    """Tensors by kind (weights, exp_avg, exp_avg_sq, momentum, average), then by parameter name. Empty if `parts` is
    set. Adam's and Muon's states are separate kinds. A model with BatchNorm adds its running statistics as one more
    kind, by buffer name.
    """
    rows: dict[str, RowRange] | None = None
    """By parameter name, the rows that this process holds, if a model is divided among processes; None if tensors are
    complete.
    """
    parts: dict[str, dict[str, StoredTensor]] | None = None
    """The tensors by kind and name as stored in the files of several processes, read on demand; None if they are in
    memory.
    """

    @property
    def all_tensors(self) -> Mapping[str, Mapping[str, Tensor | StoredTensor]]:
        """The checkpoint's tensors, a mapping by kind and then name, in memory or read from files on demand."""
        return self.tensors if self.parts is None else self.parts


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path, inside `folder`, of the checkpoint of a step."""
    return folder / f"{_PREFIX}{step:09d}"


def refuse_missing_run(folder: Path) -> None:
    """Refuse to write into a run's folder that was moved or removed since the run started.

    Raises:
        TransduceError: there is no such folder any more.
    """
    if not folder.is_dir():
        raise TransduceError(
            f"The run's folder {folder} is gone, so nothing more can be saved: if it was moved, continue with --resume "
            "and its new place as --out."
        )


def save_checkpoint(
    folder: Path,
    checkpoint: Checkpoint,
    *,
    keep: int,
    averaged: Collection[int] = (),
    processes: Processes | None = None,
) -> Path:
    """Write a checkpoint below a folder, delete old ones, and return its path.

    If an undamaged checkpoint of the step exists already, nothing is written or deleted. Checkpoints of later steps are
    damaged ones that a resumed run has skipped. They stay until the run reaches their steps again.

    If there are several processes, all of them must call this function, and wait for each other. The first process
    writes the checkpoint. If the model is divided among processes, each one writes its own rows into the folder, which
    all of them must be able to see.

    Args:
        folder: the folder of the run's checkpoints.
        checkpoint: the tensors and the state to write.
        keep: the number of newest checkpoints that stay, including this one.
        averaged: steps whose checkpoints stay, too, since a later mean of weights needs them.
        processes: the processes of the run; None: a single one.

    Raises:
        TransduceError: the checkpoint cannot be written; earlier checkpoints are untouched. If the model is divided,
            all processes raise the error, otherwise only the first does.
    """
    together = processes or Processes()
    final = checkpoint_path(folder, checkpoint.state.step)
    if checkpoint.rows is None and together.count > 1:
        try:
            if together.is_first:
                save_checkpoint(folder, checkpoint, keep=keep, averaged=averaged)
        finally:
            together.wait()  # also after a failure: the run may continue and needs all processes
        return final
    if together.broadcast(_is_sound(final), bool):
        return final
    partial = folder / f"{_PARTIAL}{final.name}"
    try:
        _do_together(lambda: _create_partial(partial), together, alone=True)
        _do_together(lambda: _write_tensors(partial, checkpoint, together), together)
        _do_together(lambda: _finish(partial, final, checkpoint.state), together, alone=True)
    except (OSError, SafetensorError) as error:
        if together.is_first:
            shutil.rmtree(partial, ignore_errors=True)
        raise TransduceError(
            f"The checkpoint {final} could not be written ({error}); earlier checkpoints are untouched: "
            f"{writing_remedy(error, 'free space or repair the folder')}, then continue with --resume."
        ) from error
    if together.is_first:
        kept = {checkpoint_path(folder, step) for step in averaged}
        for old in [path for path in checkpoints(folder) if path.name <= final.name][keep:]:
            if old not in kept:
                _remove(old)
    together.wait()
    return final


@contextmanager
def tolerate_full_disk(say: Callable[[str], None], what: str) -> Iterator[None]:
    """Replace an error of writing in the body of `with` by a message, so that training goes on.

    Other errors are raised.

    Args:
        say: a function that receives the message.
        what: what is written, for the message.
    """
    try:
        yield
    except TransduceError as error:
        if not isinstance(error.__cause__, OSError | SafetensorError):
            raise
        say(f"{error} Training goes on.")
    except (OSError, SafetensorError) as error:
        say(f"{what} could not be written ({error}): free some space or repair the folder. Training goes on.")


def _do_together(act: Callable[[], None], processes: Processes, *, alone: bool = False) -> None:
    """Run the function `act` in all processes, and wait until all are done; with `alone`, only the first runs it.

    If the function fails in one process, all processes raise an error, so that no process waits for another that has
    left.

    Raises:
        OSError: the function failed in this process or in another.
        SafetensorError: the function failed in this process.
    """
    failure: OSError | SafetensorError | None = None
    if processes.is_first or not alone:
        try:
            act()
        except (OSError, SafetensorError) as error:
            failure = error
    processes.wait()  # longer than `sum` would: writing takes as long as the disk does
    (failures,) = processes.sum([float(failure is not None)])
    if failures:
        raise failure or OSError("another process could not write its part")


def _create_partial(partial: Path) -> None:
    """Create the empty folder in which a checkpoint is written, after deleting leftovers of interrupted saves."""
    _remove_leftovers(partial.parent)
    partial.mkdir(parents=True)


def _remove(checkpoint: Path) -> None:
    """Delete a checkpoint; it is renamed first, so that a partly deleted folder never counts as damaged."""
    removed = checkpoint.with_name(f"{_REMOVED}{checkpoint.name}")
    os.rename(checkpoint, removed)
    shutil.rmtree(removed, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove partial folders that a run left when it was killed while saving or deleting."""
    if folder.is_dir():
        for path in [path for path in folder.iterdir() if path.name.startswith((_PARTIAL, _REMOVED))]:
            shutil.rmtree(path, ignore_errors=True)


def _is_sound(path: Path) -> bool:
    """Return whether the checkpoint at a path exists, is readable and matches the digests in its manifest."""
    try:
        load_checkpoint(path)
    except TransduceError:
        return False
    return True


def _write_tensors(folder: Path, checkpoint: Checkpoint, processes: Processes) -> None:
    for kind, tensors in checkpoint.tensors.items():
        part = "" if checkpoint.rows is None else f".{processes.rank:05d}-of-{processes.count:05d}"
        path = folder / f"{kind}{part}.safetensors"
        rows = {name: msgspec.json.encode(r).decode() for name, r in (checkpoint.rows or {}).items() if name in tensors}
        save_file({name: t.contiguous() for name, t in tensors.items()}, path, rows or None)
        sync_file(path)


def _finish(folder: Path, final: Path, state: RunState) -> None:
    """Write a checkpoint's state and the SHA-256 of its files, flush all to disk, and rename `folder` to `final`.

    An older checkpoint at `final`, which is damaged, is deleted.
    """
    path = folder / "state.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    for tensors in folder.glob("*.safetensors"):
        shutil.copymode(path, tensors)  # safetensors makes files readable by their owner only
    digests = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    (folder / "manifest.json").write_bytes(msgspec.json.format(msgspec.json.encode(digests)))
    for path in folder.iterdir():
        sync_file(path)
    sync_folder(folder)
    if final.exists():
        _remove(final)
    os.rename(folder, final)
    sync_folder(final.parent)


def checkpoints(folder: Path) -> Iterator[Path]:
    """Yield the paths of the complete checkpoints below a folder, newest first; none if there is no folder."""
    if folder.is_dir():
        yield from sorted((p for p in folder.iterdir() if p.name.startswith(_PREFIX)), reverse=True)


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Load the newest undamaged checkpoint below a folder.

    The result is a pair: the checkpoint, or None if there is none, and a list with an error message for each newer one
    that was skipped because it is damaged.
    """
    refused: list[str] = []
    for path in checkpoints(folder):
        try:
            return load_checkpoint(path), refused
        except TransduceError as error:
            refused.append(str(error))
    return None, refused


def newest_state(folder: Path) -> RunState | None:
    """Return the state of the newest checkpoint below a folder whose state is readable, without loading tensors.

    The result is None if no checkpoint has a readable state.
    """
    for path in checkpoints(folder):
        try:
            return load_state(path)
        except TransduceError:
            continue
    return None


def load_state(path: Path) -> RunState:
    """Read only the state of a checkpoint, a `RunState`, without checking the checkpoint's other files.

    Raises:
        TransduceError: the state is damaged, or has a format that this version cannot read.
    """
    try:
        content = (path / "state.json").read_bytes()
        version = msgspec.json.decode(content, type=_StoredVersion).format_version
        if version not in _READABLE:
            raise TransduceError(
                f"The checkpoint {path} has format {version}, but this version reads formats up to {FORMAT_VERSION}."
            )
        state = decode_stored(content, RunState)
        return msgspec.structs.replace(state, settings=with_current_settings(state.settings, warn=False))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise TransduceError(f"The checkpoint {path} is damaged: {error}.") from error


def _kind(name: str) -> str:
    """Return the kind of the tensors that a file of a checkpoint holds, by the file's name.

    The kind is "weights" for `weights.safetensors`, and for a part such as `weights.00001-of-00002.safetensors`.
    """
    return name.split(".", maxsplit=1)[0]


def _open_parts(folder: Path, names: Sequence[str]) -> dict[str, dict[str, StoredTensor]]:
    kinds = dict.fromkeys(_kind(name) for name in names)
    return {kind: open_parts([folder / name for name in names if _kind(name) == kind]) for kind in kinds}


class _StoredVersion(msgspec.Struct):
    format_version: int


def load_checkpoint(path: Path) -> Checkpoint:
    """Load a checkpoint and verify every file against its manifest; return a `Checkpoint`.

    Tensors that several processes wrote are not read yet, but on demand.

    Raises:
        TransduceError: the checkpoint is damaged, or has a format that this version cannot read.
    """
    try:
        names = _verified_files(path)
        state = load_state(path)
        if any(_kind(name) != name.removesuffix(".safetensors") for name in names):
            return Checkpoint(state, {}, parts=_open_parts(path, names))
        return Checkpoint(state, {_kind(name): load_file(path / name) for name in names})
    except (OSError, msgspec.MsgspecError, SafetensorError) as error:
        raise TransduceError(f"The checkpoint {path} is damaged: {error}.") from error


def _verified_files(path: Path, kind: str | None = None) -> list[str]:
    """Verify a checkpoint's files by the SHA-256 in its manifest, and return a sorted list of its tensor files' names.

    Args:
        path: the checkpoint's folder.
        kind: verify and return only the files of this kind of tensors; None: all files.

    Raises:
        TransduceError: a file is not what was written.
        OSError: the manifest or a file is missing or cannot be read.
        msgspec.MsgspecError: the manifest is no JSON object of strings.
    """
    digests = msgspec.json.decode((path / "manifest.json").read_bytes(), type=dict[str, str])
    names = [name for name in digests if kind in (None, _kind(name))]
    for name in names:
        if Path(name).name != name or file_sha256(path / name) != digests[name]:
            raise TransduceError(f"The checkpoint {path} is damaged: {name} is not what was written.")
    return sorted(name for name in names if name.endswith(".safetensors"))


def _load_weights(path: Path) -> dict[str, Tensor]:
    """Return a checkpoint's complete weights, a dict by name; its other files are neither verified nor read.

    Raises:
        TransduceError: a file of weights is not what was written.
        OSError: the manifest or a file of weights is missing or cannot be read.
        msgspec.MsgspecError: the manifest is no JSON object of strings.
        SafetensorError: a file of weights is not in the format of safetensors.
    """
    names = _verified_files(path, "weights")
    if names == ["weights.safetensors"]:
        return load_file(path / names[0])
    return {name: tensor[:] for name, tensor in open_parts([path / name for name in names]).items()}


def average_weights(
    weights: Mapping[str, Tensor], folder: Path, steps: Sequence[int]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the mean of a model's weights and of those in earlier checkpoints (section 6.1 of the paper).

    Args:
        weights: the current weights, float32; those that no checkpoint holds, such as frozen ones, stay as they are.
        folder: the folder of the checkpoints.
        steps: the steps of the earlier checkpoints.

    Returns:
        A pair: the mean weights by name, and a list with an error message for each checkpoint that is damaged or
        missing, which the mean leaves out.
    """
    sums, counts = {name: tensor.clone() for name, tensor in weights.items()}, dict.fromkeys(weights, 1)
    refused = []
    for step in steps:
        path = checkpoint_path(folder, step)
        try:
            stored = _load_weights(path)
        except (OSError, msgspec.MsgspecError, SafetensorError, TransduceError) as error:
            refused.append(str(error) if isinstance(error, TransduceError) else f"{path} cannot be read: {error}.")
            continue
        for name in stored.keys() & sums.keys():
            sums[name] += stored[name].to(sums[name].device)
            counts[name] += 1
    return {name: tensor / counts[name] if counts[name] > 1 else tensor for name, tensor in sums.items()}, refused


def check_kinds(
    checkpoint: Checkpoint, expected: Mapping[str, Mapping[str, Tensor]], rows: Mapping[str, RowRange] | None = None
) -> None:
    """Check that a checkpoint has exactly the tensors of a run, by name and shape, of each kind that the run needs.

    Args:
        checkpoint: the checkpoint.
        expected: the run's tensors by kind and name, complete or divided among processes.
        rows: by name, the rows that this process holds; None if the tensors are complete.

    Raises:
        TransduceError: a tensor is missing, unexpected, or has another shape.
    """
    for kind, tensors in expected.items():
        stored = checkpoint.all_tensors.get(kind, {})
        needed = {name: list(rows[name].whole if rows else tensor.shape) for name, tensor in tensors.items()}
        found = {name: list(tensor.shape) for name, tensor in stored.items()}
        differing = [name for name in (*needed, *found) if needed.get(name) != found.get(name)]
        if differing:
            raise TransduceError(
                f"The checkpoint of step {checkpoint.state.step} does not hold the tensors of this run's model: {kind} "
                f"differs, first in {differing[0]}. Resume in the folder of the run that wrote it, or start a new run "
                "in a new folder."
            )
