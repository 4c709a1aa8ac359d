"""`transduce forecast MODEL FILE.csv --steps N`: print forecasts of time series, or with `--score` their errors."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from transduce.commands.options import (
    add_device,
    add_json,
    check_json,
    check_writable,
    file_or_stream,
    loading_options,
    refuse_options,
    write_report,
    write_results,
)
from transduce.errors import TransduceError

if TYPE_CHECKING:
    from transduce.data.series import Numbers
    from transduce.evaluation.forecasts import ForecastReport
    from transduce.inference.forecaster import Forecast, Forecaster


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments and options of `transduce forecast` in its argparse parser."""
    add = parser.add_argument
    add("model", help="the folder of a forecaster")
    add("table", metavar="FILE", help="a .csv or .tsv table, plain or gzip, with a header; the newest line comes last")
    add("--steps", type=int, metavar="N", help="points to forecast (default: as many as in training)")
    add("--output", metavar="FILE", type=file_or_stream, help="write the table here (default: standard output)")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument(
        "--samples",
        type=int,
        default=0,
        metavar="N",
        help="draw N trajectories, and print the range of the middle 80 %% of them; for models trained with "
        "task.series.likelihood=gaussian",
    )
    sampling.add_argument("--seed", type=int, metavar="N", help="with --samples: random seed (default: 1)")
    scoring = parser.add_argument_group("scoring")
    scoring.add_argument(
        "--score", action="store_true", help="forecast the table's own points instead, and report the errors"
    )
    scoring.add_argument(
        "--last",
        type=int,
        metavar="N",
        help="with --score: use only the last N points, rounded down to a multiple of --steps (default: all)",
    )
    scoring.add_argument(
        "--season",
        type=int,
        metavar="N",
        help="with --score: points of a season, for the seasonal baseline (default: the model's)",
    )
    add_json(scoring.add_argument, needs="--score")
    add_device(parser)("--precision", default="auto", choices=("auto", "fp32", "bf16"), help="auto: fp32")


def run(options: argparse.Namespace) -> int:
    """Print a table (CSV) of forecasts or, with `--score`, a report of forecast errors; return 0."""
    from transduce.data.series import read_table
    from transduce.inference.forecaster import load_forecaster

    check_writable(options.output, report=options.json, inputs=[options.model, options.table])
    _check(options)
    forecaster = load_forecaster(options.model, **loading_options(options))
    values = read_table(options.table, forecaster.card.columns).values
    if options.score:
        write_report(score_table(forecaster, values, options), options.json)
        return 0
    forecast = forecaster(values, options.steps, samples=options.samples, seed=_seed(options))
    write_results((f"{line}\n" for line in table_lines(forecast)), options.output)
    return 0


def _seed(options: argparse.Namespace) -> int:
    return 1 if options.seed is None else int(options.seed)


def _check(options: argparse.Namespace) -> None:
    check_json(options, "score")
    if not options.score:
        refuse_options(options, ("last", "season"), "`{option}` needs `--score`: add that, or leave it out.")
    if not options.samples:
        refuse_options(options, ["seed"], "`{option}` needs `--samples`: add that, or leave it out.")
    if options.score and options.output:
        raise TransduceError("`--score` writes no table: leave `--output` out, or name a file with `--json`.")


def score_table(forecaster: "Forecaster", values: "Numbers", options: argparse.Namespace) -> "ForecastReport":
    """Forecast a table's own points, one stretch of `--steps` points after the other, and return the errors.

    Each stretch is forecast from the actual points before it.

    Args:
        forecaster: the model.
        values: the points of the table, (N, C).
        options: the options --steps, --last (score only the newest points), --season, --samples and --seed.

    Raises:
        TransduceError: an option is out of range, or the table is too short.
    """
    import numpy as np

    from transduce.data.series import WindowedSeries
    from transduce.evaluation.forecasts import score_forecasts

    card = forecaster.card
    steps = card.horizon if options.steps is None else options.steps
    season = card.season if options.season is None else options.season
    if not 1 <= season <= card.past:
        raise TransduceError(
            f"`--season` must be from 1 to {card.past}, the points that this model reads, but is {season}: choose a "
            "shorter season, or train a model that reads more points (`task.series.past`)."
        )
    if options.last is not None and options.last < steps:
        raise TransduceError(
            f"`--last` must be at least {steps}, the points that are forecast at a time, but is {options.last}: score "
            "more points, or forecast fewer (`--steps`)."
        )
    if steps < 1 or len(values) < card.past + steps:
        raise TransduceError(
            f"Scoring takes {card.past} points to read and `--steps` {steps} to forecast, but there are {len(values)} "
            "points: use a longer table, or fewer steps."
        )
    scored = values
    if options.last is not None:
        # The oldest points that fill no window are dropped, so that the newest are scored.
        windows = min(options.last, len(values) - card.past) // steps
        scored = values[len(values) - card.past - windows * steps :]
    series = WindowedSeries([scored], past=card.past, horizon=steps, stride=steps)
    past, actual = series.cut(np.arange(len(series)))
    forecast = forecaster.forecast_windows(past, steps, samples=options.samples, seed=_seed(options))
    return score_forecasts(past, actual, forecast.values, names=card.columns, season=season)


def table_lines(forecast: "Forecast") -> Iterator[str]:
    """Yield a forecast as the lines of a CSV table: a header, then one line per point, without line breaks.

    With samples, each series has three columns: the forecast, and the low and high end of its range.
    """
    import numpy as np

    from transduce.inference.forecaster import forecast_columns

    yield ",".join(_cell(name) for name in forecast_columns(forecast))
    parts = [part for part in (forecast.values, forecast.low, forecast.high) if part is not None]
    for row in np.stack(parts, axis=-1):  # (C, 1 or 3)
        yield ",".join(f"{value:.10g}" for value in row.ravel())


def _cell(name: str) -> str:
    """Return the name of a column as a cell of a CSV table, quoted if it contains a comma or quotes."""
    return '"' + name.replace('"', '""') + '"' if "," in name or '"' in name else name
