"""Fixtures of the tests of tasks."""

import pytest


@pytest.fixture(autouse=True)
def _choices_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the estimate of dry runs, whose steps would compile kernels, except in the tests of estimates."""
    if not request.module.__name__.endswith("test_run_estimate"):
        monkeypatch.setattr("transduce.tasks.run.run._estimate", lambda *_: None)
