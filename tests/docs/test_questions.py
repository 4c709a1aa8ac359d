"""Every block of docs/questions.md runs, and prints what the page says it prints."""

import contextlib
import io
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "questions.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Question(NamedTuple):
    """A question's title, and its blocks: kind (python, text) and content."""

    title: str
    blocks: list[tuple[str, str]]


def read_questions(page: str) -> list[Question]:
    sections = page.split("\n## ")[1:]
    return [Question(section.partition("\n")[0], _BLOCK.findall(section)) for section in sections]


QUESTIONS = read_questions(PAGE.read_text("utf-8"))


def run_blocks(question: Question) -> list[tuple[str, str]]:
    """Runs the blocks in one namespace; for each what it printed, and the text block that follows it."""
    namespace: dict[str, Any] = {"__name__": "question"}
    outputs: list[tuple[str, str]] = []
    followers = [*question.blocks[1:], ("", "")]
    for (kind, content), (next_kind, next_content) in zip(question.blocks, followers, strict=True):
        if kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(content, f"{PAGE.name}: {question.title}", "exec"), namespace)
            outputs.append((printed.getvalue(), next_content if next_kind == "text" else ""))
    return outputs


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.title.partition(".")[0])
def test_the_code_of_an_answer_runs_and_prints_what_the_page_says(question: Question) -> None:
    outputs = run_blocks(question)
    assert outputs, f"question {question.title} has no code"
    for printed, expected in outputs:
        assert printed == expected


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.title.partition(".")[0])
def test_every_block_checks_something(question: Question) -> None:
    for kind, content in question.blocks:
        if kind == "python":
            assert re.search(r"^ *(assert|print)\b", content, re.MULTILINE)


def test_the_list_at_the_top_names_every_question_and_links_to_it() -> None:
    head = PAGE.read_text("utf-8").partition("\n## ")[0]
    listed = re.findall(r"^\d+\. \[(.+)\]\(#(.+)\)$", head, re.MULTILINE)
    titles = [question.title for question in QUESTIONS]
    assert [f"{number}. {title}" for number, (title, _) in enumerate(listed, 1)] == titles
    anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    assert [anchor for _, anchor in listed] == anchors


def test_a_wrong_output_is_noticed() -> None:
    [question] = read_questions("# Page\n\n## 1. A?\n\n```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n")
    assert run_blocks(question) == [("2\n", "3\n")]
