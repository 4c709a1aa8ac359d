"""Test `transduce doctor`: its output, its files, and its exit codes."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from transduce.commands.main import main

WriteLines = Callable[[str, Iterable[str]], Path]
Capture = pytest.CaptureFixture[str]
COMPUTING = ["--device", "cpu", "--threads", "1"]
SOURCE = [f"这是第{number}个句子。" for number in range(60)]
TARGET = [f"This is sentence number {number}." for number in range(60)]


def test_a_sound_model_and_a_sound_corpus(capsys: Capture, trained: Path, toy_corpus: Path, tmp_path: Path) -> None:
    files = ["--source", str(toy_corpus / "train.zh"), "--target", str(toy_corpus / "train.en")]
    report = tmp_path / "report.json"
    assert main(["doctor", str(trained), *files, "--json", str(report), *COMPUTING]) == 0
    out = capsys.readouterr().out
    assert f"The doctor on {trained}\n" in out
    assert "pass  future" in out
    assert "ok    alignment" in out
    content = json.loads(report.read_bytes())
    assert content["model"]["passed"]
    assert content["corpus"]["passed"]


def test_settings_of_a_task_without_an_encoder_and_a_decoder(capsys: Capture, write_lines: WriteLines) -> None:
    settings = write_lines("s.toml", ["[task]", 'kind = "language-model"', "[data]", 'source = ["gone.en"]'])
    assert main(["doctor", str(settings), *COMPUTING]) == 2
    assert "is for the task `language-model`, which has none" in capsys.readouterr().err


def test_the_doctor_examines_the_model_of_a_settings_file(capsys: Capture, write_lines: WriteLines) -> None:
    settings = write_lines(
        "s.toml", ['preset = "tiny"', "[model]", "d_model = 32", "[tokenizer]", "vocabulary_size = 90"]
    )
    assert main(["doctor", str(settings), "--json", "-", *COMPUTING]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["passed"]
    assert {check["name"] for check in content["checks"]} > {"future", "cache", "overfit"}


def test_a_corpus_with_a_fault_has_exit_code_1(capsys: Capture, write_lines: WriteLines, tmp_path: Path) -> None:
    source, target = write_lines("a.zh", SOURCE), write_lines("a.en", TARGET[:-1])
    page = tmp_path / "page.html"
    arguments = ["--source", str(source), "--target", str(target), "--html", str(page)]
    assert main(["doctor", *arguments, *COMPUTING]) == 1
    assert "FAULT line counts            60 lines and 59" in capsys.readouterr().out
    assert "60 lines and 59" in page.read_text("utf-8")


def test_test_pairs_in_the_training_corpus_are_a_fault(capsys: Capture, write_lines: WriteLines) -> None:
    paths = [str(write_lines(name, lines)) for name, lines in (("a.zh", SOURCE), ("a.en", TARGET))]
    tests = [str(write_lines(name, lines)) for name, lines in (("t.zh", SOURCE[:5]), ("t.en", TARGET[:5]))]
    options = ["--source", paths[0], "--target", paths[1], "--test-source", tests[0], "--test-target", tests[1]]
    assert main(["doctor", *options, *COMPUTING]) == 1
    assert "FAULT test pairs" in capsys.readouterr().out


def test_files_of_pairs_are_examined_as_two_files_are(capsys: Capture, write_lines: WriteLines) -> None:
    def told(*arguments: str) -> list[str]:
        assert main(["doctor", *arguments, *COMPUTING]) == 0
        return capsys.readouterr().out.split("\n")[1:-2]  # between the files' names and the seconds

    pairs = list(zip(SOURCE, TARGET, strict=False))
    pairs[7] = (pairs[7][0], "\u00e2\u20ac\u2122 damaged")
    sides = [str(write_lines(f"a.{code}", [pair[side] for pair in pairs])) for side, code in enumerate(("zh", "en"))]
    expected = told("--source", sides[0], "--target", sides[1])
    assert any(line.startswith("look") and "damaged characters" in line for line in expected)
    tabs = str(write_lines("pairs.tsv", map("\t".join, pairs)))
    objects = [json.dumps({"translation": {"zh": one, "en": other}}) for one, other in pairs]
    lines = str(write_lines("pairs.jsonl", objects))
    fields = str(write_lines("other.jsonl", [json.dumps({"a": one, "b": other}) for one, other in pairs]))
    wide = str(write_lines("wide.tsv", [f"{number}\t{one}\t{other}" for number, (one, other) in enumerate(pairs)]))
    quoted = str(write_lines("pairs.csv", [f'"{one}","{other}"' for one, other in pairs]))
    for arguments in (
        [tabs],
        [lines, "--languages", "zh", "en"],
        [fields, "--columns", "a", "b"],
        [wide, "--columns", "2", "3"],
        [quoted, "--columns", "1", "2"],
    ):
        found = told("--source", *arguments)
        places = [line.replace(f"{arguments[0]}:", f"{sides[0]}:") for line in found]
        assert places == [line.replace(f"{sides[1]}:", f"{sides[0]}:") for line in expected]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "The doctor needs a model, a settings file, or text: name one, or pass --source and --target."),
        (["--source", "a"], "--source and --target belong together: pass both, or files of pairs"),
        (["m", "--test-source", "a"], "--test-source and --test-target belong together: pass both, or files of pairs"),
        (["m", "--test-source", "a", "--test-target", "b"], "--test-source is searched in the training text"),
        (["m", "--html", "page.html"], "--html writes the report on a corpus: pass --source and --target too."),
        (["--source", "pairs.xlsx"], "pairs.xlsx is a spreadsheet, which is not read: save it in Excel as CSV UTF-8."),
        (["gone"], "The doctor examines a model folder or a settings file, but gone does not exist."),
        (["--source", "gone.zh", "--target", "gone.en"], "gone.zh does not exist: check the file's name."),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(capsys: Capture, arguments: list[str], message: str) -> None:
    assert main(["doctor", *arguments, *COMPUTING]) == 2
    assert message in capsys.readouterr().err
