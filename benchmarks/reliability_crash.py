"""A process that saves a checkpoint is killed at every one of its file-system calls. What can be resumed from?

    python benchmarks/reliability_crash.py                   # needs strace, and Linux
    python benchmarks/reliability_crash.py --json rows.json  # the figures as a list of rows; `-` for standard output

There is one good checkpoint; then one of a later step is saved by a process of its own, and strace delivers SIGKILL as
it enters the first, the second, … of each kind of call. Afterwards there must be a sound checkpoint, the old or the
new one. The same is done with a saver that overwrites its files in place, as many tutorials do: it must lose the
checkpoint at some points, or the sweep proves nothing. A kill is no power cut: what must be on the disk by when is read
from the trace of a save.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from report import Row, machine, parser, report

from transduce.training.checkpoint import Checkpoint, RunState, load_newest, save_checkpoint

CALLS = (
    *("open", "openat", "creat", "mkdir", "mkdirat", "rmdir", "link", "linkat", "unlink", "unlinkat"),
    *("write", "pwrite64", "writev", "ftruncate", "fallocate", "copy_file_range", "fsync", "fdatasync"),
    *("rename", "renameat", "renameat2", "chmod", "fchmod", "fchmodat"),
)
FEWEST_POINTS = 25
KEPT = 1  # so that a save deletes the one before, too
Saver = Callable[[Path, Checkpoint], object]


class Call(NamedTuple):
    """One line of a trace."""

    name: str
    arguments: str


class Sweep(NamedTuple):
    """What was found after each kill."""

    points: int
    old: int
    new: int
    lost: int


def make(step: int) -> Checkpoint:
    """A small checkpoint."""
    state = RunState(
        step=step,
        updates=step,
        steps=100,
        best_step=None,
        best_value=None,
        validations_without_better=0,
        elapsed_seconds=1.0,
    )
    tensors = {"first": torch.full((64, 32), float(step)), "second": torch.arange(64.0)}
    return Checkpoint(state, dict.fromkeys(("weights", "exp_avg", "exp_avg_sq", "average"), tensors))


def save(folder: Path, checkpoint: Checkpoint) -> object:
    """As a run does."""
    return save_checkpoint(folder, checkpoint, keep=KEPT)


def save_in_place(folder: Path, checkpoint: Checkpoint) -> object:
    """The negative control: the same files, each written over the last one of its name."""
    scratch = folder.with_name("scratch")
    made = save_checkpoint(scratch, checkpoint, keep=KEPT)
    latest = folder / "step-latest"
    latest.mkdir(parents=True, exist_ok=True)
    for path in sorted(made.iterdir()):
        (latest / path.name).write_bytes(path.read_bytes())
    shutil.rmtree(scratch)
    return latest


def traced_save(saver: Saver, folder: Path, checkpoint: Checkpoint, options: list[str]) -> int:
    """Saves in a process that strace watches; its exit status, negative where a signal ended it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        saver(folder, checkpoint)
        os._exit(0)
    os.close(reader)
    wanted = ",".join(f"?{name}" for name in CALLS)
    command = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={wanted}", *options, "-p", str(child)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as watcher:
        assert watcher.stderr is not None
        attached = "attached" in watcher.stderr.readline()
        os.write(writer, b"x")
        os.close(writer)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        watcher.communicate()
    if not attached:
        raise SystemExit("strace may not watch processes here: run this where ptrace is allowed.")
    return status


def trace(saver: Saver, folder: Path, checkpoint: Checkpoint) -> list[Call]:
    """All file-system calls of a save, in order."""
    path = folder.with_name("trace.txt")
    assert traced_save(saver, folder, checkpoint, ["-o", str(path)]) == 0
    lines = path.read_text(encoding="utf-8").split("\n")
    found = [re.match(r"(?:\d+ +)?(\w+)\((.*)", line) for line in lines]
    calls = [Call(match[1], match[2]) for match in found if match]
    return [call for call in calls if call.name in CALLS]


