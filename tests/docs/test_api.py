"""Test that docs/api.md is what docs/generate_api.py writes for the current public names."""

import ast
import dataclasses
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import transduce

DOCS = Path(__file__).resolve().parents[2] / "docs"
# These pages explain the code itself, whose modules may change with any release.
MAY_IMPORT_PRIVATE_MODULES = {"own_loop.md", "adding.md", "questions.md", "errata.md"}


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_api", DOCS / "generate_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()


def paint(wall: str, *colors: int, coats: int = 2) -> bool:
    """Paint a wall.

    Args:
        wall: a name such as <north>,
            or a number.

    Returns:
        True if `a < b`.
    """
    return bool(wall and colors and coats)


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "api.md").read_text("utf-8") == GENERATOR.page(), "run: python docs/generate_api.py"


@pytest.mark.parametrize("name", transduce.__all__)
def test_every_public_name_has_a_docstring_and_an_entry(name: str) -> None:
    assert inspect.getdoc(getattr(transduce, name))
    assert f'<a id="{name}"></a>' in (DOCS / "api.md").read_text("utf-8")


@pytest.mark.parametrize("name", transduce.__all__)
def test_a_public_class_describes_its_own_constructor(name: str) -> None:
    item = getattr(transduce, name)
    constructor = vars(item).get("__init__") if inspect.isclass(item) else None
    if constructor is None or not constructor.__module__.startswith("transduce"):
        return
    if len(inspect.signature(constructor).parameters) > 1 and not dataclasses.is_dataclass(item):
        assert constructor.__doc__
    assert "Initialize internal Module state" not in "".join(GENERATOR.entry(name))  # PyTorch's docstring


def test_settings_in_public_signatures_and_fields_are_public() -> None:
    page = (DOCS / "api.md").read_text("utf-8")
    assert {*re.findall(r"\b\w+Settings\b", page)} <= {*transduce.__all__}


def test_a_name_without_a_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transduce, "__all__", [*transduce.__all__, "paint"])
    with pytest.raises(LookupError, match=r"each public name must be in one group .*: \['paint'\]"):
        GENERATOR.page()


def test_a_signature_and_a_docstring() -> None:
    tree = GENERATOR.definition(paint)
    assert isinstance(tree, ast.FunctionDef)
    assert GENERATOR.signature("paint", tree) == "paint(wall: str, *colors: int, coats: int = 2) -> bool"
    assert GENERATOR.render(paint.__doc__) == (
        "Paint a wall.\n\n**Args**\n\n* `wall`: a name such as &lt;north>,\n  or a number.\n\n"
        "**Returns**\n\nTrue if `a < b`."
    )


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_pages_import_public_names_only(path: Path) -> None:
    text = path.read_text("utf-8")
    private = re.findall(r"^\s*(?:from transduce\.[\w.]+ import .*|import transduce\.[\w.]+.*)$", text, re.MULTILINE)
    assert path.name in MAY_IMPORT_PRIVATE_MODULES or private == []


def test_public_names_in_pages_exist() -> None:
    """Each `transduce.name` that stands in code of a page is public."""
    pages = [*DOCS.glob("*.md"), *DOCS.parent.glob("README*.md")]
    named = {name for page in pages for name in re.findall(r"\btransduce\.([A-Za-z]\w+)\(", page.read_text("utf-8"))}
    assert len(named) > 5
    assert named - set(transduce.__all__) == set()
