"""Test a small form of `benchmarks/joined_sentences.py`: joined sentences are translated as they are alone."""

import importlib
import sys
from pathlib import Path

from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings

# The scripts import one another by their names alone.
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
benchmark = importlib.import_module("joined_sentences")

PAIRS = [("我吃鱼。", "I eat fish."), ("你爱她吗？", "Do you love her?"), ("老师卖牛奶。", "The teacher sells milk.")]
UNUSABLE = [("没有", "no mark"), ("走。来！", "Go. Come!"), ("他说：“好。”", "He said: well.")]


def test_lines_have_two_to_six_complete_sentences() -> None:
    lines = benchmark.joined_lines(PAIRS + UNUSABLE, 200)
    assert {len(line.sources) for line in lines} == {2, 3, 4, 5, 6}
    assert {pair for line in lines for pair in zip(line.sources, line.references, strict=True)} == {*PAIRS}
    assert lines == benchmark.joined_lines(PAIRS, 200)
    assert lines != benchmark.joined_lines(PAIRS, 200, seed=2)


def test_no_sentence_of_a_joined_line_is_missing(translator: Translator) -> None:
    lines, search = benchmark.joined_lines(PAIRS, 50), SearchSettings(beam_size=1, max_length=8)
    found = translator(["".join(line.sources) for line in lines], search=search)
    alone = {source: translator(source, search=search).text for source, _ in PAIRS}
    assert [each.text for each in found] == [" ".join(alone[source] for source in line.sources) for line in lines]
    assert not any(map(benchmark.lacks_sentence, found, lines))
    assert benchmark.lacks_sentence(translator(PAIRS[0][0], search=search), lines[0])
