"""Test which glossary terms a text contains, and whether a translation contains their translations."""

from pathlib import Path

import pytest

from transduce.errors import TransduceError
from transduce.text.glossary import Glossary, Term, TermTally, contains_phrase, read_glossary


def glossary(**terms: str) -> Glossary:
    return Glossary(Term(source.replace("_", " "), tuple(targets.split("/"))) for source, targets in terms.items())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Ein Hund bellt.", ["Hund"]),
        ("Hunde rennen.", []),  # another word
        ("Ein Hund-Futter, ein Jagd-Hund", []),  # part of a word
        ("Hund- und -Hund - Hund", ["Hund"]),
        ("Der Hund, der Hund!", ["Hund"]),  # once
        ("ein hund", []),  # a capital is as written
        ("Bellen ist laut. BELLEN!", ["bellen"]),  # lower case is any
        ("Der   große\tHund", ["große Hund"]),  # the longest, whatever the space
        ("Ein Bernhardiner (Hund) bellt", ["Hund"]),
        ("", []),
        ("große", []),
    ],
)
def test_terms_are_found_as_whole_words(text: str, found: list[str]) -> None:
    terms = glossary(Hund="dog", bellen="bark", große_Hund="great dane")
    assert [term.source for term in terms.find(text)] == found


def test_the_longest_term_is_found_in_any_case() -> None:
    terms = glossary(Apple="A", apple_pie="B")
    assert [term.source for term in terms.find("Apple pie is an Apple, apple")] == ["apple pie", "Apple"]


def test_terms_without_spaces_are_found_anywhere_the_longest_first() -> None:
    terms = glossary(苹果="apple", 苹果汁="apple juice", 果汁="juice", 汁="sap")
    assert [term.source for term in terms.find("我喝苹果汁和果汁，吃苹果。")] == ["苹果汁", "果汁", "苹果"]


def test_composed_and_decomposed_letters_are_the_same_term() -> None:
    terms = Glossary([Term("e\u0301le\u0300ve", ("pupil",))])
    assert [term.targets for term in terms.find("L'\u00c9l\u00e8ve, un \u00e9l\u00e8ve")] == [("pupil",)]


@pytest.mark.parametrize(
    ("translation", "missing"),
    [
        ("A dog barks.", []),
        ("Dogs bark.", []),  # another form, at the start
        ("Dog food", []),
        ("A dogma", ["Hund"]),
        ("A hound", ["Hund"]),
    ],
)
def test_a_term_counts_as_translated_in_any_of_its_forms(translation: str, missing: list[str]) -> None:
    terms = glossary(Hund="dog/dogs", Katze="cat")
    assert [term.source for term in terms.missing("Ein Hund", translation)] == missing


def test_a_text_is_a_term_only_as_a_whole() -> None:
    """A longer term with another case of the first letter must not hide a term at the end of a text."""
    terms = glossary(Vertrag="contract", vertragsnummer="contract number")
    found = {
        text: terms.term_of(text) for text in ("Vertrag", " Vertrag\n", "Vertragsnummer", "Vertrag.", "ein Vertrag", "")
    }
    assert [each and each.source for each in found.values()] == [
        "Vertrag",
        "Vertrag",
        "vertragsnummer",
        None,
        None,
        None,
    ]
    assert [(start, end) for start, end, _ in terms.occurrences("Ein Vertrag")] == [(4, 11)]


def test_names_with_capitals_have_no_other_forms() -> None:
    terms = glossary(苹果="Apple", 爱="iPhone")
    assert [term.forms for term in terms.terms] == [("Apple",), ("iPhone",)]
    assert [term.source for term in terms.missing("苹果爱", "apple IPhone")] == ["苹果", "爱"]


