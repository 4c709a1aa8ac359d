"""Test a small form of `benchmarks/protected_spans.py`: spans are kept, and the rest is translated the same."""

import importlib
import sys
from pathlib import Path

import pytest

from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings

# The scripts import one another by their names alone.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
benchmark = importlib.import_module("protected_spans")

PAIRS = [
    (f"今天{subject}{verb}{thing}。", f"{agent} {action} {noun} today.")
    for subject, agent in (("我", "I"), ("老师", "the teacher"), ("学生", "the student"))
    for verb, action in (("吃", "eat"), ("买", "buy"))
    for thing, noun in (("鱼", "fish"), ("苹果", "apples"), ("牛奶", "milk"))
]


@pytest.mark.parametrize("replace", [False, True])
def test_both_sides_have_the_same_spans(translator: Translator, trained: Path, *, replace: bool) -> None:
    cases = benchmark.plant(translator, trained, PAIRS, replace=replace)
    assert len(cases) > len(PAIRS) // 2
    assert {1, 2} <= {len(case.spans) for case in cases}
    for case in cases:
        sides = (case.planted_source, case.planted_reference)
        assert all(side.count(each) >= 1 for side in sides for each in case.spans)
        if not replace:
            assert benchmark.without_spans(case.planted_reference, case.spans) == case.reference


def test_planted_spans_are_kept_and_cost_nothing(translator: Translator, trained: Path) -> None:
    cases, search = benchmark.plant(translator, trained, PAIRS, replace=False), SearchSettings(beam_size=2)
    found = translator.translate([case.planted_source for case in cases], search)
    plain = translator.translate([case.source for case in cases], search)
    for case, with_spans, without in zip(cases, found, plain, strict=True):
        assert all(with_spans.text.count(each) == case.planted_source.count(each) for each in case.spans)
        assert benchmark.without_spans(with_spans.text, case.spans) == without.text
