"""Test plots against numbers computed by hand, in the terminal and in files."""

import io
import json
import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from rich.cells import cell_len

from transduce.errors import TransduceError
from transduce.inference.translator import Translator
from transduce.inspection.attention import attention_maps
from transduce.inspection.plots import (
    Chart,
    Curves,
    HeatMap,
    _upright,
    curve,
    draw_chart,
    localized_chart,
    render_chart,
    save_chart,
)
from transduce.inspection.plots_runs import (
    group_by_length,
    plot_activations,
    plot_attention,
    plot_lengths,
    plot_masks,
    plot_positions,
    plot_rotation,
    plot_schedules,
    plot_training,
)
from transduce.text.files import unique_suffixes
from transduce.ui_language_choice import use_ui_language


def heat_map(chart: Chart, number: int = 0) -> HeatMap:
    panel = chart.panels[number]
    assert isinstance(panel, HeatMap)
    return panel


def curves(chart: Chart, number: int = 0) -> Curves:
    panel = chart.panels[number]
    assert isinstance(panel, Curves)
    return panel


# --- tutorials ---


@pytest.mark.parametrize("d_model", [2, 8, 128])
def test_sinusoids_are_the_papers(d_model: int) -> None:
    table = heat_map(plot_positions(length=50, d_model=d_model)).values
    for position in (0, 1, 49):
        for pair in range(d_model // 2):
            angle = position / 10000 ** (2 * pair / d_model)
            assert table[position, 2 * pair] == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * pair + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_curves_of_positions_are_columns_of_the_table() -> None:
    chart = plot_positions(length=100, d_model=128)
    for each in curves(chart, 1).curves:
        number = int(each.name.removeprefix("dimension "))
        assert np.array_equal(each.y, heat_map(chart).values[:, number])
        turns = 100 / (math.tau * 10000 ** (number / 128))
        assert 0.5 < turns < 16


def test_a_rotated_product_depends_on_the_distance_alone() -> None:
    products = heat_map(plot_rotation(length=20, d_k=16)).values
    assert np.allclose(np.diag(products), 1.0)
    assert np.allclose(products[3:, 3:], products[:-3, :-3])
    by_hand = np.mean([math.cos(4 * 10000 ** (-2 * pair / 16)) for pair in range(8)])
    assert products[0, 4] == pytest.approx(by_hand)


def test_plot_masks_shows_look_ahead_padding_and_both() -> None:
    chart = plot_masks(length=4, padding=1)
    look_ahead, padding, both = (heat_map(chart, number).values for number in range(3))
    assert look_ahead.tolist() == np.tril(np.ones((4, 4))).tolist()
    assert padding.tolist() == [[1.0, 1.0, 1.0, 0.0]] * 4
    assert both.tolist() == (look_ahead * padding).tolist()


def test_schedules_are_equation_3() -> None:
    chart = plot_schedules(schedules=["inverse-sqrt"], warmups=[100, 400], widths=[256, 512], steps=1000)
    found = curves(chart).curves
    assert len(found) == 4
    for each, (width, warmup) in zip(found, [(256, 100), (256, 400), (512, 100), (512, 400)], strict=True):
        assert (str(width) in each.name, f"{warmup}" in each.name) == (True, True)
        expected = [width**-0.5 * min(step**-0.5, step * warmup**-1.5) for step in each.x]
        assert np.allclose(each.y, expected)
        assert (each.x[0], each.x[-1]) == (1, 1000)


def test_activations_and_their_slopes() -> None:
    values, slopes = curves(plot_activations()), curves(plot_activations(), 1)
    by_name = {each.name: each for each in values.curves}
    relu, gelu = by_name["relu"], by_name["gelu"]
    assert np.allclose(relu.y, np.maximum(relu.x, 0.0))
    assert np.allclose(gelu.y, [x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in gelu.x])
    assert gelu.dashed != by_name["gelu-tanh"].dashed  # both visible, though they nearly coincide
    for value, slope in zip(values.curves, slopes.curves, strict=True):
        inner = slice(150, 190)  # away from the kink of relu
        assert np.allclose(np.gradient(value.y, value.x)[inner], slope.y[inner], atol=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plot_positions(length=5, d_model=7), "must be even, but is 7"),
        (lambda: plot_rotation(length=5, d_k=0), "must be even, but is 0"),
        (lambda: plot_masks(length=4, padding=4), "from 0 to 3 .* but is 4"),
    ],
)
def test_impossible_sizes_are_refused(make: Any, message: str) -> None:
    with pytest.raises(TransduceError, match=message):
        make()


# --- runs ---


