"""Test which kernels a run trains with: selected, reported, and refused if there are none."""

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from transduce.errors import TransduceError
from transduce.kernels.select import has_kernels, kernels_for_training, why_no_kernels, why_no_triton
from transduce.machine import detect_machine
from transduce.model.backend import backend_in_use
from transduce.model.config import ModelConfig
from transduce.model_folder.read import SETTINGS_FILE
from transduce.tasks.run.resolving import check_training
from transduce.tasks.run.run_folder import read_stored
from transduce.tasks.settings.reading import make_settings as check_settings
from transduce.tasks.train import train
from transduce.training.choices import Choice, choose_cuda_graphs, choose_kernels
from transduce.training.settings import Kernels, TrainingSettings


def absent(_: str) -> str:
    raise importlib.metadata.PackageNotFoundError


@pytest.fixture
def uncached() -> Iterator[None]:
    """Clear the cached choice of kernels before and after a test that simulates other machines."""
    why_no_kernels.cache_clear()
    yield
    why_no_kernels.cache_clear()


@pytest.mark.usefixtures("uncached")
def test_without_llvmlite_pytorchs_kernels_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert choose_kernels("cpu", 1) == Choice("torch", "llvmlite is not installed (pip install 'transduce[fast]')")


@pytest.mark.usefixtures("uncached")
def test_with_an_old_llvmlite_pytorchs_kernels_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other packages hold it back; what it lacks must not be imported."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.43.0")
    monkeypatch.setitem(sys.modules, "transduce.kernels.cpu.jit.compiler", None)
    wanted = Choice("torch", "llvmlite 0.43.0 is too old (pip install 'transduce[fast]')")
    assert choose_kernels("cpu", 2) == wanted
    assert not has_kernels()


def test_on_a_gpu_kernels_need_triton_and_a_c_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.training.choices.why_no_triton", why_no_triton.__wrapped__)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert choose_kernels("cuda", 1) == Choice("torch", "the package triton is not installed")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert choose_kernels("cuda", 1).reason == "there is no C compiler for triton: install gcc"
    monkeypatch.setattr("shutil.which", {"gcc": "/usr/bin/gcc"}.get)
    monkeypatch.setattr("sysconfig.get_path", lambda _: "/nowhere")
    assert choose_kernels("cuda", 1).reason == "there is no Python.h for triton: install Python's headers"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (7, 5))
    assert choose_kernels("cuda", 1) == Choice(
        "torch", "the kernels need an NVIDIA GPU of the Ampere generation or later"
    )
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr("transduce.kernels.select.why_triton_fails", lambda _: "no ptxas")
    assert choose_kernels("cuda", 1) == Choice("torch", "no ptxas")
    monkeypatch.setattr("transduce.kernels.select.why_triton_fails", lambda _: None)
    assert choose_kernels("cuda", 1).value == "native"
    assert choose_kernels("cuda", 1, compiled=True).value == "torch"


def test_training_kernels_torch_loads_no_kernels() -> None:
    assert kernels_for_training("torch", "cpu") is None
    assert kernels_for_training("torch", "cuda") is None


def test_compile_and_native_kernels_together_are_refused() -> None:
    wanted = "`training.compile` and `training.kernels` = native do not go together"
    with pytest.raises(TransduceError, match=wanted):
        TrainingSettings(compile=True, kernels="native")


