"""Test gettext catalogs and XLIFF: missing translations are added, and existing ones stay."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from transduce.commands.translate_document import _plural_notes
from transduce.documents.formats import read_document
from transduce.documents.limits import Limits
from transduce.documents.translate import document_notes, translate_upload
from transduce.documents.units import DocumentSettings, UnitKind
from transduce.errors import TransduceError

PO = r"""# A comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=3; plural=0;\n"

#: a.c:1
#, c-format
msgctxt "menu"
msgid "Open \"it\"\n"
msgstr ""

msgid "One file"
msgid_plural "More files"
msgstr[0] ""
msgstr[1] ""
msgstr[2] ""

msgid "done"
msgstr "fertig"

#~ msgid "old"
#~ msgstr "alt"
"""


def shout(texts: Sequence[str], kind: UnitKind) -> list[str]:
    return [f"{text}!" if kind == "text" else text.replace(">a", ">A") for text in texts]


def translated(source: str, name: str, **settings: object) -> str:
    return translate_upload(source.encode(), name, shout, DocumentSettings(**settings)).decode()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "other"),
    [
        ("a.po", 'msgid ""\nmsgstr ""\n"Language: de\\n"\n\nmsgid "one"\nmsgstr ""\n', "de"),
        ("a.po", 'msgid ""\nmsgstr ""\n"Language: fr_FR\\n"\n\nmsgid "one"\nmsgstr ""\n', None),
        ("a.pot", 'msgid ""\nmsgstr ""\n"Language: \\n"\n\nmsgid "one"\nmsgstr ""\n', None),
        ("a.xlf", '<xliff version="1.2"><file source-language="en" target-language="de-DE"></file></xliff>', "de-DE"),
        ("a.xlf", '<xliff version="2.0" srcLang="en" trgLang="fr"></xliff>', None),
    ],
)
def test_a_file_for_another_language_is_reported(name: str, content: str, other: str | None) -> None:
    settings = DocumentSettings(target_language="fra")
    document = read_document(name, content.encode(), settings, Limits())
    assert document.other_language == other
    assert len(list(document_notes(document))) == (other is not None)


def test_gettext_catalogs_get_their_missing_translations() -> None:
    expected = PO.replace('msgstr ""\n\nmsgid "One', 'msgstr "Open \\"it\\"!\\n"\n\nmsgid "One')
    for number, text in enumerate(("One file!", "More files!", "More files!")):
        expected = expected.replace(f'msgstr[{number}] ""', f'msgstr[{number}] "{text}"')
    assert translated(PO, "a.po") == expected
    assert translated(expected, "a.po") == expected


def test_fuzzy_marks_and_overwriting() -> None:
    result = translated(PO, "a.po", mark_fuzzy=True, overwrite=True)
    assert '#, fuzzy, c-format\nmsgctxt "menu"' in result
    assert '#, fuzzy\nmsgid "done"\nmsgstr "done!"' in result


FUZZY = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

#: a.c:1
#, fuzzy, c-format
#| msgid "ten"
msgid "one"
msgstr "zehn"

#, c-format
#, fuzzy
msgid "two"
msgid_plural "twos"
msgstr[0] "zwei"
msgstr[1] ""

#,fuzzy
#| msgid "drei"
msgid "three"
msgstr ""
"""


def test_fuzzy_translations_stay_and_are_counted() -> None:
    """A fuzzy entry without a translation is translated, and programs use the new translation."""
    document = read_document("a.po", FUZZY.encode(), DocumentSettings(), Limits())
    assert [unit.text for unit in document.units] == ["twos", "three"]
    assert document.kept_fuzzy == 2
    expected = FUZZY.replace('msgstr[1] ""', 'msgstr[1] "twos!"').replace(
        '#,fuzzy\n#| msgid "drei"\nmsgid "three"\nmsgstr ""', 'msgid "three"\nmsgstr "three!"'
    )
    assert translated(FUZZY, "a.po") == expected


