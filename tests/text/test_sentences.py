"""Test joining hard-wrapped lines and splitting sentences."""

import textwrap
from pathlib import Path

import pytest

from transduce.text.sentences import is_hard_wrapped, join_lines, read_documents, split_sentences

WRAPPED = """CHAPTER I

It is a truth universally acknowledged, that a single man in
possession of a good fortune, must be in want of a wife. However
little known the feelings or views of such a man may be on his first
entering a neighbourhood, this truth is so well fixed--
and so on--that he is considered the rightful property.

“My dear Mr. Bennet,” said his lady to him one day, “have you
heard that Netherfield Park is let at last?”
"""


def test_a_book_is_one_document_of_whole_sentences(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text(WRAPPED, encoding="utf-8")
    (document,) = read_documents(path)
    assert "\n".join(document) == (
        "CHAPTER I\n"
        "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want "
        "of a wife.\n"
        "However little known the feelings or views of such a man may be on his first entering a neighbourhood, this "
        "truth is so well fixed--and so on--that he is considered the rightful property.\n"
        "“My dear Mr. Bennet,” said his lady to him one day, “have you heard that Netherfield Park is let at last?”"
    )


def test_lines_that_are_not_wrapped_are_paragraphs_and_empty_lines_end_documents(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("One. Two!\nThree?\n\n\nFour\n", encoding="utf-8")
    assert list(read_documents(path)) == [["One.", "Two!", "Three?"], ["Four"]]


def test_an_empty_file_has_no_documents(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    path.write_text("\n\n", encoding="utf-8")
    assert list(read_documents(path)) == []


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("He came. She went.", ["He came.", "She went."]),
        ("Mr. Weston and Dr. Perry met J. Smith. He left.", ["Mr. Weston and Dr. Perry met J. Smith.", "He left."]),
        ("“Stop!” he said. “Why?” She knew.", ["“Stop!” he said.", "“Why?”", "She knew."]),
        ("It was I. He knew.", ["It was I.", "He knew."]),
        (
            "We saw 3.5 of them, e.g. these. (Others too.) Done",
            ["We saw 3.5 of them, e.g. these.", "(Others too.)", "Done"],
        ),
        ("Well... it was. …And then?", ["Well... it was.", "…And then?"]),
        ("他来了。她走了！“真的？”对。", ["他来了。", "她走了！", "“真的？”", "对。"]),
        ("你叫什么名字?爱不存在。太好了!!真的?", ["你叫什么名字?", "爱不存在。", "太好了!!", "真的?"]),
        ("名前は?トム。", ["名前は?", "トム。"]),
        ("वह घर गया। वह सो गया।क्यों? “हाँ।” ठीक है", ["वह घर गया।", "वह सो गया।", "क्यों?", "“हाँ।”", "ठीक है"]),
        ("मंगल भवन अमंगल हारी॥१॥ राम सिया राम॥ २ ॥ जय", ["मंगल भवन अमंगल हारी॥१॥", "राम सिया राम॥ २ ॥", "जय"]),
        ("من أنت؟ أنا هنا. حقا؟! نعم", ["من أنت؟", "أنا هنا.", "حقا؟!", "نعم"]),
        ("وہ ایم۔اے ہے۔ وہ سو گیا۔", ["وہ ایم۔اے ہے۔", "وہ سو گیا۔"]),
        ("Նա եկավ։ Նա գնաց։", ["Նա եկավ։", "Նա գնաց։"]),
        ("ቤት ሄደ።ተኛ፧ አዎ።", ["ቤት ሄደ።", "ተኛ፧", "አዎ።"]),
        ("មាន ក ខ ។ល។ គាត់ទៅ៕", ["មាន ក ខ ។ល។", "គាត់ទៅ៕"]),
        ("သူလာသည်။သူသွားသည်။", ["သူလာသည်။", "သူသွားသည်။"]),
        ("値は３．５です．終わり｡はい", ["値は３．５です．", "終わり｡", "はい"]),
        ("Es ist z. B. kalt. Am 3. Mai nicht.", ["Es ist z. B. kalt.", "Am 3. Mai nicht."]),
        ("“Yes, sir. No more.”", ["“Yes, sir.", "No more.”"]),
        ("no end", ["no end"]),
    ],
)
def test_a_paragraph_is_split_into_sentences(paragraph: str, sentences: list[str]) -> None:
    assert split_sentences(paragraph) == sentences
    assert "".join(sentences).replace(" ", "") == paragraph.replace(" ", "")


def test_only_lines_wrapped_by_width_count_as_hard_wrapped() -> None:
    assert is_hard_wrapped(WRAPPED.split("\n"))
    assert not is_hard_wrapped(
        ["a short line", "then a much longer one that goes on and on", "short", "mid length here"]
    )
    assert not is_hard_wrapped(["x" * 200, "y" * 200, "z" * 200])
    assert not is_hard_wrapped(["one line"])


WORDS = ["pocket", "garden", "silver", "winter", "castle", "yellow", "marble", "orange", "hunter", "copper", "temple"]
LISTS = {
    "titles": [f"Wireless {one.title()} Headphones with {two.title()} Case" for one in WORDS for two in WORDS],
    "names": [f"{one.title()} {initial}. {two.title()}" for one in WORDS for initial in "JM" for two in WORDS],
    "words": [one + two for one in WORDS for two in WORDS],
    "numbers": [str(7**number)[:9] for number in range(9, 400)],
    "log": [f"[12:04:{n:02}] Worker {one} failed. Reason: no {one}. Job stopped" for n in range(60) for one in WORDS],
    "addresses": [f"https://example.com/{one}/{two}?page=1" for one in WORDS for two in WORDS],
    "Chinese names": [one + two + three for one in "王李张刘" for two in "小大明国" for three in "华英军平"],
}


@pytest.mark.parametrize("name", LISTS)
def test_the_lines_of_a_list_stay_apart_however_even_they_are(name: str, tmp_path: Path) -> None:
    assert not is_hard_wrapped(LISTS[name])
    (tmp_path / "list").write_text("\n".join(LISTS[name]), "utf-8", newline="\n")
    (document,) = read_documents(tmp_path / "list")
    assert len(document) >= len(LISTS[name])


HINDI = "यह एक लंबा वाक्य है जो कई शब्दों से बना है और आगे बढ़ता रहता है। फिर दूसरा आता है। "


@pytest.mark.parametrize(
    "text",
    [
        "The men who had come so early were not the men he knew. Nobody spoke to him of it, or of them. ",
        "the men who had come so early were not the men he knew. nobody spoke to him of it, or of them. ",
        "Die Männer, die so früh gekommen waren, kannte der Wirt nicht. Niemand sprach mit ihm von der Sache. ",
        HINDI,
    ],
)
def test_wrapped_prose_is_seen_in_lower_case_and_in_other_languages(text: str) -> None:
    assert is_hard_wrapped(textwrap.wrap(text * 20, 60))


def test_lines_that_end_far_from_the_width_are_not_joined(tmp_path: Path) -> None:
    contents = ["CONTENTS", "", "Chapter 1: The Wine-shop", "Chapter 2: The Mail", "Chapter 3: Night Shadows", ""]
    path = tmp_path / "book.txt"
    prose = "The men who had come so early were not the men he knew. Nobody spoke to him of it, or of them. "
    path.write_text("\n".join([*contents, *textwrap.wrap(prose * 10, 60)]), encoding="utf-8")
    (document,) = read_documents(path)
    assert document[:4] == ["CONTENTS", *contents[2:5]]
    assert " ".join(document[4:]) == (prose * 10).strip()


CHINESE = [
    "我喜欢吃苹果，",
    "他昨天去了北京。",
    "今天天气很好，我们去公园玩。",
    "你呢？",
    "",
    "第二篇",
    "没有人知道他从哪里来。",
]


def test_lines_without_spaces_are_not_taken_for_wrapped_ones(tmp_path: Path) -> None:
    assert not is_hard_wrapped(CHINESE * 3)
    (tmp_path / "zh").write_text("\n".join(CHINESE), "utf-8", newline="\n")
    first, second = read_documents(tmp_path / "zh")
    assert first == ["我喜欢吃苹果，", "他昨天去了北京。", "今天天气很好，我们去公园玩。", "你呢？"]
    assert second == ["第二篇", "没有人知道他从哪里来。"]


def test_wrapped_chinese_is_joined_without_spaces(tmp_path: Path) -> None:
    text = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏。闰余成岁律吕调阳云腾致雨露结为霜金生丽水玉出昆冈。" * 3
    lines = [text[start : start + 12] for start in range(0, len(text), 12)]
    assert is_hard_wrapped(lines)
    (tmp_path / "zh").write_text("\n".join(lines), "utf-8", newline="\n")
    (document,) = read_documents(tmp_path / "zh")
    assert "".join(document) == text


def test_indented_paragraphs_of_wrapped_chinese_need_no_empty_lines(tmp_path: Path) -> None:
    sentences = ["天地玄黄宇宙洪荒日月盈昃辰宿列张。", "寒来暑往秋收冬藏，闰余成岁律吕调阳。", "云腾致雨露结为霜。"]
    text = f"　　{''.join(sentences)}"
    lines = [text[start : start + 30] for start in range(0, len(text), 30)] * 20
    assert is_hard_wrapped(lines)
    (tmp_path / "zh").write_text("\n".join(lines), "utf-8", newline="\n")
    (document,) = read_documents(tmp_path / "zh")
    assert document == sentences * 20


@pytest.mark.parametrize("text", ["她说：|“我喜欢书。”|“好。”", "她在|“学校”|里——|不……|是吗", "他用|“Python”|写"])
def test_quotation_marks_and_dashes_beside_chinese_have_no_spaces(text: str) -> None:
    assert list(join_lines(text.split("|"))) == [text.replace("|", "")]


def test_quotation_marks_beside_letters_have_spaces() -> None:
    assert list(join_lines(["He said", "“I", "go”", "“to”", "学校", "ว่า", "“ไป”"])) == [
        "He said “I go” “to”学校ว่า “ไป”"
    ]


def test_korean_has_spaces() -> None:
    assert list(join_lines(["나는 사과를", "좋아한다."])) == ["나는 사과를 좋아한다."]


def test_paragraphs_are_joined_with_spaces_except_after_a_dash() -> None:
    assert list(join_lines(["  a", "b--", "c", "", "", "d-", "e"])) == ["a b--c", "d-e"]


def test_hard_wrapping_of_novels_is_detected(data_folder: Path) -> None:
    novels = sorted((data_folder / "gutenberg").glob("*.gz"))[:2]
    for novel in novels:
        (document,) = read_documents(novel)
        lengths = sorted(len(sentence.split()) for sentence in document)
        assert 5 <= lengths[len(lengths) // 2] <= 30