def write_run(folder: Path, *lines: dict[str, object]) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return folder


def test_losses_and_bleu_of_two_runs(tmp_path: Path) -> None:
    first = write_run(
        tmp_path / "a",
        {"event": "train", "step": 10, "loss": 5.0, "perplexity": 100.0},
        {"event": "validation", "step": 10, "loss": 4.0, "bleu": 3.5, "samples": [["x", "y", "z"]]},
        {"event": "validation", "step": 20, "loss": 3.0},
    )
    second = write_run(tmp_path / "b", {"event": "train", "step": 5, "loss": 6.0})
    loss, bleu = (curves(plot_training([first, second]), number) for number in range(2))
    assert [each.name for each in loss.curves] == ["a: training", "a: dev", "b: training"]
    assert [each.y.tolist() for each in loss.curves] == [[5.0], [4.0, 3.0], [6.0]]
    # The color is the run, and dashes are training.
    assert [(each.color, each.dashed, each.marked) for each in loss.curves] == [
        (0, True, False),
        (0, False, True),
        (1, True, False),
    ]
    assert (bleu.curves[0].x.tolist(), bleu.curves[0].y.tolist()) == ([10.0], [3.5])
    assert [each.name for each in bleu.curves] == ["a"]


def test_a_real_runs_metrics_are_read(trained: Path) -> None:
    loss, bleu = (curves(plot_training([trained]), number) for number in range(2))
    assert [each.name for each in loss.curves] == ["training", "dev"]
    assert loss.curves[0].x.tolist() == list(range(5, 81, 5))
    assert loss.curves[1].x.tolist() == bleu.curves[0].x.tolist() == [20.0, 40.0, 60.0, 80.0]


def test_a_report_of_steps_that_learnt_nothing_is_left_out(tmp_path: Path) -> None:
    lines: list[dict[str, object]] = [
        {"event": "train", "step": step, "loss": None if step == 2 else 1.0} for step in (1, 2, 3)
    ]
    training = curves(plot_training([write_run(tmp_path / "a", *lines)]), 0)
    assert training.curves[0].x.tolist() == [1.0, 3.0]


def test_folders_without_readable_metrics_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"metrics.jsonl does not exist: pass a folder"):
        plot_training([tmp_path])
    with pytest.raises(TransduceError, match="has no measurements yet"):
        plot_training([write_run(tmp_path / "a")])
    (tmp_path / "a" / "metrics.jsonl").write_bytes(b'{"event": "train"}\n')
    with pytest.raises(TransduceError, match=r"metrics.jsonl, line 1, is not what a run writes"):
        plot_training([tmp_path / "a"])


def test_runs_are_named_by_their_shortest_unique_suffixes(tmp_path: Path) -> None:
    assert unique_suffixes([tmp_path / "x" / "a", tmp_path / "y" / "b"]) == ["a", "b"]
    assert unique_suffixes([tmp_path / "x" / "a", tmp_path / "y" / "a"]) == ["x/a", "y/a"]


def test_groups_hold_lines_of_like_length() -> None:
    lengths = np.array([3, 1, 2] * 40)
    groups = group_by_length(lengths)
    assert sorted(line for group in groups for line in group) == list(range(120))
    assert [set(lengths[group].tolist()) for group in groups] == [{1}, {2}, {3}]
    assert [len(group) for group in group_by_length(np.array([1] * 25 + [2] * 25 + [9]))] == [25, 26]


def test_bleu_by_length_is_bleu_of_each_group() -> None:
    references = ["a b c d e"] * 30 + ["f g h i j k l m"] * 30
    sources = ["one two"] * 30 + ["one two three"] * 30
    half_right = references[:30] + ["x y z"] * 30
    chart = curves(plot_lengths(sources, references, {"good": references, "half": half_right}, target_language="en"))
    assert [each.x.tolist() for each in chart.curves] == [[2.0, 3.0]] * 2
    assert chart.curves[0].y.tolist() == pytest.approx([100.0, 100.0])
    assert chart.curves[1].y.tolist() == pytest.approx([100.0, 0.0])


def test_bleu_by_length_needs_enough_lines_of_equal_number() -> None:
    with pytest.raises(TransduceError, match="at least 20 sentences, but there are 2"):
        plot_lengths(["a", "b"], ["a", "b"], {"x": ["a", "b"]}, target_language="en")
    with pytest.raises(TransduceError, match="2 sources and 1 reference"):
        plot_lengths(["a", "b"], ["a"], {"x": ["a"]}, target_language="en")