@pytest.mark.parametrize("setting", ["overwrite", "overwrite_fuzzy"])
def test_overwriting_a_fuzzy_translation_removes_its_flag(setting: str) -> None:
    document = read_document("a.po", FUZZY.encode(), DocumentSettings(**{setting: True}), Limits())  # type: ignore[arg-type]
    assert document.kept_fuzzy == 0
    result = translated(FUZZY, "a.po", **{setting: True})
    assert '#: a.c:1\n#, c-format\nmsgid "one"\nmsgstr "one!"' in result
    assert '#, c-format\nmsgid "two"\nmsgid_plural "twos"\nmsgstr[0] "two!"\nmsgstr[1] "twos!"' in result
    assert "fuzzy" not in result
    assert "#|" not in result
    marked = translated(FUZZY, "a.po", mark_fuzzy=True, **{setting: True})
    assert '#, fuzzy, c-format\nmsgid "one"' in marked
    assert '#, c-format\n#, fuzzy\nmsgid "two"' in marked
    assert '#,fuzzy\nmsgid "three"\nmsgstr "three!"' in marked
    assert marked.count("fuzzy") == 3


def test_gettext_compiles_what_was_translated_again(tmp_path: Path) -> None:
    if shutil.which("msgfmt") is None:
        pytest.skip("msgfmt is not installed")
    path = tmp_path / "a.po"
    path.write_text(translated(FUZZY, "a.po", overwrite_fuzzy=True), "utf-8")
    done = subprocess.run(
        ["msgfmt", "--statistics", "-o", os.devnull, str(path)],
        env=os.environ | {"LC_ALL": "C"}, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr.strip() == "3 translated messages."


def test_flags_of_an_obsolete_entry_are_not_the_next_entrys() -> None:
    source = '#, fuzzy\n#~ msgid "b"\n#~ msgstr "c"\n\nmsgid "one"\nmsgstr ""\n'
    expected = source.replace('msgid "one"\nmsgstr ""', '#, fuzzy\nmsgid "one"\nmsgstr "one!"')
    assert translated(source, "a.po", mark_fuzzy=True) == expected


def test_a_new_flag_stands_before_the_former_source_text() -> None:
    source = '#| msgid "one only"\nmsgid "one"\nmsgstr ""\n'
    expected = '#, fuzzy\n#| msgid "one only"\nmsgid "one"\nmsgstr "one!"\n'
    assert translated(source, "a.po", mark_fuzzy=True) == expected


def test_only_entries_with_a_new_translation_are_flagged() -> None:
    """An entry that loses a plural form which the language lacks keeps its person's translation in use."""
    header = 'msgid ""\nmsgstr ""\n"Plural-Forms: nplurals=1; plural=0;\\n"\n\n'
    source = header + '#, c-format\nmsgid "one"\nmsgid_plural "many"\nmsgstr[0] "%s"\nmsgstr[1] ""\n'
    done = translated(source.replace("%s", "viele"), "a.po", mark_fuzzy=True)
    assert done == source.replace("%s", "viele").replace('msgstr[1] ""\n', "")
    assert "#, fuzzy, c-format" in translated(source.replace("%s", ""), "a.po", mark_fuzzy=True)


def test_segments_of_a_source_stay_segments_of_its_translation() -> None:
    """Tools of translators find a translation by the segments of `seg-source`, each in a `mrk` with its number."""
    segments = '<mrk mtype="seg" mid="1">one <g id="5">two</g></mrk> <mrk mtype="seg" mid="2">three &lt;</mrk>'
    source = (
        f'<xliff version="1.2"><file><body><trans-unit id="1"><source>x</source><seg-source>{segments}</seg-source>'
    )
    empty = '<target><mrk mtype="seg" mid="1"/> <mrk mtype="seg" mid="2"/></target>'
    end = "</trans-unit></body></file></xliff>"
    document = read_document("a.xlf", f"{source}{empty}{end}".encode(), DocumentSettings(), Limits())
    assert [unit.kind for unit in document.units] == ["xml", "text"]
    assert document.units[1].text == "three <"
    expected = segments.replace("three &lt;", "three &lt;!")
    for target in (empty, "", "<target/>"):
        assert translated(f"{source}{target}{end}", "a.xlf") == f"{source}<target>{expected}</target>{end}"


def test_long_translations_are_wrapped_as_gettext_does() -> None:
    text = "some words " * 10 + "at the end.\nAnother line"
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"'
    escaped = text.replace("\n", "\\n")
    result = translated(f'{header}\n\nmsgid "{escaped}"\nmsgstr ""\n', "a.po")
    lines = result.split("\n")
    assert lines[4] == 'msgstr ""'
    assert all(len(line) <= 80 for line in lines[4:])
    assert lines[6].endswith('\\n"')


def test_a_damaged_catalog_is_refused() -> None:
    with pytest.raises(TransduceError, match="line 2 is 'what'"):
        translated('msgid "a"\nwhat\n', "a.po")


XLIFF_1 = """<?xml version="1.0" encoding="UTF-8"?>
<xliff version="1.2"><file source-language="en"><body>
  <trans-unit id="1">
    <source>x <g id="1">a</g><x id="2"/> &amp; <ph id="3">&lt;b></ph> y</source>
  </trans-unit>
  <trans-unit id="2" translate="no"><source>x</source></trans-unit>
  <trans-unit id="3"><source>x
    y</source><target state="new"/><alt-trans><source>q</source><target>r</target></alt-trans></trans-unit>
  <trans-unit id="4"><source>x</source><target>y</target></trans-unit>
</body></file></xliff>
"""


REVIEW = "needs-review-translation"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            '<trans-unit id="1" approved="yes"><source>a b</source><target state="final">c</target></trans-unit>',
            f'<trans-unit id="1" approved="no"><source>a b</source><target state="{REVIEW}">A B</target></trans-unit>',
        ),
        (
            '<segment state="final"><source>a b</source><target>c</target></segment>',
            '<segment state="translated"><source>a b</source><target>A B</target></segment>',
        ),
    ],
)
def test_a_translation_that_replaces_an_approved_one_is_to_be_reviewed(source: str, expected: str) -> None:
    def capitals(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        return [text.upper() for text in texts]

    document = f'<xliff version="1.2"><file target-language="de"><body>{source}</body></file></xliff>'.encode()
    assert translate_upload(document, "a.xlf", capitals) == document
    result = translate_upload(document, "a.xlf", capitals, DocumentSettings(overwrite=True)).decode()
    assert result == document.decode().replace(source, expected)


def test_xliff_1_files_get_their_missing_targets() -> None:
    result = translated(XLIFF_1, "a.xlf", target_language="de")
    expected = XLIFF_1.replace('language="en"', 'language="en" target-language="de"').replace(
        " y</source>\n  </trans",
        ' y</source>\n    <target>x <g id="1">A</g><x id="2"/> &amp; <ph id="3">&lt;b></ph> y</target>\n  </trans',
    )
    assert result == expected.replace('<target state="new"/>', '<target state="needs-review-translation">x y!</target>')
    assert translated(result, "a.xlf", target_language="de") == result.replace("x y!</target>", "x y!</target>")


def test_codes_of_xliff_that_belong_together_are_around_their_words() -> None:
    """Here the words of a sentence change their order, and codes go with the words that they format."""
    content = 'a <bpt id="1">&lt;b></bpt>b<ept id="1">&lt;/b></ept> <bx id="2" rid="5"/>c<ex id="3" rid="5"/>'
    segment = f'<trans-unit id="1"><source>{content}</source></trans-unit>'
    document = f'<xliff version="1.2"><file><body>{segment}</body></file></xliff>'
    read = read_document("a.xlf", document.encode(), DocumentSettings(), Limits())
    (unit,) = read.units
    assert unit.text == 'a <g id="0">b</g> <g id="2">c</g>'
    translation = read.write(['<g id="2">C</g> <g id="0">B</g> A']).decode()
    expected = '<bx id="2" rid="5"/>C<ex id="3" rid="5"/> <bpt id="1">&lt;b></bpt>B<ept id="1">&lt;/b></ept> A'
    assert f"<target>{expected}</target>" in translation


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ('<x id="3" ctype="lb"/>', "br"),
        ('<x id="LINE_BREAK" equiv-text="&lt;br/&gt;"/>', "br"),
        ('<ph id="3" ctype="lb">\\n</ph>', "br"),
        ('<ph id="3">&lt;br/></ph>', "br"),
        ('<it id="3" pos="open">&lt;br></it>', "br"),
        ('<ph id="3" type="fmt" subType="xlf:lb"/>', "br"),
        ('<x id="3" ctype="x-b"/>', "it"),
        ('<ph id="3">&lt;img></ph>', "it"),
        ('<x id="3"/>', "x"),
        ('<ph id="3" ctype="x-text">%s</ph>', "x"),
    ],
)
def test_codes_of_xliff_are_line_breaks_formats_or_words(code: str, name: str) -> None:
    """A line break ends a sentence, a code for a format is no word, and any other code stands for a word."""
    segment = f'<trans-unit id="1"><source>One.{code}Two.</source></trans-unit>'
    document = f'<xliff version="1.2"><file><body>{segment}</body></file></xliff>'
    read = read_document("a.xlf", document.encode(), DocumentSettings(), Limits())
    (unit,) = read.units
    assert unit.text == f'One.<{name} id="0"/>Two.'
    assert f"<target>Eins.{code}Zwei.</target>" in read.write([f'Eins.<{name} id="0"/>Zwei.']).decode()


