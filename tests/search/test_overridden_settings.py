"""Test that a user's search settings keep their effect beside stored ones, or are refused."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from transduce.errors import TransduceError
from transduce.inference.decoding import read_search_settings
from transduce.search.settings import SamplingSettings, SearchSettings, override_search

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
            {"diversity_penalty": 1.0, "diverse_groups": 2},
            {},
            {"diversity_penalty": 1.0, "diverse_groups": 2},
        ),
        ({"diverse_groups": 2, "diversity_penalty": 1.0}, {"beam_size": 3}, {}, {"beam_size": 3}),
        ({"diverse_groups": 2, "diversity_penalty": 1.0}, {"diverse_groups": 1}, {}, {}),
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
        ({}, {"diversity_penalty": 1.0}, {}, "`diversity_penalty` applies between groups of a beam, but"),
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
    "table",
    [
        "beam_size = 1\ncoverage_penalty = 0.2",
        "coverage_penalty = 0.2\n[search.sampling]",
        "diversity_penalty = 3.0",
        "diverse_groups = 2\ndiversity_penalty = 3.0\n[search.sampling]",
    ],
)
def test_a_stored_penalty_without_effect_is_ignored(tmp_path: Path, table: str) -> None:
    (tmp_path / "settings.toml").write_text(f"[search]\n{table}\n")
    search = read_search_settings(tmp_path)
    assert (search.coverage_penalty, search.diversity_penalty) == (0.0, 0.5)
    assert msgspec.structs.replace(search, n_best=1) == search
