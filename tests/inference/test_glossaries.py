"""Test that translations contain glossary terms: of single texts, streams, long texts and portions of large files."""

import itertools
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from transduce.errors import TransduceError
from transduce.inference.batching import TextPart
from transduce.inference.bulk_files import LineOptions, portions, translate_portions
from transduce.inference.decoding import MAX_TERM_TOKENS
from transduce.inference.glossary_search import (
    _whole_targets,
    as_glossary,
    check_glossary,
    parts_missing_terms,
)
from transduce.inference.redecoding import estimate_quality, redecode
from transduce.inference.substitution import TermModel
from transduce.inference.translation import Translation, empty_alternative
from transduce.inference.translator import Translator
from transduce.model.transformer import Transformer
from transduce.search.constraints import Phrase
from transduce.search.settings import SamplingSettings, SearchSettings
from transduce.text.glossary import Glossary, Term, contains_phrase
from transduce.text.vocabulary import Vocabulary

SENTENCES = ["我吃鱼。", "老师喝茶。", "我们喝水。"]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_translations_contain_the_glossary_terms(translator: Translator, beam_size: int) -> None:
    plain = translator(SENTENCES, beam_size=beam_size)
    found = translator(SENTENCES, beam_size=beam_size, glossary={"鱼": "milk", "茶": ["the water", "apples"]})
    assert contains_phrase(found[0].text, "milk")
    assert contains_phrase(found[1].text, "the water") or contains_phrase(found[1].text, "apples")
    assert found[2].text == plain[2].text  # has no term
    assert all(each.alternatives[0].ended for each in found)


def test_a_term_that_the_model_writes_anyway_changes_nothing(translator: Translator) -> None:
    plain = translator("我吃鱼。")
    assert translator("我吃鱼。", glossary={"鱼": plain.text.split()[1]}) == plain


def test_spellings_of_a_term_cover_its_forms_and_omit_unknown_capitals(translator: Translator) -> None:
    target, glossary = translator.tokenizer.target, Glossary([Term("鱼", ("fish", "a fish"))])
    spellings = check_glossary(glossary, SearchSettings(), target)["鱼"]
    assert {target.decode(list(spelling)) for spelling in spellings} == {"fish", "a fish"}


