"""HTML: tags are kept and balanced, entities stay intact, and what is between is translated."""

import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.serving.markup import markup_plan
from transduce.serving.texts import plan_text


def translate(document: str, said: Mapping[str, str] | None = None, *, spaced: bool = True) -> str:
    """Sentences by a dictionary; others in capitals."""
    sentences, assemble = markup_plan(document, spaced=spaced)
    return assemble([(said or {}).get(sentence, sentence.upper()) for sentence in sentences])


@pytest.mark.parametrize(
    ("document", "translated"),
    [
        ("plain", "PLAIN"),
        ("", ""),
        ("<p>one</p>\n<p> two </p>", "<p>ONE</p>\n<p> TWO </p>"),
        ('<div class="a" id=b><br/>one<br>two</div>', '<div class="a" id=b><br/>ONE<br>TWO</div>'),
        ("a &lt;b&gt; &amp; &quot;c&quot; &copy;", 'A &lt;B&gt; &amp; "C" ©'),
        ("a &amp;amp; b", "A &amp;AMP; B"),
        ("&nbsp;one&nbsp;", "&nbsp;ONE&nbsp;"),
        ("a < b and c > d", "A &lt; B AND C &gt; D"),
        ("<!-- <p>not this</p> -->one", "<!-- <p>not this</p> -->ONE"),
        ("<!DOCTYPE html><html>one</html>", "<!DOCTYPE html><html>ONE</html>"),
        ("<script>if (a<b) { c }</script>one", "<script>if (a<b) { c }</script>ONE"),
        ("<pre>x <pre>y</pre> z</pre>one", "<pre>x <pre>y</pre> z</pre>ONE"),
        ("<code>x</code> one", "<code>x</code> ONE"),
        ('<span translate="no">x <b>y</b></span> one', '<span translate="no">x <b>y</b></span> ONE'),
        ("<p class='notranslate a'>x</p>one", "<p class='notranslate a'>x</p>ONE"),
        ('<p id="class=x" class="a NoTranslate">x</p>one', '<p id="class=x" class="a NoTranslate">x</p>ONE'),
        ("<p class=notranslate>x</p>one", "<p class=notranslate>x</p>ONE"),
        ("<p class=a title='notranslate' translate=yes>x</p>", "<p class=a title='notranslate' translate=yes>X</p>"),
        ("<a href='x>y'>one</a>", "<a href='x>y'>ONE</a>"),
        ('<a title="x < y">one</a> two', '<a title="x < y">ONE</a> TWO'),
        ('<p onclick="if (a<b) f()">one</p>', '<p onclick="if (a<b) f()">ONE</p>'),
        ("<x><![CDATA[a <b>x</b> y]]> one</x>", "<x><![CDATA[a <b>x</b> y]]> ONE</x>"),
        ('<script>var s = "<!--";</script><p>one</p>', '<script>var s = "<!--";</script><p>ONE</p>'),
        ("<style>a > b {} </script> </style>one", "<style>a > b {} </script> </style>ONE"),
        ("<g id='1'>one</g>, <x/>two.", "<g id='1'>ONE</g>, <x/>TWO."),
        ("<b>x <i>y</b></i> z <b>", "<b>X <i>Y</b></i> Z <b>"),
        ("- <b>!</b> 12 %", "- <b>!</b> 12 %"),
    ],
)
def test_a_document_keeps_all_but_its_words(document: str, translated: str) -> None:
    assert translate(document) == translated


def test_marks_follow_what_they_mark() -> None:
    said = {"I": "ich", "love": "liebe", "red tea": "roten Tee", "I love red tea .": "Roten Tee liebe ich."}
    assert translate("I <b>love</b> <i><a>red tea</a></i> .", said) == "<i><a>Roten Tee</a></i> <b>liebe</b> ich."


def test_a_full_stop_after_a_part_by_itself_does_not_matter() -> None:
    said = {"red": "Rot.", "the red house": "das Haus ist rot & groß"}
    assert translate("the <b>red</b> house", said) == "das Haus ist <b>rot</b> &amp; groß"


@pytest.mark.parametrize(
    ("part", "whole"),
    [("rot", "das Haus"), ("rot", "rot und rot"), ("rot", "Rotkohl"), ("", "das rote Haus")],
    ids=["not found", "found twice", "within a word", "nothing"],
)
def test_where_a_parts_place_is_not_certain_the_parts_keep_theirs(part: str, whole: str) -> None:
    said = {"the": "das", "red": part, "house": "Haus", "the red house": whole}
    assert translate("the <b>red</b> house", said) == f"das <b>{part}</b> Haus"


def test_words_are_kept_apart_that_the_source_writes_together() -> None:
    said = {"老师": "the teacher", "今天": "today", "你": "you", "。": "."}
    assert translate("<b>老师</b>今天<b>你</b>。", said) == "<b>the teacher</b> today<b> you</b>。"
    assert translate("<b>H</b>ello") == "<b>H</b>ELLO"
    assert translate("<b>老师</b>今天", {"老师": "先生", "今天": "今日"}, spaced=False) == "<b>先生</b>今日"


def test_parts_that_overlap_keep_their_places() -> None:
    said = {"a": "rot grün", "b": "grün blau", "a b": "rot grün blau"}
    assert translate("<b>a</b> <i>b</i>", said) == "<b>rot grün</b> <i>grün blau</i>"


def test_a_language_without_spaces_has_no_words_to_be_found_whole() -> None:
    said = {"red": "红", "the red house": "这座红房子"}
    assert translate("the <b>red</b> house", said, spaced=False) == "这座<b>红</b>房子"


@given(
    st.lists(
        st.sampled_from(
            ["<b>", "</b>", "<p>", "</p>", "<br/>", "<!-- x -->", "one ", " two", "&amp;", "<", ">", '"', "&"]
        ),
        max_size=12,
    ).map("".join)
)
def test_tags_are_the_same_before_and_after_when_nothing_is_moved(document: str) -> None:
    """Words stay as they are here, so nothing can move, and what comes out is what went in."""
    sentences, assemble = markup_plan(document, spaced=True)
    tags = re.compile(r"<!--.*?-->|</?[a-z]+/?>")
    translated = assemble(sentences)
    assert sorted(tags.findall(translated)) == sorted(tags.findall(document))
    assert tags.sub("", translated).count("<") == 0 or "<" in tags.sub("", document)


@pytest.mark.parametrize(
    "piece", ["<a ", "<!--", '<a "', "<a '\"", "<b>x</b> ", "<", "&nbsp;", "&nbsp; ", "<b>", "<pre>", "</b>"]
)
def test_broken_markup_takes_no_long_time(piece: str) -> None:
    document = f"x{piece * (20_000 // len(piece))}x"
    sentences, assemble = markup_plan(document, spaced=True)
    assert assemble(sentences).endswith("x")


def test_lines_of_plain_text_are_sentences() -> None:
    sentences, assemble = plan_text("one\n\n two \r\n\u2028x")
    assert sentences == ["one", " two ", "\u2028x"]
    assert assemble(["1", "2", "3"]) == "1\n\n2\r\n3"
    assert plan_text(" \n").sentences == []


def test_sentences_that_were_parts_of_a_text_without_spaces_have_one_between_them() -> None:
    said = {"我们买茶": "We buy tea.", "今天": "Today.", "你看见猫": "You see cats."}
    assert translate("我们买茶<i>今天</i>你看见猫", said, spaced=True) == "We buy tea.<i> Today.</i> You see cats."
