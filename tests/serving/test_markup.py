"""HTML: tags are kept and balanced, entities stay intact, and what is between is translated."""

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.documents.markup import markup_plan, plan_text
from transduce.inference.translator import Translator
from transduce.serving.jobs import Job, JobSentence
from transduce.serving.models import ServedModel
from transduce.text.word_spans import Span


def translate(
    document: str, said: Mapping[str, str] | None = None, parts: Mapping[str, str] | None = None, *, spaced: bool = True
) -> str:
    """Sentences by a dictionary; others in capitals. Marked parts by another one; others stay where they are."""
    plan = markup_plan(document, spaced=spaced)
    found = [(said or {}).get(sentence, sentence.upper()) for sentence in plan.sentences]

    def place(number: int, span: Span) -> Span:
        part = (parts or {}).get(plan.sentences[number][span.start : span.end])
        start = span.start if part is None else found[number].index(part)
        return Span(start, span.end if part is None else start + len(part))

    return plan.assemble(found, {number: [place(number, span) for span in own] for number, own in plan.marks.items()})


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
        ("<script src=/js/>a b</script>one", "<script src=/js/>a b</script>ONE"),
        ("<x a='b'/>one<x / >", "<x a='b'/>ONE<x / >"),
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
    said = {"I love red tea .": "Roten Tee liebe ich."}
    parts = {"love": "liebe", "red tea": "Roten Tee"}
    translated = translate("I <b>love</b> <i><a>red tea</a></i> .", said, parts)
    assert translated == "<i><a>Roten Tee</a></i> <b>liebe</b> ich."


def test_marks_within_marks_and_beside_words() -> None:
    said = {"the big red house & garden": "das große rote Haus & der Garten"}
    parts = {"big red house": "große rote Haus", "red": "rote"}
    translated = translate("  the <a href='x'>big <b>red</b> house</a> &amp; garden\n", said, parts)
    assert translated == "  das <a href='x'>große <b>rote</b> Haus</a> &amp; der Garten\n"


def test_spaces_within_marks_are_left_out_of_them() -> None:
    said, parts = {"the red house": "das rote Haus"}, {"red": "rote"}
    assert translate("the<b> red </b>house", said, parts) == "das <b>rote</b> Haus"
    assert translate("<p> <b> red </b>\n</p>", {"red": "rot"}, {"red": "rot"}) == "<p>  <b>rot</b> \n</p>"


@pytest.mark.parametrize(
    ("document", "translated"),
    [
        ("<i class='x'></i> one <b>two</b>", " <i class='x'></i>ONE <b>TWO</b>"),
        ("one<sup></sup> two", "ONE<sup></sup> TWO"),
        ("one <a>two<i></i></a> three", "ONE <a>TWO<i></i></a> THREE"),
        ("one <a><i></i>two</a>", "ONE <a><i></i>TWO</a>"),
        ("<a><b>one</b></a><i></i>", "<a><b>ONE</b></a><i></i>"),
        ("one <a>two <span></span></a> three <b>four</b>.", "ONE <a>TWO<span></span></a> THREE <b>FOUR</b>."),
        ("one <b>!</b> two <i>three</i>", "ONE <b>!</b> TWO <i>THREE</i>"),
        ("one <i></i><b>two</b> three", "ONE <i></i><b>TWO</b> THREE"),
    ],
)
def test_elements_without_words_stay_where_they_stand(document: str, translated: str) -> None:
    assert translate(document) == translated


@pytest.mark.parametrize(
    ("document", "sentences"),
    [
        ("<a>one</a> | <a>two</a>", ["one", "two"]),  # links in a row
        ("<b>one</b> <i>two</i>", ["one", "two"]),
        ("<b>one</b> two <i>three</i>", ["one two three"]),
        ("<b>one two</b>", ["one two"]),
        ("<b>one</b> — <i></i>", ["one —"]),
        ("one <b>two</i>", ["one", "two"]),  # not balanced
        ("one <b>two", ["one", "two"]),
        ("one<i></i> two", ["one two"]),
        ("<b>!</b> <i></i>", []),
        ("<b>" * 600 + "one" + "</b>" * 600, ["one"]),
        ("x" + "<b>y</b>" * 17, ["x", *["y"] * 17]),  # no sentence
    ],
)
def test_a_block_is_one_sentence_or_several(document: str, sentences: list[str]) -> None:
    assert markup_plan(document, spaced=True).sentences == sentences


