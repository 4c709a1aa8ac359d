"""Test that functions, files and settings named in docs/ exist."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from transduce.tasks.settings.reading import setting_names

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "transduce"
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "zh").glob("*.md")])
_PLACE = re.compile(r"`([\w/]+\.py):([\w.]+)`")


def defined_names(path: Path) -> set[str]:
    """Return the names of a module's functions, classes, methods (as Class.method) and constants."""
    names: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def missing_places(text: str) -> list[str]:
    """Return the references `path.py:name` of a page that do not exist."""
    return [
        f"{path}:{name}"
        for path, name in _PLACE.findall(text)
        if not (PACKAGE / path).is_file() or name not in defined_names(PACKAGE / path)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_location_that_a_page_names_exists(page: Path) -> None:
    assert missing_places(page.read_text("utf-8")) == []


# What a translation neither trains nor is translated by.
ASIDE = {"demonstration", "documents", "serving", "inspection", "exchange", "evaluation"}


def places(section: str) -> list[tuple[str, str]]:
    """Return the places of the walkthrough's section with this title."""
    page = (ROOT / "docs" / "walkthrough.md").read_text("utf-8")
    (found,) = (part for part in page.split("\n## ") if part.startswith(f"{section}\n"))
    return _PLACE.findall(found)


def test_the_walkthrough_leads_through_every_folder_but_those_aside() -> None:
    sections = ("One batch", "One sentence", "Where a backend takes over")
    folders = {path.partition("/")[0] for section in sections for path, _ in places(section) if "/" in path}
    assert folders == {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - ASIDE


@pytest.mark.parametrize("section", ["One batch", "One sentence"])
def test_the_plain_path_enters_no_kernel(section: str) -> None:
    assert [path for path, _ in places(section) if path.startswith("kernels/")] == []


def test_the_plain_path_names_the_files_of_the_paper() -> None:
    named = {path for path, _ in places("One batch")}
    assert named >= {f"model/{name}.py" for name in ("transformer", "layers", "attention", "feed_forward", "embedding")}


def test_a_backend_takes_over_where_the_page_says() -> None:
    named = places("Where a backend takes over")
    assert {("model/backend.py", "Component.__call__"), ("kernels/select.py", "start_fast")} <= set(named)


def test_every_step_of_the_walkthrough_names_a_location() -> None:
    steps = re.split(r"^\d+\. ", (ROOT / "docs" / "walkthrough.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    assert len(steps) > 20
    assert [step for step in steps if not _PLACE.search(step)] == []


def test_a_location_that_is_not_there_is_found() -> None:
    text = (
        "`model/masks.py:padding_mask`, `model/masks.py:no_mask`, `model/no.py:x`, `model/attention.py:LayerCache.past`"
    )
    assert missing_places(text) == ["model/masks.py:no_mask", "model/no.py:x", "model/attention.py:LayerCache.past"]


def test_settings_that_the_design_names_exist() -> None:
    named = set(re.findall(r"`((?:task|data|tokenizer|model|training|search)\.(?!json)\w+)`", _design()))
    assert len(named) > 5
    assert sorted(named - set(setting_names())) == []


def _design() -> str:
    return (ROOT / "docs" / "design.md").read_text("utf-8")


@pytest.mark.parametrize(("page", "part"), [("walkthrough.md", "model.hidden("), ("models.md", "free_running(")])
def test_the_steps_to_run_print_what_the_page_shows(page: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / page).read_text("utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (found,) = ((code, output) for (kind, code), (_, output) in pairwise(blocks) if kind == "python" and part in code)
    exec(compile(found[0], page, "exec"), {})
    printed = capsys.readouterr().out
    if page == "walkthrough.md":
        assert printed == found[1]
    else:  # the last digits depend on the machine
        forced, free = (int(share) for share in re.findall(r"(\d+)%", printed))
        assert forced > free + 10
        assert re.sub(r"\d+", "N", printed) == re.sub(r"\d+", "N", found[1])
