"""Test that a run with a base model takes the base's search settings, and the user's where these contradict them."""

from pathlib import Path
from typing import Any

import pytest

from transduce.errors import IdleSettingWarning, TransduceError
from transduce.model_folder.load import read_search_settings
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.tasks.run.initial_weights import follow_base_search
from transduce.tasks.run.run_folder import read_stored
from transduce.tasks.settings.reading import make_settings
from transduce.training.choices import ChoiceLog

DATA = {"source": ["a.de"], "target": ["a.en"]}


@pytest.mark.parametrize(
    ("base", "own", "expected"),
    [
        (
            "n_best = 4\ncoverage_penalty = 0.2",
            {"beam_size": 2},
            {"beam_size": 2, "n_best": 2, "coverage_penalty": 0.2},
        ),
        ("n_best = 4\ncoverage_penalty = 0.2", {"beam_size": 1}, {"beam_size": 1}),
        ("beam_size = 8\nmax_length = 9", {"max_length_extra": 5}, {"beam_size": 8, "max_length_extra": 5}),
        (
            "[search.sampling]\ntemperature = 0.7",
            {"sampling": {"top_k": 5}},
            {"sampling": SamplingSettings(temperature=0.7, top_k=5)},
        ),
        ("[search.sampling]\ntemperature = 0.7", {"length_penalty": 1.0}, {"length_penalty": 1.0}),
        (
            "coverage_penalty = 0.2",
            {"sampling": {"seed": 5}, "beam_size": 4, "length_penalty": 0.6},
            {"sampling": SamplingSettings(seed=5)},
        ),
        ("beam_size = 8", {"beam_size": 4, "max_length": 9, "max_length_factor": 1.0}, {"max_length": 9}),
    ],
)
def test_the_users_search_settings_win_over_the_base_models(
    tmp_path: Path, base: str, own: dict[str, Any], expected: dict[str, Any]
) -> None:
    (tmp_path / "settings.toml").write_text(f"[search]\n{base}\n")
    settings = make_settings({"init_from": str(tmp_path), "data": DATA, "search": own})
    assert follow_base_search(settings, own, ChoiceLog()).search == SearchSettings(**expected)


def test_settings_that_contradict_the_base_models_are_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("[search]\nbeam_size = 1\n")
    settings = make_settings({"init_from": str(tmp_path), "data": DATA, "search": {"coverage_penalty": 0.2}})
    with pytest.raises(
        TransduceError, match=r"`beam_size` is 1: raise it. Search settings that you leave out are as in"
    ):
        follow_base_search(settings, {"coverage_penalty": 0.2}, ChoiceLog())


@pytest.mark.parametrize(
    "stored", ["beam_size = 1\ncoverage_penalty = 0.2", "coverage_penalty = 0.2\n[search.sampling]\ntemperature = 0.7"]
)
def test_runs_that_stored_a_penalty_without_effect_can_still_be_read(tmp_path: Path, stored: str) -> None:
    (tmp_path / "settings.toml").write_text(f'[data]\nsource = ["a.de"]\ntarget = ["a.en"]\n[search]\n{stored}\n')
    with pytest.warns(IdleSettingWarning, match="coverage_penalty"):
        search = read_search_settings(tmp_path)
    assert read_stored(tmp_path / "settings.toml").search == search
    assert search.coverage_penalty == 0.0
