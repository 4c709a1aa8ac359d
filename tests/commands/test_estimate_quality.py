"""Test `transduce estimate-quality`, which reports lines with quality warnings, and re-decoding by `--redecode`."""

import csv
import json
from pathlib import Path

import pytest

from transduce.commands.main import main

COMPUTING = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Write a source and its translation, three of whose four lines are wrong, and return both files."""
    source, target = tmp_path / "in.zh", tmp_path / "out.en"
    source.write_text("我吃鱼\n\n我吃鱼\n我吃鱼\n", "utf-8")
    target.write_text("the the the the\n\n我吃鱼\n\n", "utf-8")
    return source, target


def review(capsys: Capture, model: Path, *options: str | Path) -> tuple[str, str]:
    assert main(["estimate-quality", str(model), *COMPUTING, *map(str, options)]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_translations_from_a_file_are_checked(capsys: Capture, trained: Path, files: tuple[Path, Path]) -> None:
    source, target = files
    out, err = review(capsys, trained, "--source", source, "--translation", target)
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["1", "3", "4"]
    assert rows[0][1].startswith("repeated (4 × the)")
    assert rows[0][2:] == ["我吃鱼", "the the the the"]
    assert rows[1][1].startswith("copied (我吃鱼)")
    assert rows[2][1:] == ["empty", "我吃鱼", ""]
    assert err.startswith("3 of 4 translations have quality warnings: empty 1, repeated 1, copied 1")


def test_redecode_writes_one_line_per_source_line(
    capsys: Capture, trained: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = files
    better = tmp_path / "better.en"
    _, err = review(capsys, trained, "--source", source, "--translation", target, "--redecode", better)
    lines = better.read_text("utf-8").split("\n")[:-1]
    assert len(lines) == 4
    assert lines[1] == ""
    assert lines[0] not in ("", "the the the the")
    assert lines[2] not in ("", "我吃鱼")
    assert lines[3] != ""
    assert "Re-decoding changed 3; " in err
    with pytest.raises(SystemExit):
        main(["estimate-quality", str(trained), "--translation", str(target)])


def test_a_given_translation_of_more_than_the_model_reads_at_a_time(
    capsys: Capture, trained: Path, files: tuple[Path, Path]
) -> None:
    source, target = files
    source.write_text(f"{'我吃鱼。' * 400}\n我吃鱼\n", "utf-8")
    target.write_text("I eat fish .\nwater water\n", "utf-8")
    out, err = review(capsys, trained, "--source", source, "--translation", target)
    assert err.startswith("1 of 2 translations has quality warnings: unlikely 1")
    assert out.startswith("2\tunlikely (")


def test_a_given_translation_of_more_than_the_model_can_score(
    capsys: Capture, trained: Path, files: tuple[Path, Path]
) -> None:
    source, target = files
    source.write_text("我吃鱼\n我吃鱼\n", "utf-8")
    target.write_text(f"{'water ' * 1500}\nwater water\n", "utf-8")
    out, _ = review(capsys, trained, "--source", source, "--translation", target)
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["1", "2"]
    assert rows[0][1].startswith("repeated (")
    assert "unlikely" not in rows[0][1]
    assert rows[1][1].startswith("unlikely (")


def test_the_models_own_translations_are_reported_as_json(
    capsys: Capture, trained: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    options: list[str | Path] = ["--source", files[0], "--max-length", "2"]
    out, _ = review(capsys, trained, *options, "--json", tmp_path / "doubts.json")
    content = json.loads((tmp_path / "doubts.json").read_bytes())
    assert content["lines"] == 4
    assert content["counts"]["cut"] == 3
    assert [each["line"] for each in content["flagged"]] == [1, 3, 4] == [int(row[0]) for row in out.splitlines()]
    assert {"kind": "cut", "found": ""} in content["flagged"][0]["warnings"]
    assert json.loads(review(capsys, trained, *options, "--json", "-")[0]) == content


def test_the_worst_lines_come_first(capsys: Capture, trained: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    """Lines with definite warnings precede those that are only less likely; empty lines are not listed."""
    source, target = files
    source.write_text("我吃鱼\n\n我吃鱼\n我吃鱼\n", "utf-8")
    target.write_text("I eat fish.\n\nfish\tfish\n我吃鱼\n", "utf-8")
    options: list[str | Path] = ["--source", source, "--translation", target]
    out, _ = review(capsys, trained, *options, "--worst", "9", "--json", tmp_path / "q.json")
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["4", "3", "1"]
    assert rows[0][1].startswith("copied (")
    assert rows[1][1].startswith("unlikely (")
    assert rows[1][3] == "fish fish"
    assert "nats a token" in rows[2][1]
    content = json.loads((tmp_path / "q.json").read_bytes())
    assert [each["line"] for each in content["worst"]] == [4, 3, 1]
    assert [value is None for value in content["nats_per_token"]] == [False, True, False, False]
    assert content["nats_per_token"][0] == content["worst"][2]["nats_per_token"]
    assert review(capsys, trained, *options, "--worst", "1")[0] == f"{out.splitlines()[0]}\n"
    own, _ = review(capsys, trained, "--source", source, "--worst", "9")
    assert len(own.splitlines()) == 3
    assert all("nats a token" in line.split("\t")[1] for line in own.splitlines())


def test_all_lines_are_written_as_a_table(
    capsys: Capture, trained: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    source, target = files
    target.write_bytes('"We,\r eat"\n\nfish\n我吃鱼\n'.encode())
    options: list[str | Path] = ["--source", source, "--translation", target]
    tables = []
    for suffix, dialect in ((".csv", csv.excel), (".tsv", csv.excel_tab)):
        review(capsys, trained, *options, "--output", tmp_path / f"q{suffix}")
        with (tmp_path / f"q{suffix}").open(encoding="utf-8", newline="") as file:
            tables.append(list(csv.reader(file, dialect)))
    assert tables[0] == tables[1]
    header, *rows = tables[0]
    assert header == ["line", "nats_per_token", "warnings", "source", "translation"]
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert [row[4] for row in rows] == ['"We,\r eat"', "", "fish", "我吃鱼"]
    assert rows[1][1:3] == ["", ""]
    assert float(rows[0][1]) > 0
    review(capsys, trained, *options, "--output", tmp_path / "q.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text("utf-8").splitlines()]
    assert [f"{line['nats_per_token']:.4f}" if line["nats_per_token"] else "" for line in lines] == [
        row[1] for row in rows
    ]


def test_lines_that_are_too_long_to_score_are_counted(capsys: Capture, trained: Path, files: tuple[Path, Path]) -> None:
    source, target = files
    source.write_text(f"{'我吃鱼。' * 400}\n我吃鱼\n", "utf-8")
    target.write_text("I eat fish .\nwater water\n", "utf-8")
    out, err = review(capsys, trained, "--source", source, "--translation", target, "--worst", "2")
    assert [line.split("\t")[0] for line in out.splitlines()] == ["2", "1"]
    assert "1 line could not be scored, since the source or the translation is too long" in err
    for side in files:  # copied, not translated
        side.write_text(f"{'我吃鱼。' * 400}\n12345\n", "utf-8")
    _, err = review(capsys, trained, "--source", source, "--translation", target)
    assert "1 line could not be scored, since the source or the translation is too long" in err


def test_copied_lines_without_words_are_not_too_long(capsys: Capture, trained: Path, files: tuple[Path, Path]) -> None:
    source, target = files
    for side in files:
        side.write_text("12345\n！！！\nhttps://example.org/a\n", "utf-8")
    choices: list[list[str | Path]] = [[], ["--translation", target]]
    for options in choices:
        _, err = review(capsys, trained, "--source", source, *options)
        assert "scored" not in err


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--worst", "0", "`--worst` must be at least 1, but is 0."),
        ("--output", "q.txt", "`--output` must end in .tsv, .csv or .jsonl, which sets the format, but is `q.txt`."),
    ],
)
def test_wrong_values_of_review_options_are_refused(
    capsys: Capture, trained: Path, files: tuple[Path, Path], option: str, value: str, message: str
) -> None:
    assert main(["estimate-quality", str(trained), "--source", str(files[0]), option, value, *COMPUTING]) == 2
    assert capsys.readouterr().err == f"transduce: {message}\n"


def test_files_of_different_lengths_are_refused(capsys: Capture, trained: Path, files: tuple[Path, Path]) -> None:
    source, target = files
    target.write_text("one\n", "utf-8")
    assert (
        main(["estimate-quality", str(trained), "--source", str(source), "--translation", str(target), *COMPUTING]) == 2
    )
    assert f"4 lines in {source} and 1 line in {target}" in capsys.readouterr().err


def test_translate_with_redecode_translates_flagged_lines_again(
    capsys: Capture, trained: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    """A search that is cut short causes a warning; a translation that keeps its warning after re-decoding stays."""
    command = ["translate", str(trained), str(files[0]), *COMPUTING]
    assert main([*command, "--max-length", "2"]) == 0
    short = capsys.readouterr().out
    assert main([*command, "--max-length", "2", "--redecode", "--output", str(tmp_path / "again")]) == 0
    assert len((tmp_path / "again").read_text("utf-8").split("\n")) == len(short.split("\n")) == 5
    capsys.readouterr()
    for option in ("--sample", "--n-best=2"):
        assert main([*command, "--redecode", option]) == 2
        assert (
            "--redecode searches for one better translation: leave --sample and --n-best out."
            in capsys.readouterr().err
        )


def test_terms_that_are_not_translated_as_a_glossary_says(
    capsys: Capture, trained: Path, files: tuple[Path, Path], tmp_path: Path
) -> None:
    terms, better = tmp_path / "terms.tsv", tmp_path / "better.en"
    terms.write_text("鱼\tmilk\n", "utf-8")
    source, target = files
    target.write_text("milk\n\nfish\nwe eat milk\n", "utf-8")
    options: list[str | Path] = ["--source", source, "--translation", target, "--glossary", terms]
    out, err = review(capsys, trained, *options, "--redecode", better)
    rows = {line.split("\t")[0]: line.split("\t")[1] for line in out.splitlines()}
    assert "terms (`鱼` as `milk`)" in rows["3"]
    assert "terms 1" in err
    assert "milk" in better.read_text("utf-8").split("\n")[2]
