"""Test that progress reports of long work are limited by time, not one per item."""

import time

import pytest

from transduce.inference.bulk_files import ReportClock


def test_a_report_is_due_after_so_many_seconds_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 109.9, 110.0, 111.0, 119.9, 125.0, 134.0, 134.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(times))
    clock = ReportClock(10.0)
    assert [clock.is_due() for _ in range(6)] == [False, True, False, False, True, False]
    assert clock.elapsed_seconds == 34.0
