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


_KILLED_AT_A_CHANGE = """
import os, signal, sys
from transduce.commands.main import main
folder, moment, changes = sys.argv[1], int(sys.argv[2]), 0

def count(event, arguments):
    global changes
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if (writes or event in ("os.mkdir", "os.rename")) and str(arguments[0]).startswith(folder):
        changes += 1
        if changes == moment:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
raise SystemExit(main(sys.argv[3:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("moment", [2, 5, 9])
def test_preparing_succeeds_after_a_kill_at_any_change_of_files(
    trained: Path, toy_corpus: Path, tmp_path: Path, moment: int
) -> None:
    out, source, target = tmp_path / "out" / "corpus", toy_corpus / "train.zh", toy_corpus / "train.en"
    command = ["prepare", "--source", str(source), "--target", str(target), "--tokenizer", str(trained)]
    for at, code in ((moment, -9), (0, 0)):
        done = subprocess.run(
            [sys.executable, "-B", "-c", _KILLED_AT_A_CHANGE, str(out.parent), str(at), *command, "--out", str(out)],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")},
            capture_output=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert out.exists() == (code == 0)  # no half folder is taken for a whole one
    assert [path.name for path in out.parent.iterdir()] == ["corpus"]
