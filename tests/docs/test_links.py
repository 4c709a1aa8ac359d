"""Test that links of the pages lead to existing files and headings."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])
NOTEBOOKS = sorted((ROOT / "docs").glob("**/*.ipynb"))
_FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
_NAMED = re.compile(r'<a id="([^"]+)">')


def slug(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading: lower case, spaces as hyphens, no punctuation but - and _."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(page: str) -> set[str]:
    """Return all anchors of a page; of equal headings, the second is heading-1, the third heading-2."""
    prose = _FENCED.sub("", page)
    found = set(_NAMED.findall(prose))
    seen: dict[str, int] = {}
    for heading in _HEADING.findall(prose):
        name = slug(heading)
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return found


def links(page: str) -> Iterator[tuple[str, str]]:
    """Yield the file and anchor of each link within the repository; the file is empty for links within the page."""
    for link in _LINK.findall(_CODE.sub("", _FENCED.sub("", page))):
        if not re.match(r"[a-z]+:", link):
            file, _, anchor = link.partition("#")
            yield file, anchor


def text_of(path: Path) -> str:
    """Return the text of a page, or of a notebook's cells of text."""
    if path.suffix != ".ipynb":
        return path.read_text("utf-8")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def broken_links(path: Path) -> list[str]:
    """Return the links of a page whose file or heading does not exist."""
    page = text_of(path)
    broken = []
    for file, anchor in links(page):
        target = path.parent / file if file else path
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            broken.append(f"{file}#{anchor}" if anchor else file)
    return broken


@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_links_to_pages_of_its_language(path: Path) -> None:
    _, *found = links(text_of(path))  # the first link is to the other language
    assert found
    assert {".zh." in file or "zh" in Path(file).parts for file, _ in found if not file.endswith(".py")} == {
        path.stem.endswith(".zh")
    }


def test_there_are_links_of_all_kinds() -> None:
    found = [link for path in PAGES for link in links(path.read_text("utf-8"))]
    assert len([file for file, anchor in found if file and not anchor]) > 50
    assert len([file for file, anchor in found if file and anchor]) > 15
    assert len([anchor for file, anchor in found if anchor and not file]) > 20


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# Other\n\n## What is it?\n\n## A\n\n## A\n\n```sh\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n"
        "[right](other.md), [right](other.md#what-is-it), [right](#page), [right](other.md#a-1), "
        "[elsewhere](https://example.org/#x), `[code](none.md)`\n\n"
        "[no file](none.md), [no file](none.md#other), [wrong](other.md#what-is-it-), [wrong](#other), "
        "[wrong](other.md#no-heading), [wrong](other.md#a-2)\n"
    )
    wrong = ["none.md", "none.md#other", "other.md#what-is-it-", "#other", "other.md#no-heading", "other.md#a-2"]
    assert broken_links(page) == wrong


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Kernels of our own: `training.kernels`", "kernels-of-our-own-trainingkernels"),
        ("BERT, then intents", "bert-then-intents"),
        ("1. Why √d_k?", "1-why-d_k"),
        ("Chosen - or not", "chosen---or-not"),
        ("[Muon](muon.md) beside *Adam*", "muon-beside-adam"),
        ("自己的文件", "自己的文件"),
    ],
)
def test_anchors_are_those_of_github(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor
