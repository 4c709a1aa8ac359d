"""Test checkpoints: complete or absent, checked byte by byte, and replaced by the previous one if damaged."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from transduce.atomic_io import sync_file
from transduce.errors import TransduceError
from transduce.training import checkpoint as checkpoint_module
from transduce.training.checkpoint import (
    Best,
    Checkpoint,
    Environment,
    RunState,
    checkpoints,
    load_checkpoint,
    load_newest,
    load_state,
    newest_state,
    save_checkpoint,
)
from transduce.training.events import StepSums
from transduce.training.loss_spikes import LossWindow


def make(step: int, fill: float = 0.5) -> Checkpoint:
    state = RunState(
        step=step,
        updates=step - 1,
        steps=100,
        best=Best(value=-2.5, validations_since=1),
        elapsed_seconds=12.5,
    )
    weights = {"first": torch.full((2, 3), fill + step), "second.bias": torch.arange(4.0)}
    return Checkpoint(state, {"weights": weights, "exp_avg": {"first": torch.zeros(2, 3)}})


def names(folder: Path) -> list[str]:
    return [path.name for path in checkpoints(folder)]


def test_a_saved_checkpoint_loads_equal(tmp_path: Path) -> None:
    saved = make(7)
    loaded = load_checkpoint(save_checkpoint(tmp_path, saved, keep=2))
    assert loaded.state == saved.state
    assert loaded.tensors.keys() == saved.tensors.keys()
    for kind, tensors in saved.tensors.items():
        assert loaded.tensors[kind].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(loaded.tensors[kind][name], tensor)


def test_views_of_one_vector_can_be_saved(tmp_path: Path) -> None:
    vector = torch.arange(6.0)
    views = {"a": vector[:2], "b": vector[2:].view(2, 2)}
    path = save_checkpoint(tmp_path, Checkpoint(make(1).state, {"weights": views}), keep=1)
    loaded = load_checkpoint(path).tensors["weights"]
    assert torch.equal(loaded["b"], torch.tensor([[2.0, 3.0], [4.0, 5.0]]))


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (9, 10, 100, 1000):
        save_checkpoint(tmp_path, make(step), keep=2)
    assert names(tmp_path) == ["step-000001000", "step-000000100"]
    newest, refused = load_newest(tmp_path)
    assert newest is not None
    assert (newest.state.step, refused) == (1000, [])


def test_load_newest_of_a_missing_folder_is_none(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "missing") == (None, [])


@pytest.mark.parametrize("victim", ["weights.safetensors", "exp_avg.safetensors", "state.json"])
def test_a_changed_byte_is_detected_and_the_previous_checkpoint_loaded(tmp_path: Path, victim: str) -> None:
    save_checkpoint(tmp_path, make(10), keep=2)
    damaged = save_checkpoint(tmp_path, make(20), keep=2)
    content = bytearray((damaged / victim).read_bytes())
    content[len(content) // 2] ^= 1
    (damaged / victim).write_bytes(content)
    with pytest.raises(TransduceError, match=f"step-000000020 is damaged: {victim} is not what was written"):
        load_checkpoint(damaged)
    newest, refused = load_newest(tmp_path)
    assert newest is not None
    assert newest.state.step == 10
    assert len(refused) == 1
    assert f"{victim} is not what was written" in refused[0]


@pytest.mark.parametrize("victim", ["weights.safetensors", "state.json", "manifest.json"])
def test_a_checkpoint_with_a_missing_file_is_refused(tmp_path: Path, victim: str) -> None:
    path = save_checkpoint(tmp_path, make(10), keep=2)
    (path / victim).unlink()
    with pytest.raises(TransduceError, match=rf"step-000000010 is damaged: .*{victim}"):
        load_checkpoint(path)
    assert load_newest(tmp_path)[0] is None


def test_a_truncated_manifest_is_found(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, make(10), keep=2)
    manifest = path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:40])
    with pytest.raises(TransduceError, match=r"step-000000010 is damaged: Input data was truncated"):
        load_checkpoint(path)


def test_a_state_that_is_not_utf_8_is_damaged(tmp_path: Path) -> None:
    older, newer = (save_checkpoint(tmp_path, make(step), keep=2) for step in (10, 20))
    state = newer / "state.json"
    state.write_bytes(state.read_bytes().replace(b'"', b"\xff", 1))
    with pytest.raises(TransduceError, match="step-000000020 is damaged"):
        load_state(newer)
    assert newest_state(tmp_path) == load_state(older)


def test_a_manifest_may_not_point_elsewhere(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, make(10), keep=2)
    (path / "manifest.json").write_bytes(b'{"../secret": "0"}')
    with pytest.raises(TransduceError, match=r"is damaged: \.\./secret is not what was written"):
        load_checkpoint(path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    newer = Checkpoint(msgspec.structs.replace(make(3).state, format_version=99), make(3).tensors)
    path = save_checkpoint(tmp_path, newer, keep=2)
    with pytest.raises(TransduceError, match=r"has format 99, but this version reads formats up to 5\."):
        load_checkpoint(path)


def test_the_previous_checkpoint_format_is_read(tmp_path: Path) -> None:
    """The previous format has no sums, no window, no environment and no settings."""
    path = save_checkpoint(tmp_path, make(3), keep=2)
    state = msgspec.json.decode((path / "state.json").read_bytes())
    for name in ("validation_due", "report", "loss_window", "environment", "settings"):
        del state[name]
    replace_state(path, state | {"format_version": 1})
    assert load_checkpoint(path).state == msgspec.structs.replace(make(3).state, format_version=1)


def replace_state(path: Path, state: Mapping[str, Any]) -> None:
    content = msgspec.json.encode(state)
    (path / "state.json").write_bytes(content)
    digests = msgspec.json.decode((path / "manifest.json").read_bytes())
    digests["state.json"] = hashlib.sha256(content).hexdigest()
    (path / "manifest.json").write_bytes(msgspec.json.encode(digests))


def test_a_checkpoint_with_the_keys_of_version_0_1_is_read(tmp_path: Path) -> None:
    environment = Environment(device="cpu", instructions="x86_64", threads=2, torch="2.13")
    sums = StepSums(steps=3, negative_log_likelihood=7.5)
    losses = LossWindow(losses=[2.5, 2.0])
    settings = {"training": {"losses": 3, "cuda_graphs": True}}  # `losses` is not a renamed key
    best = Best(2, 0.5, 1.5, validations_since=4, perfect=1, highest=0.75, lowest_loss=1.25, contributions=[0.5, 0.25])
    state = msgspec.structs.replace(
        make(3).state,
        best=best,
        environment=environment,
        report=sums,
        loss_window=losses,
        settings=settings,
        format_version=4,
    )
    path = save_checkpoint(tmp_path, Checkpoint(state, make(3).tensors), keep=2)
    stored = msgspec.to_builtins(state)
    stored["settings"]["training"]["record"] = stored["settings"]["training"].pop("cuda_graphs")
    stored["surroundings"], stored["losses"] = stored.pop("environment"), stored.pop("loss_window")
    flat = {"validations_since": "validations_without_better", "perfect": "perfect_validations"}
    flat |= {"lowest_loss": "lowest_loss"}
    stored |= {flat.get(name, f"best_{name}"): value for name, value in stored.pop("best").items()}
    stored["report"]["likelihood"] = stored["report"].pop("negative_log_likelihood")
    replace_state(path, stored)
    assert load_checkpoint(path).state == state
    for name in ("best_loss", "best_highest", "best_contributions", "lowest_loss", "perfect_validations"):
        del stored[name]
    replace_state(path, stored)
    assert load_checkpoint(path).state.best == Best(2, 0.5, validations_since=4)
    replace_state(path, stored | {"best": 3})
    with pytest.raises(TransduceError, match="is damaged: Expected `object`, got `int`"):
        load_checkpoint(path)


def test_the_newest_state_is_read_without_the_tensors(tmp_path: Path) -> None:
    assert newest_state(tmp_path) is None
    for step in (10, 20, 30):
        save_checkpoint(tmp_path, make(step), keep=3)
    (tmp_path / "step-000000030" / "state.json").unlink()
    (tmp_path / "step-000000020" / "weights.safetensors").unlink()
    assert newest_state(tmp_path) == make(20).state


def test_leftovers_of_killed_runs_are_removed(tmp_path: Path) -> None:
    for name in (".partial-step-000000007", ".removed-step-000000003"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights.safetensors").write_bytes(b"half")
    save_checkpoint(tmp_path, make(10), keep=2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000010"]


def test_a_run_that_was_killed_while_saving_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, make(10), keep=2)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt  # like a kill, it runs no handler

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, make(20, fill=99.0), keep=2)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".partial-")] != []
    assert names(tmp_path) == ["step-000000010"]
    newest, refused = load_newest(tmp_path)
    assert newest is not None
    assert (newest.state.step, refused) == (10, [])
    # The next run saves the same step over what was left.
    save_checkpoint(tmp_path, make(20), keep=2)
    newest, _ = load_newest(tmp_path)
    assert newest is not None
    assert newest.tensors["weights"]["first"][0, 0] == 20.5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000010", "step-000000020"]


@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_a_kill_after_any_file_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    left = [written]

    def sync_or_die(path: Path) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        sync_file(path)

    monkeypatch.setattr(checkpoint_module, "sync_file", sync_or_die)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, make(20), keep=2)
    assert load_newest(tmp_path) == (None, [])


def test_a_sound_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, make(10), keep=2)
    path = save_checkpoint(tmp_path, make(10, fill=77.0), keep=2)
    assert load_checkpoint(path).tensors["weights"]["first"][0, 0] == 10.5


def test_a_damaged_checkpoint_is_replaced(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, make(10), keep=2)
    (path / "weights.safetensors").write_bytes(b"")
    save_checkpoint(tmp_path, make(10, fill=77.0), keep=2)
    assert load_checkpoint(path).tensors["weights"]["first"][0, 0] == 87.0


def test_a_damaged_later_checkpoint_does_not_push_out_the_one_just_written(tmp_path: Path) -> None:
    """The only checkpoint is damaged, so the run starts afresh; what it saves must stay."""
    damaged = save_checkpoint(tmp_path, make(50), keep=1)
    (damaged / "state.json").unlink()
    for step in (10, 20):
        save_checkpoint(tmp_path, make(step), keep=1)
        newest, _ = load_newest(tmp_path)
        assert newest is not None
        assert newest.state.step == step
    save_checkpoint(tmp_path, make(50), keep=1)
    assert names(tmp_path) == ["step-000000050"]


def test_a_folder_that_cannot_be_written_is_an_error_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file", encoding="utf-8")
    with pytest.raises(
        TransduceError, match=r"occupied/step-000000010 could not be written .* earlier checkpoints are untouched"
    ):
        save_checkpoint(tmp_path / "occupied", make(10), keep=2)


def test_a_full_disk_leaves_earlier_checkpoints_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, make(10), keep=1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_module, "save_file", full)
    with pytest.raises(TransduceError, match=r"No space left on device.*free space or repair the folder"):
        save_checkpoint(tmp_path, make(20), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000010"]
