"""Test that docstrings are complete sentences, and that names and texts use the field's terms (CONTRIBUTING.md)."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "transduce").rglob("*.py"))
TEXTS = [
    *SOURCES,
    *sorted((ROOT / "tests").rglob("*.py")),
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "log" not in path.parts),
    *sorted(ROOT.glob("README*.md")),
]

# A sentence that begins so can be understood only together with its neighbors.
FRAGMENT = re.compile(r"(Of|The same|What|Whether|Those|It|They|See|As|Where|How|That|This one|These|Likewise)\b")

DIALECT = {
    r"whoever|whosoever|strangers?": "caller, another thread, client",
    r"foretells?|foretelling|foretold|foresees?|foreseen|foresaw": "predict, forecast, check up front",
    r"mend|mends|mended|mending": "fix, repair",
    r"spoils?|spoilt|spoiled|spoiling|spoilers?": "corrupt, noise",
    r"twins?": "inference copy, prepacked weights",
    r"bricks?": "module, component",
    r"crews?": "threads, thread limiter",
    r"there and back|the way there|the way back": "forward and backward",
    r"by lot": "at random",
    r"beside other work": "on a busy machine",
    r"held to AVX\d?": "restricted to AVX2",
    r"minds (?:it|them|a factor)": "applies",
    r"tells? (?:of|that)": "describes, reports, shows",
    r"nothing is said|(?:is|was|are|were) not said|as (?:it is|they are) said": "default",
    r"second looks?": "re-decoding",
    r"like lengths": "batched by length",
    r"falls short|fell short": "misses its target",
    r"hypotheses side by side": "hypotheses in one batch",
}
"""Words of a private language, as regular expressions, and what to write instead."""

ALLOWED = {
    # A word of the demonstration's grammar, and of a corpus.
    "src/transduce/demonstration/clauses.py": {"STRANGERS"},
    "src/transduce/demonstration/grammar.py": {"STRANGERS"},
}
"""Words that mean what they say in the files of these names."""

_WORDS = re.compile("|".join(rf"\b(?:{words})\b" for words in DIALECT), re.IGNORECASE)


class Parsed(NamedTuple):
    """The docstrings and the settings in a source file."""

    docstrings: list[tuple[int, str]]
    """The line of each definition, and its docstring."""
    functions: list[tuple[int, str, set[str], str]]
    """The line of each function that has a docstring, its name, its arguments' names, and its docstring."""
    fields: list[int]
    """The line of each field of a settings struct."""


@cache
def _parse(text: str) -> Parsed:
    found = Parsed([], [], [])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            docstring = ast.get_docstring(node)
            if docstring:
                line = getattr(node, "lineno", 1)
                found.docstrings.append((line, docstring))
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    names = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
                    found.functions.append((line, node.name, names, docstring))
        if isinstance(node, ast.ClassDef) and any("Struct" in ast.unparse(base) for base in node.bases):
            found.fields.extend(field.lineno for field in node.body if isinstance(field, ast.AnnAssign))
    return found


def fragments(name: str, text: str) -> Iterator[str]:
    for line, docstring in _parse(text).docstrings:
        if FRAGMENT.match(docstring):
            yield f"{name}:{line} begins as a fragment: {docstring.splitlines()[0]}"


def summaries(name: str, text: str) -> Iterator[str]:
    for line, docstring in _parse(text).docstrings:
        first, *others = docstring.splitlines()
        if not first.endswith((".", "?", "!", "。", ":")) or (others and others[0].strip()):
            yield f"{name}:{line} has no summary of one line that ends with a period: {first}"


def arguments(name: str, text: str) -> Iterator[str]:
    """Find described arguments that the function does not have, as after a renaming."""
    for line, function, names, docstring in _parse(text).functions:
        described = docstring.partition("Args:\n")[2].partition("\n\n")[0]
        for entry in re.findall(r"^    \*{0,2}(\w+): ", described, re.MULTILINE):
            if entry not in names:
                yield f"{name}:{line} describes the argument {entry}, which {function} does not have"


def comments_of_fields(name: str, text: str) -> Iterator[str]:
    """Find fields of settings that a comment describes, which the documentation of settings would not show."""
    lines = text.splitlines()
    for line in _parse(text).fields:
        above = lines[line - 2].lstrip()
        if above.startswith("# ") and not above.startswith("# ---"):
            yield f"{name}:{line} describes a field by a comment instead of a docstring below it"


def dialect(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        for found in _WORDS.finditer(line):
            if found[0] not in ALLOWED.get(name, ()):
                yield f"{name}:{number} says `{found[0]}`: {line.strip()}"


@pytest.mark.parametrize(
    "check", [fragments, summaries, arguments, comments_of_fields], ids=lambda check: check.__name__
)
def test_docstrings_are_complete(check: object) -> None:
    assert callable(check)
    names = [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in SOURCES]
    assert [finding for name, text in names for finding in check(name, text)] == []


def test_the_words_are_the_fields() -> None:
    own = Path(__file__).resolve()
    names = [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in TEXTS if path != own]
    assert [finding for name, text in names for finding in dialect(name, text)] == []


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (fragments, '"""Of each token, its score."""\n'),
        (fragments, 'def f():\n    """See `g`."""\n'),
        (summaries, '"""Return the scores\nof all tokens."""\n'),
        (summaries, '"""Return the scores"""\n'),
        (arguments, 'def f(a):\n    """Return a.\n\n    Args:\n        b: a number.\n    """\n'),
        (comments_of_fields, "class A(msgspec.Struct):\n    # The size.\n    size: int\n"),
        (dialect, "# The twin of a model.\n"),
        (dialect, "Batches of like lengths.\n"),
    ],
)
def test_an_offense_is_found(check: object, text: str) -> None:
    assert callable(check)
    assert len(list(check("a.py", text))) == 1


def test_text_that_only_resembles_an_offense_is_accepted() -> None:
    text = 'class A(Struct):\n    """A size."""\n\n    size: int\n    """The size, recommended or amended."""\n'
    checks = (fragments, summaries, arguments, comments_of_fields, dialect)
    assert [found for check in checks for found in check("a.py", text)] == []
