"""Hooks of MkDocs that turn the repository's pages into the site of one language: which pages, names, links.

`docs/NAME.md` is the English page and `docs/zh/NAME.md` the Chinese one. Where there is no Chinese page, the Chinese
site shows the English one and says so. READMEs, CHANGELOG.md and CONTRIBUTING.md become pages too. Links are written
for the repository's folders and are rewritten here.
"""

import logging
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
RENAMED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "README.zh.md": "index.md",
    "docs/README.md": "pages.md",
    "docs/zh/README.md": "pages.md",
}
"""Pages whose names in the site differ from their paths below `docs`."""

ENGLISH_ONLY = '\n!!! note ""\n    本页目前只有英文版。\n'
_HEADING = re.compile(r"^#{2,6} +(.+)$", re.MULTILINE)
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
_OUTSIDE = re.compile(r"https?://(?!127\.0\.0\.1|localhost)")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CHINESE_BREAK = re.compile(r"(?<=[\u201d\u2026\u3001-\u9fff\uff01-\uffef])\n *(?=[\u201c\u3001-\u9fff\uff01-\uffef])")
_CODE_AFTER_COMMA = re.compile(r"(?<=[、，；：])(?=`[-./])")
_OTHER_LANGUAGE = re.compile(r"^\[(?:English|中文|简体中文)\]\([^)]+\)\n+", re.MULTILINE)


def slug(heading: str, separator: str = "-") -> str:
    """Return the anchor that GitHub makes of a heading, which the pages' links use."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def is_chinese(path: str) -> bool:
    """Return whether this page of the repository is a Chinese one."""
    return path.startswith("docs/zh/") or path == "README.zh.md"


def site_pages(language: str) -> dict[str, str]:
    """Return the names in the site of the repository's pages, by path; of two with one name, the last one is shown."""
    found = [*RENAMED, *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
    pages = {}
    for path in sorted(found, key=lambda path: (is_chinese(path), path)):
        if (ROOT / path).is_file() and (language == "zh" or not is_chinese(path)):
            pages[path] = RENAMED.get(path, path.removeprefix("docs/").removeprefix("zh/"))
    return pages


def chinese_anchor(english: str, name: str, anchor: str) -> str:
    """Return the anchor of the Chinese page `docs/zh/NAME` that corresponds to one of the English page.

    The headings of both pages correspond by their order. Where they do not, the link leads to the top of the page.
    """
    chinese = ROOT / "docs" / "zh" / name
    if not chinese.is_file():
        return anchor
    headings, others = (
        [slug(text) for text in _HEADING.findall(_FENCE.sub("", path.read_text("utf-8")))]
        for path in (ROOT / english, chinese)
    )
    return others[headings.index(anchor)] if anchor in headings and len(headings) == len(others) else ""


def on_config(config: Any) -> None:
    """Make the anchors of headings those of the repository's pages, and title the sections."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    logging.getLogger("jieba").setLevel(logging.WARNING)  # hide the time of loading its dictionary


def on_files(files: Files, config: Any) -> Files:
    """Return the pages of the site's language, and its pictures."""
    # A Chinese page comes after the English page of the same name, and replaces it.
    sources = {name: path for path, name in site_pages(config.extra["pages"]).items()}
    kept = [file for file in files if not file.is_documentation_page() and not file.src_uri.startswith("zh/")]
    for name, path in sources.items():
        file = File.generated(config, name, abs_src_path=str(ROOT / path))
        file.repository_path = path
        kept.append(file)
    _complete_navigation(config, set(sources))
    return Files(kept)


def _complete_navigation(config: Any, names: set[str]) -> None:
    """Remove pages that do not exist from the navigation, and append pages that it does not list."""
    sections, titles = config.extra["sections"], config.extra.get("titles", {})
    navigation: list[Any] = []
    listed = set()
    for entry in config.nav:
        if isinstance(entry, str):
            navigation.append(entry)
            listed.add(entry)
        else:
            ((section, pages),) = entry.items()
            present = [page for page in pages if page in names]
            listed |= set(present)
            navigation.append({sections[section]: [_titled(page, titles) for page in present]})
    more = sorted(names - listed)
    for section, log in (("more", False), ("log", True)):
        pages = [name for name in more if name.startswith("log/") == log]
        if pages:
            navigation.append({sections[section]: [_titled(page, titles) for page in pages]})
    config.nav = navigation


def _titled(name: str, titles: dict[str, str]) -> str | dict[str, str]:
    """Return an entry of the navigation, with a title if the page has one and is not in the site's language."""
    is_translated = (ROOT / "docs" / "zh" / name).is_file()
    return {titles[name]: name} if name in titles and not is_translated else name


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite the links of a page for the site, and mark an English page of the Chinese site."""
    language, path = config.extra["pages"], page.file.repository_path
    markdown = _OTHER_LANGUAGE.sub("", markdown, count=1)
    markdown = "".join(_rewritten(markdown, path, page.file.src_uri, language))
    if language == "zh" and not is_chinese(path):
        heading, _, rest = markdown.partition("\n")
        markdown = f"{heading}\n{ENGLISH_ONLY}{rest}"
    return markdown


def _rewritten(markdown: str, path: str, name: str, language: str) -> Iterator[str]:
    """Yield the parts of a page, with links changed to their targets' addresses in the site, and code unchanged."""
    pages = site_pages(language)

    def rewrite(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        file, _, anchor = target.partition("#")
        if _OUTSIDE.match(file):
            return text  # the site has no links to other sites
        if not file or re.match(r"[a-z]+:", file):
            return link[0]
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        found = pages.get(wanted)
        if found is None and picture:
            found = wanted.removeprefix("docs/")
        if found is None:
            return text  # a file of the repository that is not in the site, such as a script
        if is_chinese(path) and not is_chinese(wanted) and (ROOT / "docs" / "zh" / found).is_file():
            # The link means the English page although there is a Chinese one, so it leads to the English site.
            html = "../" * (name.count("/") + 1) + found.removesuffix(".md") + f".html#{anchor}"
            return f'<a href="{html.rstrip("#")}">{text}</a>'
        if language == "zh" and anchor and not is_chinese(path):
            anchor = chinese_anchor(wanted, found, anchor)
        relative = os.path.relpath(found, posixpath.dirname(name) or ".").replace(os.sep, "/")
        return f"{picture}[{text}]({relative}{'#' if anchor else ''}{anchor})"

    for number, part in enumerate(_FENCE.split(markdown)):
        # A browser would show the end of a line between two Chinese characters as a space.
        # It would not break a line after a Chinese comma if the next character is one of `-./`, as of an option.
        yield part if number % 2 else _LINK.sub(rewrite, _CODE_AFTER_COMMA.sub("<wbr>", _CHINESE_BREAK.sub("", part)))
