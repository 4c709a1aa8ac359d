"""Test that spaces and ▁ that a vocabulary changes are reported before training and kept or restored afterwards."""

from pathlib import Path
from typing import Any

import pytest

from transduce.tasks.corpus import measure_corpus
from transduce.tasks.train import train
from transduce.text.corpus import CorpusFiles
from transduce.text.files import LineNotes
from transduce.text.protected import find_protected
from transduce.text.word_spans import Span


def test_texts_whose_spaces_change_are_counted(tmp_path: Path) -> None:
    source, target = tmp_path / "a.de", tmp_path / "a.en"
    source.write_text("gut\n zwei\nd r e  i\nvier \nein ▁ da\n\n", "utf-8")
    target.write_text("good\ntwo\nthree\nfour\na ▁ ▁ there\n\n", "utf-8")
    notes = LineNotes()
    measure_corpus(CorpusFiles(source=(str(source),), target=(str(target),)), notes)
    assert (notes.space_marks, notes.repeated_spaces) == (2, 3)
    assert [notice.partition(":")[0] for notice in notes.notices()] == [
        "2 texts with ▁ (U+2581)",
        "3 texts with outer or repeated spaces",
    ]


def test_texts_that_need_repair_are_counted_and_the_doctor_is_named(tmp_path: Path) -> None:
    source, target = tmp_path / "a.de", tmp_path / "a.en"
    source.write_text("<p>gut</p>\nzwei &nbsp; &amp; a\n3 < 4 & 5 > 2\nvier\n", "utf-8")
    target.write_text("good\ntwo\u200b\u200b \ufeffb\ncafÃ©\nfour\n", "utf-8")
    notes = LineNotes()
    measure_corpus(CorpusFiles(source=(str(source),), target=(str(target),)), notes)
    shown = "`transduce doctor` shows them and looks for swapped and misaligned pairs."
    assert notes.notices() == [
        f"Unchanged: 2 texts with tags or entities. {shown}",
        f"Unchanged: 1 text with damaged characters. {shown}",
        f"Unchanged: 1 text with invisible characters. {shown}",
    ]
    assert notes.notices(writes_text=False) == []


def test_texts_that_are_composed_are_counted(tmp_path: Path) -> None:
    source, target = tmp_path / "a.de", tmp_path / "a.en"
    source.write_text("schön\nfu\u0308nf\nKa\u0308se\n", "utf-8")
    target.write_text("nice\nfive\ncheese\n", "utf-8")
    notes = LineNotes()
    measure_corpus(CorpusFiles(source=(str(source),), target=(str(target),)), notes)
    (notice,) = notes.notices()
    assert notice.startswith("2 texts with letters and accents as separate characters: a vocabulary that is learned")


def test_a_run_reports_space_marks_in_its_text(
    toy_settings: dict[str, Any], toy_corpus: Path, tmp_path: Path, capsys: Any
) -> None:
    odd = tmp_path / "odd.zh"
    odd.write_text((toy_corpus / "train.zh").read_text("utf-8").replace("\n", "\u2581\n", 1), "utf-8", newline="\n")
    settings = toy_settings | {"data.source": [str(odd)]}
    train(out=tmp_path / "m", settings=settings, dry_run=True, device="cpu", threads=1)
    assert "1 text with ▁ (U+2581): the vocabulary reads it as a space" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "span"), [("a ▁ b", Span(2, 3)), ("▁▁x", Span(0, 2))])
def test_a_space_mark_is_copied_by_translation(text: str, span: Span) -> None:
    assert find_protected(text) == [span]
