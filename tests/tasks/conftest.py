"""Fixtures of the tests of tasks."""

import pytest


@pytest.fixture(autouse=True)
def _choices_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dry runs here show choices: they take no steps, for which kernels would be compiled, except where forecasts are
    tested.
    """
    if not request.module.__name__.endswith("test_forecast"):
        monkeypatch.setattr("transduce.tasks.run.run._forecast", lambda *_: None)