def test_xliff_2_files_get_their_missing_targets() -> None:
    content = 'x <mrk translate="no">b</mrk> <pc id="1">a</pc>'
    source = (
        '<xliff version="2.0" srcLang="en"><file><unit id="u"><segment><source>'
        f"{content}</source></segment></unit></file></xliff>"
    )
    expected = source.replace('srcLang="en"', 'srcLang="en" trgLang="de"').replace(
        "</segment>", f"<target>{content.replace('>a', '>A')}</target></segment>"
    )
    assert translated(source, "a.xliff", target_language="de") == expected


def test_initial_segments_of_xliff_2_are_translated() -> None:
    units = "".join(
        f'<unit id="{state}"><segment state="{state}"><source>x a</source><target>x a</target></segment></unit>'
        for state in ("initial", "translated", "final")
    )
    source = f'<xliff version="2.0" srcLang="en" trgLang="de"><file>{units}</file></xliff>'
    changed = 'state="translated"><source>x a</source><target>x a!</target>'
    assert translated(source, "a.xlf") == source.replace(
        'state="initial"><source>x a</source><target>x a</target>', changed
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("<xliff><file></xliff>", "not well-formed XLIFF"),
        ("<!DOCTYPE xliff [<!ENTITY a 'b'>]><xliff/>", "declares a document type"),
        ("<html></html>", "looks like HTML"),
        ("<other/>", "its root element is <other>"),
    ],
)
def test_other_xml_is_refused(source: str, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        translated(source, "a.xliff")


def _segment(number: int, text: str) -> str:
    return f'<mrk mtype="seg" mid="{number}">{text}</mrk>'


DONE, THREE, FIVE = _segment(0, 'eins <x id="9"/>.'), _segment(2, "three.!"), _segment(4, "five.!")
TWO, FOUR = _segment(1, 'two <g id="1">x</g>.!'), _segment(3, "4.")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (  # empty segments in all forms
            f'{DONE} {_segment(1, "")} <mrk mtype="seg" mid="2"/> {FOUR} {_segment(4, " ")}',
            f"{DONE} {TWO} {THREE} {FOUR} {FIVE}",
        ),
        (  # missing ones come after the segment before them
            f"{_segment(2, 'drei.')} {DONE}",
            f"{_segment(2, 'drei.')} {FOUR} {FIVE} {DONE} {TWO}",
        ),
        (DONE, f"{DONE} {TWO} {THREE} {FOUR} {FIVE}"),
        ("eins, zwei, drei, vier, fünf.", "eins, zwei, drei, vier, fünf."),  # not divided
        ("<![CDATA[eins]]>", "<![CDATA[eins]]>"),
    ],
)
def test_segments_of_xliff_without_a_translation_are_translated_beside_others(target: str, expected: str) -> None:
    def exclaim(texts: Sequence[str], kind: UnitKind) -> list[str]:  # noqa: ARG001
        return [f"{text}!" for text in texts]

    texts = ("one.", 'two <g id="1">x</g>.', "three.", "4.", "five.")
    segments = " ".join(_segment(number, text) for number, text in enumerate(texts))
    unit = f'<trans-unit id="1"><source>x</source><seg-source>{segments}</seg-source><target>TARGET</target>'
    document = f'<xliff version="1.2"><file><body>{unit}</trans-unit></body></file></xliff>'
    source = document.replace("TARGET", target)
    result = translate_upload(source.encode(), "a.xlf", exclaim).decode()
    assert result == document.replace("TARGET", expected)
    assert translate_upload(result.encode(), "a.xlf", exclaim).decode() == result
    again = translate_upload(source.encode(), "a.xlf", exclaim, DocumentSettings(overwrite=True)).decode()
    assert '<mrk mtype="seg" mid="0">one.!</mrk>' in again


