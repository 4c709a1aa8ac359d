"""Test that the model learns to copy and reverse unseen sequences: a short form of `benchmarks/learnability.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "learnability.py"
STEPS = 500  # 400 suffice for most seeds


@pytest.mark.slow
def test_unseen_sequences_are_copied_and_reversed_exactly(tmp_path: Path) -> None:
    rows_file = tmp_path / "rows.json"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), "--quick", "--steps", str(STEPS), "--json", str(rows_file)]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    rows = json.loads(rows_file.read_text(encoding="utf-8"))
    for task in ("copy", "reverse"):
        (row,) = [row for row in rows if row["name"].startswith(f"{task}, ") and row["bar"]]
        assert row["value"] >= 99.0, row
        assert row["holds"] is True
    keys = {"name", "value", "unit", "peer", "peer_value", "ratio", "bar", "holds"}
    assert all(row.keys() == keys for row in rows)


@pytest.mark.slow
def test_too_little_training_misses_the_bar(tmp_path: Path) -> None:
    """The test above can fail: after 20 steps nearly nothing comes out right, and the script says so."""
    rows_file = tmp_path / "rows.json"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), "--quick", "--steps", "20", "--json", str(rows_file)]
    assert subprocess.run(command, check=False, env=environment, capture_output=True).returncode == 1
    judged = [row for row in json.loads(rows_file.read_text(encoding="utf-8")) if row["bar"]]
    assert [row["holds"] for row in judged] == [False, False]
    assert all(row["value"] < 20.0 for row in judged)
