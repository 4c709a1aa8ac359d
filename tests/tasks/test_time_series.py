"""Test time series, from training on a table to forecasting with the model folder."""

import argparse
import json
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import transduce
from transduce.commands.main import main
from transduce.commands.tasks import add_forecast_arguments, score_table
from transduce.data.series import Numbers, SeriesSettings, read_table
from transduce.errors import TransduceError
from transduce.inference.forecaster import Forecaster, load_forecaster
from transduce.model_folder.read import read_any_model_folder
from transduce.tasks.kinds.time_series import TimeSeriesKind, prepare_series
from transduce.tasks.settings.structs import DataSettings
from transduce.tasks.train import train
from transduce.text.files import read_lines
from transduce.training.checkpoint import load_newest

WriteLines = Callable[[str, Iterable[str]], Path]
SEASON = 12
SETTINGS: dict[str, Any] = {
    "task.kind": "time-series",
    "task.series.past": 24,
    "task.series.horizon": 6,
    "task.series.season": SEASON,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 32,
    "model.dropout": 0.0,
    "training.batch_tokens": 192,
    "training.steps": 240,
    "training.learning_rate": 0.005,
    "training.report_every": 20,
    "training.validate_every": 80,
    "training.save_every": 60,
}


def wave(points: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return two noisy series, (points, 2): a wave with a trend, and one of another scale with a second period."""
    time = np.arange(points)
    noise = np.random.Generator(np.random.Philox(4)).normal(scale=0.1, size=(points, 2))
    first = np.sin(2.0 * np.pi * time / SEASON) + 0.05 * time
    second = 40.0 + 9.0 * np.sin(2.0 * np.pi * time / SEASON + 1.0) + 6.0 * np.sin(2.0 * np.pi * time / 7.3)
    return np.stack([first, second], axis=1) + noise * [1.0, 9.0]


def lines_of(values: Iterable[Iterable[float]]) -> list[str]:
    return ["load,heat", *(",".join(f"{value:.6f}" for value in row) for row in values)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("series") / "table.csv"
    path.write_text("".join(f"{line}\n" for line in lines_of(wave(700)[:600])), "utf-8", newline="\n")
    return path


@pytest.fixture(scope="module")
def model(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "model"
    train(out=folder, source=table, settings=SETTINGS, device="cpu", threads=1)
    return folder


@pytest.fixture(scope="module")
def forecaster(model: Path) -> Forecaster:
    return load_forecaster(model, device="cpu", threads=1)


def test_a_trained_forecaster_beats_repeating_the_last_season(model: Path) -> None:
    score = json.loads((model / "dev_score.json").read_text("utf-8"))
    assert score["season"] == SEASON
    assert score["skill"] > 30.0
    events = [json.loads(line) for line in read_lines(model / "metrics.jsonl")]
    skills = [event["scores"]["skill"] for event in events if event["event"] == "validation"]
    assert len(skills) == 3
    assert max(skills) == pytest.approx(score["skill"], rel=1e-6)


def test_unseen_time_is_predicted_in_the_units_of_the_table(forecaster: Forecaster) -> None:
    values = wave(700)
    found = forecaster(values[:600], 18)
    assert found.columns == ("load", "heat")
    assert found.values.shape == (18, 2)
    errors = np.abs(found.values - values[600:618]).mean(axis=0)
    repeated = np.abs(values[588:600][np.arange(18) % SEASON] - values[600:618]).mean(axis=0)
    assert (errors < repeated).all()


def test_a_longer_forecast_begins_like_a_shorter_one_and_takes_itself_as_past(forecaster: Forecaster) -> None:
    known = wave(200)
    long, short = forecaster(known, 15).values, forecaster(known, 6).values
    np.testing.assert_allclose(long[:6], short)
    np.testing.assert_allclose(long[6:12], forecaster(np.concatenate([known, short]), 6).values, rtol=1e-5)


def test_windows_in_one_batch_are_forecast_as_each_alone(forecaster: Forecaster) -> None:
    values = wave(300)
    past = np.stack([values[place : place + 24] for place in (0, 100, 250)])
    together = forecaster.forecast_windows(past, 6).values
    for row, window in zip(together, past, strict=True):
        np.testing.assert_allclose(row, forecaster(window, 6).values, rtol=1e-4, atol=1e-4)


class Frame:
    """A stand-in for a pandas or polars table, with the methods that are used."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = columns

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def __getitem__(self, names: list[str]) -> "Frame":
        return Frame({name: self._columns[name] for name in names})

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.stack([np.asarray(column) for column in self._columns.values()], axis=1).astype(dtype)


def test_columns_of_a_named_table_are_selected_by_name(forecaster: Forecaster) -> None:
    known = wave(60)
    table = {"date": ["2026-01-01"] * 60, "heat": known[:, 1], "load": known[:, 0]}
    np.testing.assert_array_equal(forecaster(Frame(table), 6).values, forecaster(known, 6).values)
    with pytest.raises(TransduceError, match=r"this table has no `heat`: its columns are Heat, load\."):
        forecaster(Frame({"Heat": known[:, 1], "load": known[:, 0]}))


def test_loading_a_time_series_model_gives_a_forecaster(model: Path) -> None:
    assert isinstance(transduce.load(model, device="cpu", threads=1), Forecaster)


def test_a_stopped_run_resumes_bit_by_bit_without_its_table(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "stopped"
    shutil.copytree(model, folder)
    shutil.rmtree(folder / "checkpoints" / "step-000000240")
    settings = (folder / "settings.toml").read_text("utf-8")
    (folder / "settings.toml").write_text(settings.replace("table.csv", "gone.csv"), "utf-8", newline="\n")
    train(out=folder, resume=True, device="cpu", threads=1)
    newest, _ = load_newest(folder / "checkpoints")
    assert newest is not None
    assert newest.state.step == 240
    assert (folder / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_a_gaussian_forecaster_reports_quantiles_of_sampled_forecasts(table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gaussian"
    train(
        out=folder,
        source=table,
        settings=SETTINGS | {"task.series.likelihood": "gaussian", "task.series.columns": ["load"]},
        device="cpu",
        threads=1,
    )
    forecaster = load_forecaster(folder, device="cpu", threads=1)
    values = wave(700)[:, 0]
    found = forecaster(values[:600], 12, samples=60)
    assert found.low is not None
    assert found.high is not None
    assert (found.low < found.values).all()
    assert (found.values < found.high).all()
    # The noise's deviation is 0.1: the middle four fifths of a course are 0.26 wide where nothing else is unsure.
    assert 0.1 < float((found.high - found.low).mean()) < 1.0
    again = forecaster(values[:600], 12, samples=60)
    assert np.array_equal(again.values, found.values)
    with pytest.raises(TransduceError, match="`samples` must be at least 0, but is -1"):
        forecaster(values, 3, samples=-1)


# --- the command ---


@pytest.mark.parametrize(("past", "is_shorter"), [(8, True), (40, False)])
def test_a_season_that_the_model_cannot_read_is_reported_and_compared_with(
    past: int, is_shorter: bool, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SETTINGS | {"task.series.past": past, "task.series.season": None, "training.steps": 1}
    train(out=tmp_path / "m", source=table, settings=settings, device="cpu", threads=1)
    season = 3 * SEASON  # nearly five periods of the second wave
    text = rf"repeat after {season} points, but the model reads only the last {past}: set `task.series.past` to"
    assert (re.search(text, capsys.readouterr().err) is not None) is is_shorter
    score = json.loads((tmp_path / "m" / "dev_score.json").read_text("utf-8"))
    assert (score["season"], score["windows"]) == (season, 10)
    values = wave(700)[:600]
    actual, repeated = values[540:], values[np.arange(540, 600) - season]
    errors = np.abs(actual - repeated).mean(axis=0)
    for name, error in zip(("load", "heat"), errors, strict=True):
        assert score["series"][name]["season_mean_absolute"] == pytest.approx(error, rel=1e-4)


def test_a_season_that_no_dev_file_has_is_not_compared_with(table: Path, tmp_path: Path) -> None:
    dev = tmp_path / "dev.csv"
    dev.write_text("".join(f"{line}\n" for line in lines_of(wave(700)[600:616])), "utf-8", newline="\n")
    settings = SETTINGS | {"task.series.past": 8, "task.series.season": None, "training.steps": 1}
    train(out=tmp_path / "m", source=table, dev_source=dev, settings=settings, device="cpu", threads=1)
    assert json.loads((tmp_path / "m" / "dev_score.json").read_text("utf-8"))["season"] == 1


def test_no_point_to_forecast_in_the_dev_part_is_trained_on(tmp_path: Path) -> None:
    paths = [tmp_path / "long.csv", tmp_path / "short.csv"]
    for path, size in zip(paths, (600, 20), strict=True):
        rows = "".join(
            f"{value:.9f}\n" for value in np.sin(np.arange(size) * 2.0 * np.pi / 24.0) + 1e-3 * wave(size)[:, 1]
        )
        path.write_text("load\n" + rows, "utf-8")
    data = DataSettings(source=tuple(map(str, paths)))
    corpus = prepare_series(data, SeriesSettings(past=4, horizon=2), tmp_path / "run")
    assert corpus.season == 1  # the short file has no whole season
    futures = corpus.dev.cut(np.arange(len(corpus.dev)))[1].ravel()
    held_out = [read_table(path).values[-count:, 0] for path, count in zip(paths, (60, 2), strict=True)]
    np.testing.assert_array_equal(futures, np.concatenate(held_out))


def test_the_season_of_several_files_is_not_their_length(tmp_path: Path) -> None:
    level = np.cumsum(np.random.Generator(np.random.Philox(5)).normal(size=200))
    paths = [tmp_path / f"{name}.csv" for name in "abcd"]
    for number, path in enumerate(paths):
        path.write_text("load\n" + "".join(f"{value + 0.1 * number}\n" for value in level), "utf-8")
    data = DataSettings(source=tuple(map(str, paths)))
    corpus = prepare_series(data, SeriesSettings(past=8, horizon=2), tmp_path / "run")
    assert corpus.season == 1


def test_times_out_of_order_are_reported(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        f"2026-01-{day:02d},{load},{heat}" for day, (load, heat) in zip([*range(1, 31), 30], wave(31), strict=True)
    ]
    path = tmp_path / "times.csv"
    path.write_text("".join(f"{line}\n" for line in ["when,load,heat", *lines]), "utf-8", newline="\n")
    assert main(["forecast", str(model), str(path), "--device", "cpu"]) == 0
    assert "times.csv:32: the lines of a table are points in equal steps" in capsys.readouterr().err
    settings = SETTINGS | {"task.series.columns": ["load", "heat"], "task.series.past": 4, "task.series.season": 1}
    settings |= {"task.series.horizon": 2, "training.steps": 1}
    train(out=tmp_path / "m", source=path, settings=settings, device="cpu", threads=1)
    assert "`when` 2026-01-30 is the same as on the line before" in capsys.readouterr().err


def test_the_command_writes_a_table(model: Path, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "next.csv"
    command = ["forecast", str(model), str(table), "--steps", "4", "--output", str(out), "--device", "cpu"]
    assert main(command) == 0
    lines = list(read_lines(out))
    assert lines[0] == "load,heat"
    assert len(lines) == 5
    assert len(lines[1].split(",")) == 2


def test_the_command_scores_the_tables_own_points(
    model: Path, table: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    command = ["forecast", str(model), str(table), "--score", "--last", "60", "--json", "-", "--device", "cpu"]
    assert main(command) == 0
    report = json.loads(capsysbinary.readouterr().out)
    assert (report["windows"], report["horizon"], report["season"]) == (10, 6, SEASON)
    assert report["skill"] > 30.0
    assert report["learned"] == 0  # the last tenth is the dev part


def test_scoring_reports_how_many_points_were_learned_from(
    model: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["forecast", str(model), str(table), "--score", "--device", "cpu"]
    assert main([*command, "--last", "90"]) == 0
    assert "30 of these 90 points were learned from in training" in capsys.readouterr().out
    assert main(command) == 0
    assert f"{540 - 24} of these {600 - 24} points were learned from" in capsys.readouterr().out


def test_scoring_by_an_older_folder_does_not_know_what_was_learned_from(forecaster: Forecaster, table: Path) -> None:
    parser = argparse.ArgumentParser()
    add_forecast_arguments(parser)
    older = Forecaster(forecaster.model, msgspec.structs.replace(forecaster.card, learned=()))
    options = parser.parse_args(["model", "table", "--score"])
    values = read_table(table).values
    assert score_table(older, values, options).learned is None
    assert score_table(forecaster, values, options).learned


def test_scoring_covers_the_newest_whole_windows(forecaster: Forecaster) -> None:
    def skill(values: Numbers, *options: str) -> float:
        parser = argparse.ArgumentParser()
        add_forecast_arguments(parser)
        return score_table(forecaster, values, parser.parse_args(["model", "table", "--score", *options])).skill

    values = wave(100)
    assert skill(values, "--last", "16") == skill(values, "--last", "12") == skill(values[-36:])
    assert skill(values[:40], "--last", "1000") == skill(values[4:40])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--samples", "5"], "this model predicts no deviations to sample from"),
        (["--steps", "0"], "`--steps` must be at least 1, but is 0"),
        (["--seed", "3"], "`--seed` needs `--samples`"),
        (["--season", "3"], "`--season` needs `--score`"),
        (["--score", "--output", "x.csv"], "`--score` writes no table"),
        (["--score", "--season", "0"], "`--season` must be at least 1, but is 0"),
        (["--score", "--season", "599"], "Scoring takes 599 points to read and `--steps` 6 to forecast"),
        (["--score", "--last", "5"], "`--last` must be at least 6, the points that are forecast at a time, but is 5"),
        (["--score", "--last", "0"], "`--last` must be at least 6, the points that are forecast at a time, but is 0"),
        (["--score", "--steps", "900"], "Scoring takes 24 points to read and `--steps` 900 to forecast"),
    ],
)
def test_forecast_command_refuses_options_that_do_not_apply(
    options: list[str], message: str, model: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["forecast", str(model), str(table), *options, "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err


# --- refusals ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data.target": ["x.csv"]}, r"`data\.target` means nothing where `task\.kind` is time-series"),
        ({"tokenizer.vocabulary_size": 300}, r"`tokenizer\.vocabulary_size` means nothing"),
        ({"tokenizer.nfc": True}, r"`tokenizer` means nothing where `task\.kind` is time-series"),
        ({"data.filters.max_tokens": 9}, r"`data\.filters` means nothing where"),
        ({"data.languages": ["zh", "en"]}, r"`data\.languages` means nothing where"),
        ({"init_from": "models/x"}, r"`init_from` means nothing"),
        ({"model.kind": "transformer"}, r"`model\.kind` is transformer, but `task\.kind` = time-series takes series"),
        ({"task.context": 9}, r"`task\.context` means nothing where `task\.kind` is time-series"),
        ({"task.series.past": 600}, r"a window is 606 points .* but the training part, without the end that is held"),
        (
            {"task.series.season": 590},
            r"`task\.series\.season` is 590, but only 540 points are known before",
        ),
        ({"task.series.columns": ["wind"]}, r"table\.csv:1: there is no column `wind`"),
    ],
)
def test_settings_that_time_series_do_not_use_are_refused(
    settings: dict[str, Any], message: str, table: Path, tmp_path: Path
) -> None:
    content = SETTINGS | {"data.source": [str(table)]} | settings
    with pytest.raises(TransduceError, match=message):
        train(out=tmp_path / "out", settings=content, device="cpu", threads=1)
    assert not (tmp_path / "out").exists()


def test_files_of_different_columns_are_refused(table: Path, write_lines: WriteLines, tmp_path: Path) -> None:
    other = write_lines("other.csv", ["load,wind", "1,2"])
    with pytest.raises(TransduceError, match=r"All files must have the same columns, but .* has load, heat and"):
        train(out=tmp_path / "out", source=[table, other], settings=SETTINGS, device="cpu", threads=1)


def test_a_run_without_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TransduceError, match=r"A forecaster learns from tables of numbers: name them by `data.source`"):
        train(out=tmp_path / "out", settings=SETTINGS, device="cpu", threads=1)


def test_a_history_that_cannot_be_read_is_refused(forecaster: Forecaster) -> None:
    with pytest.raises(TransduceError, match="The model reads 24 points of the past, but the history has 23"):
        forecaster(wave(23))
    with pytest.raises(TransduceError, match=r"a column for each of load, heat, but this one has the shape \(30,\)"):
        forecaster(np.zeros(30))
    with pytest.raises(TransduceError, match="finite numbers only"):
        forecaster(np.full((30, 2), np.nan))
    with pytest.raises(TransduceError, match=r"must be at most 1e\+100 in size, .* but one is 1e\+300"):
        forecaster(np.full((30, 2), -1e300))
    anything: Any = [["a", "b"]] * 30
    with pytest.raises(TransduceError, match="A history must be a table of numbers, but this one is none: could not"):
        forecaster(anything)
    for steps in ("3", 2.5, True):
        wrong: Any = steps
        with pytest.raises(TransduceError, match=rf"`steps` must be a whole number, but is {steps!r}"):
            forecaster(wave(30), wrong)
    with pytest.raises(TransduceError, match="`seed` must be at most"):
        forecaster(wave(30), seed=2**70)
    assert (forecaster(wave(30), np.int64(3)).values == forecaster(wave(30), 3).values).all()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("past", "message"),
    [
        (np.zeros((2, 5, 2)), "The model reads 24 points of the past, but the history has 5"),
        (np.zeros((2, 30, 3)), r"this one has the shape \(2, 30, 3\)"),
        (np.zeros((30, 2)), r"this one has the shape \(30, 2\)"),
        (np.full((2, 30, 2), np.inf), "finite numbers only"),
        (np.zeros((0, 30, 2)), "A forecast needs at least one window, but there is none"),
    ],
)
def test_windows_that_cannot_be_read_are_refused(past: Any, message: str, forecaster: Forecaster) -> None:
    with pytest.raises(TransduceError, match=message):
        forecaster.forecast_windows(past, 3)


def test_opening_a_forecaster_as_a_text_model_names_the_forecast_command(model: Path) -> None:
    with pytest.raises(TransduceError, match="but a model of text is needed here: `transduce forecast` uses it"):
        read_any_model_folder(model)


def test_a_folder_whose_scale_was_changed_is_refused(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("checkpoints"))
    card = (folder / "series.json").read_text("utf-8")
    (folder / "series.json").write_text(card.replace('"horizon": 6', '"horizon": 7'), "utf-8")
    with pytest.raises(TransduceError, match=r"series\.json is damaged"):
        load_forecaster(folder, device="cpu", threads=1)


def test_the_folder_of_another_task_is_refused(trained: Path) -> None:
    with pytest.raises(TransduceError, match="Forecasting needs a model that was trained with `--task time-series`"):
        load_forecaster(trained)


def test_stored_numbers_that_were_changed_are_refused(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(model, folder)
    path = folder / "series" / "training.f64"
    path.write_bytes(path.read_bytes()[:-8] + b"\0" * 8)
    with pytest.raises(TransduceError, match=r"training\.f64 is not what the run stored"):
        train(out=folder, settings={"training.steps": 300}, resume=True, device="cpu", threads=1)


def test_the_number_of_steps_counts_whole_windows() -> None:
    kind = TimeSeriesKind()
    assert kind.choose_steps(421, 421 * 24 * 100, 1_024).value == 20 * 421  # a window is more than a step's numbers
    assert kind.choose_steps(8_400, 8_400 * 24, 1_024).value == 20 * 200  # 42 windows a step