A, B = _segment(0, "one."), _segment(1, "two.")
NEW, EMPTY, KEPT = _segment(1, "two.!"), _segment(1, ""), None
MARKED, CODES = 'a <mrk mtype="x-a">b</mrk> c.', '<bx id="5"/>a <ph id="6">{x}</ph><x id="7"/> b<ex id="5"/> c.'


@pytest.mark.parametrize(
    ("segments", "target", "expected"),
    [
        (f'<g id="1">{A}</g> {B}', f'<g id="1">{DONE}</g>', KEPT),
        (f'{A} <g id="1">{B}</g>', DONE, KEPT),
        (f'{A} <g id="1">{B}</g>', f'{DONE} <g id="1"></g>', KEPT),
        (f'<g id="1">{A} {B}</g>', f'<g id="1">{DONE}</g>', KEPT),
        (f"{A} {B}", f'<g id="1">{DONE}</g>', KEPT),
        (f'{A}<x id="5"/> {B}', f'{DONE}<x id="5"/>', KEPT),
        (f'<bx id="5"/>{A}<ex id="5"/> {B}', f'<bx id="5"/>{DONE}<ex id="5"/>', KEPT),
        (f'{A}<ph id="5">{{x}}</ph> {B}', DONE, KEPT),
        (f'<mrk mtype="x-a">{A}</mrk> {B}', f'<mrk mtype="x-a">{DONE}</mrk>', KEPT),
        (f"{A} – {B}", f"{DONE} – ", KEPT),
        (f"{A}<!-- a -->{B}", DONE, KEPT),
        (f"{A}\n {B}", DONE, f"{DONE}\n {NEW}"),
        (f'<g id="1">{A}</g> {B}', f'<g id="1">{DONE}</g> {EMPTY}', f'<g id="1">{DONE}</g> {NEW}'),
        (f'{A}<x id="5"/> <g id="1">{B}</g>', f'{DONE}<g id="1">{EMPTY}</g>', f'{DONE}<g id="1">{NEW}</g>'),
        (f"{A} {_segment(1, MARKED)}", DONE, f"{DONE} {_segment(1, MARKED + '!')}"),
        (f"{A} {_segment(1, CODES)}", DONE, f"{DONE} {_segment(1, CODES + '!')}"),
    ],
)
def test_segments_that_xliff_lacks_are_added_only_where_no_tag_is_around(
    segments: str, target: str, expected: str | None
) -> None:
    """With tags around segments, a new segment could be on the wrong side of one, or repeat it: the unit stays."""
    unit = f'<trans-unit id="1"><source>x</source><seg-source>{segments}</seg-source><target>TARGET</target>'
    document = f'<xliff version="1.2"><file><body>{unit}</trans-unit></body></file></xliff>'
    for settings in (DocumentSettings(), DocumentSettings(overwrite=True)):
        source = document.replace("TARGET", target).encode()
        result = translate_upload(source, "a.xlf", lambda texts, _: [f"{text}!" for text in texts], settings).decode()
        ElementTree.fromstring(result)
        if not settings.overwrite:
            assert result == document.replace("TARGET", expected or target)
        kept = read_document("a.xlf", source, settings, Limits()).kept_units
        assert kept == (("1: x",) if expected is KEPT and not settings.overwrite else ())


