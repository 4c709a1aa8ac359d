"""Test the commands `transduce inspect`, `transduce align` and `transduce plot`."""

import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from transduce.commands.inspect import format_links, parse_links
from transduce.commands.main import main
from transduce.errors import TransduceError
from transduce.inference.load import load
from transduce.inspection.causal import ablate

WriteLines = Callable[[str, Iterable[str]], Path]
ONE_THREAD = ("--threads", "1", "--precision", "fp32")


def test_inspect_prints_and_writes(trained: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    code = main(["inspect", str(trained), "我吃鱼。", "--html", str(page), "--json", str(data), *ONE_THREAD])
    output = capfdbinary.readouterr()
    assert code == 0
    assert output.out.decode().startswith("我吃鱼。  →  ")
    assert str(page) in output.err.decode()
    assert main(["inspect", str(trained), "我吃鱼。", "--more", "我喝水。", "--html", str(page), *ONE_THREAD]) == 0
    assert "\n\n\n我喝水。  →  " in capfdbinary.readouterr().out.decode()
    payload = json.loads(data.read_bytes())
    assert payload["source"] == "我吃鱼。"
    assert payload["translation"] in page.read_text("utf-8")


def test_a_page_opens_with_the_chosen_attribution(
    trained: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    page, options = (
        tmp_path / "page.html",
        ["inspect", str(trained), "我吃鱼。", "--attribution", "gradient", *ONE_THREAD],
    )
    assert main([*options, "--json", "-"]) == 0
    alone = json.loads(capfdbinary.readouterr().out)
    assert main([*options, "--json", "-", "--html", str(page), "--more", "我喝水。"]) == 0
    shown = json.loads(capfdbinary.readouterr().out)
    content = page.read_text("utf-8").partition('id="payload">')[2].partition("</script>")[0]
    first, second = json.loads(content)["inspections"]
    for each in (first, second):
        methods = [found["method"] for found in each["attributions"]]
        assert methods[0] == "gradient"
        assert len(set(methods)) == len(methods) > 1
    assert shown["words"] == alone["words"] == first["attributions"][0]["words"]
    assert first["words"] != shown["words"]  # the page shows attention too
    assert main([*options, "--html", str(page)]) == 0
    assert "attribution by gradient" in capfdbinary.readouterr().out.decode()


def test_inspect_can_print_json_alone(trained: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["inspect", str(trained), "我吃鱼。", "--json", "-", "--beam-size", "1", *ONE_THREAD]) == 0
    assert json.loads(capfdbinary.readouterr().out)["beam_size"] == 1


def test_inspect_searches_as_the_folder_says(
    trained: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(trained, folder, ignore=shutil.ignore_patterns("checkpoints", "corpus*"))
    (folder / "settings.toml").write_text("[search]\nbeam_size = 3\n", "utf-8")
    assert main(["inspect", str(folder), "我吃鱼。", "--json", "-", *ONE_THREAD]) == 0
    assert json.loads(capfdbinary.readouterr().out)["beam_size"] == 3
    assert main(["inspect", str(folder), "我吃鱼。", "--json", "-", "--beam-size", "2", *ONE_THREAD]) == 0
    assert json.loads(capfdbinary.readouterr().out)["beam_size"] == 2


def test_inspect_reports_that_a_text_has_several_sentences(
    trained: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for text, warned in (("我吃鱼。我吃鱼。", True), ("我吃鱼。", False)):
        assert main(["inspect", str(trained), text, "--json", "-", "--beam-size", "1", *ONE_THREAD]) == 0
        assert (b"the text has 2 sentences, which are inspected as one input" in capfdbinary.readouterr().err) == warned


def test_inspect_reports_parts_that_translation_copies(
    trained: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for text, warned in (("我吃%s。", True), ("我吃鱼。", False)):
        assert main(["inspect", str(trained), text, "--json", "-", "--beam-size", "1", *ONE_THREAD]) == 0
        assert (b"translation copies placeholders, URLs" in capfdbinary.readouterr().err) == warned


def test_an_empty_reference_file_for_mean_ablation_is_refused(
    trained: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "empty").write_text("\n", "utf-8")
    command = ["inspect", str(trained), "我吃鱼。", "--ablate", "mean", "--reference", str(tmp_path / "empty")]
    assert main([*command, *ONE_THREAD]) == 2
    assert b"`--reference` needs a file with texts" in capfdbinary.readouterr().err


def test_inspect_marks_a_cut_translation(trained: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    command = ["inspect", str(trained), "我吃鱼。", "--max-length", "2", "--json", "-", *ONE_THREAD]
    assert main(command) == 0
    payload = json.loads(capfdbinary.readouterr().out)
    assert payload["target_tokens"][-1] != "</s>"
    assert not any(node["ended"] for node in payload["tree"] if node["token"] != "</s>")


def test_inspect_refuses_empty_text_and_missing_folders(
    trained: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["inspect", str(trained), " ", *ONE_THREAD]) == 2
    assert b"is empty" in capfdbinary.readouterr().err
    assert main(["inspect", str(trained), "x", "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert b"there is no folder" in capfdbinary.readouterr().err


def test_inspect_shows_where_the_heads_look_from_a_pronoun(
    trained: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    page, asked = tmp_path / "page.html", ("老师看见学生，他吃鱼。", "--pronoun", "他", "--antecedent", "学生")
    assert main(["inspect", str(trained), *asked, "--html", str(page), *ONE_THREAD]) == 0
    drawn = capfdbinary.readouterr().out.decode()
    assert drawn.startswith("老师看见学生，他吃鱼。  →  ")
    assert "From `他` (candidates: 老, 师, 看, 见, 学生)" in drawn
    assert "of 8 heads look at `学生` more than at any other candidate; by chance it would be 2." in drawn
    assert '"coreference":{"words":["老","师"' in page.read_text("utf-8")
    assert main(["inspect", str(trained), *asked, "--json", "-", *ONE_THREAD]) == 0
    found = json.loads(capfdbinary.readouterr().out)["coreference"]
    assert (found["pronoun"], found["antecedent"], found["left_to_right"]) == (7, 4, False)
    english = ("the teacher like fish today", "--pronoun", "today", "--among", "teacher", "fish")
    told = ("--translation-of", "老师喜欢鱼。")
    assert main(["inspect", str(trained), *english, *told, "--json", "-", *ONE_THREAD]) == 0
    assert json.loads(capfdbinary.readouterr().out)["left_to_right"]
    assert main(["inspect", str(trained), *english, *told, "--html", str(page), *ONE_THREAD]) == 2
    assert b"there is no translation: leave it out" in capfdbinary.readouterr().err
    assert main(["inspect", str(trained), "x", "--antecedent", "y"]) == 2
    assert b"`--antecedent` needs --pronoun: pass that too" in capfdbinary.readouterr().err


@pytest.fixture
def texts(write_lines: WriteLines) -> dict[str, Path]:
    """Write twelve pairs with their words and alignments, and return the files by name."""
    subjects, things = {"我": "I", "你": "you", "他": "he"}, {"鱼": "fish", "茶": "tea", "书": "books", "水": "water"}
    pairs = [(a, b, x, y) for a, x in subjects.items() for b, y in things.items()]
    return {
        "source": write_lines("a.zh", [f"{a}买{b}。" for a, b, _, _ in pairs]),
        "target": write_lines("a.en", [f"{x} buy {y}." for _, _, x, y in pairs]),
        "source_words": write_lines("words.zh", [f"{a} 买 {b} 。" for a, b, _, _ in pairs]),
        "target_words": write_lines("words.en", [f"{x} buy {y} ." for _, _, x, y in pairs]),
        "known": write_lines("known", ["0-0 1-1 2-2 3-3"] * len(pairs)),
    }


def test_align_learns_and_aligns(
    trained: Path, texts: dict[str, Path], tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    heads = str(tmp_path / "heads.json")
    command = ["align", str(trained), *ONE_THREAD]
    for name in ("source", "target", "source_words", "target_words", "known"):
        command += [f"--{name.replace('_', '-')}", str(texts[name])]
    assert main([*command, "--learn", heads]) == 0
    assert b"chosen by 12 alignments" in capfdbinary.readouterr().err
    assert main([*command, "--heads", heads]) == 0
    output = capfdbinary.readouterr()
    assert output.out.decode() == "0-0 1-1 2-2 3-3\n" * 12
    assert output.err == b"alignment error rate 0.0 %\n"


def test_align_learns_from_pairs_alone(
    trained: Path, toy_corpus: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    statistics = str(tmp_path / "statistics.json")
    command = ["align", str(trained), *ONE_THREAD]
    for side, language in (("source", "zh"), ("target", "en")):
        command += [f"--{side}", str(toy_corpus / f"dev.{language}")]
    assert main([*command, "--learn", statistics]) == 0
    assert b"The word statistics of 50 pairs are in" in capfdbinary.readouterr().err
    assert main([*command, "--heads", statistics]) == 0
    assert len(capfdbinary.readouterr().out.decode().splitlines()) == 50


def test_align_works_without_known_alignments(
    trained: Path, texts: dict[str, Path], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    command = ["align", str(trained), "--source", str(texts["source"]), "--target", str(texts["target"]), *ONE_THREAD]
    assert main(command) == 0
    lines = capfdbinary.readouterr().out.decode().split("\n")
    assert len(lines) == 13
    assert all(source < 4 and target < 3 for line in lines for source, target in parse_links("here", line))


def test_align_refuses_contradictory_options_and_unequal_files(
    trained: Path, texts: dict[str, Path], write_lines: WriteLines, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    short = str(write_lines("short", ["0-0"]))
    command = ["align", str(trained), "--source", str(texts["source"]), "--target", str(texts["target"])]
    for extra, message in (
        (["--learn", "heads.json", "--heads", short], "`--learn` chooses heads, and --heads names chosen ones"),
        (["--known", short], "has 1 line for 12 pairs"),
        (["--source-words", short], "use files with the same number of lines"),
        (["--heads", short], "does not hold chosen heads"),
        (["--known", str(texts["source"])], "line 1, says `我买鱼。`"),
        (["--source-words", str(texts["known"])], "known, line 1: Words must occur in their sentence"),
    ):
        assert main([*command, *extra]) == 2
        assert message in capfdbinary.readouterr().err.decode()


def test_alignment_links_survive_formatting_and_parsing() -> None:
    links = parse_links("x, line 1,", "2-1 0-0  10-3")
    assert links == {(0, 0), (2, 1), (10, 3)}
    assert format_links(links) == "0-0 2-1 10-3"
    assert parse_links("x", "") == frozenset()
    with pytest.raises(TransduceError, match="x, line 3, says `1_2`"):
        parse_links("x, line 3,", "0-0 1_2")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["positions", "--length", "20", "--d-model", "16"], "Sinusoidal positions"),
        (["rotation", "--length", "9"], "Query · key after the rotation"),
        (["masks", "--length", "5", "--padding", "2"], "Padding mask"),
        (["masks", "--length", "1"], "Padding mask"),
        (
            ["schedule", "--warmup", "100", "200", "--schedule", "linear", "--steps", "500"],
            "linear, d_model 512, warm-up 200",
        ),
        (["activations"], "gelu-tanh"),
    ],
)
def test_plots_of_the_tutorials(arguments: list[str], shown: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["plot", *arguments]) == 0
    assert shown in capfdbinary.readouterr().out.decode()


def test_plots_of_a_model(trained: Path, toy_corpus: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert (
        main(["plot", "attention", str(trained), "我吃鱼。", "--attention", "encoder", "--layer", "1", *ONE_THREAD])
        == 0
    )
    assert "layer 1, head 1" in capfdbinary.readouterr().out.decode()
    assert main(["plot", "training", str(trained)]) == 0
    assert "Dev BLEU" in capfdbinary.readouterr().out.decode()
    references = str(toy_corpus / "dev.en")
    same = ["--source", str(toy_corpus / "dev.zh"), "--reference", references]
    assert main(["plot", "lengths", references, str(trained), *same, *ONE_THREAD]) == 0
    drawn = capfdbinary.readouterr().out.decode()
    assert "● dev.en" in drawn
    assert f"× {trained.name}" in drawn


def test_a_plot_in_a_file(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "masks.svg"
    assert main(["plot", "masks", "--output", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["masks", "--warmup", "5"], "`--warmup` does not apply to `transduce plot masks`"),
        (["attention", "model"], "takes MODEL SENTENCE, but got 1 argument:"),
        (["positions", "x"], "takes no arguments, but got 1 argument:"),
        (["training"], "takes RUN..., but got 0 arguments:"),
        (["lengths", "x"], "pass --source and --reference"),
        (["positions", "--length", "0"], "`--length` must be at least 1, but is 0"),
        (["schedule", "--warmup", "0"], "`--warmup` must be at least 1, but is 0"),
        (["masks", "--output", "masks.jpg"], "end in .png, .svg, .pdf"),
    ],
)
def test_plot_refuses_wrong_arguments(
    arguments: list[str], message: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["plot", *arguments]) == 2
    assert message in capfdbinary.readouterr().err.decode()


def test_causal_tools_compute_in_float32(trained: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["inspect", str(trained), "我吃鱼。", "--ablate", "zero", "--json", "-", "--threads", "1"]) == 0
    found = json.loads(capfdbinary.readouterr().out)
    expected = ablate(load(trained, precision="fp32", device="cpu", threads=1), "我吃鱼。")
    assert found["log_probability"] == expected.log_probability
    assert [tuple(map(tuple, grid["values"])) for grid in found["heads"]] == [grid.values for grid in expected.heads]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["", "--ablate", "zero"], "The sentence is empty"),
        (["我", "--ablate", "zero", "--reference", "texts"], "pass --ablate mean"),
    ],
)
def test_a_causal_tool_without_something_to_measure_is_refused(
    arguments: list[str], message: str, trained: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(trained), *arguments]) == 2
    assert message in capfd.readouterr().err


def test_inspect_warns_of_letters_that_the_vocabulary_lacks(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(trained), "我吃ž。", *ONE_THREAD]) == 0
    assert "letters that the vocabulary lacks (ž)" in capfd.readouterr().err
