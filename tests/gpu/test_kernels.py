"""The kernels for GPUs: on one, where there is one, and otherwise interpreted."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "checks.py"
NAMES = re.findall(r"^def (check_\w+)", CHECKS.read_text("utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, on_gpu: dict[str, str] | None) -> dict[str, str]:
    """What went wrong with each check."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the package triton is not installed")
    path = tmp_path_factory.mktemp("gpu") / "results.json"
    environment = (on_gpu or os.environ) | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKS.parents[2] / "src")}
    run = subprocess.run(
        [sys.executable, CHECKS, path], check=False, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, str] = json.loads(path.read_text("utf-8"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_kernels_do_what_pytorch_does(results: dict[str, str], name: str) -> None:
    assert not results[name], results[name]
