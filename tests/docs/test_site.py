"""Test that the site of `make docs` builds without warnings in both languages, works offline and has no broken link."""

import json
import os
import posixpath
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = Path(__file__).resolve().parents[2]
ZH = ROOT / "docs" / "zh"
OWN_ADDRESS = re.compile(r"https?://(?:127\.0\.0\.1|localhost)\b")


class Page(HTMLParser):
    """A parsed page of the site: anchors, links, loaded files, and numbers of elements by kind in its article."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.elements: Counter[str] = Counter()
        self.policy_is_first = False
        self._in_article = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif values.get("rel") not in {"canonical", "alternate", "prev", "next"}:
            self.loaded += [values[name] for name in ("src", "href", "poster", "action", "srcset") if name in values]
        if values.get("http-equiv") == "Content-Security-Policy":
            self.policy_is_first = not self.loaded and "default-src 'self'" in values["content"]
        self._in_article |= tag == "article"
        if self._in_article:
            self.elements[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._in_article &= tag != "article"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("mkdocs", "material", "jieba"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed, so the site is not built: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    for configuration, out in (("mkdocs.yml", folder), ("mkdocs.zh.yml", folder / "zh")):
        done = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", configuration, "-d", str(out)],
            cwd=ROOT,
            env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONUTF8": "1"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Page]:
    paths = sorted(site.rglob("*.html"))
    return {path.relative_to(site).as_posix(): Page(path.read_text("utf-8")) for path in paths}


def test_nothing_is_loaded_from_another_address(site: Path, pages: dict[str, Page]) -> None:
    assert [(name, url) for name, page in pages.items() for url in page.loaded if re.match(r"(\w+:)?//", url)] == []
    assert [name for name, page in pages.items() if not page.policy_is_first] == []
    styles = [path for path in site.rglob("*.css") if re.search(r"url\(.?(?:https?:)?//", path.read_text("utf-8"))]
    assert styles == []


def test_no_link_leads_to_another_address(pages: dict[str, Page]) -> None:
    outside = {url for page in pages.values() for url in page.links if re.match(r"(\w+:)?//", url)}
    assert [url for url in outside if not OWN_ADDRESS.match(url)] == []


def test_no_link_is_broken(site: Path, pages: dict[str, Page]) -> None:
    broken = []
    for name, page in pages.items():
        for link in {*page.links, *page.loaded}:
            if re.match(r"\w+:|//", link) or not link or name.endswith("404.html"):
                continue
            file, _, anchor = unquote(link).partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), file)) if file else name
            if not (site / target).is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                broken.append((name, link))
    assert broken == []


def test_every_page_has_its_other_language(pages: dict[str, Page]) -> None:
    english = {name for name in pages if not name.startswith("zh/")}
    assert {f"zh/{name}" for name in english} == set(pages) - english
    for name in english - {"404.html"}:
        up = "../" * name.count("/")
        assert f"{up}zh/{name}" in [posixpath.normpath(link) for link in pages[name].links], name


def test_english_pages_of_the_chinese_site_are_marked(site: Path) -> None:
    chinese = {"index.md", *("pages.md" if path.name == "README.md" else path.name for path in ZH.glob("*.md"))}
    for path in (site / "zh").glob("*.html"):
        if path.name != "404.html":
            is_marked = "本页目前只有英文版" in path.read_text("utf-8")
            assert is_marked == (f"{path.stem}.md" not in chinese), path.name


def test_lists_of_options_may_break_after_chinese_commas(site: Path) -> None:
    assert "</code>、<wbr><code>--max-waiting" in (site / "zh" / "serving.html").read_text("utf-8")


def test_the_search_finds_chinese_words(site: Path) -> None:
    """Words of a Chinese text are separated by zero-width spaces in the index, so that a search finds them."""
    index = (site / "zh" / "search" / "search_index.js").read_text("utf-8").partition("=")[2]
    texts = [entry["text"] for entry in json.loads(index)["docs"]]
    assert any("\u200b翻译\u200b" in text for text in texts)


def test_pages_have_the_lists_tables_and_blocks_of_the_repository_view(pages: dict[str, Page]) -> None:
    """MkDocs has other rules of Markdown: it would lose a list without an empty line before it."""
    markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed")
    reader = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table")
    for path in [*(ROOT / "docs").glob("*.md"), *ZH.glob("*.md")]:
        name = f"{'zh/' if path.parent == ZH else ''}{'pages' if path.stem == 'README' else path.stem}.html"
        wanted = Page(f"<article>{reader.render(path.read_text('utf-8'))}</article>").elements
        for element in ("li", "table", "tr", "pre", "h2", "h3", "img"):
            assert pages[name].elements[element] == wanted[element], f"{path.name}: <{element}>"


@pytest.mark.parametrize(
    ("folder", "asked", "page"),
    [
        ("", "rotary embeddings", "questions.html"),
        ("", "--beam-size", "tutorial/6-search.html"),
        ("zh/", "交叉注意力", "zh/questions.html"),
    ],
)
def test_the_site_is_searched_offline(site: Path, browser: "Browser", folder: str, asked: str, page: str) -> None:
    """Open the site from its files, search, and look at what the browser loads."""
    with browser.new_page(viewport={"width": 390, "height": 844}) as opened:
        loaded: list[str] = []
        opened.on("request", lambda request: loaded.append(request.url))
        opened.goto((site / folder / "index.html").as_uri())
        opened.locator("label.md-header__button[for=__search]").click()
        opened.locator(".md-search__input").fill(asked)
        opened.keyboard.press("End")
        opened.wait_for_selector(".md-search-result__item")
        found = opened.locator(".md-search-result__link").evaluate_all("links => links.map(link => link.href)")
        assert any(f"/{page}" in link for link in found)
        assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [url for url in loaded if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


def test_the_page_parser_finds_scripts_links_and_anchors() -> None:
    page = Page(
        '<script src="//a.org/x.js"></script><a href="x.html#y">z</a><article><p id="b">c</p></article><p>d</p>'
    )
    assert (page.loaded, page.links, page.anchors) == (["//a.org/x.js"], ["x.html#y"], {"b"})
    assert page.elements["p"] == 1
    assert not page.policy_is_first