def sweep(saver: Saver, folder: Path) -> Sweep:
    """Kills a save at each of its calls."""
    shutil.rmtree(folder, ignore_errors=True)
    base = folder / "base"
    saver(base, make(10))
    shutil.copytree(base, folder / "counted")
    counts = Counter(call.name for call in trace(saver, folder / "counted", make(20)))
    found: Counter[int | None] = Counter()
    for name, count in counts.items():
        for number in range(1, count + 1):
            killed = folder / f"{name}-{number}" / "checkpoints"
            shutil.copytree(base, killed)
            inject = f"inject={name}:signal=SIGKILL:when={number}"
            status = traced_save(saver, killed, make(20), ["-o", os.devnull, "-e", inject])
            assert status == -9, f"the save was not killed at {name} {number}, but ended with {status}"
            newest, _ = load_newest(killed)
            found[None if newest is None else newest.state.step] += 1
            shutil.rmtree(killed.parent)
    return Sweep(sum(counts.values()), found[10], found[20], found[None])


def unsynced(calls: list[Call], final: Path) -> list[str]:
    """What is not sure to be on the disk when the checkpoint gets its name, or when it has it."""
    partial = final.with_name(f".partial-{final.name}")
    named = next(n for n, call in enumerate(calls) if "rename" in call.name and f'"{final}"' in call.arguments)
    missing = [
        f"{name} before the rename"
        for name in (path.name for path in final.iterdir())
        if not _synced_after_writing(calls[:named], partial / name)
    ]
    entries = [n for n, call in enumerate(calls[:named]) if _makes_entry(call, partial)]
    if not any(_syncs(call, partial) for call in calls[max(entries) + 1 : named]):
        missing.append("the folder before the rename")
    if not any(_syncs(call, final.parent) for call in calls[named + 1 :]):
        missing.append("the parent folder after the rename")
    return missing


def _synced_after_writing(calls: list[Call], path: Path) -> bool:
    written = [n for n, call in enumerate(calls) if call.name == "write" and f"<{path}>" in call.arguments]
    return any(_syncs(call, path) for call in calls[max(written, default=-1) + 1 :])


def _syncs(call: Call, path: Path) -> bool:
    return call.name == "fsync" and f"<{path}>" in call.arguments


def _makes_entry(call: Call, folder: Path) -> bool:
    return f'"{folder}/' in call.arguments and ("rename" in call.name or "O_CREAT" in call.arguments)


def measure(folder: Path) -> list[Row]:
    """Both sweeps, and what the trace says."""
    ours, control = sweep(save, folder / "ours"), sweep(save_in_place, folder / "control")
    checkpoints = folder / "traced" / "checkpoints"
    checkpoints.parent.mkdir()
    calls = trace(save, checkpoints, make(20))
    missing = unsynced(calls, checkpoints / "step-000000020")
    for line in missing:
        sys.stderr.write(f"not flushed: {line}\n")
    blind = unsynced([call for call in calls if call.name != "fsync"], checkpoints / "step-000000020")
    enough = ours.points >= FEWEST_POINTS
    return [
        Row("points at which a save was killed", ours.points, "calls", bar=f">= {FEWEST_POINTS}", holds=enough),
        Row("of these, nothing left to resume from", ours.lost, "points", bar="0", holds=ours.lost == 0),
        Row("of these, the older checkpoint is found", ours.old, "points"),
        Row("of these, the newer checkpoint is found", ours.new, "points"),
        Row("saving in place: killed", control.points, "calls"),
        Row("saving in place: nothing left", control.lost, "points", bar="> 0", holds=control.lost > 0),
        Row("not flushed when renamed", len(missing), "files", bar="0", holds=not missing),
        Row("the same trace without its fsync calls", len(blind), "files", bar="> 0", holds=len(blind) > 0),
    ]


def main() -> int:
    """Measures, prints and writes; 1 where a bar is missed."""
    options = parser(__doc__).parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("The sweep needs strace: install it (apt-get install strace).")
    torch.set_num_threads(1)
    sys.stderr.write(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        return report(measure(Path(folder).resolve()), options.json)


if __name__ == "__main__":
    sys.exit(main())
