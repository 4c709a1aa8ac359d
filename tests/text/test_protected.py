"""Test that spans that translation must not change are found in any context, and in linear time."""

import time

import pytest

from transduce.errors import TransduceError
from transduce.text.protected import find_protected, is_inline_tag
from transduce.text.word_spans import Span


def protected_texts(text: str, *patterns: str) -> list[str]:
    return [text[slice(*span)] for span in find_protected(text, patterns)]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("玛丽在家画 {name} 和 %s", ["{name}", "%s"]),
        ("Hi %(count)d {{var}} ${x} $x", ["%(count)d", "{{var}}", "${x}", "$x"]),
        ("<0>bold</0> a </b> <br/>", ["<0>", "</0>", "</b>", "<br/>"]),
        ('会<ph id="1"/>骑自行车', ['<ph id="1"/>']),
        ("one\\ntwo \\u00e9", ["\\n", "\\u00e9"]),
        ("%1$s of %-5.2f, %@ and %%", ["%1$s", "%-5.2f", "%@", "%%"]),
        (
            "{count, plural, one {# item} other {# items}} left",
            ["{count, plural, one {# item} other {# items}}"],
        ),
        ("{% if a %}x{{ b | c }}{# d #}", ["{% if a %}", "{{ b | c }}", "{# d #}"]),
        ("访问https://example.com/a_b?x=1看看。", ["https://example.com/a_b?x=1"]),
        ("看https://example.com/看看吧", ["https://example.com/"]),
        ("见https://zh.wikipedia.org/wiki/北京_(消歧义)。", ["https://zh.wikipedia.org/wiki/北京_(消歧义)"]),
        ("https://a.example?q=北京&x=1，好", ["https://a.example?q=北京&x=1"]),
        ("http://例子.测试/路径?a=1&b=2 好", ["http://例子.测试/路径?a=1&b=2"]),
        ("%shttps://a.example/b", ["https://a.example/b"]),
        ("See (https://en.wikipedia.org/wiki/A_(b)).", ["https://en.wikipedia.org/wiki/A_(b)"]),
        ("Ask me@x.org, or a.b+c@d.co.uk.", ["me@x.org", "a.b+c@d.co.uk"]),
        ("Look at www.example.com/x, example.com.", ["www.example.com/x", "example.com"]),
        (
            "Open report.pdf, src/main.py, C:\\new\\table or /usr/bin/x.",
            ["report.pdf", "src/main.py", "C:\\new\\table", "/usr/bin/x"],
        ),
        ("我@kim说#news和#话题#。", ["@kim", "#news", "#话题#"]),
        ("“@kim” (@lee)", ["@kim", "@lee"]),
        ("run `make all` or ``a`b``", ["`make all`", "``a`b``"]),
        ("call foo_bar() and get()", ["foo_bar()", "get()"]),
        ("v1.2.3, 192.168.0.1, 0xFF, COVID-19", ["v1.2.3", "192.168.0.1", "0xFF", "COVID-19"]),
        ("$5 or 1.234,56 €, 20 $x", ["$5", "1.234,56 €", "$x"]),
        ("3.5 kg, 20%, 12 km/h, 30 °C", ["3.5 kg", "20%", "12 km/h", "30 °C"]),
        ("12345 of 1,234,567 on 2024-05-01", ["12345", "1,234,567", "2024-05-01"]),
        ("１２３４５本", ["１２３４５"]),
        ("4%(count)d", ["%(count)d"]),
        ("AT&amp;T &#233;", ["&amp;", "&#233;"]),
        ("版本1.2.3很好，IP 是 1.2.3.4。", ["1.2.3", "1.2.3.4"]),
        ("Python 3.9.1 ist gut. Am 1.5.23.", ["3.9.1", "1.5.23"]),
        ("16 GB/512 GB, 5 km/h", ["16 GB", "512 GB", "5 km/h"]),
        ("foo(bar) 是函数，f(g(x), 1) 也是。", ["foo(bar)", "f(g(x), 1)"]),
        ("Call foo(a_b), x.get('a') or my_name(x).", ["foo(a_b)", "x.get('a')", "my_name(x)"]),
        ("图data:image/png;base64,iVBOR/w0=好", ["data:image/png;base64,iVBOR/w0="]),
        ("很好:smile: $t(key) __y__ __init__()", [":smile:", "$t(key)", "__y__", "__init__()"]),
        ("😆 👨‍👩‍👧‍👦 🇩🇪👍🏽 1️⃣ ❤️", ["😆", "👨‍👩‍👧‍👦", "🇩🇪👍🏽", "1️⃣", "❤️"]),
    ],
)
def test_placeholders_tags_and_addresses_are_protected(text: str, spans: list[str]) -> None:
    assert protected_texts(text) == spans


@pytest.mark.parametrize(
    "text",
    [
        "50% der Leute sagen ja.".replace("50%", "Die Hälfte"),
        "Es ist 20%ig.",
        "A < b and c > d",
        "{a, b, c} is a set { of letters }",
        "It costs 5 and/or 30 euros at 10:30.",
        "In 1990 there were 2,500 people, 3rd and 10th.",
        "Wir kommen am 5. Mai. C# ist neu.",
        "Dr. Smith isn't here... Is he?",
        "我们有30个苹果。",
        "他２０２４年去了北京，占５％。",
        "في عام ٢٠٢٤",
        "™ and © are signs.",
        "Die Schüler(innen), friend(s) and ein(e) Kind.",
        "Es fährt 5 km/Tag und kostet 1.234 Euro.",
        "他住在北京（Beijing），data: 10:30。",
    ],
)
def test_ordinary_prose_has_no_protected_spans(text: str) -> None:
    assert protected_texts(text) == []


def test_regular_expressions_of_the_user_take_precedence() -> None:
    assert protected_texts("Order AB 12345 now", r"AB \d+") == ["AB 12345"]
    assert find_protected("x Foo y", ["Foo"]) == [Span(2, 5)]


@pytest.mark.parametrize(("pattern", "says"), [("(", "is none"), ("a*", "matches an empty one")])
def test_bad_expressions_are_refused(pattern: str, says: str) -> None:
    with pytest.raises(TransduceError, match=says):
        find_protected("text", [pattern])


HOSTILE = (
    *(
        "{",
        "a",
        "`",
        "<a ",
        "<",
        "/a",
        "a.",
        "a-",
        "1,",
        "%",
        "http://",
        "@a",
        "#a",
        "a@",
        "{a",
        "{}",
        "a_",
        "\\",
        "😆",
    ),
    *(
        "&#",
        "$(",
        "((",
        "{{a",
        "www.",
        "A1-",
        "v1.",
        "0x",
        "<a b='",
        "<!--",
        "~/",
        "C:\\",
        "`a",
        "``",
        "_a",
        "%(",
        "12 ",
        ":a",
        "a(",
        "a((",
        "a(b,",
        "x.a(",
        "我a(b",
        "$a(",
        "__a",
        "1.",
        "data:a/",
    ),
)


@pytest.mark.parametrize("part", HOSTILE)
def test_hostile_texts_take_linear_time(part: str) -> None:
    text = part * (20_000 // len(part))
    started = time.process_time()
    find_protected(text)
    assert time.process_time() - started < 1.0  # quadratic expressions take a minute


def test_tags_are_distinguished_from_words() -> None:
    assert all(map(is_inline_tag, ["<0>", "</b>", '<ph id="1"/>']))
    assert not any(map(is_inline_tag, ["{name}", "<", "a < b"]))
