"""Test that translation changes only the text of random documents and of files by other programs."""

import importlib
import sys
from pathlib import Path

import pytest

from transduce.documents.formats import FORMATS, recognize

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
files, checks = map(importlib.import_module, ("document_files", "documents"))
STORED = sorted((Path(__file__).parent / "files").glob("*"))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("format", files.MAKERS)
def test_random_documents_keep_their_structure(format: str, seed: int) -> None:
    assert list(checks.faults(format, files.make(format, seed))) == []


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.name)
def test_files_of_other_programs_keep_their_structure(path: Path) -> None:
    content = path.read_bytes()
    assert list(checks.faults(recognize(path.name, content).name, content, path.name)) == []


def test_every_format_has_random_documents() -> None:
    assert set(files.MAKERS) == set(FORMATS)


def test_a_changed_structure_is_found() -> None:
    assert checks.structure("md", b"# a\n\nb `c`\n") != checks.structure("md", b"# a\n\nb `d`\n")
    assert checks.structure("srt", b"1\n00:00:01,000 --> 00:00:02,000\na\n") != checks.structure(
        "srt", b"1\n00:00:01,000 --> 00:00:02,500\na\n"
    )
