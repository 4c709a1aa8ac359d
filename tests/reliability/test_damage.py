"""Test sixty damaged checkpoints: all are refused with a reason, and the previous one is used."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError
from safetensors.torch import load_file

from transduce.errors import TransduceError
from transduce.training.checkpoint import checkpoints, load_checkpoint, load_newest

PAGE = 512
EACH = 20
Damage = Callable[[bytes, random.Random], bytes]


def truncated(content: bytes, chance: random.Random) -> bytes:
    return content[: chance.randrange(len(content))]


def zeroed(content: bytes, chance: random.Random) -> bytes:
    """Return content with one random page replaced by zeros."""
    start = chance.randrange(max(1, len(content) // PAGE)) * PAGE
    page = content[start : start + PAGE]
    return content[:start] + bytes(len(page)) + content[start + PAGE :]


def flipped(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(changed)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, tiny_run: Any) -> Path:
    """Return the folder of a run with checkpoints of steps 4 and 8."""
    folder: Path = tmp_path_factory.mktemp("saved") / "run"
    tiny_run(folder, steps=8, save_every=4).trainer.run()
    return folder


def cases() -> Iterator[tuple[Damage, int]]:
    for damage in (truncated, zeroed, flipped):
        for number in range(EACH):
            yield damage, number


def damage_one(folder: Path, damage: Damage, number: int) -> str:
    """Damage one file of the newest checkpoint, chosen by a number, and return its name."""
    newest = next(checkpoints(folder / "checkpoints"))
    files = sorted(newest.iterdir())
    path, chance = files[number % len(files)], random.Random(number)
    content = path.read_bytes()
    while (changed := damage(content, chance)) == content:
        pass
    path.write_bytes(changed)
    return path.name


@pytest.mark.parametrize("damage", [truncated, zeroed, flipped], ids=lambda damage: damage.__name__)
def test_every_damaged_checkpoint_is_refused_and_the_one_before_taken(
    saved: Path, tmp_path: Path, damage: Damage
) -> None:
    names = set()
    for number in range(EACH):
        folder = tmp_path / str(number)
        shutil.copytree(saved, folder)
        names.add(damage_one(folder, damage, number))
        newest, refused = load_newest(folder / "checkpoints")
        assert newest is not None
        assert newest.state.step == 4
        assert len(refused) == 1
        assert "step-000000008 is damaged: " in refused[0]
    assert names == {path.name for path in next(checkpoints(saved / "checkpoints")).iterdir()}  # each kind of file


def test_a_resumed_run_names_the_damaged_checkpoint_that_it_skips(saved: Path, tmp_path: Path, tiny_run: Any) -> None:
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    name = damage_one(folder, flipped, 0)
    resumed = tiny_run(folder, steps=8)
    assert resumed.trainer.resume()
    assert resumed.trainer.step == 4
    assert f"step-000000008 is damaged: {name} is not what was written." in resumed.output.getvalue()


def test_without_digests_most_damage_is_not_detected(saved: Path, tmp_path: Path) -> None:
    """The negative control: safetensors alone takes most changed tensors for good ones."""
    passed = 0
    for number, (damage, seed) in enumerate(cases()):
        folder = tmp_path / str(number)
        shutil.copytree(saved, folder)
        name = damage_one(folder, damage, seed)
        newest = next(checkpoints(folder / "checkpoints"))
        if name.endswith(".safetensors"):
            try:
                load_file(newest / name)
                passed += 1
            except SafetensorError:
                pass
    assert passed >= 10


def test_a_damaged_checkpoint_that_is_the_only_one_leaves_nothing(saved: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(saved, folder)
    newest, oldest = checkpoints(folder / "checkpoints")
    shutil.rmtree(oldest)
    damage_one(folder, flipped, 0)
    with pytest.raises(TransduceError, match="step-000000008 is damaged"):
        load_checkpoint(newest)
    assert load_newest(folder / "checkpoints")[0] is None


def test_a_checkpoint_of_another_model_is_refused(saved: Path, tiny_run: Any) -> None:
    newest = next(checkpoints(saved / "checkpoints"))
    found = load_checkpoint(newest)
    del found.tensors["average"]
    other = tiny_run(saved.parent / "other")
    with pytest.raises(TransduceError, match=r"does not hold the tensors of this run's model: .*average"):
        other.trainer.resume_from(found)
