"""Kill a process at every file-system call while it saves a checkpoint, and check that a sound checkpoint remains.

    python benchmarks/reliability_crash.py                   # needs strace, and Linux
    python benchmarks/reliability_crash.py --json rows.json  # the figures as a list of rows; `-` for standard output

There is one good checkpoint; then a separate process saves a later one, and strace delivers SIGKILL when it enters the
first, the second, … of each kind of call. Afterwards there must be a sound checkpoint, old or new. As a negative
control, the sweep is repeated with a saver that overwrites its files in place, as in many tutorials: it must lose the
checkpoint at some points. Because a kill is no power cut, the trace of a save is also checked for missing flushes to
disk.
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
MIN_POINTS = 25
KEPT = 1  # so that a save also deletes the previous checkpoint
Saver = Callable[[Path, Checkpoint], object]


class Call(NamedTuple):
    """One system call of a trace."""

    name: str
    arguments: str


class Sweep(NamedTuple):
    """The number of kills, and of old, new and lost checkpoints after them."""

    points: int
    old: int
    new: int
    lost: int


def make(step: int) -> Checkpoint:
    """Return a small checkpoint."""
    state = RunState(
        step=step,
        updates=step,
        steps=100,
        elapsed_seconds=1.0,
    )
    tensors = {"first": torch.full((64, 32), float(step)), "second": torch.arange(64.0)}
    return Checkpoint(state, dict.fromkeys(("weights", "exp_avg", "exp_avg_sq", "average"), tensors))


def save(folder: Path, checkpoint: Checkpoint) -> object:
    """Save a checkpoint as a training run does."""
    return save_checkpoint(folder, checkpoint, keep=KEPT)


def save_in_place(folder: Path, checkpoint: Checkpoint) -> object:
    """Save a checkpoint by overwriting the previous one's files: the negative control."""
    scratch = folder.with_name("scratch")
    made = save_checkpoint(scratch, checkpoint, keep=KEPT)
    latest = folder / "step-latest"
    latest.mkdir(parents=True, exist_ok=True)
    for path in sorted(made.iterdir()):
        (latest / path.name).write_bytes(path.read_bytes())
    shutil.rmtree(scratch)
    return latest


def traced_save(saver: Saver, folder: Path, checkpoint: Checkpoint, options: list[str]) -> int:
    """Save in a child process traced by strace; return its exit status, negative if a signal ended it."""
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
    """Return all file-system calls of a save, in order."""
    path = folder.with_name("trace.txt")
    assert traced_save(saver, folder, checkpoint, ["-o", str(path)]) == 0
    lines = path.read_text(encoding="utf-8").split("\n")
    found = [re.match(r"(?:\d+ +)?(\w+)\((.*)", line) for line in lines]
    calls = [Call(match[1], match[2]) for match in found if match]
    return [call for call in calls if call.name in CALLS]


def sweep(saver: Saver, folder: Path) -> Sweep:
    """Kill a save at each of its calls, and count the remaining checkpoints."""
    shutil.rmtree(folder, ignore_errors=True)
    base = folder / "base"
    saver(base, make(10))
    shutil.copytree(base, folder / "counted")
    counts = Counter(call.name for call in trace(saver, folder / "counted", make(20)))
    remaining: Counter[int | None] = Counter()
    for name, count in counts.items():
        for number in range(1, count + 1):
            killed = folder / f"{name}-{number}" / "checkpoints"
            shutil.copytree(base, killed)
            inject = f"inject={name}:signal=SIGKILL:when={number}"
            status = traced_save(saver, killed, make(20), ["-o", os.devnull, "-e", inject])
            assert status == -9, f"the save was not killed at {name} {number}, but ended with {status}"
            newest, _ = load_newest(killed)
            remaining[None if newest is None else newest.state.step] += 1
            shutil.rmtree(killed.parent)
    return Sweep(sum(counts.values()), remaining[10], remaining[20], remaining[None])


def unsynced(calls: list[Call], final: Path) -> list[str]:
    """Return the files and folders that a save does not flush to disk at the right time around the rename."""
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
    """Run both sweeps and check the trace; return rows."""
    ours, control = sweep(save, folder / "ours"), sweep(save_in_place, folder / "control")
    checkpoints = folder / "traced" / "checkpoints"
    checkpoints.parent.mkdir()
    calls = trace(save, checkpoints, make(20))
    missing = unsynced(calls, checkpoints / "step-000000020")
    for line in missing:
        sys.stderr.write(f"not flushed: {line}\n")
    without_fsync = unsynced([call for call in calls if call.name != "fsync"], checkpoints / "step-000000020")
    enough = ours.points >= MIN_POINTS
    return [
        Row("points at which a save was killed", ours.points, "calls", bar=f">= {MIN_POINTS}", holds=enough),
        Row("of these, nothing left to resume from", ours.lost, "points", bar="0", holds=ours.lost == 0),
        Row("of these, the older checkpoint is found", ours.old, "points"),
        Row("of these, the newer checkpoint is found", ours.new, "points"),
        Row("saving in place: killed", control.points, "calls"),
        Row("saving in place: nothing left", control.lost, "points", bar="> 0", holds=control.lost > 0),
        Row("not flushed when renamed", len(missing), "files", bar="0", holds=not missing),
        Row(
            "the same trace without its fsync calls",
            len(without_fsync),
            "files",
            bar="> 0",
            holds=len(without_fsync) > 0,
        ),
    ]


def main() -> int:
    """Run the benchmark, report its rows, and return 1 if a bar is missed."""
    options = parser(__doc__).parse_args()
    if shutil.which("strace") is None:
        raise SystemExit("The sweep needs strace: install it (apt-get install strace).")
    torch.set_num_threads(1)
    sys.stderr.write(f"{machine()}\n")
    with tempfile.TemporaryDirectory() as folder:
        return report(measure(Path(folder).resolve()), options.json)


if __name__ == "__main__":
    sys.exit(main())
