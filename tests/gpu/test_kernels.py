"""Test the GPU kernels on a GPU if there is one, otherwise interpreted; and their compilation, which needs no GPU."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
NAMES = re.findall(r"^def (check_\w+)", (HERE / "checks.py").read_text("utf-8"), re.MULTILINE)


def run_script(name: str, out: Path, environment: dict[str, str]) -> Any:
    """Run a script of this folder, and return the JSON that it writes."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the package triton is not installed")
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1] / "src")}
    command = [sys.executable, str(HERE / name), str(out)]
    run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, encoding="utf-8")
    assert run.returncode == 0, run.stderr
    return json.loads(out.read_text("utf-8"))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, on_gpu: dict[str, str] | None) -> dict[str, str]:
    """Return the error of each check, by name."""
    found: dict[str, str] = run_script(
        "checks.py", tmp_path_factory.mktemp("gpu") / "results.json", dict(on_gpu or os.environ)
    )
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the first test waits for all checks, which take minutes on a busy machine
@pytest.mark.parametrize("name", NAMES)
def test_each_check_of_gpu_kernels_against_pytorch_passes(results: dict[str, str], name: str) -> None:
    assert not results[name], results[name]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings NVIDIA's assembler on Linux")
def test_compiled_kernels_fit_into_registers_and_shared_memory(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    found = run_script("compiled.py", tmp_path / "compiled.json", environment)
    assert len(found) == 23
    assert [each for each in found if each[1] > each[2]] == []
