"""Test training and translating in several threads or forked processes: the results of one thread, or a refusal."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from transduce.errors import TransduceError
from transduce.inference.load import load
from transduce.kernels.select import has_kernels
from transduce.model.backend import backend_in_use, using_backend
from transduce.tasks.train import train

SOURCES = Path(__file__).resolve().parents[2] / "src"
THREADS = 2


@pytest.fixture
def settings(toy_settings: dict[str, Any]) -> dict[str, Any]:
    short = {"training.steps": 12, "training.validate_every": 6}
    return toy_settings | short | ({"training.kernels": "native"} if has_kernels() else {})


def run(out: Path, settings: dict[str, Any], seed: int = 1) -> bytes:
    train(out=out, settings=settings, seed=seed, device="cpu", threads=1)
    return (out / "model.safetensors").read_bytes()


def test_a_second_training_run_in_another_thread_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    before = torch.get_num_threads()
    alone = run(tmp_path / "alone", settings)
    assert torch.get_num_threads() == before
    found: dict[str, Any] = {}

    def try_to(name: str) -> None:
        try:
            found[name] = run(tmp_path / name, settings)
        except TransduceError as error:
            found[name] = str(error)

    threads = [threading.Thread(target=try_to, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [outcome for outcome in found.values() if isinstance(outcome, str)]
    assert [outcome for outcome in found.values() if isinstance(outcome, bytes)] == [alone]
    assert len(refused) == 1
    assert refused[0].startswith("A process trains one model at a time, as all threads share PyTorch's random numbers")
    assert run(tmp_path / "again", settings) == alone


def test_translating_beside_training_changes_neither(settings: dict[str, Any], tmp_path: Path) -> None:
    alone = run(tmp_path / "alone", settings)
    lines = ["我 爱 你 。", "他 看 书 。", "你 好"] * 4
    translator: Any = load(tmp_path / "alone", device="cpu", threads=1)
    expected = translator(lines)
    ended, found = threading.Event(), []

    def translate() -> None:
        while not ended.is_set():
            loaded: Any = load(tmp_path / "alone", device="cpu", threads=1)
            found.append(loaded(lines))
            found.append(translator(lines))

    thread = threading.Thread(target=translate)
    thread.start()
    try:
        assert run(tmp_path / "beside", settings) == alone
    finally:
        ended.set()
        thread.join()
    assert len(found) >= 2
    assert all(each == expected for each in found)


def test_two_translators_in_two_threads_translate_as_alone(settings: dict[str, Any], tmp_path: Path) -> None:
    lines = ["我 爱 你 。", "他 看 书 。", "你 好"] * 20
    folders = [tmp_path / "one", tmp_path / "two"]
    for seed, folder in enumerate(folders, 1):
        run(folder, settings, seed)
    translators: list[Any] = [load(folder, device="cpu", threads=1) for folder in folders]
    expected = [translator(lines) for translator in translators]
    found: list[list[list[str]]] = [[], []]

    def translate(number: int) -> None:
        for _ in range(3):
            found[number].append(translators[number](lines))

    threads = [threading.Thread(target=translate, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[expected[0]] * 3, [expected[1]] * 3]


def test_only_one_thread_has_a_training_backend() -> None:
    kernels: Any = object()
    found: list[Any] = []

    def use() -> None:
        found.append(backend_in_use())
        with using_backend(None):
            found.append(backend_in_use())
        try:
            with using_backend(kernels):
                found.append("two")
        except TransduceError as error:
            found.append(str(error))

    with using_backend(kernels):
        thread = threading.Thread(target=use)
        thread.start()
        thread.join()
        assert backend_in_use() is kernels
        with using_backend(None):
            assert backend_in_use() is None
        assert backend_in_use() is kernels
    assert backend_in_use() is None
    assert found[:2] == [None, None]
    assert found[2].startswith("Only one thread of a process can train with our kernels at a time")


FORKED = """
import os, sys, torch
from transduce.machine import detect_machine
from transduce.errors import TransduceError
torch.set_num_threads(2)
expected = torch.nn.functional.softmax(torch.ones(4000, 400), -1)  # starts OpenMP's threads
child = os.fork()
if child == 0:
    found = torch.nn.functional.softmax(torch.ones(4000, 400), -1)
    assert torch.equal(found, expected)
    assert detect_machine("cpu").threads == 1
    try:
        detect_machine("cpu", 2)
    except TransduceError as error:
        print(error, flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert torch.get_num_threads() == 2
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems' OpenMP survives a fork")
def test_a_forked_process_computes_on_one_thread_instead_of_waiting_forever() -> None:
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.startswith("`threads` must be 1 in a process forked from one that computed on several threads")
