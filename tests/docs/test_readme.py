"""Test that the commands in the READMEs work.

Files come from the demonstration's grammar. Only training is reduced: `train` gets more options, for the number of
steps, the model sizes, and the length of translations, which such models do not end.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from transduce.demonstration.grammar import DemoCorpus

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "README.zh.md")
SMALL = {"model.d_model": 32, "model.d_ff": 64, "search.max_length": 8}
SHORT_OPTIONS = " --preset tiny --steps 12 --threads 1" + "".join(f" --set {name}={n}" for name, n in SMALL.items())
SHORT_ARGUMENTS = f'preset="tiny", steps=12, threads=1, settings={SMALL}, '
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str, kind: str) -> list[str]:
    """Return the blocks of one kind on a page, in order."""
    return [content for found, content in _BLOCK.findall((ROOT / page).read_text("utf-8")) if found == kind]


def commands(page: str) -> list[str]:
    """Return the blocks of commands on a page, except those that run make."""
    return [block for block in blocks(page, "sh") if "make " not in block]


def without_comments(block: str) -> str:
    return re.sub(r" +# .*$", "", block, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def texts(demo_corpus: DemoCorpus) -> dict[str, str]:
    """Return the contents of the files that the READMEs use, by file name."""
    parts = {"train": demo_corpus.train[:250], "test": demo_corpus.test[:12]}
    sides = {f"{name}.zh": [pair.source for pair in pairs] for name, pairs in parts.items()}
    sides |= {f"{name}.en": [pair.target for pair in pairs] for name, pairs in parts.items()}
    return {name: "".join(f"{line}\n" for line in lines) for name, lines in sides.items()}


@pytest.fixture
def folder(tmp_path: Path, texts: dict[str, str]) -> Path:
    """Return a folder with the files that the READMEs use."""
    for name, text in texts.items():
        (tmp_path / name).write_text(text, "utf-8", newline="\n")
    return tmp_path


def run(arguments: list[str], folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run a command line with this environment's `transduce`, and text on its standard input."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"PATH": path, "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.run(
        arguments, cwd=folder, env=environment, input=text, capture_output=True, encoding="utf-8", check=False
    )


def cut_down(block: str) -> str:
    return re.sub(r"^(transduce train .*)$", rf"\1{SHORT_OPTIONS}", block, flags=re.MULTILINE)


@pytest.mark.slow
def test_the_commands_work_in_the_order_of_the_page(folder: Path) -> None:
    outputs = []
    for block in commands("README.md"):
        done = run(["bash", "-euo", "pipefail"], folder, cut_down(block))
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        outputs.append(done.stdout + done.stderr)
    trained, dry, resumed, compared = outputs
    assert len((folder / "test.out").read_text("utf-8").split("\n")) == 12 + 1
    assert "BLEU" in trained
    assert "version:" in trained
    assert "Dry run: nothing was trained." in dry
    assert "This run has finished at step 12;" in resumed
    assert re.search(r"^ +zh-en +rotary +difference", compared, re.MULTILINE)


def test_the_python_code_works(folder: Path) -> None:
    code = "\n".join(blocks("README.md", "python"))
    short = code.replace("transduce.train(", f"transduce.train({SHORT_ARGUMENTS}")
    assert short != code
    done = run([sys.executable, "-W", "error", "-"], folder, short)
    assert done.returncode == 0, done.stderr
    assert "BLEU" in done.stdout
    assert "version:" in done.stdout


def test_both_languages_have_the_same_commands_and_code() -> None:
    for kind in ("sh", "python"):
        english, chinese = ([without_comments(block) for block in blocks(page, kind)] for page in PAGES)
        assert english == chinese
        assert english


def test_both_languages_have_the_same_parts() -> None:
    def shape(page: str) -> list[str]:
        lines = (ROOT / page).read_text("utf-8").split("\n")
        return [line.split(" ")[0] for line in lines if line.startswith(("#", "* ", "|"))]

    assert shape("README.md") == shape("README.zh.md")


@pytest.mark.parametrize("page", PAGES)
def test_the_make_targets_of_the_page_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    told = re.findall(r"^make (\w+)", "".join(blocks(page, "sh")), re.MULTILINE)
    assert told == ["demo", "test"]
    for target in told:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_every_folder_of_the_package_is_explained(page: str) -> None:
    explained = re.findall(r"^\| `(\w+)` \|", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    folders = {path.parent.name for path in (ROOT / "src" / "transduce").glob("*/__init__.py")}
    assert sorted(explained) == sorted(folders)


def docstring_lines() -> Iterator[str]:
    import transduce

    for line in (transduce.__doc__ or "").split("\n")[1:]:
        if line.strip():
            yield line.strip()


@pytest.mark.parametrize("page", PAGES)
def test_the_docstring_of_the_package_repeats_the_readmes_code(page: str) -> None:
    lines = [line.strip() for block in blocks(page, "python") for line in block.split("\n")]
    said = list(docstring_lines())
    assert "import transduce" in said
    assert [line for line in said if line not in lines] == []
