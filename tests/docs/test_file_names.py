"""Test that files and folders named by pages and benchmarks exist in the repository."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "transduce"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *(ROOT / "benchmarks").glob("*.py")])
ROOTS = ("src", "tests", "benchmarks", "deploy", "examples", "docs")
PATHS = [path.relative_to(ROOT) for name in ROOTS for path in (ROOT / name).rglob("*")]
# Folders of the package, those that it had once, and those of the repository.
FOLDERS = sorted({path.parent.name for path in PACKAGE.glob("*/__init__.py")} | {"runtime", "demo", "native", "gpu"})
# A file is named by its end, so `gemm/amx.py` is enough in a table about one folder.
_FILE = re.compile(r"(?<![\w.*{}])([\w/-]+\.py)\b")
# Files from elsewhere: a placeholder of command lines, plugins that pages write, and `prepare.py`, a script of nanoGPT
# and the temporary one of a benchmark.
FROM_ELSEWHERE = {"FILE.py", "gated.py", "my_layers.py", "prepare.py"}
_FOLDER = re.compile(rf"`((?:{'|'.join([*FOLDERS, 'tests', 'benchmarks', 'examples'])})/[\w/]*)`")


def missing_files(text: str) -> list[str]:
    """Return the names of Python files in a text that no file of the repository ends with."""
    ends = {f"/{path.as_posix()}" for path in PATHS if path.suffix == ".py"} | {"/setup.py"}
    named = {name.removeprefix("/") for name in _FILE.findall(text)} - FROM_ELSEWHERE
    return sorted(name for name in named if not any(path.endswith(f"/{name}") for path in ends))


def missing_folders(text: str) -> list[str]:
    """Return the folders in backticks that are neither in the repository nor in the package."""
    named = {name.rstrip("/") for name in _FOLDER.findall(text)}
    places = [(ROOT / name, PACKAGE / name, PACKAGE / f"{name}.py") for name in sorted(named)]
    return [str(own.relative_to(ROOT)) for own, *others in places if not any(p.exists() for p in (own, *others))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_and_folder_that_is_named_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    assert missing_files(text) + missing_folders(text) == []


def test_a_name_of_an_old_layout_is_found() -> None:
    assert missing_files("`gone.py`, `amx_*.py` and `model/masks.py`, [x](../tests/conftest.py), masks.py") == [
        "gone.py"
    ]
    assert missing_folders("`model/native/`, `kernels/cpu`, `runtime/`, `models/zh-en`") == ["model/native", "runtime"]
