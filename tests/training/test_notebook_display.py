"""Test the display in a notebook: one output with bar, curve and messages; and an executed notebook."""

import math
from pathlib import Path
from typing import Any

import pytest

from transduce.training.display import (
    NotebookDisplay,
    ProgressDisplay,
    draw_losses,
    is_in_notebook,
    make_display,
)
from transduce.training.events import TrainEvent, ValidationEvent


def report(step: int, loss: float) -> TrainEvent:
    return TrainEvent(step, 0.1, loss, 2.0, 0.001, 1.0, 900.0, 1.0, 0)


def test_events_replace_one_output() -> None:
    shown: list[str] = []
    display = NotebookDisplay(shown.append)
    display.say("training.steps  20  <set> by you")
    display.start(0, 20)
    for step in range(1, 11):
        display.advance(step, 20, 9.0, 900.0)
    assert len(shown) < 8  # not once a step
    display.report(report(10, 4.5), 20, 3.0)
    display.validation(ValidationEvent(10, 3.25, 25.8, bleu=12.5), best=True)
    display.stop()
    last = shown[-1]
    assert "<details><summary>Settings and corpus</summary><pre>training.steps  20  &lt;set&gt; by you</pre>" in last
    assert '<progress value="10" max="20"' in last
    assert "step 10/20 · loss 4.500 · 900 tokens/s · 3 s left" in last
    assert "dev loss 3.250 (perplexity 25.80) · BLEU 12.5 · best so far" in last
    assert last.count("<svg") == 1
    assert "4.50" in last


def test_the_curve_has_the_points_of_finite_losses() -> None:
    assert draw_losses({"training": [(5, 2.0)], "dev": [(5, math.nan)]}) == ""
    picture = draw_losses({"training": [(0, 4.0), (5, math.inf), (10, 2.0)], "dev": []})
    assert 'points="40.0,10.0 472.0,126.0"' in picture  # from the top left to the bottom right
    assert "to 10" in picture


def test_outside_notebooks_progress_is_shown_in_the_terminal() -> None:
    assert not is_in_notebook()
    assert type(make_display()) is ProgressDisplay
    assert make_display(is_first=False).console.quiet


CELL = """
import transduce

lines = "".join(f"{word} {word.upper()}\\n\\n" for word in ["a", "b"] * 40)
open("train.conll", "w").write(lines)
result = transduce.train(
    task="tagging", source="train.conll", dev_source="train.conll", out="run", precision="fp32", threads=1,
    settings={
        "model.num_encoder_layers": 1, "model.d_model": 16, "model.d_ff": 16, "model.num_heads": 2,
        "training.steps": 6, "training.report_every": 2, "training.validate_every": 2, "training.warmup_steps": 1,
    },
)
"""


@pytest.mark.slow
def test_a_notebook_that_trains_has_one_output(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel: pip install 'transduce[dev]'")
    nbformat: Any = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (output,) = [each for each in notebook.cells[0].outputs if each.output_type != "stream" or each.name != "stderr"]
    assert output.output_type == "display_data"
    page = output.data["text/html"]
    assert '<progress value="6" max="6"' in page
    assert "<svg" in page
    assert "Dev set: accuracy" in page
    assert "task.kind" in page or "preset" in page
