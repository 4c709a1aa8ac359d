"""Test that docs/settings.md is what docs/generate_settings.py writes for the current code."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from transduce.tasks.settings.reading import setting_names

DOCS = Path(__file__).resolve().parents[2] / "docs"


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_settings", DOCS / "generate_settings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()


class Shoe(msgspec.Struct):
    """A struct with docstrings under some of its fields."""

    size_millimetres: int = 260
    """The length of the foot,
    in millimetres."""

    # A comment is not a meaning.
    colour: str = "brown"
    nails: int | None = None
    """On the sole."""


def test_the_page_is_up_to_date() -> None:
    page = (DOCS / "settings.md").read_text("utf-8")
    assert page == GENERATOR.page(), "run: python docs/generate_settings.py"


def test_every_setting_is_documented_once() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| .+ \| .+ \| (.+) \|$", GENERATOR.page(), re.MULTILINE)
    documented = [name for name, meaning in rows if len(meaning) > 10 and name not in GENERATOR.choices.PRESETS]
    assert sorted(documented) == sorted(setting_names())


@pytest.mark.parametrize("table", ["TYPES", "IF_NOT_SET"])
def test_the_tables_of_the_generator_are_about_settings_that_exist(table: str) -> None:
    assert set(getattr(GENERATOR, table)) - set(setting_names()) == set()


def test_links_of_the_page_have_a_target() -> None:
    page = GENERATOR.page()
    targets = set(re.findall(r'<a id="(\w+)">', page)) | {"presets"}
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) <= targets


def test_a_docstring_under_a_field_is_its_meaning() -> None:
    assert GENERATOR.docstrings(Shoe) == {
        "size_millimetres": "The length of the foot, in millimetres.",
        "nails": "On the sole.",
    }
    assert GENERATOR.meaning("shoe.nails", Shoe) == "On the sole."


def test_a_setting_without_a_meaning_or_a_default_is_refused() -> None:
    with pytest.raises(LookupError, match=r"the setting shoe\.colour has no docstring in the code"):
        GENERATOR.meaning("shoe.colour", Shoe)
    with pytest.raises(LookupError, match=r"the default of the setting shoe\.nails is None"):
        GENERATOR.show_default("shoe.nails", None)


@pytest.mark.parametrize(("value", "shown"), [(True, "`true`"), ((), "none"), ("bpe", '`"bpe"`'), (0.1, "`0.1`")])
def test_defaults_are_shown_as_a_settings_file_has_them(value: object, shown: str) -> None:
    assert GENERATOR.show_default("shoe.anything", value) == shown
