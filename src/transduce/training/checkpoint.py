"""Checkpoints: everything that a run needs to go on as if it had never stopped.

A checkpoint is a folder ``step-000123`` of safetensors files, a JSON state and a manifest with the SHA-256 of each.
It is written under another name, flushed to disk, and renamed as the last act: a folder of that name is complete.
Random numbers need no state: they are seeded by (seed, step, micro-batch).
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from transduce.durable import file_sha256, sync_file, sync_folder
from transduce.errors import TransduceError
from transduce.training.processes import Processes
from transduce.training.report import StepSums
from transduce.training.rows import Rows, Sliceable, StoredTensor, open_parts
from transduce.training.settings import BestBy
from transduce.training.surroundings import Surroundings
from transduce.training.watch import LossWatch

FORMAT_VERSION = 3
_READABLE = (1, 2, 3)  # of the older ones, what they did not have is as at the start of a run
_PREFIX = "step-"
_PARTIAL, _REMOVED = ".partial-", ".removed-"


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
    best_loss: float = 0.0
    """The dev loss beside that value, which decides between equal ones; 0, which none is below, where nobody said."""
    best_by: BestBy | None = None
    """What the value is of; None where nobody said."""
    validations_without_better: int
    perfect_validations: int = 0
    """How many of the last ones found nothing wrong."""
    elapsed_seconds: float
    """Of training, over all the run's processes so far."""
    validation_due: bool = False
    """A signal came during the validation of this step: on resume it comes first."""
    dropout_off: bool = False
    """It did harm (training/dropout_watch.py)."""
    report: StepSums = msgspec.field(default_factory=StepSums)
    """Of the steps since the last report."""
    losses: LossWatch = msgspec.field(default_factory=LossWatch)
    surroundings: Surroundings | None = None
    """What the steps so far were computed with; None where nobody said."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A checkpoint in memory."""

    state: RunState
    tensors: dict[str, dict[str, Tensor]]
    """By kind (weights, exp_avg, exp_avg_sq, momentum, average), then by parameter name; empty where they lie in parts.
    What Adam remembers of some parameters and Muon of the others are different kinds. A model with BatchNorm has its
    running statistics as one more, by buffer name."""
    rows: dict[str, Rows] | None = None
    """By parameter name, where these are only the rows that one of several processes holds."""
    parts: dict[str, dict[str, StoredTensor]] | None = None
    """The same tensors as files of several processes hold them, read when they are needed."""

    @property
    def whole(self) -> Mapping[str, Mapping[str, Sliceable]]:
        """The tensors, however they are stored."""
        return self.tensors if self.parts is None else self.parts


def save_checkpoint(folder: Path, checkpoint: Checkpoint, *, keep: int, processes: Processes | None = None) -> Path:
    """Writes a checkpoint below `folder` and removes all but the newest `keep` up to its step.

    Later ones that stand there were refused when the run was resumed; each is replaced when its step comes again. Of
    several processes each writes its own rows, into a folder that all can see; the first one does the rest.

    Raises:
        TransduceError: it cannot be written, in all processes where one of them cannot; earlier checkpoints are
            untouched.
    """
    together = processes or Processes()
    final = folder / f"{_PREFIX}{checkpoint.state.step:09d}"
    if together.share(_is_sound(final), bool):
        return final
    partial = folder / f"{_PARTIAL}{final.name}"
    try:
        _do_together(lambda: _begin(partial), together, alone=True)
        _do_together(lambda: _write_tensors(partial, checkpoint, together), together)
        _do_together(lambda: _complete(partial, final, checkpoint.state), together, alone=True)
    except (OSError, SafetensorError) as error:
        if together.is_first:
            shutil.rmtree(partial, ignore_errors=True)
        raise TransduceError(
            f"The checkpoint {final} could not be written ({error}); earlier checkpoints are untouched: make room or "
            "mend the folder, then go on with --resume."
        ) from error
    if together.is_first:
        for old in [path for path in checkpoints(folder) if path.name <= final.name][keep:]:
            _remove(old)
    together.wait()
    return final


