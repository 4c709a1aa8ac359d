"""Test that a run killed at any file-system call of a save can be resumed: `benchmarks/reliability_crash.py`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "reliability_crash.py"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is missing: apt-get install strace")
def test_a_run_killed_at_any_system_call_of_a_save_can_be_resumed(tmp_path: Path) -> None:
    """The controls also work: saving in place loses checkpoints, and a trace without fsync is reported."""
    rows_file = tmp_path / "rows.json"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), "--quick", "--json", str(rows_file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr:
        pytest.skip("strace may not watch processes here")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row["value"] for row in json.loads(rows_file.read_text(encoding="utf-8"))}
    assert rows["points at which a save was killed"] >= 25
    assert rows["of these, nothing left to resume from"] == 0
    assert rows["of these, the older checkpoint is found"] > 0
    assert rows["of these, the newer checkpoint is found"] > 0
    assert rows["saving in place: nothing left"] > 0
    assert rows["not flushed when renamed"] == 0
    assert rows["the same trace without its fsync calls"] > 0
