"""Test that the wheel is complete, has no tests, and works outside of the repository."""

import os
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "transduce"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _run(*command: str | Path, cwd: Path, python_path: str = "") -> str:
    """Run a command away from the checkout, with only `python_path` in PYTHONPATH; gives its output."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": python_path},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("build", "hatchling"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed: `make test` installs it")
    folder = tmp_path_factory.mktemp("wheel")
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation")
    _run(*build, "--outdir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the installed wheel; its dependencies come from the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("installed")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install")
    _run(*pip, "--no-index", "--no-deps", "--target", folder, wheel, cwd=folder)
    return folder


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    expected = {
        f"transduce/{path.relative_to(PACKAGE).as_posix()}": path.read_bytes()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        found = {name: archive.read(name) for name in names}
    assert sorted(found) == sorted(expected)
    assert found == expected
    assert "transduce/py.typed" in found


def test_the_metadata_equals_the_project_file(wheel: Path) -> None:
    information = f"transduce-{PROJECT['version']}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"{information}/METADATA").decode())
        licence = archive.read(f"{information}/licenses/LICENSE")
        entry_points = archive.read(f"{information}/entry_points.txt").decode()
    required = {line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert required == set(PROJECT["dependencies"])
    assert metadata["License-Expression"] == "MIT"
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert "transduce = transduce.commands.main:main" in entry_points


def test_the_installed_package_is_imported_from_another_folder(installed: Path, tmp_path: Path) -> None:
    if not (PACKAGE / "__init__.py").exists():
        pytest.skip("src/transduce/__init__.py is not written yet")
    code = "import transduce; print(transduce.__file__); print(transduce.__version__)"
    file, version = _run(sys.executable, "-c", code, cwd=tmp_path, python_path=str(installed)).splitlines()
    assert Path(file) == installed / "transduce" / "__init__.py"
    assert version == PROJECT["version"]


def test_the_installed_command_reports_its_version(installed: Path, tmp_path: Path) -> None:
    if not (PACKAGE / "commands" / "main.py").exists():
        pytest.skip("src/transduce/commands/main.py is not written yet")
    scripts = "Scripts" if os.name == "nt" else "bin"
    printed = _run(installed / scripts / "transduce", "--version", cwd=tmp_path, python_path=str(installed))
    assert PROJECT["version"] in printed.split()
