"""Test the examples that make corpora from books."""

import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

books, dialogue, summaries = (import_module(name) for name in ("books", "dialogue", "summaries"))

WriteLines = Callable[[str, Iterable[str]], Path]


def test_quotation_marks_open_and_close_in_turn() -> None:
    assert books.even_quotes('"Come," he said, "now.') == "“Come,” he said, “now."
    assert books.even_quotes("“Come,” he said.") == "“Come,” he said."


def test_one_of_twenty_segments_is_dev_and_one_is_test(write_lines: WriteLines) -> None:
    path = write_lines("book.txt", (line for n in range(2_050) for line in (f"paragraph {n}", "")))
    segments = list(books.read_segments(path))
    parts = [part for part, _ in segments]
    assert (len(parts), parts.count("dev"), parts.count("test")) == (21, 1, 1)
    assert parts[7] == "dev"
    assert parts[14] == "test"
    assert [text for _, found in segments for text in found] == [f"paragraph {n}" for n in range(2_050)]


def test_no_pair_is_in_two_parts() -> None:
    pairs = {"train": [("a", "b"), ("a", "b"), ("c", "d")], "dev": [("c", "d"), ("c", "e")], "test": [("c", "e")]}
    kept = {"train": [("a", "b"), ("c", "d")], "dev": [("c", "e")], "test": []}
    assert books.without_repeats(pairs) == kept


def test_a_headline_has_the_rarest_words_in_their_order() -> None:
    rarities = {"the": 0.1, "whale": 3.0, "sea": 2.0, "saw": 1.0, "ahab": 4.0, "white": 2.5, "mast": 2.2, "old": 1.9}
    passage = "The old Ahab saw the white whale; the sea, the mast, the unheard-of! " + "And so it was. " * 5
    assert summaries.headline(passage, rarities) == "ahab white whale sea mast"
    # A repeated word has twice the weight.
    assert summaries.headline(f"{passage} Old, old.", rarities) == "old ahab white whale mast"
    assert summaries.leading_words(passage) == "the old ahab saw the"
    assert summaries.headline("The old Ahab saw the white whale.", rarities) == "ahab whale"


def test_passages_are_whole_sentences_of_6_to_45_words() -> None:
    sentence = "It rained " + "and rained " * 6 + "on."  # 15 words
    long = "It " + "went on and " * 20 + "on."  # 62 words
    paragraph = " ".join([sentence, sentence, sentence, sentence, long, sentence])
    assert list(summaries.passages(paragraph)) == [" ".join([sentence] * 3), sentence, sentence]
    assert list(summaries.passages("It rained on and on. No.")) == ["It rained on and on. No."]
    assert list(summaries.passages("It rained on and on.")) == []


def test_rare_words_are_decided_by_the_training_part() -> None:
    found = summaries.rarity(["The sea"] * 10 + ["the land"] * 9)
    assert found["the"] == pytest.approx(0.0)
    assert found["sea"] > 0.0
    assert "land" not in found  # nine passages are too few


def test_a_reply_is_what_follows_a_speech() -> None:
    paragraphs = [
        "“Come,” said he, “now.”",
        "“Why?”",
        "He said nothing.",
        "“You are late,” said she.",
        "“I am,”",
        "“" + "word " * 41 + "”",
        "“Well?”",
    ]
    assert dialogue.exchanges(paragraphs) == [("Come, now.", "Why?"), ("You are late.", "I am.")]


def test_the_most_frequent_replies() -> None:
    assert dialogue.most_frequent(["Yes.", "No.", "No.", "Why?"], 2) == ["No.", "Yes."]


@pytest.mark.parametrize(("name", "sides"), [("summaries", ("passage", "headline")), ("dialogue", ("speech", "reply"))])
def test_real_books_make_the_same_files_each_time(
    name: str, sides: tuple[str, str], data_folder: Path, tmp_path: Path
) -> None:
    books_folder = tmp_path / "books"
    books_folder.mkdir()
    for title in ("frankenstein", "sense-and-sensibility"):
        (books_folder / f"{title}.txt.gz").symlink_to(data_folder / "gutenberg" / f"{title}.txt.gz")
    for out in ("one", "other"):
        command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(books_folder), str(tmp_path / out)]
        subprocess.run(command, check=True, capture_output=True)
    for part in ("train", "dev", "test"):
        texts = [(tmp_path / "one" / f"{part}.{side}").read_bytes() for side in sides]
        assert texts == [(tmp_path / "other" / f"{part}.{side}").read_bytes() for side in sides]
        assert texts[0].count(b"\n") == texts[1].count(b"\n") > 10


def test_a_folder_without_books_is_refused_in_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "dialogue.py"), str(tmp_path), str(tmp_path / "out")]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.startswith("There are no books in")