def test_a_file_is_read_with_its_locations(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("\ufeffHund\tdog\tdogs\r\n\nTransduce\nHund\thound\n", encoding="utf-8")
    hund, name = read_glossary(path).terms
    assert (hund.source, hund.targets, hund.location) == ("Hund", ("dog", "dogs", "hound"), f"{path}, line 1")
    assert (name.source, name.targets, name.location) == ("Transduce", ("Transduce",), f"{path}, line 3")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Hund\tdog\nKatze\t\n", "line 2: A term needs a text for the source and at least one for the translation"),
        ("\tdog\n", "line 1: A term needs a text for the source"),
        ("Hund\tdog\t \n", r"line 1: .* of 'Hund' and \['dog', ' '\] is empty: write an unchanged term alone"),
        ("Hund,dog\nKatze,cat\nGmbH\n", r"has no tabs, .* but most of them have `,`: write `term`, a tab"),
        ("汤姆，Thomas\n", r"has no tabs, .* but most of them have `，`"),
        ("Hund -> dog\n", r"has no tabs, .* but most of them have `->`"),
        ("汤姆：Thomas\n", r"has no tabs, .* but most of them have `：`"),
        ("Hund: dog\n", r"has no tabs, .* but most of them have `: `"),
        ("\n\n", "A glossary needs terms, but .*terms.tsv has none"),
    ],
)
def test_malformed_glossary_files_are_refused_with_their_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(TransduceError, match=message):
        read_glossary(path)


def test_a_repeated_term_is_reported_and_xml_refused(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text("Bahnhof\tdepot\nHund\tdog\nBahnhof \tstop\nHund\tdog\n", "utf-8")
    found = read_glossary(path)
    assert found.repeated == ["Bahnhof"]
    assert str(TermTally(found)).endswith("the translations of `Bahnhof` in several entries count as alternatives")
    path.write_text('<?xml version="1.0"?>\n<martif type="TBX"/>\n', "utf-8")
    with pytest.raises(TransduceError, match="is XML, such as TBX, but a glossary is a text file: export it"):
        read_glossary(path)


def test_a_tally_counts_terms_and_lists_the_first_missing_ones() -> None:
    tally = TermTally(glossary(Hund="dog", Katze="cat/cats"))
    tally.add(1, "Hund und Katze", "dog and cats")
    assert str(tally) == "glossary: 2 terms in the sources, 2 of them in the translations"
    for number in range(2, 9):
        tally.add(number, "Katze", "a dog")
    told = str(tally).splitlines()
    assert told[0] == "glossary: 9 terms in the sources, 2 of them in the translations; missing"
    assert told[1] == "  line 2 lacks `cat` or `cats` for `Katze`"
    assert len(told) == 7
    assert told[-1] == "  and 2 more"


def test_terms_of_a_large_glossary_are_found() -> None:
    terms = Glossary(Term(f"Wort{number}", (f"word{number}",)) for number in range(100_000))
    assert len(terms) == 100_000
    assert [term.targets for term in terms.find("Ein Wort99999 und Wort7")] == [("word99999",), ("word7",)]


def test_names_with_commas_may_stay_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "names.tsv"
    for text in ("GmbH\nAG\nDupont, SA\n", "Hund\tdog\nDupont, SA\n"):
        path.write_text(text, "utf-8")
        assert "Dupont, SA" in [term.source for term in read_glossary(path).terms]


@pytest.mark.parametrize(
    ("term", "text", "is_found"),
    [
        ("بیند", "می\u200cبیند", False),  # joined to a word
        ("می\u200cبیند", "او می\u200cبیند.", True),
        ("haus", "Haus\u00adtür", False),
        ("don't", "I don’t", True),
        ("l’eau", "dans l'eau", True),
        ("office", "the oﬃce", True),
        ("abc", "ＡＢＣ", True),
        ("istanbul", "İstanbul", True),
        ("ısı", "Isı", True),
        ("straße", "HAUPT STRASSE", True),
        ("maße", "die Masse", False),
        ("straße", "Straße", True),
    ],
)
def test_terms_are_found_in_other_forms_of_their_letters(term: str, text: str, *, is_found: bool) -> None:
    assert bool(Glossary([Term(term, ("x",))]).find(text)) == is_found


def test_a_translation_may_have_other_apostrophes_and_capitals() -> None:
    assert Glossary([Term("x", ("it's", "ışık"))]).missing("x", "It’s") == []
    assert Glossary([Term("x", ("istasyon",))]).missing("x", "İstasyon burada") == []
    assert contains_phrase("می\u200cبیند", "بیند") is False