def test_native_kernels_are_refused_with_the_reason_if_unavailable(
    toy_settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.training.choices.why_no_kernels", lambda _: "there are none")
    settings = toy_settings | {"training.kernels": "native"}
    wanted = "`training.kernels` is native, but there are none: change that, or use --set training.kernels=torch"
    with pytest.raises(TransduceError, match=wanted):
        train(out=tmp_path / "m", settings=settings, device="cpu", threads=1)
    assert not (tmp_path / "m").exists()


def test_recorded_steps_are_refused_without_a_gpu(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    settings = toy_settings | {"training.cuda_graphs": True}
    with pytest.raises(TransduceError, match=r"`training.cuda_graphs` is true, but there is no GPU: leave it out"):
        train(out=tmp_path / "m", settings=settings, device="cpu", threads=1)
    assert not (tmp_path / "m").exists()


def test_recorded_steps_are_refused_with_pytorchs_kernels() -> None:
    settings = check_settings({"training": {"cuda_graphs": True, "kernels": "torch"}})
    machine = msgspec.structs.replace(detect_machine("cpu"), device="cuda")
    with pytest.raises(
        TransduceError, match=r"`training.cuda_graphs` is true, but `training.kernels` is torch: leave it"
    ):
        check_training(settings, ModelConfig(source_vocabulary_size=9, target_vocabulary_size=9), machine)


def test_recorded_steps_are_refused_for_tasks_without_packed_batches(
    toy_settings: dict[str, Any], tmp_path: Path
) -> None:
    ignored = ("model.num_encoder_layers", *TARGETS)
    settings = {name: value for name, value in toy_settings.items() if name not in ignored}
    settings |= {"task.kind": "language-model", "training.cuda_graphs": True}
    with pytest.raises(TransduceError, match=r"but `task.kind` = language-model does not support recorded steps"):
        train(out=tmp_path / "m", settings=settings, device="cpu", threads=1)


def test_a_run_with_recorded_steps_resumes_without_a_gpu(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    short = {"training.steps": 4, "training.save_every": 2, "training.validate_every": 4, "training.translate_dev": 0}
    train(out=tmp_path / "m", settings=toy_settings | short, device="cpu", threads=1)
    stored = tmp_path / "m" / SETTINGS_FILE
    text = stored.read_text("utf-8")
    assert "cuda_graphs = false" in text
    stored.write_text(text.replace("cuda_graphs = false", "cuda_graphs = true"), "utf-8")
    result = train(out=tmp_path / "m", settings={"training.steps": 6}, resume=True, device="cpu", threads=1)
    assert result is not None
    assert result.step == 6
    with pytest.raises(TransduceError, match="there is no GPU"):
        train(
            out=tmp_path / "m",
            settings={"training.cuda_graphs": True, "training.steps": 8},
            resume=True,
            device="cpu",
            threads=1,
        )


@pytest.mark.parametrize(
    ("device", "kernels", "processes", "chosen"),
    [
        ("cuda", "native", 1, True),
        ("cuda:1", "native", 2, False),
        ("cuda", "torch", 1, False),
        ("cpu", "native", 1, False),
    ],
)
def test_steps_are_recorded_by_one_process_with_a_gpu(
    device: str, kernels: Kernels, processes: int, chosen: bool
) -> None:
    assert choose_cuda_graphs(device, kernels, processes).value is chosen


def test_recorded_steps_are_allowed_in_unsharded_processes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.tasks.run.resolving.choose_kernels", lambda *_, **__: Choice("native", ""))
    machine = msgspec.structs.replace(detect_machine("cpu"), device="cuda:0", processes=2)
    model = ModelConfig(source_vocabulary_size=9, target_vocabulary_size=9)
    check_training(check_settings({"training": {"cuda_graphs": True}}), model, machine)
    with pytest.raises(TransduceError, match=r"is true, but with `training.sharded`, parameters move"):
        check_training(check_settings({"training": {"cuda_graphs": True, "sharded": True}}), model, machine)
    rotary = msgspec.structs.replace(model, positions="rotary")
    with pytest.raises(TransduceError, match=r"`training.cuda_graphs` is true, but batches of such a model are padded"):
        check_training(check_settings({"training": {"cuda_graphs": True}}), rotary, machine)


def test_a_run_with_kernels_resumes_without_them_and_reports_it(
    toy_settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if choose_kernels("cpu", 1).value == "torch":
        pytest.skip("there are no kernels of our own here")
    short = {"training.steps": 4, "training.save_every": 2, "training.validate_every": 4, "training.translate_dev": 0}
    train(out=tmp_path / "m", settings=toy_settings | short, device="cpu", threads=1)
    monkeypatch.setattr("transduce.training.choices.why_no_kernels", lambda _: "there are none")
    capsys.readouterr()
    train(out=tmp_path / "m", settings={"training.steps": 6}, resume=True, device="cpu", threads=1)
    assert "kernels native then, torch now" in capsys.readouterr().err


def test_a_run_stored_without_a_kernel_choice_resumes_with_pytorchs(
    toy_settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = {"training.steps": 4, "training.save_every": 2, "training.validate_every": 4, "training.translate_dev": 0}
    train(out=tmp_path / "m", settings=toy_settings | short | {"training.kernels": "torch"}, device="cpu", threads=1)
    stored = tmp_path / "m" / SETTINGS_FILE
    lines = stored.read_text("utf-8").split("\n")
    stored.write_text("\n".join(line for line in lines if not line.startswith("kernels")), "utf-8")
    assert read_stored(stored).training.kernels is None
    capsys.readouterr()
    train(out=tmp_path / "m", settings={"training.steps": 6}, resume=True, device="cpu", threads=1)
    assert "now" not in capsys.readouterr().err
    assert read_stored(stored).training.kernels == "torch"


# Without dropout, whose random numbers differ, and with heads wide enough for any vectors.
COMPARED = {
    "model.num_heads": 2,
    "model.dropout": 0.0,
    "training.steps": 6,
    "training.report_every": 1,
    "training.translate_dev": 0,
}
TARGETS = ("data.target", "data.dev_target")
# Settings of each task, and the translation settings that it does not support.
TASKS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "translation": ({}, ()),
    "denoising": ({}, TARGETS),
    "language-model": ({"task.context": 16}, (*TARGETS, "model.num_encoder_layers", "training.translate_dev")),
    "masked-language-model": ({"task.context": 16}, (*TARGETS, "model.num_decoder_layers", "training.translate_dev")),
}


def losses_by_kernels(settings: dict[str, Any], folder: Path) -> dict[str, list[float]]:
    losses = {}
    for kernels in ("native", "torch"):
        train(out=folder / kernels, settings=settings | {"training.kernels": kernels}, device="cpu", threads=1)
        events = map(json.loads, (folder / kernels / "metrics.jsonl").read_text("utf-8").split("\n")[:-1])
        losses[kernels] = [event["loss"] for event in events if event["event"] == "train"]
        assert read_stored(folder / kernels / SETTINGS_FILE).training.kernels == kernels
    assert len(losses["torch"]) == 6
    assert backend_in_use() is None  # a run leaves none behind
    return losses


@pytest.mark.skipif(choose_kernels("cpu", 1).value == "torch", reason="there are no kernels of our own here")
@pytest.mark.parametrize("task", TASKS)
def test_native_kernels_give_the_losses_of_pytorchs_for_each_task(
    task: str, toy_settings: dict[str, Any], tmp_path: Path
) -> None:
    own, useless = TASKS[task]
    settings = toy_settings | COMPARED | {"task.kind": task} | own
    settings = {name: value for name, value in settings.items() if name not in useless}
    losses = losses_by_kernels(settings, tmp_path)
    assert losses["native"] == pytest.approx(losses["torch"], rel=1e-4)


@pytest.mark.skipif(choose_kernels("cpu", 1).value == "torch", reason="there are no kernels of our own here")
def test_native_kernels_give_the_losses_of_pytorchs_with_lora(toy_settings: dict[str, Any], tmp_path: Path) -> None:
    short = toy_settings | COMPARED | {"training.steps": 2}
    train(out=tmp_path / "first", settings=short, device="cpu", threads=1)
    sized = {name: value for name, value in (toy_settings | COMPARED).items() if name.split(".")[0] == "training"}
    files = {name: value for name, value in toy_settings.items() if name.startswith("data.")}
    lora = {"init_from": str(tmp_path / "first"), "training.lora_rank": 4, "model.dropout": 0.0}
    losses = losses_by_kernels(sized | files | lora, tmp_path)
    assert losses["native"] == pytest.approx(losses["torch"], rel=1e-4)
