"""Test the progress of a preparation: a bar on a terminal, occasional lines elsewhere."""

import io
import time

import pytest
from rich.console import Console

from transduce.tasks.corpus import PreparationBar


def test_without_a_terminal_progress_is_printed_every_15_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), width=80)
    with PreparationBar(console, 40_000, "pair") as bar:
        for now[0], read in ((101.0, 8_192), (116.0, 16_384), (120.0, 24_576), (132.0, 32_768)):
            bar(read)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().split("\n") == [
        "prepared 16,384 pairs of 40,000 · 1,024 a second",
        "prepared 32,768 pairs of 40,000 · 1,024 a second",
        "",
    ]


@pytest.mark.parametrize(("pairs", "shown"), [(40_000, "8,192 lines of 40,000 · "), (None, "8,192 lines · ")])
def test_on_a_terminal_progress_is_a_bar(pairs: int | None, shown: str) -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with PreparationBar(console, pairs, "line") as bar:
        bar(8_192)
    assert isinstance(console.file, io.StringIO)
    assert shown in console.file.getvalue()
    assert "a second" in console.file.getvalue()