def test_plot_attention_shows_the_heads_of_a_layer(translator: Translator) -> None:
    maps = attention_maps(translator, "我吃鱼。")
    chart = plot_attention(maps, kind="memory", layer=None)
    heads = translator.model.config.num_heads
    assert [panel.title for panel in chart.panels] == [f"layer 2, head {head}" for head in range(1, heads + 1)]
    assert np.allclose(heat_map(chart).values.sum(axis=1), 1.0, atol=0.02)
    assert heat_map(chart).column_names == maps.source_tokens
    before = heat_map(plot_attention(maps, kind="decoder", layer=1))
    assert before.column_names == ("<start>", *before.row_names[:-1])
    assert heat_map(plot_attention(maps, kind="encoder", layer=1)).row_names == maps.source_tokens
    labels = [(panel.y_label, panel.x_label) for panel in chart.panels if isinstance(panel, HeatMap)]
    assert labels == [("target token", "source token")] * heads
    with pytest.raises(TransduceError, match="`--layer` must be from 1 to 2, but is 3"):
        plot_attention(maps, kind="memory", layer=3)


# --- drawing ---

SQUARES = HeatMap(
    title="looks",
    x_label="to",
    y_label="from",
    values=np.array([[1.0, 0.0], [0.5, 0.25]]),
    minimum=0.0,
    maximum=1.0,
    row_names=("猫", "dog"),
    column_names=("▁茶", "ab"),
)
LINES = Curves(
    title="growth",
    x_label="x",
    y_label="y",
    curves=(curve("up", [0, 1, 2], [0, 1, 2]), curve("down", [0, 2], [2, 0])),
)


def test_a_heat_map_in_the_terminal() -> None:
    assert draw_chart(Chart((SQUARES,)), columns=40).split("\n") == [
        "looks",
        "    ▁ a",
        "    茶b",
        " 猫 ██",
        "dog ▒▒░░",
        "from ↓, to →; 0 is light, 1 dark",
    ]


def test_curves_in_the_terminal() -> None:
    lines = draw_chart(Chart((LINES,)), columns=40).split("\n")
    assert lines[0] == "growth  [y]"
    frame = [line.partition("┤")[2] for line in lines[1:17]]
    assert (frame[0][0], frame[0][-1]) == ("×", "●")  # down begins where up ends
    assert (frame[15][0], frame[15][-1]) == ("●", "×")
    assert all(cell_len(line) <= 40 for line in lines)
    assert lines[-2:] == ["  ● up", "  × down"]
    assert lines[1].startswith("2 ")
    assert lines[16].startswith("0 ")


@pytest.mark.parametrize("columns", [20, 80, 200])
def test_a_large_table_fits_any_terminal(columns: int) -> None:
    drawn = draw_chart(plot_positions(length=500, d_model=512), columns=columns)
    table = drawn.split("\n\n")[0].split("\n")[1:-1]
    assert len(table) <= 40
    assert max(map(cell_len, table)) <= max(columns, 24)


def test_flat_and_empty_curves_are_drawn() -> None:
    flat = Curves(title="t", x_label="x", y_label="y", curves=(curve("one", [3], [7]),))
    assert "●" in draw_chart(Chart((flat,)))
    empty = Curves(title="t", x_label="x", y_label="y", curves=(curve("none", [], []),))
    assert "nothing to draw" in draw_chart(Chart((empty,)))


