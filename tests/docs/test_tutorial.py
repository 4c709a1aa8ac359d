"""Test that the tutorial's pages run, build the same model as transduce's, and agree with its files and notebooks."""

import contextlib
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import transduce
from transduce.commands.main import main
from transduce.search.settings import SearchSettings

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial"
PAGES = sorted(TUTORIAL.glob("*.md"))


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_notebooks", ROOT / "docs" / "generate_notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = generator().code_blocks(page.read_text("utf-8"))
    return found


@pytest.mark.slow
def test_all_pages_run_and_the_model_translates_numbers(tmp_path: Path) -> None:
    printed = generator().run_pages(tmp_path)  # the blocks assert what they claim
    assert list(printed) == [page.stem for page in PAGES]
    assert len(PAGES) == 6
    assert "the same translations\n" in printed["6-search"]
    _check_folder(tmp_path)


def _check_folder(folder: Path) -> None:
    """Run the last page's command in the folder of its files, and compare the translations with the tutorial's own."""
    (command,) = re.findall(
        r"^transduce (import-tutorial .*)\n +(.*)$", (TUTORIAL / "6-search.md").read_text("utf-8"), re.M
    )
    with contextlib.chdir(folder):
        assert main(shlex.split("".join(command).replace("\\", " "))) == 0
    translator = transduce.load(
        folder / "models/numbers", task="translation", precision="fp32", device="cpu", threads=1
    )
    assert (translator.source_language, translator.target_language) == ("zh", "en")
    corpus, listing = sys.modules["corpus"], sys.modules["transformer"]
    model = listing.Transformer(len(corpus.source_words), len(corpus.target_words))
    model.load_state_dict(torch.load(folder / "numbers.pt"))
    model.eval()
    source_words, target_words = list(corpus.source_words), list(corpus.target_words)
    for source, _ in corpus.test_pairs:
        text = " ".join(source_words[id] for id in source[:-1])
        *expected, end = listing.greedy(model, source)
        assert end == listing.END
        greedy = translator(text, search=SearchSettings(beam_size=1))
        assert greedy.text == " ".join(target_words[id] for id in expected)
        beam = [target_words[id] for id in listing.beam_search(model, source) if id != listing.END]
        assert translator(text).text == " ".join(beam)


def test_the_files_are_the_marked_blocks_of_the_pages() -> None:
    marked = [block for page in PAGES for block in blocks(page)]
    for name in ("transformer.py", "corpus.py"):
        parts = [code.strip() for file, code in marked if file == name]
        assert (TUTORIAL / name).read_text("utf-8") == "\n\n\n".join(parts) + "\n"
    assert len((TUTORIAL / "transformer.py").read_text("utf-8").splitlines()) <= 300


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_both_languages_and_both_notebooks_have_the_same_code(page: Path) -> None:
    code = [block for _, block in blocks(page)]
    assert [block for _, block in blocks(ROOT / "docs" / "zh" / "tutorial" / page.name)] == code
    for suffix in ("", ".zh"):
        notebook = json.loads((TUTORIAL / f"{page.stem}{suffix}.ipynb").read_text("utf-8"))
        cells = ["".join(cell["source"]) + "\n" for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert cells == code
