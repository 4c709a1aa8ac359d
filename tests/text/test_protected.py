"""Test that spans that translation must not change are found in any context, and in linear time."""

import itertools
import random
import time
import unicodedata
from typing import Literal

import pytest

from transduce.errors import TransduceError
from transduce.text.protected import find_protected, is_inline_tag, without_tag_pairs
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
        ("50%% off, by 5 %%. %d%%", ["50%%", "5 %%", "%d", "%%"]),
        (
            "{count, plural, one {# item} other {# items}} left",
            ["{count, plural, one {# item} other {# items}}"],
        ),
        ("{% if a %}x{{ b | c }}{# d #}", ["{% if a %}", "{{ b | c }}", "{# d #}"]),
        ("访问https://example.com/a_b?x=1看看。", ["https://example.com/a_b?x=1"]),
        ("看https://example.com/看看吧", ["https://example.com/"]),
        ("https://a.example/路径/文件.html?名称=值#锚点，好", ["https://a.example/路径/文件.html?名称=值#锚点"]),
        ("在https://a.example/搜索?q=中文&页=2。", ["https://a.example/搜索?q=中文&页=2"]),
        ("见https://a.example/资料_一.pdf", ["https://a.example/资料_一.pdf"]),
        ("看https://a.example/看看.Then go", ["https://a.example/"]),
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
        ("طائرة F١٦", ["F١٦"]),
        ("A٤٠, M१६-२ v१.२", ["A٤٠", "M१६-२", "v१.२"]),
        ("v1.2.3, 192.168.0.1, 0xFF, COVID-19", ["v1.2.3", "192.168.0.1", "0xFF", "COVID-19"]),
        ("$5 or 1.234,56 €, 20 $x", ["$5", "1.234,56 €", "$x"]),
        ("let $x$ be $E = mc^2$ of $O(n \\log n)$", ["$x$", "$E = mc^2$", "$O(n \\log n)$"]),
        ("用$x_i$表示$y$的值，$5和$6", ["$x_i$", "$y$", "$5", "$6"]),
        ("where $$ = max(a, b)$$ or \\(a + b\\), \\[c = d\\]", ["$$ = max(a, b)$$", "\\(a + b\\)", "\\[c = d\\]"]),
        ("ราคา $5 ถึง 10$ ครับ, $5 से 6$", ["$5", "10$", "$5", "6$"]),
        (r"\[is it?\] \(go – now!\) \(n \log n\) \[ab = c if d\]", [r"\(n \log n\)", r"\[ab = c if d\]"]),
        ('$HOME/$USER, $a($b), "$c" "$d"', ["$HOME", "$USER", "$a", "$b", "$c", "$d"]),
        ("so \\begin{align}a &= b\\end{align} is", ["\\begin{align}a &= b\\end{align}"]),
        ("in $$ = cheap, ($$) and ($$), $3 (or 4$)", ["$3", "4$"]),
        ("3.5 kg, 20%, 12 km/h, 30 °C", ["3.5 kg", "20%", "12 km/h", "30 °C"]),
        ("12345 of 1,234,567 on 2024-05-01", ["12345", "1,234,567", "2024-05-01"]),
        ("A dog runs 1 000 m and 3 500 kg.", ["1 000 m", "3 500 kg"]),
        ("1\u00a0000\u00a0000\u00a0€ or 1\u202f234,50 €", ["1\u00a0000\u00a0000\u00a0€", "1\u202f234,50 €"]),
        ("1.000.000,00 EUR, CHF 1'234.50", ["1.000.000,00 EUR", "CHF 1'234.50"]),
        ("£3bn, $1.5M, 20k€, $3 million, 3 Mio. €, 12345万, ¥3万", ["£3bn", "$1.5M", "20k€"]),
        ("-12.5 °C, −3.5 %, -$20, $-20, +3 %，温度-5°C", ["-12.5 °C", "−3.5 %", "-$20", "$-20", "+3 %", "-5°C"]),
        ("<5 kg or ≥12345, 3×10⁵ m, 1e-5 kg, 2 1/2 kg", ["<5 kg", "≥12345", "3×10⁵ m", "1e-5 kg", "2 1/2 kg"]),
        ("DE89 3704 0044 0532 0130 00 is a number.", ["DE89 3704 0044 0532 0130 00"]),
        ("+49 (0)30 123456-78, (123) 456-7890, 030 1234567", ["+49 (0)30 123456-78", "(123) 456-7890", "030 1234567"]),
        ("5-10 kg, 5 – 10 kg, $5-$10, 1990 - 2000", ["5-10 kg", "5 – 10 kg", "$5-$10"]),
        ("In 1999. 30 dogs. Room 12 300 people", ["12 300"]),
        ("In 2024 12345 people, in 2024 10 000 people", ["12345", "2024 10 000"]),
        ("GPT-4.5, USD1,234.56, US$20,000, x1 000 m", ["GPT-4.5", "USD1,234.56", "US$20,000"]),
        ("12345 km/Tag, 1 000 000th, 12，345 kg", ["12345", "12，345 kg"]),
        ("١٢٬٣٤٥ كم, १२ ३४५ kg", ["١٢٬٣٤٥", "१२ ३४५ kg"]),
        ("See https://a.example/1 200 times", ["https://a.example/1"]),
        ("１２３４５本", ["１２３４５"]),
        (
            "Il mesure 1 m 80, à 10 h 30. Es sind 5 m 300 kg, 2 h 15 min",
            ["1 m 80", "10 h 30", "5 m", "300 kg", "2 h", "15 min"],
        ),
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
        "1, 2, 3 and 1/2, 10:30 - 12:30, 1990–2000",
    ],
)
def test_ordinary_prose_has_no_protected_spans(text: str) -> None:
    assert protected_texts(text) == []


