"""Test that Chinese pages have the code of the English ones, link to them, and use the agreed terms."""

import re
from pathlib import Path

import pytest

from transduce import set_ui_language
from transduce.tasks.settings.reading import setting_names
from transduce.ui_language import localized

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "zh").glob("*.md"))
_FENCED = re.compile(r"^```\w*\n.*?^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+")
# Pages that are generated (`api.md`, `settings.md`), and two that are not translated yet.
ENGLISH_ONLY = {"api.md", "design.md", "results.md", "settings.md"}
# Their outputs are in Chinese, too: those of `OUTPUTS` line by line as the commands translate them.
OUTPUTS = {
    *("bert.md", "decoding.md", "deployment.md", "experiments.md", "exporting.md", "folders.md"),
    *(
        "run_estimates.md",
        "importing.md",
        "preparing.md",
        "reliability.md",
        "search.md",
        "serving_start.md",
        "start.md",
        "training.md",
        "views.md",
        "vocabularies.md",
    ),
}
CHINESE_OUTPUT = {"doctor.md", "paper.md", "training_log.md", *OUTPUTS}
# Words that a Chinese reader of the field would not use, and what to write.
WORDS = {r"令牌|代币": "词元", r"遮罩|掩膜": "掩码", r"关注力": "注意力", r"检验点": "检查点", r"编码者": "编码器"}
# No page of the documentation addresses its reader formally.
FORMAL = re.compile("您")


def code_blocks(page: str) -> list[str]:
    """Return a page's blocks of code without comments, which are in the language of the page."""
    fenced = _FENCED.findall(page)
    blocks = fenced + _INDENTED.findall(_FENCED.sub("", page))
    return [re.sub(r"(^|\s)#(?!\w).*$", "", block, flags=re.MULTILINE).strip() for block in blocks]


def shape(page: str) -> list[str]:
    """Return the beginnings of headings, list items and rows, which both languages share."""
    prose = _FENCED.sub("", page)
    return re.findall(r"^(#+|\*|\d+\.|\|)(?= )", prose, re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_and_its_english_one_lead_to_each_other(path: Path) -> None:
    assert f"\n\n[English](../{path.name})\n\n" in path.read_text("utf-8")
    assert f"\n\n[中文](zh/{path.name})\n\n" in (DOCS / path.name).read_text("utf-8")


def test_every_page_is_there_in_chinese() -> None:
    assert {path.name for path in DOCS.glob("*.md")} - {path.name for path in PAGES} == ENGLISH_ONLY


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_code_is_that_of_the_english_page(path: Path) -> None:
    both = [code_blocks(page.read_text("utf-8")) for page in (path, DOCS / path.name)]
    if path.name in CHINESE_OUTPUT:
        both = [[block for block in blocks if not block.startswith("```text")] for blocks in both]
    assert both[0] == both[1]


def test_chinese_outputs_are_the_english_ones_in_the_language_of_the_command() -> None:
    english, chinese = ((folder / "paper.md").read_text("utf-8") for folder in (DOCS, DOCS / "zh"))
    pairs = zip(
        *(re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) for page in (english, chinese)),
        strict=True,
    )
    set_ui_language("zh")
    try:
        for one, other in pairs:
            columns = len(cells_of(one)[0])
            table = [row for row in cells_of(one) if len(row) == columns > 1]
            assert [[localized(cell) for cell in row] for row in table] == cells_of(other)[: len(table)]
    finally:
        set_ui_language("en")


def test_the_chinese_training_log_is_the_english_one_in_chinese() -> None:
    logs = [(folder / "training_log.md").read_text("utf-8") for folder in (DOCS, DOCS / "zh")]
    english, chinese = ("\n".join(re.findall(r"^```text\n(.*?)^```$", log, re.DOTALL | re.MULTILINE)) for log in logs)
    samples = re.compile(r"^    \S+ +(.*)$")  # a text, its reference and its translation: their names are translated
    scores = r"\n(?!BLEU|chrF|\d+ sentences|\d+ 个句子|decoding|解码)"  # which follow their heading in one message
    set_ui_language("zh")
    try:
        for line, other in zip(re.split(scores, english), re.split(scores, chinese), strict=True):
            if line.startswith("Machine:"):
                assert other.startswith("机器：")
            elif match := samples.match(line):
                assert other.endswith(match[1])
            elif line.startswith("  "):
                assert [localized(cell) for cell in re.split(r" {2,}", line)] == re.split(r" {2,}", other)
            else:
                assert localized(line) == other
                assert line != other or not line
    finally:
        set_ui_language("en")


@pytest.mark.parametrize("name", sorted(OUTPUTS))
def test_the_output_on_a_chinese_page_is_what_the_chinese_command_prints(name: str) -> None:
    both = [outputs_of((folder / name).read_text("utf-8")) for folder in (DOCS, DOCS / "zh")]
    set_ui_language("zh")
    try:
        for english, chinese in zip(*both, strict=True):
            for part, other in zip(english.split("\n\n"), chinese.split("\n\n"), strict=True):
                # A message of several lines may hold a table.
                is_whole = localized(part).split("\n")[0] == other.split("\n")[0]
                lines = (localized(part) if is_whole and localized(part).count("\n") else part).split("\n")
                assert [in_chinese(line) for line in lines] == [" ".join(line.split()) for line in other.split("\n")]
    finally:
        set_ui_language("en")


def outputs_of(page: str) -> list[str]:
    """Return a page's blocks of output."""
    return re.findall(r"^```text\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)


def in_chinese(line: str) -> str:
    """Return a line of output, or the cells of a row, in Chinese, with single spaces."""
    cells = re.split(r" {2,}", line)
    row = [localized(cell) for cell in cells]
    return " ".join((" ".join(row) if row != cells else localized(line)).split())


def cells_of(output: str) -> list[list[str]]:
    """Return the rows of a printed table, whose columns are two spaces or more apart."""
    return [re.split(r" {2,}", line) for line in output.rstrip("\n").split("\n")]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_both_languages_have_the_same_parts(path: Path) -> None:
    assert shape(path.read_text("utf-8")) == shape((DOCS / path.name).read_text("utf-8"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_settings_that_are_named_exist(path: Path) -> None:
    setting = re.compile(r"`((?:task|data|tokenizer|model|training|search)\.\w+)`")
    known = set(setting_names())
    named = set(setting.findall(path.read_text("utf-8"))) - known
    named -= set(setting.findall((DOCS / path.name).read_text("utf-8")))  # such as `model.output_weight`
    assert [name for name in named if not any(other.startswith(f"{name}.") for other in known)] == []


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.zh.md"], ids=lambda path: path.name)
def test_the_words_are_those_of_the_field(path: Path) -> None:
    page = path.read_text("utf-8")
    assert [f"{found}: {right}" for wrong, right in WORDS.items() for found in re.findall(wrong, page)] == []
    assert not FORMAL.search(page)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_stay_in_chinese_where_they_can(path: Path) -> None:
    links = re.findall(r"\[([^\]]+)\]\(\.\./(\w+\.md)(?:#[^)]*)?\)", path.read_text("utf-8"))
    existing = {other.name for other in PAGES}
    assert [link for link in links if link[1] in existing and not re.search("英文|English", link[0])] == []