def test_a_file_a_mapping_and_an_object_are_one(translator: Translator, tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("鱼\tmilk\n", encoding="utf-8")
    found = {translator("我吃鱼。", glossary=given).text for given in (path, str(path), {"鱼": "milk"})}
    assert found == {translator("我吃鱼。", glossary=as_glossary({"鱼": "milk"})).text}


@pytest.mark.parametrize(
    ("text", "glossary", "expected"),
    [
        ("鱼", {"鱼": "milk"}, "milk"),
        ("  鱼 ", {"鱼": "milk"}, "  milk "),
        ("- 鱼", {"鱼": "milk"}, "- milk"),
        ("鱼。", {"鱼": "milk"}, "milk."),  # the model's vocabulary has no M
        ("鱼。", {"鱼": "i eat"}, "I eat."),
        ("鱼：", {"鱼": ["milk", "tea"]}, "milk:"),
        ("鱼。鱼！", {"鱼": "milk"}, "milk. milk!"),
    ],
)
def test_a_sentence_that_is_one_term_is_translated_as_the_term(
    translator: Translator, text: str, glossary: Any, expected: str
) -> None:
    for settings in (SearchSettings(), SearchSettings(beam_size=1), SearchSettings(no_repeated_ngrams=2)):
        (found,) = translator.translate([text], settings, glossary=glossary)
        assert found.text == expected
        assert found.alternatives[0].ended
    assert "".join(translator.stream(text, glossary=glossary)) == expected


@pytest.mark.parametrize(
    ("text", "term", "language", "expected"),
    [
        ("Vertrag", ("Vertrag", "contract"), "en", "contract"),
        ("Vertrag.", ("Vertrag", "contract"), "en", "Contract."),
        ("Vertrag:", ("Vertrag", "contract"), "en", "contract:"),
        ("Vertrag ...", ("Vertrag", "contract"), "en", "Contract..."),
        ("vertrag", ("Vertrag", "contract"), "en", None),  # a capital is as written
        ("VERTRAG", ("vertrag", "contract"), "en", "Contract"),
        ("Kaufen", ("kaufen", "buy"), "en", "Buy"),
        ("kaufen!", ("kaufen", "buy"), "en", "buy!"),
        ("E\u0301tage", ("\u00e9tage", "floor"), "en", "Floor"),
        ("etc.", ("etc.", "and so on"), "en", "and so on"),
        ("GmbH?!", ("GmbH", "GmbH"), "en", "GmbH?!"),
        ("GmbH.", ("GmbH", "GmbH"), "ja", "GmbH。"),
        ("GmbH.", ("GmbH", "GmbH"), None, "GmbH."),
        ("contract:", ("contract", "合同"), "zh", "合同："),
        ("Contract.", ("contract", "合同"), None, "合同。"),
        ("合同……", ("合同", "contract"), "en", "Contract…"),
        ("Contract...", ("contract", "合同"), "zh", "合同……"),
        ("usw.", ("usw", "etc."), "en", "etc."),
        ("Hund!", ("Hund", "Dog!"), "en", "Dog!"),
        ("Hund.", ("Hund", "Dog!"), "en", "Dog!"),
        ("der Vertrag", ("Vertrag", "contract"), "en", None),
        ("Vertrag Vertrag", ("Vertrag", "contract"), "en", None),
        (".", ("Vertrag", "contract"), "en", None),
        ("", ("Vertrag", "contract"), "en", None),
    ],
)
def test_case_and_marks_of_a_sentence_that_is_one_term(
    text: str, term: tuple[str, str], language: str | None, expected: str | None
) -> None:
    class AnyCharacter:
        def unknown_characters(self, _text: str) -> str:
            return ""

    source, target = term
    glossary = Glossary([Term(source, (target,)), Term(f"{source} mit Anlage", ("x",))])
    model = TermModel(cast("Vocabulary", AnyCharacter()), not_called, not_called, target_language=language)
    found = _whole_targets(text, glossary, model)
    assert found == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("text", "target", "languages", "expected"),
    [
        ("Hund.", "कुत्ता", "de-hi", "कुत्ता।"),
        ("Hund?", "كلب", "de-ar", "كلب؟"),
        ("Hund?", "سگ", "de-fa", "سگ؟"),
        ("Hund.", "کتا", "de-ur", "کتا۔"),
        ("Hund?", "σκύλος", "de-el", "Σκύλος;"),
        ("Hund.", "շուն", "de-hy", "Շուն։"),
        ("Hund.", "หมา", "de-th", "หมา"),
        ("Hund?", "หมา", "de-th", "หมา?"),
        ("Hund?", "perro", "de-es", "¿Perro?"),
        ("Hund!!", "perro", "de-es", "¡¡Perro!!"),
        ("Hund?!", "perro", "de-es", "¡¿Perro?!"),
        ("Hund.", "perro", "de-es", "Perro."),
        ("¿Hund?", "dog", "es-en", "Dog?"),
        ("Hund;", "dog", "el-en", "Dog?"),
        ("Hund;", "dog", "de-en", "dog;"),
        ("Hund।", "dog", "hi-en", "Dog."),
        ("Hund؟", "犬", "ar-ja", "犬？"),
        ("Hund.", "istasyon", "de-tr", "İstasyon."),
        ("Hund.", "ijs", "de-nl", "IJs."),
        ("Hund.", "ძაღლი", "de-ka", "ძაღლი."),
        ("Hund.", "ﬁlm", "de-en", "Film."),
    ],
)
def test_a_term_gets_the_marks_and_capitals_of_its_language(
    text: str, target: str, languages: str, expected: str
) -> None:
    class AnyCharacter:
        def unknown_characters(self, _text: str) -> str:
            return ""

    source_language, target_language = languages.split("-")
    model = TermModel(
        cast("Vocabulary", AnyCharacter()),
        not_called,
        not_called,
        target_language=target_language,
        source_language=source_language,
    )
    assert _whole_targets(text, Glossary([Term("Hund", (target,))]), model) == [expected]


def not_called(*_: object) -> Any:
    raise AssertionError


def test_the_forms_of_a_term_are_alternatives_in_their_order(translator: Translator) -> None:
    found = translator("鱼", n_best=2, glossary={"鱼": ["milk and the water", "tea", "milk"]})
    assert [each.text for each in found.alternatives] == ["milk and the water", "tea"]
    score = translator.score(["鱼"], ["tea"], length_penalty=translator.search.length_penalty)[0]
    assert found.alternatives[1].score == pytest.approx(score.score, abs=1e-4)