def test_words_are_kept_apart_that_the_source_writes_together() -> None:
    said = {"老师": "the teacher", "你": "you"}
    assert translate("<b>老师</b><b>你</b>。", said) == "<b>the teacher</b><b> you</b>。"
    assert (
        translate("<b>老师</b><i>今天</i>", {"老师": "先生", "今天": "今日"}, spaced=False) == "<b>先生</b><i>今日</i>"
    )


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
    plan = markup_plan(document, spaced=True)
    tags = re.compile(r"<!--.*?-->|</?[a-z]+/?>")
    translated = plan.assemble(plan.sentences, plan.marks)
    assert sorted(tags.findall(translated)) == sorted(tags.findall(document))
    assert tags.sub("", translated).count("<") == 0 or "<" in tags.sub("", document)


@pytest.mark.parametrize(
    "piece", ["<a ", "<!--", '<a "', "<a '\"", "<b>x</b> ", "<", "&nbsp;", "&nbsp; ", "<b>", "<pre>", "</b>"]
)
def test_broken_markup_takes_no_long_time(piece: str) -> None:
    document = f"x{piece * (20_000 // len(piece))}x"
    plan = markup_plan(document, spaced=True)
    assert plan.assemble(plan.sentences, plan.marks).endswith("x")


def test_lines_of_plain_text_are_sentences() -> None:
    plan = plan_text("one\n\n two \r\n\u2028x")
    assert plan.sentences == ["one", " two ", "\u2028x"]
    assert plan.assemble(["1", "2", "3"], {}) == "1\n\n2\r\n3"
    assert plan_text(" \n").sentences == []


def test_sentences_that_were_parts_of_a_text_without_spaces_have_one_between_them() -> None:
    said = {"我们买茶": "We buy tea.", "今天": "Today.", "你看见猫": "You see cats."}
    document = "<b>我们买茶</b><i>今天</i><b>你看见猫</b>"
    assert translate(document, said) == "<b>We buy tea.</b><i> Today.</i><b> You see cats.</b>"


def test_tags_of_nobody_who_waits_are_not_looked_for(gated_model: Any) -> None:
    model = gated_model()
    spans = {0: [Span(0, 3)]}
    jobs = [Job(model, ["ein Satz"], model.search, seconds=seconds, marks=spans) for seconds in (60.0, 1e-9)]
    observer = SimpleNamespace(after_step=lambda *_: ())
    waited_for, expired = jobs[0].decode([JobSentence(job, 0) for job in jobs], observer)
    assert waited_for.mark_spans == [[Span(0, 3)]]
    assert expired.mark_spans == ()


def test_a_real_models_document_has_its_tags_around_words(serve: Any, translator: Translator) -> None:
    with serve(ServedModel(translator, languages=("zh", "en"))) as live:
        reply = live.translate("<p>我吃<b>鱼</b>。</p>", source="zh", format="html").json["translatedText"]
    plain = translator("我吃鱼。").text
    assert re.sub("</?b>", "", reply) == f"<p>{plain}</p>"
    assert re.search(r"<b>\w[^<]*</b>", reply)


@given(st.data())
def test_wherever_tags_are_put_the_text_is_the_translation(data: st.DataObject) -> None:
    """For nested, empty and misplaced elements, no text is repeated, and tags stay nested."""
    inline = st.recursive(
        st.sampled_from(["one", "two three", "!", " ", ""]),
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda parts: f"<b>{' '.join(parts)}</b>")
            | st.lists(inner, max_size=3).map("".join)
        ),
        max_leaves=8,
    )
    document = f"four {data.draw(inline)} five"
    plan = markup_plan(document, spaced=True)
    found = ["a translation, whatever it is", *plan.sentences[1:]]
    spans = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: Span(*sorted(pair)))
    places = {number: [data.draw(spans) for _ in own] for number, own in plan.marks.items()}
    translated = plan.assemble(found, places)
    tags = re.findall("</?b>", translated)
    assert tags.count("<b>") == document.count("<b>")
    depths = [sum(1 if tag == "<b>" else -1 for tag in tags[: n + 1]) for n in range(len(tags))]
    assert min(depths, default=0) >= 0
    if len(plan.sentences) == 1:
        assert re.sub("</?b>", "", translated) == found[0]
