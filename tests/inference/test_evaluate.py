"""Test that `transduce.evaluate` gives the scores of `transduce evaluate` for lists of sentences."""

from pathlib import Path

import pytest

import transduce
from transduce import SearchSettings, TransduceError, Translator


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").split("\n")[:20]


def test_scores_are_those_of_the_translations(translator: Translator, toy_corpus: Path) -> None:
    sources, references = lines(toy_corpus / "dev.zh"), lines(toy_corpus / "dev.en")
    search = SearchSettings(beam_size=2)
    report = transduce.evaluate(translator, sources, references, search=search)
    hypotheses = [each.text for each in translator(sources, search=search)]
    expected = transduce.score(hypotheses, references, target_language=translator.target_language)
    assert (report.bleu, report.chrf) == (expected.bleu, expected.chrf)
    assert report.decoding["beam_size"] == 2
    assert report.decoding["precision"] == translator.precision


def test_a_glossary_is_applied(translator: Translator) -> None:
    report = transduce.evaluate(translator, ["我吃鱼。"], ["I eat milk."], glossary={"鱼": "milk"})
    other = transduce.evaluate(translator, ["我吃鱼。"], ["I eat milk."])
    assert report.hypothesis_sha256 != other.hypothesis_sha256


def test_unequal_lines_and_unknown_tokenizers_are_refused_before_translating(translator: Translator) -> None:
    with pytest.raises(
        TransduceError, match="Lines must correspond one by one, but there are 2 sources and 1 reference"
    ):
        transduce.evaluate(translator, ["a", "b"], ["a"])
    with pytest.raises(TransduceError, match="tokenize"):
        transduce.evaluate(translator, ["a"], ["a"], tokenize="unheard-of")
    with pytest.raises(TransduceError, match="`evaluate` needs a `Translator`, but got 'models/a'"):
        transduce.evaluate("models/a", ["a"], ["a"])  # type: ignore[call-overload]
