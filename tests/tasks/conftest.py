"""Fixtures of the tests of tasks."""

import pytest


@pytest.fixture(autouse=True)
def _choices_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the forecast of dry runs, whose steps would compile kernels, except in the tests of forecasts."""
    if not request.module.__name__.endswith("test_forecast"):
        monkeypatch.setattr("transduce.tasks.run.run._forecast", lambda *_: None)
