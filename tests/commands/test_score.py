"""Test `transduce score`: a figure per line, and their mean."""

import json
import math
from pathlib import Path

import pytest

from transduce.commands.main import main
from transduce.inference.translator import Translator

COMPUTING = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
Capture = pytest.CaptureFixture[str]


def score(capsys: Capture, model: Path, corpus: Path, *options: str | Path) -> tuple[str, str]:
    files = ["--source", str(corpus / "dev.zh"), "--target", str(corpus / "dev.en")]
    assert main(["score", str(model), *files, *COMPUTING, *map(str, options)]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_score_prints_a_log_probability_per_line(
    capsys: Capture, trained: Path, toy_corpus: Path, translator: Translator
) -> None:
    out, err = score(capsys, trained, toy_corpus)
    sources, targets = ((toy_corpus / f"dev.{side}").read_text("utf-8").split("\n")[:-1] for side in ("zh", "en"))
    expected = translator.score(sources, targets)
    assert [float(line) for line in out.split("\n")[:-1]] == pytest.approx([s.score for s in expected], abs=1e-4)
    pieces = sum(len(one.token_log_probabilities) for one in expected)
    perplexity = math.exp(-sum(one.log_probability for one in expected) / pieces)
    assert f"50 lines, {pieces:,} tokens, log-probability " in err
    assert f"perplexity per token {perplexity:,.3f}" in err
    out, _ = score(capsys, trained, toy_corpus, "--length-penalty", "0.6")
    penalised = translator.score(sources, targets, length_penalty=0.6)
    assert [float(line) for line in out.split("\n")[:-1]] == pytest.approx([s.score for s in penalised], abs=1e-4)


def test_scores_as_json(capsys: Capture, trained: Path, toy_corpus: Path, tmp_path: Path) -> None:
    out, _ = score(capsys, trained, toy_corpus, "--json", tmp_path / "scores.json")
    lines = [float(line) for line in out.split("\n")[:-1]]
    content = json.loads((tmp_path / "scores.json").read_bytes())
    assert content["scores"] == pytest.approx(lines, abs=1e-6)
    assert content["lines"] == 50
    assert content["log_probability"] == pytest.approx(sum(content["scores"]))
    assert json.loads(score(capsys, trained, toy_corpus, "--json", "-")[0]) == content


def test_files_that_do_not_belong_together_are_refused(
    capsys: Capture, trained: Path, toy_corpus: Path, tmp_path: Path
) -> None:
    (tmp_path / "short.en").write_text("I eat fish.\n", "utf-8")
    files = ["--source", str(toy_corpus / "dev.zh"), "--target", str(tmp_path / "short.en")]
    assert main(["score", str(trained), *files, *COMPUTING]) == 2
    captured = capsys.readouterr()
    assert f"50 lines in {toy_corpus / 'dev.zh'} and 1 line in {tmp_path / 'short.en'}" in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_text_that_is_too_long_is_reported_with_its_file_and_line(
    capsys: Capture, trained: Path, tmp_path: Path, side: str
) -> None:
    files = {name: tmp_path / f"{name}.txt" for name in ("source", "target")}
    for name, path in files.items():
        path.write_text("我\n" + ("我 " * 2000 if name == side else "我") + "\n", "utf-8")
    named = [each for name, path in files.items() for each in (f"--{name}", str(path))]
    assert main(["score", str(trained), *named, *COMPUTING]) == 2
    assert capsys.readouterr().err.startswith(f"transduce: {files[side]}:2: A {side} must have at most")


@pytest.mark.parametrize("penalty", ["-3", "nan"])
def test_a_length_penalty_out_of_range_is_refused(capsys: Capture, trained: Path, penalty: str) -> None:
    files = ["--source", "nowhere.zh", "--target", "nowhere.en"]
    assert main(["score", str(trained), *files, "--length-penalty", penalty]) == 2
    assert f"`--length-penalty` must not be negative, but is {float(penalty)}" in capsys.readouterr().err