def random_numbers(count: int) -> list[str]:
    """Return numbers in many notations: signs, currencies, groups of digits, decimals, abbreviations, units, ranges."""
    random.seed(5)
    groups = ("", ",", ".", "'", "’", " ", "\u00a0", "\u2009", "\u202f", "  ")
    before = ("", "", "", "-", "+", "−", "$", "€", "-$", "$-", "US$", "EUR ", "£ ", "<", "~", "CHF")
    after = (
        "",
        "",
        " kg",
        "kg",
        " %",
        "%",
        " m",
        "\u00a0€",
        "€",
        " EUR",
        "bn",
        "M",
        "k",
        " °C",
        "°C",
        " million",
        "万",
        "th",
    )
    numbers = []
    for _ in range(count):
        digits = str(random.randrange(10 ** random.randrange(1, 11)))
        group, width = random.choice(groups), len(digits) % 3 or 3
        parts = [digits[:width], *(digits[start : start + 3] for start in range(width, len(digits), 3))]
        number = group.join(parts) + random.choice(("", "", ".5", ",25", "½", "e-7", "/3", ":30"))
        number += random.choice(("", "", "", "-7", "–12", " - 9", "×2 000")) + random.choice(after)
        numbers.append(random.choice(before) + number)
    return numbers


def test_a_number_is_protected_as_a_whole_or_not_at_all() -> None:
    contexts = ("It is {}.", "它是{}。", "({})", "“{}” fits", "{}, or", "a: {}; b", "T-Shirt,{} heute")
    halves = []
    for number, context in itertools.product(random_numbers(1_500), contexts):
        text = context.format(number)
        start, end = text.index(number), text.index(number) + len(number)
        inside = [span for span in find_protected(text) if span.start < end and span.end > start]
        covered = [character for span in inside for character in text[slice(*span)]]
        lacks_digits = sum(map(str.isdigit, covered)) < sum(map(str.isdigit, number))
        if inside and (lacks_digits or (number[0] in "-−+$€<" and inside[0].start > start)):
            halves.append((text, [text[slice(*span)] for span in inside]))
    assert halves == []


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
        "$a ",
        "$$ ab",
        "\\(a ",
        "\\begin{math}",
        "__a",
        "1.",
        "data:a/",
        "1 ",
        "1 - ",
        "-",
        "$-",
        "(12) ",
        "AB12 ",
        "1e",
    ),
)


