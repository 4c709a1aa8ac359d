"""Test that the blocks of docs/own_loop.md run in order."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "own_loop.md"


@pytest.mark.slow
def test_the_page_runs_from_two_files_to_a_changed_model(
    toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "models" / "demo-text"  # of a smaller corpus than the demonstration's, to take less time
    text.mkdir(parents=True)
    for language in ("zh", "en"):
        shutil.copy(toy_corpus / f"train.{language}", text)
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    namespace: dict[str, Any] = {"__name__": "own_loop"}
    try:
        for block in blocks:
            exec(compile(block, PAGE.name, "exec"), namespace)
    finally:
        torch.set_num_threads(threads)
    assert namespace["right"] >= 40
    assert not namespace["model"].output_weight[namespace["config"].frozen_row].any()
    assert (tmp_path / "models" / "without-head" / "model.safetensors").is_file()
