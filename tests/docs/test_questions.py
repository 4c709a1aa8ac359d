"""Test that every block of the questions and errata runs, prints what is shown, and is equal in both languages."""

import contextlib
import importlib.util
import io
import re
import tokenize
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [path for path in (DOCS / "questions.md", DOCS / "errata.md") if path.is_file()]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Question(NamedTuple):
    """A question of the page: its title, and the kind (python, text) and content of its blocks."""

    title: str
    blocks: list[tuple[str, str]]


def read_questions(page: str) -> list[Question]:
    sections = page.split("\n## ")[1:]
    return [Question(section.partition("\n")[0], _BLOCK.findall(section)) for section in sections]


QUESTIONS = [
    pytest.param(question, id=f"{page.stem} {question.title.partition('.')[0]}")
    for page in PAGES
    for question in read_questions(page.read_text("utf-8"))
]


def run_blocks(question: Question) -> list[tuple[str, str]]:
    """Run a question's blocks in one namespace; return what each printed, and the text block that follows it."""
    namespace: dict[str, Any] = {"__name__": "question"}
    outputs: list[tuple[str, str]] = []
    followers = [*question.blocks[1:], ("", "")]
    for (kind, content), (next_kind, next_content) in zip(question.blocks, followers, strict=True):
        if kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(content, question.title, "exec"), namespace)
            outputs.append((printed.getvalue(), next_content if next_kind == "text" else ""))
    return outputs


def without_comments(code: str) -> list[str]:
    """Return the tokens of Python code but its comments, which are in the language of the page."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return [token.string for token in tokens if token.type not in {tokenize.COMMENT, tokenize.NL}]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_code_of_an_answer_runs_and_prints_what_the_page_says(question: Question) -> None:
    outputs = run_blocks(question)
    assert outputs, f"question {question.title} has no code"
    for printed, expected in outputs:
        assert printed == expected


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_block_checks_something(question: Question) -> None:
    for kind, content in question.blocks:
        if kind == "python":
            assert re.search(r"^ *(assert|print)\b", content, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_chinese_page_has_the_same_code_and_output(page: Path) -> None:
    english, chinese = (read_questions(path.read_text("utf-8")) for path in (page, DOCS / "zh" / page.name))
    assert len(english) == len(chinese)
    for question, translated in zip(english, chinese, strict=True):
        assert [kind for kind, _ in question.blocks] == [kind for kind, _ in translated.blocks], translated.title
        for (kind, block), (_, other) in zip(question.blocks, translated.blocks, strict=True):
            same = without_comments(block) == without_comments(other) if kind == "python" else block == other
            assert same, f"{translated.title}\n{other}"


@pytest.mark.parametrize("folder", [DOCS, DOCS / "zh"], ids=["en", "zh"])
@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_the_list_at_the_top_names_every_question_and_links_to_it(folder: Path, name: str) -> None:
    page = (folder / name).read_text("utf-8")
    listed = re.findall(r"^(\d+)\. \[(.+)\]\(#(.+)\)$", page.partition("\n## ")[0], re.MULTILINE)
    titles = [question.title for question in read_questions(page)]
    assert [f"{number}. {title}" for number, title, _ in listed] == titles
    assert [int(number) for number, *_ in listed] == list(range(1, len(titles) + 1))
    anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    assert [anchor for *_, anchor in listed] == anchors


@pytest.mark.parametrize("folder", [DOCS, DOCS / "zh"], ids=["en", "zh"])
@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_an_answer_begins_with_a_short_one(folder: Path, name: str) -> None:
    for section in (folder / name).read_text("utf-8").split("\n## ")[1:]:
        short = re.match(r"[^\n]+\n\n\*\*(.+?)\*\*", section, re.DOTALL)
        assert short is not None, section[:80]
        assert len(short[1]) < 300, section[:80]


def test_pictures_are_what_the_code_draws() -> None:
    drawer = load_drawer()
    pictures = {name: svg for language in drawer.LANGUAGES for name, svg in drawer.draw(language).items()}
    assert {path.name: path.read_text("utf-8") for path in drawer.FOLDER.iterdir()} == pictures, (
        "run: python docs/draw_pictures.py"
    )
    for folder, suffix in ((DOCS, ".svg"), (DOCS / "zh", ".zh.svg")):
        shown = re.findall(r"pictures/questions/([\w.]+)\)", (folder / "questions.md").read_text("utf-8"))
        assert sorted(shown) == sorted(f"{picture.__name__}{suffix}" for picture in drawer.PICTURES)


def load_drawer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_pictures", DOCS / "draw_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_code_of_more_questions_runs_and_prints_what_the_page_says() -> None:
    page = (DOCS / "more_questions.md").read_text("utf-8")
    found = [Question(part.partition("\n")[0], _BLOCK.findall(part)) for part in page.split("\n### ")[1:]]
    questions = [each for each in found if any(kind == "python" for kind, _ in each.blocks)]
    assert len(questions) > 5
    for question in questions:
        if "models/demo" not in str(question.blocks):  # runs with the other commands, in test_commands.py
            assert all(printed == expected for printed, expected in run_blocks(question)), question.title


def test_a_wrong_output_is_noticed() -> None:
    [question] = read_questions("# Page\n\n## 1. A?\n\n```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    assert run_blocks(question) == [("2\n", "3\n")]


def test_other_comments_are_the_same_code() -> None:
    assert without_comments("x = 1  # one\n") == without_comments("x = 1  # 一\n")
    assert without_comments("x = 1  # one\n") != without_comments("x = 2  # one\n")
