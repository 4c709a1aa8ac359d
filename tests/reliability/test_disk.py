"""Test full disks and insufficient memory: a one-sentence error, and nothing saved is lost."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce.atomic_io import open_atomically, write_file
from transduce.errors import TransduceError
from transduce.training.events import EventLog, TrainEvent, ValidationEvent
from transduce.training.memory import explain_step_out_of_memory

SOURCES = Path(__file__).resolve().parents[2] / "src"


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the size of files within the context, so that writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Disk:
    """A training run whose disk is full from one step on, until another."""

    def __init__(self, tiny_run: Any, folder: Path, *, full_at: int, room_at: int, **changes: object) -> None:
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.full_at, self.room_at = full_at, room_at
        self.run = tiny_run(folder, corrupt=self._watch, **changes)

    def _watch(self, position: int, loss: Any) -> Any:
        full = self.full_at <= position + 1 < self.room_at
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 if full else self.limits[0], self.limits[1]))
        return loss

    def train(self) -> Any:
        try:
            return self.run.trainer.run()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)


def steps_of(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_a_disk_that_is_full_for_a_while_ends_nothing(tmp_path: Path, tiny_run: Any) -> None:
    whole = tiny_run(tmp_path / "whole", steps=12, save_every=2)
    whole.trainer.run()
    disk = Disk(tiny_run, tmp_path / "full", full_at=5, room_at=9, steps=12, save_every=2)
    assert disk.train().reason == "finished"
    printed = disk.run.output.getvalue()
    for step in (6, 8):
        assert f"step-{step:09d} could not be written (" in printed
    assert printed.count("free space or repair the folder") == 2
    assert "Training goes on." in printed
    assert steps_of(tmp_path / "full") == ["step-000000010", "step-000000012"]
    assert torch.equal(disk.run.weights(), whole.weights())
    events = [(tmp_path / name / "metrics.jsonl").read_text("utf-8").count("\n") for name in ("whole", "full")]
    assert events == [12, 12]  # those of the full disk waited


def test_a_full_disk_keeps_the_earlier_checkpoint_and_the_run_resumes(tmp_path: Path, tiny_run: Any) -> None:
    disk = Disk(tiny_run, tmp_path, full_at=5, room_at=99, steps=8, save_every=4)
    with pytest.raises(TransduceError, match=r"step-000000008 could not be written .*earlier checkpoints are un"):
        disk.train()
    assert steps_of(tmp_path) == ["step-000000004"]  # and nothing half-written
    resumed = tiny_run(tmp_path, steps=8, save_every=4)
    assert resumed.trainer.resume()
    assert resumed.trainer.step == 4
    assert resumed.trainer.run().step == 8


def test_a_model_that_cannot_be_written_is_not_the_best(tmp_path: Path, tiny_run: Any) -> None:
    """The folder keeps the previous model; a later model that is worse than the lost one replaces it."""
    losses = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.5}
    kept: list[int] = []

    def validate(_: Mapping[str, Tensor], step: int) -> ValidationEvent:
        return ValidationEvent(step=step, loss=losses[step], perplexity=1.0)

    def keep(_: Mapping[str, Tensor], event: ValidationEvent) -> None:
        if event.step == 4:
            raise OSError(28, "No space left on device")
        kept.append(event.step)

    run = tiny_run(tmp_path, steps=8, validate_every=2, options={"validate": validate, "keep_model": keep})
    result = run.trainer.run()
    assert kept == [2, 6]
    assert (result.best_step, result.best_value) == (6, -2.0)
    assert "The model of step 4 could not be written ([Errno 28] No space left on device)" in run.output.getvalue()


def test_failing_to_write_the_last_model_is_an_error(tmp_path: Path, tiny_run: Any) -> None:
    def keep(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run = tiny_run(tmp_path, steps=2, validate_every=2, options={"keep_model": keep})
    with pytest.raises(OSError, match="No space left"):
        run.trainer.run()


def test_a_file_that_cannot_be_replaced_stays_and_leaves_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"before")
    with largest_file(1000), pytest.raises(OSError, match="File too large") as failure:
        write_file(path, b"after" * 1000)
    assert failure.value.filename == str(path)
    assert path.read_bytes() == b"before"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
@pytest.mark.parametrize("what", ["translate", "standard output", "prepare"])
def test_a_full_disk_is_reported_with_the_file_in_one_sentence(
    trained: Path, toy_corpus: Path, tmp_path: Path, what: str
) -> None:
    source, target, out = toy_corpus / "train.zh", toy_corpus / "train.en", tmp_path / "out"
    command = f"translate {trained} {source} --beam-size 1 --threads 1 "
    if what == "prepare":
        command = f"prepare --source {source} --target {target} --out {out} --tokenizer {trained}"
    command += {"translate": f"--output {out}", "standard output": "> /dev/full"}.get(what, "")
    done = subprocess.run(
        ["sh", "-c", f"ulimit -f 1; {sys.executable} -B -m transduce {command}"],
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    place = {"translate": f"{out}.partial", "standard output": "standard output"}.get(what, str(tmp_path))
    assert f"transduce: A file or folder could not be used: {place}" in done.stderr
    assert "Free disk space" not in done.stderr  # which would not help
    assert ("transduce: Raise the limit on the size of a file" in done.stderr) == (what != "standard output")


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
@pytest.mark.parametrize("unbuffered", [True, False])
@pytest.mark.parametrize("command", ["--help", "--version", "help train", "translate --help", "check-install"])
def test_a_full_standard_output_fails_with_one_line(command: str, unbuffered: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -B -m transduce {command} > /dev/full"],
        env=environment | {"PYTHONPATH": str(SOURCES)} | ({"PYTHONUNBUFFERED": "1"} if unbuffered else {}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == ("transduce: A file or folder could not be used: standard output: No space left on device.\n")


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_a_file_behind_links_is_replaced_only_when_it_is_complete(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    real, link, outer = tmp_path / "disk" / "real", tmp_path / "link", tmp_path / "outer"
    link.symlink_to("disk/real")
    outer.symlink_to(link)
    write_file(outer, b"new")  # where no file is yet
    assert real.read_bytes() == b"new"
    with open_atomically(outer) as file:
        file.write(b"half")
        file.flush()
        assert real.read_bytes() == b"new"
        with pytest.raises(TransduceError, match="Another process is writing"), open_atomically(real):
            pass
    assert real.read_bytes() == b"half"
    with largest_file(100), pytest.raises(OSError, match="File too large"), open_atomically(link) as file:
        file.write(bytes(1000))
    with largest_file(100), pytest.raises(OSError, match="File too large"):
        write_file(link, bytes(1000))
    assert real.read_bytes() == b"half"
    assert link.is_symlink()
    assert outer.is_symlink()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["disk", "link", "outer", "real"]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
def test_links_that_lead_to_no_replaceable_file_are_left_alone(tmp_path: Path) -> None:
    circle, descriptor = tmp_path / "circle", tmp_path / "descriptor"
    circle.symlink_to("circle")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        write_file(circle, b"new")
    assert circle.is_symlink()
    if sys.platform == "linux":  # /dev/stdout is such a link; the file must stay the one that is open
        with (tmp_path / "open").open("wb") as file:
            descriptor.symlink_to(f"/proc/self/fd/{file.fileno()}")
            before = (tmp_path / "open").stat().st_ino
            write_file(descriptor, b"new")
        assert (tmp_path / "open").stat().st_ino == before
        assert (tmp_path / "open").read_bytes() == b"new"


def test_a_half_written_log_line_is_completed_by_the_next_write(tmp_path: Path) -> None:
    event = TrainEvent(
        step=1,
        epoch=0.1,
        loss=1.0,
        perplexity=2.0,
        learning_rate=0.1,
        gradient_norm=1.0,
        tokens_per_second=1.0,
        elapsed_seconds=1.0,
        skipped=0,
    )
    log = EventLog(tmp_path, resume_at=0)
    with largest_file(60):
        log.write(event)
    assert (tmp_path / "metrics.jsonl").stat().st_size == 60
    log.write(event)
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_bytes().split(b"\n")
    assert lines[0] == lines[1]
    assert lines[2:] == [b""]


# --- memory ---


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
def test_a_batch_too_large_for_memory_is_refused_before_the_first_step(
    tmp_path: Path, toy_settings: dict[str, Any]
) -> None:
    """The process may have 300 MB more than it has when everything is loaded; the largest batch needs more."""
    settings = toy_settings | {"training.batch_tokens": 100_000, "model.d_model": 256, "model.d_ff": 2048}
    settings |= {"training.accumulate": 1}
    program = (
        "import resource, sys, transduce.tasks.run.run as run\n"
        "from transduce.tasks.train import train\n"
        "original = run.make_safeguards\n"
        "def limited(*given, **named):\n"
        "    pages = int(open('/proc/self/statm').read().split()[0])\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 300_000_000,) * 2)\n"
        "    return original(*given, **named)\n"
        "run.make_safeguards = limited\n"
        f"train(out={str(tmp_path / 'run')!r}, settings={settings!r}, device='cpu', threads=1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (
        "TransduceError: Memory ran out with the largest batch of the corpus: lower `training.batch_tokens` (100000), "
        "or raise `training.accumulate` (1)"
    ) in done.stderr
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_only_out_of_memory_errors_are_explained_as_such() -> None:
    with (
        pytest.raises(RuntimeError, match="something else"),
        explain_step_out_of_memory("a batch", "training.batch_size", 1, 1),
    ):
        raise RuntimeError("something else")
    with (
        pytest.raises(TransduceError, match=r"Memory ran out with a batch: lower `training\.batch_size` \(1\)"),
        explain_step_out_of_memory("a batch", "training.batch_size", 1, 1),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_trying_the_largest_batch_first_changes_no_weight(tmp_path: Path, tiny_run: Any) -> None:
    from transduce.training.loop import Safeguards

    weights = []
    for precision in ("fp32", "bf16"):
        for largest in ((), [(torch.ones(9, 9, dtype=torch.int64),) * 2]):
            run = tiny_run(tmp_path / f"{precision}-{len(largest)}", steps=5, precision=precision)
            run.trainer.safeguards = Safeguards(largest=largest)
            run.trainer.run()
            weights.append(run.weights())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[2], weights[3])
