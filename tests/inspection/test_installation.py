"""Test `transduce check-install`: installed packages, selected kernels, and reasons why a fast path is refused."""

import importlib.metadata
import json
from pathlib import Path

import pytest
import torch

import transduce
from transduce.commands.main import main
from transduce.inspection import installation
from transduce.inspection.installation import BackendChoice, check_install
from transduce.kernels import select
from transduce.kernels.select import has_kernels, select_decoder

COMPUTING = ["--device", "cpu", "--threads", "1"]


def test_the_report_names_versions_and_selected_backends(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["check-install", *COMPUTING, "--json", str(tmp_path / "report.json")]) == 0
    shown, written = capsys.readouterr().out, json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert written["versions"]["PyTorch"] == torch.__version__
    assert f"PyTorch {torch.__version__}" in shown
    assert written["training"]["backend"] == ("compiled" if has_kernels() else "reference")
    assert written["decoding"]["backend"] in ("compiled", "reference")
    assert [extra["name"] for extra in written["extras"]] == list(installation.EXTRAS)
    assert (written["device"], written["threads"], written["model"]) == ("cpu", 1, None)


def test_a_refused_fast_path_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def without_llvmlite(name: str) -> str:
        if name == "llvmlite":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_llvmlite)
    select.why_no_kernels.cache_clear()
    try:
        report = check_install(device="cpu", threads=1)
    finally:
        select.why_no_kernels.cache_clear()
    reason = "llvmlite is not installed (pip install 'transduce[fast]')"
    assert (report.training.backend, report.training.reason) == ("reference", reason)
    assert report.decoding.refused["compiled"] == reason
    assert f"decoding   reference; not compiled, because {reason}" in str(report)
    assert "fast lacks llvmlite (pip install 'transduce[fast]')" in str(report)


def test_the_report_on_a_model_names_its_decoding_backend(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-install", str(trained), "--precision", "fp32", *COMPUTING, "--json", "-"]) == 0
    model = json.loads(capsys.readouterr().out)["model"]
    translator = transduce.load(trained, task="translation", precision="fp32", device="cpu", threads=1)
    backend, refused = select_decoder(translator.model)
    assert (model["decoding"]["backend"], model["decoding"]["refused"]) == (backend, refused)
    assert model["description"] == repr(translator)
    assert all(refused.values())


def test_a_reason_is_shown_after_the_backend() -> None:
    assert str(BackendChoice("compiled")) == "compiled"
    assert str(BackendChoice("torch", "no llvmlite")) == "torch: no llvmlite"
    assert str(BackendChoice("reference", refused={"compiled": "a"})) == "reference; not compiled, because a"


def test_a_package_that_is_too_old_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = ["torch>=2", "llvmlite>=9999.1; extra == 'fast'", 'no-such-package>=1; extra == "plot"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: requires)
    fast, plot = (installation._extra_status(name) for name in ("fast", "plot"))
    assert fast.missing[0].startswith("llvmlite 9999.1 (")
    assert plot.missing == ("no-such-package",)


def test_a_missing_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-install", "nowhere", *COMPUTING]) == 2
    assert "nowhere" in capsys.readouterr().err