def _do_together(act: Callable[[], None], processes: Processes, *, alone: bool = False) -> None:
    """Returns when all processes have acted, or the first one `alone`; where one of them fails all of them do.

    Otherwise those that did not would wait for one that went on without them.

    Raises:
        OSError: it cannot be done here, or in another process.
        SafetensorError: it cannot be done here.
    """
    failure: OSError | SafetensorError | None = None
    if processes.is_first or not alone:
        try:
            act()
        except (OSError, SafetensorError) as error:
            failure = error
    (failures,) = processes.sum([float(failure is not None)])
    if failures:
        raise failure or OSError("another process could not write its part")


def _begin(partial: Path) -> None:
    """An empty folder to write to."""
    _remove_leftovers(partial.parent)
    partial.mkdir(parents=True)


def _remove(checkpoint: Path) -> None:
    """Deletes a checkpoint, which first loses its name, so that half of one is never taken for a damaged one."""
    removed = checkpoint.with_name(f"{_REMOVED}{checkpoint.name}")
    os.rename(checkpoint, removed)
    shutil.rmtree(removed, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """What a run left that was killed while it saved or deleted."""
    if folder.is_dir():
        for path in [path for path in folder.iterdir() if path.name.startswith((_PARTIAL, _REMOVED))]:
            shutil.rmtree(path, ignore_errors=True)


def _is_sound(path: Path) -> bool:
    """Whether this step was saved already. A damaged folder of that name may be replaced, a sound one never is."""
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


def _complete(folder: Path, final: Path, state: RunState) -> None:
    """The state, and the digests of all files, which stand for each other from here on; then the folder's name."""
    path = folder / "state.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    for tensors in folder.glob("*.safetensors"):
        shutil.copymode(path, tensors)  # safetensors lets the owner alone read
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


def newest_state(folder: Path) -> RunState | None:
    """The state of the newest checkpoint that tells one, for what must be known before the tensors are needed."""
    for path in checkpoints(folder):
        try:
            return load_state(path)
        except TransduceError:
            continue
    return None


def load_state(path: Path) -> RunState:
    """Reads the state of a checkpoint alone, which says nothing about whether the rest of it is sound.

    Raises:
        TransduceError: it is damaged, or was written by a version that this one cannot read.
    """
    try:
        content = (path / "state.json").read_bytes()
        version = msgspec.json.decode(content, type=_Version).format_version
        if version not in _READABLE:
            raise TransduceError(
                f"The checkpoint {path} has format {version}, and this version reads {FORMAT_VERSION} and before."
            )
        return msgspec.json.decode(content, type=RunState)
    except (OSError, msgspec.MsgspecError) as error:
        raise TransduceError(f"The checkpoint {path} is damaged: {error}.") from error


def _kind(name: str) -> str:
    """`weights` of `weights.safetensors` and of `weights.00001-of-00002.safetensors`."""
    return name.split(".", maxsplit=1)[0]


def _open_parts(folder: Path, names: Sequence[str]) -> dict[str, dict[str, StoredTensor]]:
    kinds = dict.fromkeys(_kind(name) for name in names)
    return {kind: open_parts([folder / name for name in names if _kind(name) == kind]) for kind in kinds}


class _Version(msgspec.Struct):
    format_version: int


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
        state = load_state(path)
        names = sorted(name for name in digests if name.endswith(".safetensors"))
        if any(_kind(name) != name.removesuffix(".safetensors") for name in names):
            return Checkpoint(state, {}, parts=_open_parts(path, names))
        return Checkpoint(state, {_kind(name): load_file(path / name) for name in names})
    except (OSError, msgspec.MsgspecError, SafetensorError) as error:
        raise TransduceError(f"The checkpoint {path} is damaged: {error}.") from error


def check_kinds(checkpoint: Checkpoint, wanted: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Compares what a checkpoint holds with the tensors by kind and name that a run needs.

    Raises:
        TransduceError: it is of another model.
    """
    for kind, tensors in wanted.items():
        if checkpoint.whole.get(kind, {}).keys() != tensors.keys():
            raise TransduceError(
                f"The checkpoint of step {checkpoint.state.step} does not hold the tensors of this run's model: {kind} "
                "is another: go on in the folder of the run that wrote it, or start afresh in a new one."
            )
