"""Test `transduce evaluate` and `transduce compare`: scores, signatures, and errors reported before translating."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from transduce.commands.evaluation import _other_searches
from transduce.commands.main import main
from transduce.evaluation.scores import score
from transduce.inference.translator import Translator
from transduce.search.settings import SearchSettings

WriteLines = Callable[[str, Iterable[str]], Path]
COMPUTING = ["--precision", "fp32", "--device", "cpu", "--threads", "1"]
Capture = pytest.CaptureFixture[str]


def test_evaluate_prints_scores_with_signature_and_decoding(
    capsys: Capture, trained: Path, toy_corpus: Path, translator: Translator, tmp_path: Path
) -> None:
    files = ["--source", str(toy_corpus / "dev.zh"), "--reference", str(toy_corpus / "dev.en")]
    output = tmp_path / "out.en"
    assert main(["evaluate", str(trained), *files, "--beam-size", "2", "--output", str(output), *COMPUTING]) == 0
    captured = capsys.readouterr()
    sources, references = ((toy_corpus / f"dev.{side}").read_text("utf-8").split("\n")[:-1] for side in ("zh", "en"))
    texts = [translation.text for translation in translator(sources, beam_size=2)]
    report = score(texts, references, target_language="en")
    assert f"BLEU {report.bleu.value:.2f}  nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in captured.out
    assert f"chrF {report.chrf.value:.2f}  nrefs:1" in captured.out
    assert "decoding: beam_size=2, length_penalty=0.6, precision=fp32" in captured.out
    assert captured.err.startswith("50 sentences in ")
    assert output.read_bytes() == "".join(f"{text}\n" for text in texts).encode()


def test_evaluate_as_json(capsys: Capture, trained: Path, toy_corpus: Path, tmp_path: Path) -> None:
    files = ["--source", str(toy_corpus / "dev.zh"), "--reference", str(toy_corpus / "dev.en")]
    arguments = ["evaluate", str(trained), *files, "--beam-size", "1", *COMPUTING]
    assert main([*arguments, "--json", "-"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--json", str(tmp_path / "scores.json")]) == 0
    assert "BLEU" in capsys.readouterr().out
    assert json.loads((tmp_path / "scores.json").read_bytes()) == printed
    assert printed["bleu"]["signature"].startswith("nrefs:1")
    assert printed["decoding"] == {"beam_size": 1, "length_penalty": 0.6, "precision": "fp32"}
    assert printed["sentences"] == 50


def test_evaluate_applies_and_reports_a_glossary(
    capsys: Capture, trained: Path, write_lines: WriteLines, tmp_path: Path
) -> None:
    sources, references = write_lines("in.zh", ["我吃鱼。"]), write_lines("ref.en", ["we eat milk ."])
    terms, report, output = write_lines("terms.tsv", ["鱼\tmilk"]), tmp_path / "report.json", tmp_path / "out.en"
    options = ["--source", str(sources), "--reference", str(references), "--glossary", str(terms)]
    assert main(["evaluate", str(trained), *options, "--json", str(report), "--output", str(output)]) == 0
    assert json.loads(report.read_text("utf-8"))["decoding"]["glossary"] == str(terms)
    assert "milk" in output.read_text("utf-8")
    assert "glossary: 1 term in the sources, 1 of them in the translations\n" in capsys.readouterr().err


def test_evaluate_variants_reports_other_scores_and_searches(
    capsys: Capture, trained: Path, toy_corpus: Path, tmp_path: Path
) -> None:
    files = ["--source", str(toy_corpus / "dev.zh"), "--reference", str(toy_corpus / "dev.en")]
    report = tmp_path / "report.json"
    assert main(["evaluate", str(trained), *files, "--variants", "--json", str(report), *COMPUTING]) == 0
    printed, found = capsys.readouterr().out, json.loads(report.read_text("utf-8"))
    searched = {each["way"]: each["bleu"]["value"] for each in found["searched"]}
    assert list(searched) == ["greedy search", "beam 5, length penalty 1", "beam 4, no length penalty"]  # not its own
    assert main(["evaluate", str(trained), *files, "--beam-size", "1", "--json", str(report), *COMPUTING]) == 0
    assert searched["greedy search"] == json.loads(report.read_text("utf-8"))["bleu"]["value"]
    difference = searched["greedy search"] - found["scored"]["bleu"]["value"]
    assert f"{searched['greedy search']:6.2f}  {difference:+6.2f}  nrefs:1|case:mixed" in printed


def test_compare_reports_the_significance_between_two_files(
    capsys: Capture, write_lines: WriteLines, toy_corpus: Path
) -> None:
    references = (toy_corpus / "dev.en").read_text("utf-8").split("\n")[:-1]
    good = write_lines("good.en", references)
    bad = write_lines("bad.en", [line.replace("the", "a").replace("I ", "we ") for line in references])
    files = ["--reference", str(toy_corpus / "dev.en"), "--resamples", "200"]
    assert main(["compare", str(bad), str(good), *files]) == 0
    out = capsys.readouterr().out
    assert "good.en" in out
    assert "bad.en" in out
    assert main(["compare", str(bad), str(good), *files, "--json", "-"]) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert "p_randomization" in json.dumps(comparison)


def test_compare_translates_with_two_model_folders(
    capsys: Capture, trained: Path, toy_corpus: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy, ignore=shutil.ignore_patterns("checkpoints", "corpus*"))
    files = ["--source", str(toy_corpus / "dev.zh"), "--reference", str(toy_corpus / "dev.en")]
    arguments = ["compare", str(trained), str(copy), *files, "--resamples", "100", "--beam-size", "1", *COMPUTING]
    assert main([*arguments, "--json", "-"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert '"difference": 0.0' in json.dumps(metrics)
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "toy" in out
    assert out.count(": beam_size=1, length_penalty=0.6, precision=fp32\n") == 2  # each system's decoding
    assert "warning" not in out
    manifest = json.loads((copy / "manifest.json").read_bytes())
    (copy / "manifest.json").write_text(json.dumps(manifest | {"source_language": "de"}), "utf-8")
    assert main(arguments) == 0
    assert (
        f"warning: {trained.name} translates zh to en and copy translates de to en, but both had the same sentences: "
        "compare models of one pair of languages.\n"
    ) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["evaluate", "MODEL", "--source", "SHORT", "--reference", "DEV"],
            "there are 2 lines in {SHORT} and 50 lines in {DEV}: use files with the same number of lines.",
        ),
        (["evaluate", "MODEL", "--source", "nowhere", "--reference", "DEV"], "nowhere does not exist"),
        (["evaluate", "SHORT", "--source", "DEV", "--reference", "DEV"], "A model is a folder, but"),
        (
            ["evaluate", "MODEL", "--source", "DEV", "--reference", "DEV", "--json", "no/where.json"],
            "there is no folder no.",
        ),
        (["evaluate", "MODEL", "--source", "DEV", "--reference", "DEV", "--output", "."], "it is a folder."),
        (
            ["evaluate", "MODEL", "--source", "DEV", "--reference", "DEV", "--tokenize", "13b"],
            "but it is '13b': did you mean '13a'?",
        ),
        (["compare", "MODEL", "MODEL", "--source", "DEV", "--reference", "DEV", "--tokenize", "13b"], "it is '13b'"),
        (
            ["compare", "MODEL", "DEV", "--source", "DEV", "--reference", "DEV", "--seed", "-1"],
            "`--seed` must be at least 0",
        ),
        (
            ["compare", "MODEL", "SHORT", "--reference", "DEV"],
            "is a model, which needs sentences to translate: pass --source",
        ),
        (["compare", "SHORT", "SHORT", "--reference", "DEV"], "2 lines in {SHORT} and 50 lines in {DEV}"),
        (
            ["compare", "MODEL", "SHORT", "--source", "DEV", "--reference", "DEV"],
            "there are 50 lines in {DEV} and 2 lines in {SHORT}",
        ),
        (
            ["compare", "DEV", "DEV", "--reference", "DEV", "--beam-size", "2"],
            "`--beam-size` sets how to translate, but A and B are translations: leave it out.",
        ),
        (
            ["evaluate", "MODEL", "--source", "DEV", "--reference", "DEV", "--output", "-"],
            "`-` means standard output, but a file is needed here: name one.",
        ),
        (["compare", "nowhere", "SHORT", "--reference", "SHORT"], "nowhere does not exist"),
        (
            ["compare", "MODEL", "DEV", "--reference", "DEV", "--source", "SHORT"],
            "there are 2 lines in {SHORT} and 50 lines in {DEV}",
        ),
        (["compare", "DEV", "DEV", "--reference", "DEV", "--resamples", "5"], "5"),
    ],
)
def test_mistakes_in_scoring_are_reported_before_anything_is_translated(
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    trained: Path,
    toy_corpus: Path,
    write_lines: WriteLines,
    arguments: list[str],
    message: str,
) -> None:
    def translate(*_: object, **__: object) -> None:
        pytest.fail("translated before the mistake was told")

    monkeypatch.setattr(Translator, "__call__", translate)
    places = {
        "MODEL": str(trained),
        "DEV": str(toy_corpus / "dev.en"),
        "SHORT": str(write_lines("short.en", ["one", "two"])),
    }
    quick = ["--max-length", "3", "--beam-size", "1"] if "MODEL" in arguments else []
    assert main([*(places.get(word, word) for word in arguments), *quick]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("transduce: ")
    assert message.format(**places) in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_other_searches_have_no_groups() -> None:
    search = SearchSettings(diverse_groups=2, diversity_penalty=2.0, coverage_penalty=0.2)
    others = dict(_other_searches(search))
    assert others["greedy search"] == SearchSettings(beam_size=1)
    assert {each.diverse_groups for each in others.values()} == {1}


def test_an_ensemble_is_evaluated(trained: Path, toy_corpus: Path, tmp_path: Path) -> None:
    """An ensemble of two equal models writes what one of them writes."""
    files = ["--source", str(toy_corpus / "dev.zh"), "--reference", str(toy_corpus / "dev.en")]
    for name, folders in (("one", [str(trained)]), ("two", [str(trained)] * 2)):
        assert main(["evaluate", *folders, *files, "--output", str(tmp_path / name), "--precision", "fp32"]) == 0
    assert (tmp_path / "one").read_text("utf-8") == (tmp_path / "two").read_text("utf-8")