@pytest.mark.parametrize(("format", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_equal_plots_give_bit_equal_files(format: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    plain = HeatMap(title="t", x_label="x", y_label="y", values=np.eye(3), minimum=0.0, maximum=1.0)
    chart = Chart((LINES, plain))
    content = render_chart(chart, format)
    assert content.startswith(begins)
    assert content == render_chart(chart, format)


def test_chinese_characters_are_drawn_or_their_lack_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    try:
        save_chart(Chart((SQUARES,)), tmp_path / "a.svg")
    except TransduceError as error:
        pytest.skip(str(error))
    with_glyph = (tmp_path / "a.svg").read_text("utf-8")
    # In an SVG each glyph is an outline under the name of its font and character.
    assert "CJK" in with_glyph or "-732b" in with_glyph.lower()


def test_chinese_names_of_columns_stand_upright() -> None:
    pytest.importorskip("matplotlib")
    assert _upright("▁昨天") == "▁\n昨\n天"
    assert _upright("▁apples$") == "▁apples\\$"
    assert _upright("第 1 个头") == "第\n1\n个\n头"


def test_titles_are_in_the_language_of_messages() -> None:
    with use_ui_language("zh"):
        drawn = draw_chart(plot_positions(length=8, d_model=4))
    assert "正弦位置编码" in drawn
    assert "维度" in drawn
    assert "Sinusoidal" in draw_chart(plot_positions(length=8, d_model=4))


def test_without_a_font_for_chinese_the_picture_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("transduce.inspection.plots.CHINESE_FONTS", ("No Such Font",))
    with pytest.raises(TransduceError, match=r"no font here has them: install one .* fonts-noto-cjk"):
        render_chart(Chart((SQUARES,)), "png")


def test_without_a_font_for_chinese_the_labels_are_english(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("transduce.inspection.plots.CHINESE_FONTS", ("No Such Font",))
    chart = plot_positions(length=8, d_model=4)
    with use_ui_language("zh"), pytest.warns(UserWarning, match="labels of the picture are English"):
        assert render_chart(chart, "png") == render_chart(chart, "png")


def test_names_of_the_parts_of_a_model_are_in_the_language_of_messages() -> None:
    columns = ("embedding", "layer 1", "whole layer")
    words = ("embedding", "▁layer", "</s>")
    look: Any = {"x_label": "", "y_label": "", "values": np.eye(3), "minimum": 0.0, "maximum": 1.0}
    panels = (
        HeatMap(title="", column_names=columns, row_names=words, **look),
        HeatMap(title="", column_names=words, row_names=columns, **look),
    )
    chart = Chart(panels)
    assert localized_chart(chart) is chart
    with use_ui_language("zh"):
        one, other = localized_chart(chart).panels
    assert isinstance(one, HeatMap)
    assert isinstance(other, HeatMap)
    assert one.column_names == other.row_names == ("词嵌入", "第 1 层", "整层")
    assert one.row_names == other.column_names == words


def test_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"end in .png, .svg, .pdf, but this one is a.jpg"):
        save_chart(Chart((LINES,)), tmp_path / "a.jpg")


def test_drawing_leaves_gradients_and_numbers_of_others_alone() -> None:
    before = torch.get_rng_state()
    draw_chart(plot_activations())
    assert torch.equal(torch.get_rng_state(), before)


def test_titles_and_labels_are_in_the_language_of_messages_and_words_stay() -> None:
    panel = HeatMap(
        title="layer 1, head 2",
        x_label="source token",
        y_label="query",
        values=np.zeros((1, 1)),
        minimum=0.0,
        maximum=1.0,
        row_names=("step",),
    )
    with use_ui_language("zh"):
        assert draw_chart(Chart((panel,))).splitlines() == [
            "第 1 层，第 2 个头",
            "step",
            "查询 ↓，源词元 →；0 为浅色，1 为深色",
        ]


@pytest.mark.parametrize(
    "chart",
    [
        plot_positions(length=20, d_model=16),
        plot_masks(length=5, padding=1),
        plot_schedules(schedules=["linear"], warmups=[10], widths=[64], steps=100),
    ],
    ids=["positions", "masks", "schedule"],
)
def test_the_terminal_and_the_picture_have_the_same_labels(chart: Chart) -> None:
    pytest.importorskip("matplotlib")
    drawn, picture = draw_chart(chart), render_chart(chart, "svg").decode()
    for panel in chart.panels:
        assert isinstance(panel, Curves | HeatMap)
        names = [each.name for each in panel.curves] if isinstance(panel, Curves) else []
        for label in (panel.title, panel.x_label, panel.y_label, *names):
            assert label
            assert label in drawn
            assert f"<!-- {label} -->" in picture
    assert ("rows ↓" in drawn, "columns →" in drawn) == (False, False)


def test_rows_columns_and_positions_have_whole_numbers_in_a_picture() -> None:
    pytest.importorskip("matplotlib")
    for panel in plot_positions(length=20, d_model=16).panels:
        ticks = re.findall(r"<!-- (−?[\d.]+) -->", render_chart(Chart((panel,)), "svg").decode())
        fractions = [tick for tick in ticks if "." in tick]
        assert "10" in ticks
        assert all(abs(float(tick.replace("−", "-"))) <= 1.0 for tick in fractions)  # of the color bar, of values


def test_titles_of_small_heat_maps_are_not_cut_off() -> None:
    names = {"row_names": ("▁I",) * 3, "column_names": ("ab",) * 3}
    panel = msgspec.structs.replace(SQUARES, title="layer 2, head 1", values=np.eye(3), **names)
    picture = read_picture(Chart((panel,) * 4, columns=4))
    assert (picture[0] == picture[0, 0]).all()
    assert (picture[:, 0] == picture[0, 0]).all()


def read_picture(chart: Chart) -> Any:
    """Return the colors of a drawn chart's pixels."""
    from matplotlib.image import imread

    return imread(io.BytesIO(render_chart(chart, "png")))
