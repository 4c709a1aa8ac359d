"""Test that a user's search settings keep their effect beside stored ones, or are refused."""

import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest

from transduce.errors import IdleSettingWarning, TransduceError
from transduce.inference.translator import Translator
from transduce.model_folder.load import read_search_settings
from transduce.search.settings import SamplingSettings, SearchSettings, override_search, override_with_warnings

SAMPLES = SamplingSettings(temperature=0.7)
BEAM = {"beam_size": 8, "length_penalty": 1.0}


@pytest.mark.parametrize(
    ("stored", "options", "sampling", "expected"),
    [
        ({"sampling": SAMPLES, "n_best": 8}, {"beam_size": 3}, {}, {"beam_size": 3, "n_best": 3}),
        ({"sampling": SAMPLES}, {"length_penalty": 1.0}, {}, {"length_penalty": 1.0}),
        ({"sampling": SAMPLES, "frequency_penalty": -0.5}, {"beam_size": 3}, {}, {"beam_size": 3}),
        (
            {"sampling": SAMPLES, "frequency_penalty": -0.5},
            {"beam_size": 1},
            {},
            {"beam_size": 1, "frequency_penalty": -0.5},
        ),
        (
            {"sampling": SAMPLES},
            {"diversity_penalty": 2.0, "diverse_groups": 2},
            {},
            {"diversity_penalty": 2.0, "diverse_groups": 2},
        ),
        ({"diverse_groups": 2, "diversity_penalty": 2.0}, {"beam_size": 3}, {}, {"beam_size": 3}),
        ({"diverse_groups": 2, "diversity_penalty": 0.5}, {"diverse_groups": 1}, {}, {}),
        (
            {"beam_size": 6, "diverse_groups": 3, "diversity_penalty": 1.5},
            {"beam_size": 4, "diverse_groups": 2},
            {},
            {"beam_size": 4, "diverse_groups": 2, "diversity_penalty": 1.5},
        ),
        ({"sampling": SAMPLES}, {"coverage_penalty": 0.2}, {}, {"coverage_penalty": 0.2}),
        ({"sampling": SAMPLES}, {"n_best": 7}, {}, {"n_best": 7, "sampling": SAMPLES}),
        ({"n_best": 4}, {"beam_size": 2}, {}, {"n_best": 2, "beam_size": 2}),
        ({"n_best": 2}, {"beam_size": 8}, {}, {"n_best": 2, "beam_size": 8}),
        ({"diverse_groups": 2}, {"beam_size": 3}, {}, {"beam_size": 3, "diverse_groups": 1}),
        ({"diverse_groups": 2}, {"beam_size": 6}, {}, {"beam_size": 6, "diverse_groups": 2}),
        ({"coverage_penalty": 0.2}, {"beam_size": 1}, {}, {"beam_size": 1}),
        ({"coverage_penalty": 0.2}, {"beam_size": 2}, {}, {"beam_size": 2, "coverage_penalty": 0.2}),
        (
            {"coverage_penalty": 0.2, "diverse_groups": 2},
            {},
            {"top_k": 5},
            {"sampling": SamplingSettings(top_k=5)},
        ),
        ({"sampling": SAMPLES}, {}, {"top_k": 5}, {"sampling": SamplingSettings(temperature=0.7, top_k=5)}),
        ({"coverage_penalty": 0.2, "n_best": 3}, {}, {"temperature": 0}, {"beam_size": 1}),
        ({"max_length": 9}, {"max_length_extra": 5}, {}, {"max_length_extra": 5}),
        ({"min_length": 20}, {"max_length": 9}, {}, {"min_length": 8, "max_length": 9}),
        ({"max_length": 9}, {"min_length": 9}, {}, {"min_length": 9}),
        ({"max_length": 9}, {"min_length": 8}, {}, {"min_length": 8, "max_length": 9}),
        (BEAM, {}, {"seed": 5}, BEAM | {"sampling": SamplingSettings(seed=5)}),
        ({"max_length_extra": 5}, {"max_length": 9}, {}, {"max_length": 9, "max_length_extra": 5}),
    ],
)
def test_what_the_user_sets_has_its_effect(
    stored: dict[str, Any], options: dict[str, Any], sampling: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert override_search(SearchSettings(**stored), options, sampling) == SearchSettings(**expected)


@pytest.mark.parametrize(
    ("stored", "options", "sampling", "message"),
    [
        ({}, {"beam_size": 2}, {"top_k": 5}, "`beam_size` sets how to search, but `top_k` samples instead"),
        ({}, {"coverage_penalty": 0.2}, {"seed": 5}, "`coverage_penalty` sets how to search, but `seed` samples"),
        ({}, {"diverse_groups": 2}, {"temperature": 0}, "`diverse_groups` sets how to search, but `temperature`"),
        ({"beam_size": 1}, {"coverage_penalty": 0.2}, {}, "`coverage_penalty` ranks the hypotheses of a beam, but"),
        ({}, {"n_best": 5}, {}, r"`n_best` must be at most `beam_size` \(4\), but is 5: raise `beam_size`"),
        ({}, {"beam_size": 2, "n_best": 3}, {}, r"`n_best` must be at most `beam_size` \(2\), but is 3"),
        ({}, {"beam_size": 3, "diverse_groups": 2}, {}, r"`diverse_groups` must divide `beam_size` \(3\)"),
        ({}, {"max_length": 9, "max_length_extra": 5}, {}, "`max_length_extra` has no effect beside `max_length`"),
        ({}, {"min_length": 9, "max_length": 9}, {}, r"`min_length` must be less than `max_length` \(9\)"),
        ({}, {"beam_size": 0}, {}, "`beam_size` must be at least 1, but is 0"),
        ({}, {}, {"temperature": 0, "top_k": 5}, "`top_k` sets how to sample, but with `temperature` 0 search is"),
        ({}, {}, {"temperature": 0.0, "seed": 9}, "`seed` sets how to sample, but with `temperature` 0 search is"),
        ({}, {"diversity_penalty": 2.0}, {}, "`diversity_penalty` applies between groups of a beam, but"),
        ({}, {"diversity_penalty": 0.5}, {}, "`diversity_penalty` applies between groups of a beam, but"),
    ],
)
def test_a_setting_without_effect_is_refused(
    stored: dict[str, Any], options: dict[str, Any], sampling: dict[str, Any], message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        override_search(SearchSettings(**stored), options, sampling)


@pytest.mark.parametrize(
    "changes",
    [
        {"beam_size": 1, "coverage_penalty": 0.1},
        {"sampling": SAMPLES, "coverage_penalty": 0.1},
        {"sampling": SAMPLES, "diverse_groups": 2},
        {"diversity_penalty": 3.0},
    ],
)
def test_settings_of_a_beam_need_one(changes: dict[str, Any]) -> None:
    with pytest.raises(
        TransduceError, match=r"a beam, but `beam_size` is 1|is for a beam, but `sampling`|but `diverse_groups` is 1"
    ):
        SearchSettings(**changes)


@pytest.mark.parametrize(
    ("table", "idle"),
    [
        ("beam_size = 1\ncoverage_penalty = 0.2", ["coverage_penalty` = 0.2"]),
        ("coverage_penalty = 0.2\n[search.sampling]", ["coverage_penalty` = 0.2"]),
        ("diversity_penalty = 3.0", ["diversity_penalty` = 3.0"]),
        (
            "diverse_groups = 2\ndiversity_penalty = 3.0\n[search.sampling]",
            ["diverse_groups` = 2", "diversity_penalty` = 3.0"],
        ),
    ],
)
def test_a_stored_penalty_without_effect_is_ignored_with_a_warning(tmp_path: Path, table: str, idle: list[str]) -> None:
    (tmp_path / "settings.toml").write_text(f"[search]\n{table}\n")
    with pytest.warns(IdleSettingWarning) as found:
        search = read_search_settings(tmp_path)
    assert [str(each.message) for each in found] == [
        f"`search.{each} in {tmp_path / 'settings.toml'} has no effect beside the other search settings there: leave "
        "it out, or change them."
        for each in idle
    ]
    assert (search.coverage_penalty, search.diversity_penalty) == (0.0, 1.0)
    assert msgspec.structs.replace(search, n_best=1) == search


def test_defaults_of_earlier_versions_are_stored_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("[search]\ndiverse_groups = 1\ndiversity_penalty = 0.5\n")
    assert read_search_settings(tmp_path) == SearchSettings()
    (tmp_path / "settings.toml").write_text("[search]\ndiverse_groups = 2\ndiversity_penalty = 0.5\n")
    assert read_search_settings(tmp_path).diversity_penalty == 0.5


@pytest.mark.parametrize(
    ("stored", "options", "sampling", "warned"),
    [
        (
            {"beam_size": 8, "length_penalty": 1.0, "coverage_penalty": 0.2},
            {},
            {"temperature": 0.7},
            {"beam_size": 8, "coverage_penalty": 0.2, "length_penalty": 1.0},
        ),
        ({"coverage_penalty": 0.2}, {}, {"temperature": 0}, {"coverage_penalty": 0.2}),
        ({"diverse_groups": 2}, {"beam_size": 3}, {}, {"diverse_groups": 2}),
        ({"sampling": SAMPLES}, {"beam_size": 3}, {"top_k": None}, {}),
        ({"sampling": SAMPLES, "beam_size": 8}, {}, {"top_k": 5}, {}),
        ({}, {"n_best": None}, {"temperature": 0.7}, {}),
    ],
)
def test_python_warns_of_settings_that_arguments_leave_without_effect(
    stored: dict[str, Any], options: dict[str, Any], sampling: dict[str, Any], warned: dict[str, float]
) -> None:
    search = SearchSettings(**stored)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        changed = override_with_warnings(search, options, sampling)
    assert changed == override_search(search, options, sampling)
    assert [str(each.message) for each in found] == [
        f"`{name}` ({value} in the search settings) has no effect with these options." for name, value in warned.items()
    ]


def test_a_call_with_a_temperature_warns_of_a_stored_beam(translator: Translator) -> None:
    stored = SearchSettings(beam_size=8)
    with pytest.warns(IdleSettingWarning, match=r"`beam_size` \(8 in the search settings\) has no effect"):
        translator("a", search=stored, temperature=0.7, seed=2)
    with pytest.warns(IdleSettingWarning, match=r"`n_best` \(2 in the search settings\) is 1 with these options"):
        translator("a", search=SearchSettings(n_best=2), beam_size=1)
