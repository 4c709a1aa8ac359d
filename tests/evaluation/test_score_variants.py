"""Test variants of scores against sacreBLEU's results."""

import pytest
from sacrebleu.metrics.bleu import BLEU

from transduce.errors import TransduceError
from transduce.evaluation.scores import count_variants

HYPOTHESES = ["The well-known Cat sat on the mat.", "a big dog ran away, fast!"]
REFERENCES = ["the well-known cat sat on the mat.", "A big dog ran away - fast!"]


def counted(**options: str | bool | None) -> dict[str, tuple[float, str]]:
    found = count_variants(HYPOTHESES, REFERENCES, **({"target_language": "en"} | options))  # type: ignore[arg-type]
    return {each.way: (each.bleu.value, each.bleu.signature) for each in found}


def by_sacrebleu(**options: str | bool) -> float:
    return float(BLEU(**options).corpus_score(HYPOTHESES, [REFERENCES]).score)  # type: ignore[arg-type]


def test_each_variant_of_bleu_equals_sacrebleus() -> None:
    found = counted()
    assert found["without regard to case"][0] == by_sacrebleu(lowercase=True)
    for name in ("intl", "char", "none"):
        value, signature = found[f"tokenizer {name}"]
        assert value == by_sacrebleu(tokenize=name, force=True)
        assert f"tok:{name}" in signature
    assert "tokenizer 13a" not in found  # it is the usual one


def test_hyphens_are_words_of_their_own() -> None:
    value, signature = counted()["hyphens as words of their own"]
    words = ["The well ##AT##-##AT## known Cat sat on the mat .", "a big dog ran away , fast !"]
    references = ["the well ##AT##-##AT## known cat sat on the mat .", "A big dog ran away - fast !"]
    assert value == float(BLEU(tokenize="none", force=True).corpus_score(words, [references]).score)
    assert "tok:13a+hyphens" in signature


def test_variants_differ_from_the_settings_that_are_passed() -> None:
    found = counted(tokenize="none", lowercase=True)
    assert found["with regard to case"][0] == by_sacrebleu(tokenize="none", force=True)
    assert "case:lc" in found["tokenizer 13a"][1]
    assert "hyphens as words of their own" not in found


def test_scripts_without_spaces_have_no_hyphens() -> None:
    found = count_variants(["我爱你"], ["我爱他"], target_language="zh")
    assert [each.way for each in found] == [
        "without regard to case",
        "tokenizer 13a",
        "tokenizer intl",
        "tokenizer char",
        "tokenizer none",
    ]


def test_lines_must_correspond() -> None:
    with pytest.raises(TransduceError, match="Lines must correspond one by one"):
        count_variants(["a"], ["a", "b"], target_language="en")
