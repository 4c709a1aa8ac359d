"""Hard-wrapped lines are joined and sentences split, so that "the next sentence" is one."""

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
        ("no end", ["no end"]),
    ],
)
def test_sentences(paragraph: str, sentences: list[str]) -> None:
    assert split_sentences(paragraph) == sentences
    assert "".join(sentences).replace(" ", "") == paragraph.replace(" ", "")


def test_only_what_was_wrapped_by_width_is_taken_for_it() -> None:
    assert is_hard_wrapped(WRAPPED.split("\n"))
    assert not is_hard_wrapped(
        ["a short line", "then a much longer one that goes on and on", "short", "mid length here"]
    )
    assert not is_hard_wrapped(["x" * 200, "y" * 200, "z" * 200])
    assert not is_hard_wrapped(["one line"])


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


def test_korean_has_spaces() -> None:
    assert list(join_lines(["나는 사과를", "좋아한다."])) == ["나는 사과를 좋아한다."]


def test_paragraphs_are_joined_with_spaces_except_after_a_dash() -> None:
    assert list(join_lines(["  a", "b--", "c", "", "", "d-", "e"])) == ["a b--c", "d-e"]


def test_every_novel_is_seen_to_be_wrapped(data_folder: Path) -> None:
    novels = sorted((data_folder / "gutenberg").glob("*.gz"))[:2]
    for novel in novels:
        (document,) = read_documents(novel)
        lengths = sorted(len(sentence.split()) for sentence in document)
        assert 5 <= lengths[len(lengths) // 2] <= 30
