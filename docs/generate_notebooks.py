"""Write the notebooks of the tutorial from its pages, with the output of every block: docs/tutorial/*.ipynb.

    python docs/generate_notebooks.py

A page of either language becomes one notebook: its text becomes cells of text, and its blocks of Python cells of code.
The blocks of all pages run in order, as a reader would run them.
"""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
TUTORIAL = DOCS / "tutorial"
PAGES = {"": TUTORIAL, ".zh": DOCS / "zh" / "tutorial"}
"""The folder of the tutorial's pages in each language, by the suffix of the names of its notebooks."""

_LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")
_BLOCK = re.compile(r'^```python(?: title="([\w.]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def code_blocks(page: str) -> list[tuple[str, str]]:
    """Return each block of Python on a page: the name of the file that it belongs to (empty: none), and its code."""
    return [(match[1] or "", match[2]) for match in _BLOCK.finditer(page)]


def notebook(path: Path, outputs: list[str]) -> dict[str, Any]:
    """Return the notebook of a page, in Jupyter's format 4.5, with the printed output of each of its blocks."""
    page = linked_text(path)
    cells: list[dict[str, Any]] = []
    position = 0
    for match, output in zip(_BLOCK.finditer(page), outputs, strict=True):
        _add_text(cells, page[position : match.start()])
        stream = [{"output_type": "stream", "name": "stdout", "text": output.splitlines(keepends=True)}]
        cells.append(
            {
                "cell_type": "code",
                "execution_count": sum(cell["cell_type"] == "code" for cell in cells) + 1,
                "id": f"cell-{len(cells)}",
                "metadata": {},
                "outputs": stream if output else [],
                "source": match[2].rstrip("\n").splitlines(keepends=True),
            }
        )
        position = match.end()
    _add_text(cells, page[position:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def linked_text(path: Path) -> str:
    """Return the text of a page with its links as the notebooks' folder needs them: a chapter's is to its notebook."""

    def link(match: re.Match[str]) -> str:
        target = (path.parent / match[1]).resolve()
        suffix = {pages: suffix for suffix, pages in PAGES.items()}.get(target.parent)
        if suffix is not None and target.suffix == ".md":
            target = TUTORIAL / f"{target.stem}{suffix}.ipynb"
        return f"]({os.path.relpath(target, TUTORIAL)}{match[2] or ''})"

    return _LINK.sub(link, path.read_text("utf-8"))


def _add_text(cells: list[dict[str, Any]], text: str) -> None:
    if text.strip():
        lines = text.strip().splitlines(keepends=True)
        cells.append({"cell_type": "markdown", "id": f"cell-{len(cells)}", "metadata": {}, "source": lines})


def run_pages(folder: Path) -> dict[str, list[str]]:
    """Run the blocks of all English pages in a folder, and return what each block of each page prints."""
    sys.path.insert(0, str(TUTORIAL))
    printed: dict[str, list[str]] = {}
    with contextlib.chdir(folder):
        for page in sorted(TUTORIAL.glob("*.md")):
            namespace: dict[str, Any] = {"__name__": page.stem}
            printed[page.stem] = []
            for _, code in code_blocks(page.read_text("utf-8")):
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(compile(code, page.name, "exec"), namespace)
                printed[page.stem].append(output.getvalue())
    sys.path.remove(str(TUTORIAL))
    return printed


def main() -> None:
    """Run the pages, and write the notebooks of both languages."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        printed = run_pages(Path(folder))
    for suffix, pages in PAGES.items():
        for page in sorted(pages.glob("*.md")):
            content = json.dumps(notebook(page, printed[page.stem]), ensure_ascii=False, indent=1)
            (TUTORIAL / f"{page.stem}{suffix}.ipynb").write_text(content + "\n", "utf-8")


if __name__ == "__main__":
    main()