def test_a_term_as_a_sentence_obeys_the_search(translator: Translator) -> None:
    """Required text and limits of length need a search, also for a sentence that is a term."""
    glossary = {"鱼": "milk and the water"}
    assert translator("鱼", prefix="she likes", glossary=glossary).text.startswith("she likes")
    assert contains_phrase(translator("鱼", phrases=["tea"], glossary=glossary).text, "tea")
    search = SearchSettings(max_length=4)
    assert translator.translate(["鱼"], search, glossary=glossary) == translator.translate(["鱼"], search)


def test_streamed_text_equals_the_translation_with_a_glossary(translator: Translator) -> None:
    glossary = {"鱼": "milk"}
    assert "".join(translator.stream("我吃鱼。", glossary=glossary)) == translator("我吃鱼。", glossary=glossary).text


def test_each_part_of_a_long_text_has_its_own_terms(translator: Translator) -> None:
    long = "".join(SENTENCES) * 30
    found = translator.translate([long], SearchSettings(beam_size=2), glossary={"鱼": "milk"})[0]
    assert found.parts > 20
    assert found.text.count("milk") >= 20


def test_alternatives_do_not_change_the_best(translator: Translator) -> None:
    """Alternatives that contain the terms stay, in their order."""
    glossary = {"鱼": "milk", "茶": "apples"}
    for sentence in SENTENCES[:2]:
        one = translator(sentence, glossary=glossary)
        several = translator(sentence, n_best=3, glossary=glossary)
        assert one.text == several.text or not contains_phrase(one.text, "milk")
        assert all(
            contains_phrase(each.text, "milk") or contains_phrase(each.text, "apples") for each in several.alternatives
        )


def test_a_term_that_breaks_the_search_rules_leaves_the_translation_unchanged(translator: Translator) -> None:
    search = SearchSettings(no_repeated_ngrams=1)
    plain = translator.translate(["我吃鱼。"], search)
    assert translator.translate(["我吃鱼。"], search, glossary={"鱼": "milk milk milk"}) == plain


def test_every_alternative_contains_the_glossary_term(translator: Translator) -> None:
    for search in (SearchSettings(n_best=3), SearchSettings(n_best=3, max_length=20, no_repeated_ngrams=2)):
        (found,) = translator.translate(["我吃鱼。"], search, glossary={"鱼": "fish"})
        assert 1 <= len(found.alternatives) <= 3
        assert all(contains_phrase(each.text, "fish") for each in found.alternatives)


def test_a_term_that_exceeds_the_length_limit_is_left_out(translator: Translator) -> None:
    search = SearchSettings(max_length=4)
    for prefix in ("", "we"):
        found = translator.translate(["我吃鱼。"], search, prefix=prefix, glossary={"鱼": "milk and the water"})
        assert found == translator.translate(["我吃鱼。"], search, prefix=prefix)


def test_terms_go_together_with_phrases_and_prefixes(translator: Translator) -> None:
    found = translator("我吃鱼。", prefix="she likes", phrases=["tea"], glossary={"鱼": "milk"})
    assert found.text.startswith("she likes")
    assert contains_phrase(found.text, "tea")
    assert contains_phrase(found.text, "milk")


def test_the_number_of_required_term_tokens_is_limited(translator: Translator) -> None:
    """The beam is as wide as the number of required tokens, so very many terms would use up all memory."""
    target = translator.tokenizer.target
    tokens = map(target.token, range(target.size))
    words = [token[1:] for token in tokens if token[0] == "▁" and token[1:].isascii() and len(token) > 3][:12]
    targets = [*(tuple(words[start : start + 3]) for start in range(0, 12, 3)), *itertools.product(words, repeat=3)]
    terms = {chr(0x4E00 + number): " ".join(each) for number, each in enumerate(dict.fromkeys(targets[:200]))}
    for search, most in ((SearchSettings(), MAX_TERM_TOKENS), (SearchSettings(max_length=12), 11)):
        sizes = [min(map(len, phrase)) for phrase in required_phrases(translator, terms, search)]
        assert sum(sizes) <= most < sum(sizes) + max(sizes)


def required_phrases(translator: Translator, terms: dict[str, str], search: SearchSettings) -> tuple[Phrase, ...]:
    """Return the phrases that a second search for all terms requires in a translation without any."""
    glossary, part = Glossary(Term(source, (target,)) for source, target in terms.items()), part_of("".join(terms))
    found = {part.key: Translation(part.text, (empty_alternative(),))}
    (again,) = parts_missing_terms([part], found, glossary, search, translator.tokenizer.target)
    return again.phrases