@pytest.mark.parametrize(
    "target", ["eins, zwei.", f"<g id='1'>{DONE}</g> {_segment(7, 'zwei.')}", f"{DONE} {_segment(1, 'zwei.')}"]
)
def test_units_of_xliff_with_all_translations_are_not_reported(target: str) -> None:
    unit = (
        f'<trans-unit id="1"><source>x</source><seg-source><g id="1">{A}</g> {B}</seg-source><target>{target}</target>'
    )
    source = f'<xliff version="1.2"><file><body>{unit}</trans-unit></body></file></xliff>'
    assert read_document("a.xlf", source.encode(), DocumentSettings(), Limits()).kept_units == ()


def catalog(forms: str, count: int = 2) -> str:
    strings = "".join(f'msgstr[{number}] ""\n' for number in range(count))
    header = f'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {forms}\\n"\n\n'
    return f'{header}msgid "a file"\nmsgid_plural "many files"\n{strings}'


@pytest.mark.parametrize(
    ("forms", "singular"),
    [
        ("nplurals=2; plural=(n != 1);", 0),
        ("nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);", 1),
        ("nplurals=6; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5;", 1),
        ("nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);", 0),
        ("nplurals=2; plural=__import__('os');", 0),
    ],
)
@pytest.mark.parametrize("written", [2, 6])
def test_the_singular_is_the_plural_form_of_the_number_1(forms: str, singular: int, written: int) -> None:
    count = int(forms[9])
    result = translated(catalog(forms, min(written, count)), "a.po")
    expected = ["a file!" if number == singular else "many files!" for number in range(count)]
    assert re.findall(r'msgstr\[\d\] "(.*)"', result) == expected
    document = read_document("a.po", catalog(forms).encode(), DocumentSettings(), Limits())
    assert document.same_plurals == (count > 2)
    assert document.guesses_singular == ("import" in forms)


