"""What all tests share: the corpora, one thread a worker, and the same random numbers every time."""

import importlib.util
import os
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Workers run side by side; torch reads this when it is first imported, which no test has done yet.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

if importlib.util.find_spec("hypothesis") is not None:
    import hypothesis

    hypothesis.settings.register_profile("transduce", derandomize=True, deadline=None, database=None)
    hypothesis.settings.load_profile("transduce")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare pytest-timeout's setting where the plug-in is missing, for unknown settings are errors."""
    if importlib.util.find_spec("pytest_timeout") is None:
        parser.addini("timeout", "seconds that one test may take (needs pytest-timeout)")


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real corpora, `$TRANSDUCE_DATA` or `../shared/data`; without it the test is skipped."""
    folder = Path(os.environ.get("TRANSDUCE_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no corpora in {folder}: set TRANSDUCE_DATA to the folder that holds them")
    return folder.resolve()


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    """Seed every generator that is already imported, so that a test does not depend on those before it."""
    random.seed(1)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(1)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(1)


@pytest.fixture
def write_lines(tmp_path: Path) -> Callable[[str, Iterable[str]], Path]:
    """A function that writes lines as a UTF-8 file of the given name below the test's own folder."""

    def write(name: str, lines: Iterable[str]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
        return path

    return write