def part_of(text: str) -> TextPart:
    return TextPart(text, 0, 0, [5, 1])


def test_terms_that_share_tokens_are_required_together_if_they_fit_together(translator: Translator) -> None:
    assert len(required_phrases(translator, {"鱼": "fish tea", "茶": "tea milk"}, SearchSettings(max_length=4))) == 2
    assert len(required_phrases(translator, {"鱼": "fish tea", "茶": "tea milk"}, SearchSettings(max_length=3))) == 1
    same = required_phrases(translator, {"鱼": "fish tea", "茶": "fish tea"}, SearchSettings(max_length=3))
    assert len(set(same)) == 1


def test_a_term_that_exceeds_the_learned_positions_is_left_out(translator: Translator) -> None:
    config = msgspec.structs.replace(translator.model.config, positions="learned", max_positions=12)
    limited = Translator(Transformer(config).eval(), translator.tokenizer)
    for search in (SearchSettings(), SearchSettings(max_length=30)):
        plain = limited.translate(["我吃鱼"], search, prefix="we like the water")
        glossary = {"鱼": "milk and the water"}
        assert limited.translate(["我吃鱼"], search, prefix="we like the water", glossary=glossary) == plain


def test_portions_of_a_file_are_translated_with_the_glossary(translator: Translator) -> None:
    job = LineOptions(search=SearchSettings(beam_size=2), terms=(Term("鱼", ("milk",)),))
    ((_, text),) = translate_portions(translator, job, portions(SENTENCES))
    glossary = {"鱼": "milk"}
    assert text.splitlines() == [each.text for each in translator(SENTENCES, beam_size=2, glossary=glossary)]


def test_a_missing_glossary_term_causes_a_quality_warning(translator: Translator) -> None:
    plain = translator(["我吃鱼。"])
    assert not any(doubt.kind == "terms" for doubt in estimate_quality(translator, plain)[0])
    (doubts,) = estimate_quality(translator, plain, glossary={"鱼": ["milk", "tea"]})
    assert [str(doubt) for doubt in doubts if doubt.kind == "terms"] == ["terms (`鱼` as `milk` or `tea`)"]
    (better,) = redecode(translator, plain, glossary={"鱼": ["milk", "tea"]})
    assert contains_phrase(better.text, "milk") or contains_phrase(better.text, "tea")


@pytest.mark.parametrize(
    ("glossary", "search", "message"),
    [
        ({"鱼": "☃"}, SearchSettings(), "A translation cannot contain `☃`"),
        ({"鱼": ""}, SearchSettings(), r"A term needs a text .* of '鱼' and \[''\]"),
        ({"鱼": []}, SearchSettings(), r"A term needs a text .* of '鱼' and \[\]"),
        ({"": "fish"}, SearchSettings(), "A term needs a text for the source"),
        ({"鱼": 3}, SearchSettings(), "A glossary maps texts to texts, but '鱼' is mapped to 3"),
        ({"鱼": ["fish", 3]}, SearchSettings(), "Each text must be a `str`, but text number 2 is 3"),
        (["鱼"], SearchSettings(), r"A glossary must map terms .* not \['鱼'\]: write"),
        ({"鱼": "fish"}, SearchSettings(n_best=1, sampling=SamplingSettings()), "are searched for: leave sampling out"),
        ({"鱼": "fish"}, SearchSettings(diverse_groups=2), "`diverse_groups` is 2"),
        ({"鱼": "a fish"}, SearchSettings(forbidden=("fish",)), "must contain `a fish`, but `fish` is forbidden in it"),
        ({"鱼": "fish " * 70}, SearchSettings(), "may have 64 tokens, but that of `鱼` has [0-9]+: make it shorter"),
    ],
)
def test_unusable_terms_are_refused_even_if_no_sentence_contains_them(
    translator: Translator, glossary: Any, search: SearchSettings, message: str
) -> None:
    with pytest.raises(TransduceError, match=message):
        translator.translate(["我们喝水。"], search, glossary=glossary)


def test_a_term_that_cannot_be_written_is_reported_with_its_line(translator: Translator, tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("茶\ttea\n鱼\t☃\n", encoding="utf-8")
    with pytest.raises(TransduceError, match=r"terms\.tsv, line 2: A translation cannot contain `☃`"):
        translator("我吃鱼。", glossary=path)