@pytest.mark.parametrize("part", HOSTILE)
def test_hostile_texts_take_linear_time(part: str) -> None:
    text = part * (20_000 // len(part))
    started = time.process_time()
    find_protected(text)
    assert time.process_time() - started < 1.0  # quadratic expressions take a minute


@pytest.mark.parametrize(
    ("start", "part"),
    [
        *(("", digit) for digit in "3٣۳३৩௩๓３𝟑"),
        *(("", digit + ".") for digit in "3٣३"),
        *(("A", digit) for digit in "3٣३"),
        ("https://a", ")"),
        ("https://a", "]"),
        ("https://a", ")]."),
    ],
)
def test_the_time_of_digits_and_brackets_grows_linearly(start: str, part: str) -> None:
    def seconds(count: int) -> float:
        text = start + part * (count // len(part))
        started = time.process_time()
        find_protected(text)
        return time.process_time() - started

    shorter = min(seconds(10_000) for _ in range(3))
    # Quadratic time is 100 times as long. Half a second is far below that of any, and above all noise.
    assert seconds(100_000) < max(20 * shorter, 0.5)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_expressions_and_texts_match_in_the_form_they_are_written_in(form: Literal["NFC", "NFD"]) -> None:
    text = unicodedata.normalize(form, "Ich esse Käse.")
    assert protected_texts(text, unicodedata.normalize(form, "Käse")) == [unicodedata.normalize(form, "Käse")]
    assert protected_texts(text, "Käse") == [unicodedata.normalize(form, "Käse")]
    assert protected_texts(text, "Ka") == []  # no letter without its accent


def test_tags_are_distinguished_from_words() -> None:
    assert all(map(is_inline_tag, ["<0>", "</b>", '<ph id="1"/>']))
    assert not any(map(is_inline_tag, ["{name}", "<", "a < b"]))


@pytest.mark.parametrize(
    ("text", "bare", "pairs", "protected"),
    [
        ("I <b>like <0>red</0></b> tea.", "I like red tea.", ["like red", "red"], []),
        ("I <b>like <i>red</b> tea</i>.", None, [], []),
        (
            "<i>I</i> like</b> <b>red <u>tea</b>.",
            "I like</b> <b>red <u>tea</b>.",
            ["I"],
            ["</b>", "<b>", "<u>", "</b>"],
        ),
        ("<b>I</b> go<i>.</i>", "I go<i>.</i>", ["I"], ["<i>", "</i>"]),
        ("<li>I</li><li>you</li>", "I you", ["I", "you"], []),
        ("<b>I</b>t is <a>{x}</a><c> </c>", "It is <a>{x}</a><c> </c>", ["I"], ["<a>{x}</a>", "<c> </c>"]),
        (
            "Tea<sup>1</sup> and <sub>two</sub> <br>.",
            "Tea<sup>1</sup> and two <br>.",
            ["two"],
            ["<sup>1</sup>", "<br>"],
        ),
        ("Move <file> to <folder>.", None, [], []),
        ("I</b> like <i>red <0>tea.", None, [], []),
        ("I like <i>red <0>tea.", "I like red tea.", ["red tea.", "tea."], []),
        ("I <i>like</i></b> tea</0>.", "I like tea.", ["I like tea", "I like", "like"], []),
        ("<b>I</b>" * 200, None, [], []),
    ],
)
def test_pairs_of_tags_with_words_are_taken_out(
    text: str, bare: str | None, pairs: list[str], protected: list[str]
) -> None:
    found = without_tag_pairs(text, find_protected(text))
    assert (found and found.text) == bare
    if found is not None:
        assert [found.text[slice(*pair.inner)] for pair in found.pairs] == pairs
        assert [found.text[slice(*span)] for span in found.protected] == protected


def test_tags_with_common_words_become_disjoint() -> None:
    source = "<a>A</a> <b>B {x}</b> {y}"
    bare = without_tag_pairs(source, find_protected(source))
    assert bare is not None
    copies = [(Span(4, 7), Span(4, 7)), (Span(8, 11), Span(12, 15))]
    text, spans = bare.written(source, "one {x} two {y} three", [Span(0, 11), Span(0, 21)], copies)
    assert text == "<a>one</a> <b>{x} two</b> {y} three"
    assert all(source[slice(*own)] == text[slice(*copy)] for own, copy in spans)
    text, _ = bare.written(source, "one {x} two {y} three", [Span(0, 21), Span(5, 6)], copies)
    assert text == "one <b>{x}</b> two {y} <a>three</a>"


def test_a_pair_whose_words_all_belong_to_others_stands_beside_them() -> None:
    source = "<a>A</a> <b>B</b> <i>C</i>"
    bare = without_tag_pairs(source, find_protected(source))
    assert bare is not None
    text, _ = bare.written(source, "one two three four", [Span(0, 13), Span(14, 18), Span(4, 18)], [])
    assert text == "<a>one two three</a><i></i> <b>four</b>"
    source = "<b> %s<i> A"
    bare = without_tag_pairs(source, find_protected(source))
    assert bare is not None
    text, spans = bare.written(source, "%s one", [Span(0, 2), Span(0, 2)], [(Span(1, 3), Span(0, 2))])
    assert text == "<b>%s<i> one"
    assert [text[slice(*copy)] for _, copy in spans] == ["<b>", "%s", "<i>"]


def test_a_pair_without_words_in_the_translation_gets_the_nearest_one() -> None:
    source = "<i>A</i> <b>B C. D"
    bare = without_tag_pairs(source, find_protected(source))
    assert bare is not None
    text, spans = bare.written(source, "one two three.", [Span(0, 0), Span(0, 14)], [])
    assert text == "<i>one</i> <b>two three."
    assert [source[slice(*own)] for own, _ in spans] == ["<i>", "</i>", "<b>"]


@pytest.mark.parametrize(
    "placeholder",
    [
        ":name", "%name%", "%%name%%", "<%= name %>", "@:nav.home", "@:(nav.home)", "[[name]]", "[NAME]", "[USER_NAME]",
        "~name~", "\\1", "\\12",
    ],
)  # fmt: skip
def test_placeholders_of_frameworks_are_protected(placeholder: str) -> None:
    for text in (f"{placeholder} wohnt in Berlin.", f"Er kennt {placeholder} gut.", f"Da ist ({placeholder})!"):
        assert [text[slice(*span)] for span in find_protected(text)] == [placeholder]
    assert not is_inline_tag(placeholder)


@pytest.mark.parametrize(
    "text", ["Er sagte: ja", "um 12:30", "Na ja :D :p", "x [sic] [Berlin] [[Zu Hause]]", "a ~ b", "50%ige 20%"]
)
def test_signs_of_ordinary_texts_are_no_placeholders(text: str) -> None:
    assert not [each for span in find_protected(text) if not (each := text[slice(*span)])[0].isdecimal()]


@pytest.mark.parametrize(
    "name",
    [
        "müller@example.com",
        "info@müller.de",
        "почта@пример.рф",
        "Müller.doc",
        "naïve.doc",
        "отчёт.docx",
        "größe_max",
        "user_имя",
        "$größe",
        "get_größe(x)",
        "@:menü.home",
        "#मेरा",
        "#東京",
        "%(größe)s",
        "https://пример.рф/путь",
        "https://hi.wikipedia.org/wiki/हिन्दी",
        "https://th.wikipedia.org/wiki/ประเทศไทย",
        "/home/文档/a.txt",
        "C:\\文档\\a.txt",
        "%größe%",
        "~größe~",
        "[[größe]]",
        "@müller",
        "நிறம்.pdf",
    ],
)
def test_names_in_letters_of_any_script_are_protected_whole(name: str) -> None:
    assert protected_texts(name) == [name]
    assert protected_texts(f"A {name} b") == [name]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("Bürger(innen), Menü/öffnen/neu, и/или/то, Schüler_innen", []),
        ("请打开「资料2.docx」。", ["资料2.docx"]),
        ("打开“年度报告.pdf”和《2023资料.pdf》", ["年度报告.pdf", "2023资料.pdf"]),
        # Nothing shows where such a name begins.
        ("请打开资料.docx。", []),
        ("请打开资料.docx", []),
        ("文件 资料.docx 不存在", []),
        ("首先，请打开资料.docx；注意：请运行安装程序.exe", []),
        ("他说“你好，请看附件.pdf”", []),
        ("次に、以下のコマンドを実行して出力結果.txtを見る", []),
        ("如有问题，请发邮件到10086@qq.com。", ["10086@qq.com"]),
        ("联系我们：客服12345@qq.com", ["12345@qq.com"]),
        ("首先，请下载附件2023-05.xlsx。", ["2023-05.xlsx"]),
        ("보고서.docx를 여세요", ["보고서.docx"]),
        ("בreport.docx ב-report.docx", ["report.docx", "report.docx"]),
        ("请按#键", []),
        ("%dч %dм, %sö", ["%d", "%d"]),
        ("打开C:\\用户看看。", ["C:\\用户看看"]),
    ],
)
def test_words_beside_names_of_other_scripts_are_not_cut(text: str, spans: list[str]) -> None:
    assert protected_texts(text) == spans


@pytest.mark.parametrize("unit", ["אa.", "אa_", "é.", "資/", "/資", "é@", "(資", " 資", "é(", "é.é@", "資.資/", "אa-"])
def test_time_is_linear_in_names_of_other_scripts(unit: str) -> None:
    times = []
    for count in (2_000, 16_000):
        start = time.process_time()
        find_protected(unit * count)
        times.append(time.process_time() - start)
    assert times[1] < 40 * max(times[0], 0.002)
