"""Test that the package keeps the import contracts of pyproject.toml, and that a violation is detected."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PARTS = ("text", "data", "model", "search", "evaluation", "kernels", "training")
LATER_PARTS = (
    "tasks",
    "inference",
    "model_folder",
    "exchange",
    "inspection",
    "interop",
    "serving",
    "commands",
)


def _lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    folders = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    program = shutil.which("lint-imports", path=os.pathsep.join(folders))
    if program is None:
        pytest.skip("import-linter is not installed: `make test` installs it")
    return subprocess.run(
        [program, "--no-cache", "--config", ROOT / "pyproject.toml"],
        cwd=source,
        env=os.environ | {"PYTHONPATH": str(source), "PYTHONUTF8": "1", "COLUMNS": "200"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


def _python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout


def _skeleton(folder: Path, parts: tuple[str, ...]) -> Path:
    """Write a package with the folders of transduce and empty modules, and return its folder."""
    for name in dict.fromkeys(("", "kernels", *parts)):  # a contract names the kernels
        part = folder / "transduce" / name
        part.mkdir()
        (part / "__init__.py").touch()
    (folder / "transduce" / "errors.py").touch()
    return folder


def test_the_package_keeps_its_contracts() -> None:
    missing = [part for part in PARTS if not (SOURCE / "transduce" / part / "__init__.py").exists()]
    if missing:
        pytest.skip(f"parts that are not written yet: {', '.join(missing)}")
    result = _lint_imports(SOURCE)
    assert result.returncode == 0, result.stdout + result.stderr


def _write(source: Path, module: str, *imports: str) -> None:
    lines = "".join(f"import {imported}\n" for imported in imports)
    (source / "transduce" / module).write_text(lines, encoding="utf-8")


def test_the_contracts_tolerate_parts_that_are_not_written_yet(tmp_path: Path) -> None:
    result = _lint_imports(_skeleton(tmp_path, PARTS))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_contracts_allow_what_the_design_needs(tmp_path: Path) -> None:
    source = _skeleton(tmp_path, PARTS + LATER_PARTS)
    _write(source, "text/corpus.py", "transduce.errors", "sentencepiece")
    _write(source, "data/batches.py", "transduce.text.corpus", "numpy")
    _write(source, "training/loop.py", "transduce.model", "transduce.data.batches", "torch")
    _write(source, "tasks/translation.py", "transduce.training.loop", "transduce.inference")
    _write(source, "inference/translator.py", "transduce.search", "transduce.model", "transduce.text")
    _write(source, "serving/app.py", "transduce.inference.translator", "starlette")
    _write(source, "interop/marian.py", "transduce.model", "transformers")
    _write(source, "exchange/marian.py", "transduce.interop.marian", "transduce.inference")
    _write(source, "commands/main.py", "transduce.exchange.marian", "transduce.serving.app")
    result = _lint_imports(source)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "imported", "contract"),
    [
        ("text/a.py", "torch", "text and data work without torch"),
        ("data/a.py", "torch.nn", "text and data work without torch"),
        ("text/a.py", "transduce.data", "text, model and search import only errors"),
        ("model/a.py", "transduce.text", "text, model and search import only errors"),
        ("model/__init__.py", "transduce.search", "text, model and search import only errors"),
        ("search/a.py", "transduce.model", "text, model and search import only errors"),
        ("data/a.py", "transduce.model", "Imports go one way"),
        ("training/a.py", "transduce.search", "training does not import search"),
        ("training/a.py", "transduce.tasks", "Imports go one way"),
        ("training/a.py", "transduce.inference", "Imports go one way"),
        ("training/a.py", "transduce.serving", "Imports go one way"),
        ("model/a.py", "transduce.kernels", "text, model and search import only errors"),
        ("search/a.py", "transduce.kernels", "text, model and search import only errors"),
        ("inference/a.py", "transduce.kernels", "Only transduce.acceleration imports the kernels"),
        ("inference/a.py", "transduce.commands", "Imports go one way"),
        ("model_folder/a.py", "transduce.inference", "Imports go one way"),
        ("interop/a.py", "transduce.model_folder", "Imports go one way"),
        ("serving/a.py", "transduce.model", "serving imports only inference"),
        ("serving/a.py", "transduce.interop", "serving imports only inference"),
        ("inference/a.py", "transformers", "Only interop imports"),
        ("commands/a.py", "ctranslate2", "Only interop imports"),
        ("inspection/a.py", "onnx", "Only interop imports"),
        ("novelty.py", "transduce.errors", "Imports go one way"),
    ],
)
def test_a_breach_breaks_its_contract(tmp_path: Path, module: str, imported: str, contract: str) -> None:
    source = _skeleton(tmp_path, PARTS + LATER_PARTS)
    _write(source, module, imported)
    result = _lint_imports(source)
    broken = [line for line in result.stdout.split("\n") if line.endswith("BROKEN")]
    assert result.returncode == 1, result.stdout + result.stderr
    assert any(line.startswith(contract) for line in broken), result.stdout


def test_modules_that_import_each_other_break_a_contract(tmp_path: Path) -> None:
    source = _skeleton(tmp_path, PARTS)
    _write(source, "model/a.py", "transduce.model.b")
    _write(source, "model/b.py", "transduce.model.a")
    result = _lint_imports(source)
    assert result.returncode == 1
    assert "No two modules import each other BROKEN" in result.stdout


@pytest.mark.parametrize("part", ["text", "data"])
def test_a_part_without_torch_does_not_load_it(part: str) -> None:
    """Importing a folder also runs the package's own __init__, which the contracts do not follow."""
    if not (SOURCE / "transduce" / part / "__init__.py").exists():
        pytest.skip(f"src/transduce/{part} is not written yet")
    assert _python(f"import sys, transduce.{part}; print('torch' in sys.modules)") == "False\n"


def test_compare_of_two_files_imports_no_torch(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.en", "b.en", "reference.en")]
    for path in paths:
        path.write_text("one two three four five\n", "utf-8")
    arguments = ["compare", *map(str, paths[:2]), "--reference", str(paths[2]), "--resamples", "100"]
    code = f"import sys; from transduce.commands.main import main; main({arguments}); print('torch' in sys.modules)"
    assert _python(code).endswith("\nFalse\n")
