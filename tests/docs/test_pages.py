"""Test that lists on the pages are complete: everything that the code defines is listed."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from transduce.model.config import ModelConfig
from transduce.model.transformer import Transformer
from transduce.tasks.settings.reading import make_settings, put_setting
from transduce.tasks.train import train
from transduce.training.choices import PRESETS
from transduce.training.events import TrainEvent, ValidationEvent

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
KERNELS = ROOT / "src" / "transduce" / "kernels" / "cpu"


def first_cells(page: str) -> set[str]:
    """Return the texts in backticks in the first column of a page's tables."""
    rows = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_the_table_of_kernels_has_all_programs_of_training() -> None:
    sources = "".join(
        path.read_text("utf-8")
        for path in [*KERNELS.rglob("train_*.py"), *KERNELS.glob("training/*.py"), *KERNELS.glob("attention*.py")]
    )
    groups = re.findall(r"names = \(([^)]+)\)|compile_kernels\([^\n]*? \(([^)]+)\), ", sources)
    programs = {name for group in groups for name in re.findall(r'"(\w+)"', "".join(group))}
    assert {"attend", "drop", "rotate", "adam"} <= programs
    assert programs - first_cells((DOCS / "training.md").read_text("utf-8")) == set()


def test_the_index_of_the_log_lists_each_page_once() -> None:
    table = (DOCS / "log" / "README.md").read_text("utf-8").partition("## Machines")[0]
    listed = re.findall(r"^\| \[.+\]\(([\w.]+)\) \|", table, re.MULTILINE)
    assert listed == sorted(path.name for path in (DOCS / "log").glob("*.md") if path.name != "README.md")


@pytest.mark.parametrize(("page", "most"), [("README.md", 150), ("README.zh.md", 150), ("docs/results.md", 250)])
def test_pages_for_first_readers_stay_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text("utf-8").splitlines()) <= most


def test_every_file_of_a_run_is_explained(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(
        source=toy_corpus / "train.zh",
        target=toy_corpus / "train.en",
        out=run,
        preset="tiny",
        steps=2,
        threads=1,
    )
    page = (DOCS / "folders.md").read_text("utf-8")
    explained = {Path(name).parts[0] for name in first_cells(page)}
    assert {path.name for path in run.iterdir()} - explained == set()
    inside = {path.name for path in (run / "checkpoints").glob("step-*/*")}
    assert len(inside) > 4
    assert [name for name in inside if f"`{name}`" not in page] == []


def test_every_figure_of_the_metrics_is_explained() -> None:
    rows = re.findall(r"^\| `(train|validation)` \|(.+)\|", (DOCS / "folders.md").read_text("utf-8"), re.MULTILINE)
    named = {kind: set(re.findall(r"`(\w+)`", cells)) for kind, cells in rows}
    assert set(TrainEvent.__struct_fields__) - named["train"] == set()
    assert set(ValidationEvent.__struct_fields__) - named["validation"] == set()


def test_the_files_that_pages_name_are_there() -> None:
    named = re.compile(r"\b(?:benchmarks|docs|examples|tests)/[\w/]+\.(?:md|py)\b")
    pages = [*ROOT.glob("*.md"), *DOCS.glob("**/*.md")]
    found = {name for page in pages for name in named.findall(page.read_text("utf-8"))}
    assert len(found) > 50
    assert sorted(name for name in found if not (ROOT / name).is_file()) == []


def test_the_index_has_each_page_once() -> None:
    table = (DOCS / "README.md").read_text("utf-8").partition("## All pages")[2]
    listed = re.findall(r"^\| \[.+\]\(([\w.]+)\) \|", table, re.MULTILINE)
    assert listed == sorted(path.name for path in DOCS.glob("*.md") if path.name != "README.md")


def test_the_rows_of_table_3_have_the_sizes_that_the_page_states() -> None:
    section = (DOCS / "models.md").read_text("utf-8").partition("## Table 3 of the paper")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 20
    for name, said, _, _, paper, *told in rows:
        content: dict[str, Any] = {"preset": "paper-base"}
        for key, value in re.findall(r"`([\w.]+)=([^`]+)`", said):
            put_setting(content, key, tomllib.loads(f"value = {value}")["value"] if value[0].isdigit() else value)
        settings = make_settings(content)
        sizes = msgspec.structs.asdict(PRESETS[settings.preset or ""])
        own = {key: value for key, value in msgspec.structs.asdict(settings.model).items() if value is not None}
        counts = [count_parameters(pieces, sizes | own) / 1e6 for pieces in (37_000, 41_000, 40_932, 41_160)]
        assert [f"{count:.1f}" for count in counts[:2]] == [figure.strip() for figure in told], name
        if paper.strip() and name.strip() != "big":
            assert [round(count) for count in counts[2:]] == [int(paper)] * 2, name


def count_parameters(pieces: int, choices: dict[str, Any]) -> int:
    known = {key: value for key, value in choices.items() if key in ModelConfig.__struct_fields__}
    with torch.device("meta"):
        model = Transformer(ModelConfig(source_vocabulary_size=pieces, target_vocabulary_size=pieces, **known))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("folder", [DOCS, DOCS / "zh"], ids=["English", "Chinese"])
def test_components_of_ones_own_train_and_decode(folder: Path) -> None:
    """The page's components are registered in a process of their own, since names cannot be registered twice."""
    page = (folder / "models.md").read_text("utf-8")
    (block,) = re.findall(r"```python\n(import torch\n.*?register.*?)```", page, re.DOTALL)
    use = """
sizes = {"source_vocabulary_size": 9, "target_vocabulary_size": 9, "pad_id": 0, "start_id": 1, "eos_id": 2}
config = transduce.ModelConfig(**sizes, d_model=16, d_ff=32, num_heads=2, num_encoder_layers=1, num_decoder_layers=1,
    attention_score="cosine", activation="cubed-relu", positions="decay")
model = transduce.Transformer(config)
logits = model(torch.tensor([[3, 4, 2]]), torch.tensor([[1, 5]]))
logits.sum().backward()
assert logits.shape == (1, 2, 9)
turned = model(torch.tensor([[4, 3, 2]]), torch.tensor([[1, 5]]))
assert not torch.allclose(turned, logits)  # positions have an effect
model.eval()
state = model.start(torch.tensor([[3, 4, 2]]))
steps = [model.project(state.step(torch.tensor([[token]]))) for token in (1, 5)]
assert torch.allclose(torch.cat(steps, dim=1), model(torch.tensor([[3, 4, 2]]), torch.tensor([[1, 5]])), atol=1e-5)
assert all(bool(weight.grad.isfinite().all()) for weight in model.parameters() if weight.grad is not None)
"""
    subprocess.run([sys.executable, "-c", block + use], check=True)
