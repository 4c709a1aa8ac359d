"""Test `transduce paper`, and Tables 3 and 4 and the attention figures of the paper with small models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transduce.commands.main import main
from transduce.demonstration import paper
from transduce.demonstration.paper import (
    SMALL_BASE,
    SMALLEST_BASE,
    VARIATIONS,
    compare_variations,
    draw_attention_figure,
    generate_trees,
    settings_of,
)
from transduce.errors import TransduceError
from transduce.inference.load import open_translator
from transduce.inspection.plots import Chart, WordLines, draw_chart, render_chart
from transduce.tasks.settings.reading import make_settings, put_setting
from transduce.text.trees import linearize, read_tree

TINY = {"model.d_model": 32, "model.d_ff": 64, "model.num_heads": 4, "tokenizer.vocabulary_size": 400}


# --- Table 3 ---


@pytest.mark.parametrize("base", [SMALL_BASE, SMALLEST_BASE])
def test_every_row_of_table_3_is_a_model_that_differs_from_the_base(base: dict[str, Any]) -> None:
    plain = settings_of("base", base, steps=600, warmup_steps=400)
    assert plain["training.learning_rate"] == (base["model.d_model"] * 400) ** -0.5  # equation (3) at its peak
    for name, variation in VARIATIONS.items():
        content: dict[str, Any] = {}
        settings = settings_of(name, base, steps=600, warmup_steps=400)
        for key, value in settings.items():
            put_setting(content, key, value)
        assert make_settings(content).preset == "paper-base"
        assert (settings == plain) == (name == "base")
        assert len(variation.factors) + len(variation.settings) > 0 or name == "base"
    assert (
        settings_of("B: keys half as wide", base, steps=1, warmup_steps=1)["model.d_k"] == base["model.d_model"] // 16
    )
    assert settings_of("C: a third of the layers", base, steps=1, warmup_steps=1)["model.num_encoder_layers"] == 1
    assert settings_of("big", base, steps=600, warmup_steps=400)["training.steps"] == 1800


def test_table_3_trains_its_rows_once(
    toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paper, "SMALL_BASE", SMALL_BASE | TINY)
    sides = {"source": "train.zh", "target": "train.en"}
    for language in ("zh", "en"):
        lines = (toy_corpus / f"train.{language}").read_text("utf-8").splitlines()[:20]
        (tmp_path / f"dev.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    files = {name: str(toy_corpus / file) for name, file in sides.items()}
    options = [word for name, file in files.items() for word in (f"--{name}", file)]
    options += ["--dev-source", str(tmp_path / "dev.zh"), "--dev-target", str(tmp_path / "dev.en")]
    command = ["paper", "table3", *options, "--rows", "C: a third of the layers", "--steps", "2"]
    found = []
    for _ in range(2):
        assert main([*command, "--runs", str(tmp_path / "runs"), "--json", "-", "--threads", "1"]) == 0
        found.append(capsys.readouterr())
    (row,) = json.loads(found[0].out)["rows"]
    assert row[0] == "C: a third of the layers"
    assert row[2:] == [6.11, row[3], 23.7]
    assert row[1] > 1.0
    assert found[1].out == found[0].out
    assert "training" not in found[1].err
    with pytest.raises(TransduceError, match="Table 3 has no row `Z`: the rows are base, A: 1 head"):
        compare_variations(files, tmp_path / "runs", rows=["Z"], say=print)


# --- Table 4 ---


def test_generated_trees_are_different_and_read_back() -> None:
    trees = generate_trees(200)
    assert len(set(trees)) == 200
    assert generate_trees(200) == trees
    for text in trees:
        tree = read_tree(text)
        assert tree.words()[-1] == "."
        assert linearize(tree).count("(") > 3


def test_table_4_of_generated_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(paper, "_TREES", {"train": 60, "dev": 6, "test": 6})
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 32, "d_ff": 64, "num_heads": 2}
    monkeypatch.setattr(paper, "_PARSER", {"task": {"kind": "parsing"}, "model": sizes})
    assert main(["paper", "table4", "--steps", "2", "--runs", str(tmp_path), "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "generated trees, 2 steps" in out
    assert "Transformer (4 layers) WSJ only, discriminative 91.30" in " ".join(out.split())
    test = str(tmp_path / "table4-trees" / "test.trees")
    assert len(Path(test).read_text("utf-8").splitlines()) == 6
    train = str(tmp_path / "table4-trees" / "train.trees")
    command = ["paper", "table4", "--steps", "2", "--runs", str(tmp_path / "own"), "--trees", train, test, test]
    assert main([*command, "--threads", "1"]) == 0
    assert f"{test}, 2 steps" in capsys.readouterr().out


# --- figures ---


def test_figures_choose_words_and_heads_by_their_attention(monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    translator, words = open_translator(trained, device="cpu", threads=1), ("it", "is", "not", "so", "far")
    heads = np.full((2, 3, 5, 5), 0.1)
    heads[0, 1, 4] = [0.9, 0.0, 0.0, 0.0, 0.1]  # "far" attends to "it" in head 2 of layer 1
    heads[0, 2, 0] = [0.0, 0.0, 0.8, 0.1, 0.1]  # "it" attends to "not" in head 3
    heads[0, 0] = np.eye(5)
    monkeypatch.setattr(paper, "attention_maps", lambda *_: None)
    monkeypatch.setattr(paper, "word_self_attention", lambda _: (words, heads))
    distant, chart = draw_attention_figure("figure3", translator, "any")
    assert distant.rows[1] == ("head 2", "far", "it", 0.9, 4)
    (lines,) = chart.panels
    assert isinstance(lines, WordLines)
    assert np.flatnonzero(lines.weights.sum(axis=(0, 2))).tolist() == [4]
    pronoun, chart = draw_attention_figure("figure4", translator, "any")
    assert pronoun.rows[0] == ("head 3", "it", "not", 0.8)
    assert [type(panel) for panel in chart.panels] == [WordLines, WordLines]
    both, _ = draw_attention_figure("figure5", translator, "any")
    assert both.rows[0][:2] == ("head 1", 1.0)  # to itself
    chosen, _ = draw_attention_figure("figure3", translator, "any", word="so", layer=2)
    assert {row[1] for row in chosen.rows} == {"so"}
    assert "layer 2 of 2" in chosen.title
    for options, message in (
        ({"layer": 3}, "`--layer` must be from 1 to 2, but is 3"),
        ({"word": "near"}, "`--word` is near, but the figure is of the words it is not so far"),
    ):
        with pytest.raises(TransduceError, match=message):
            draw_attention_figure("figure3", translator, "any", **options)


@pytest.mark.parametrize("name", ["figure3", "figure4", "figure5"])
def test_a_figure_of_a_trained_model_is_drawn(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'transduce[plot]'")
    command = ["paper", name, "--model", str(trained), "--sentence", "昨天我吃苹果", "--threads", "1"]
    assert main(command) == 0
    assert "The paper, layer 5 of 6" in capsys.readouterr().out
    assert main([*command, "--output", str(tmp_path / "figure.svg"), "--json", str(tmp_path / "figure.json")]) == 0
    assert (tmp_path / "figure.svg").read_bytes().startswith(b"<?xml")
    report = json.loads((tmp_path / "figure.json").read_text("utf-8"))
    assert report["title"].startswith(f"Figure {name[-1]}: self-attention in layer")


def test_lines_between_words_are_listed_in_a_terminal_and_drawn_once() -> None:
    weights = np.array([[[0.0, 1.0], [0.01, 0.4]]])
    panel = WordLines(title="head 1", left=("a", "我"), right=("x", "y"), weights=weights)
    assert draw_chart(Chart((panel,))) == "head 1\n  a  → y 1.00\n  我 → y 0.40"
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'transduce[plot]'")
    chart = Chart((WordLines(title="t", left=("a",), right=("x",), weights=weights[:, :1, :1]),))
    assert render_chart(chart, "svg") == render_chart(chart, "svg")


# --- the command ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table1", "--steps", "5"], "`--steps` does not apply to `transduce paper table1`: leave it out"),
        (["table2", "--model", "m"], "scores a model with --model, --source and --reference: set all"),
        (["table3", "--source", "a"], "needs --source, --target, --dev-source and --dev-target"),
        (["figure3"], "of the demonstration's model in models/demo, which does not exist: make it with"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("")
    assert main(["paper", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_table_2_scores_a_model_on_a_test_set(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], toy_corpus: Path
) -> None:
    for language in ("zh", "en"):
        lines = (toy_corpus / f"train.{language}").read_text("utf-8").splitlines()[:4]
        (tmp_path / f"t.{language}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    files = ["--source", str(tmp_path / "t.zh"), "--reference", str(tmp_path / "t.en")]
    assert main(["paper", "table2", "--model", str(trained), *files, "--threads", "1"]) == 0
    out = capsys.readouterr().out
    assert "your test set" in out
    assert f"{trained} " in out
    assert "nrefs:1|case:mixed" in out