def test_the_rule_of_plurals_ends_with_its_line() -> None:
    text = catalog('nplurals=2; plural=(n == 1)\\n"\n"X-Generator: (tool)')
    assert re.findall(r'msgstr\[\d\] "(.*)"', translated(text, "a.po")) == ["many files!", "a file!"]


@pytest.mark.parametrize(
    ("forms", "is_guess"),
    [
        ("nplurals=2; plural=n = 1;", True),
        ("nplurals=2; plural=5;", True),
        ("nplurals=2;", True),
        ('nplurals=2; plural=\\n"\n"X-Generator: 0', True),
        ("nplurals=1;", False),
        ("nplurals=1; plural=0;", False),
    ],
)
def test_a_rule_of_plurals_that_is_not_valid_is_reported(forms: str, is_guess: bool) -> None:
    def guesses(text: str) -> bool:
        document = read_document("a.po", text.encode(), DocumentSettings(), Limits())
        assert any("`msgstr[0]` is assumed" in note for note in _plural_notes(document)) is document.guesses_singular
        return document.guesses_singular

    assert guesses(catalog(forms)) is is_guess
    assert not guesses(catalog(forms).partition("msgid_plural")[0] + 'msgstr ""\n')


TEMPLATE = """# A TITLE.
#, fuzzy
msgid ""
msgstr ""
"Language: \\n"
"Content-Type: text/plain; charset=CHARSET\\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\\n"

msgid "a file"
msgid_plural "many files"
msgstr[0] ""
msgstr[1] ""
"""


def test_a_template_gets_the_header_of_the_target_language(tmp_path: Path) -> None:
    result = translated(TEMPLATE, "a.pot", target_language="pl")
    assert '# A TITLE.\nmsgid ""\n' in result
    assert '"Language: pl\\n"' in result
    assert "charset=UTF-8" in result
    assert "nplurals=3; plural=(n==1 ? 0" in result
    assert 'msgstr[2] "many files!"' in result
    unknown = read_document("a.pot", TEMPLATE.encode(), DocumentSettings(target_language="xx"), Limits())
    assert unknown.lacks_plural_rule
    if shutil.which("msgfmt") is not None:
        path = tmp_path / "a.po"
        path.write_text(result, "utf-8")
        subprocess.run(["msgfmt", "--check", "-o", os.devnull, str(path)], check=True)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_plural_forms_that_the_target_language_lacks_are_removed(tmp_path: Path, newline: str) -> None:
    template = f'{TEMPLATE}# a note\n\nmsgid "b"\nmsgstr ""\n'.replace("\n", newline)
    result = translated(template, "a.pot", target_language="zh")
    assert "nplurals=1; plural=(0)" in result
    entry = 'msgid "a file"\nmsgid_plural "many files"\nmsgstr[0] "many files!"\n# a note\n\nmsgid "b"\nmsgstr "b!"\n'
    assert result.endswith(entry.replace("\n", newline))
    if shutil.which("msgfmt") is not None:
        path = tmp_path / "a.po"
        path.write_bytes(result.encode())
        subprocess.run(["msgfmt", "--check", "-o", os.devnull, str(path)], check=True)


def test_only_empty_plural_forms_behind_the_others_are_removed() -> None:
    header = 'msgid ""\nmsgstr "Plural-Forms: nplurals=1; plural=0;\\n"\n\nmsgid "a"\nmsgid_plural "b"\n'
    done, wrong = 'msgstr[0] "x"\n', 'msgstr[1] "y"\nmsgstr[0] ""\n'
    assert translated(f'{header}{done}msgstr[1]  ""\n', "a.po") == f"{header}{done}"
    assert translated(header + wrong, "a.po") == header + wrong.replace('""', '"b!"')
    behind = 'msgstr[1] ""\nmsgstr[0] ""\n'
    assert translated(header + behind, "a.po") == header + behind.replace('""', '"b!"')
