"""Compare forecasts of a noisy sum of sines with a trend against repeating the last season: error on unseen time.

    python benchmarks/time_series.py            # two trainings of about three minutes on one thread
    python benchmarks/time_series.py --quick    # one of a minute, without bars

The series has a day of 24 points, a week of 168, two more waves with other periods, a trend, and noise. The first 80 %
is the training part, the next tenth selects the best weights, and the last tenth is forecast one horizon after another.
The peer is the better of repeating the last day and the last week. Bar: an error at least 30 % lower. The noise is the
lower bound of any forecast's error; its deviation is shown next to the errors.
"""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from report import REPOSITORY, Row, machine, parser, report

BAR_PERCENT = 30.0
SEASONS = {"day": 24, "week": 168}
NOISE = 0.3
HORIZON, PAST = 24, 192


class Work(NamedTuple):
    """The scope of a comparison: full or quick."""

    folder: Path
    points: int
    steps: int


def sines(points: int, seed: int = 7) -> NDArray[np.float64]:
    """Return waves of 24, 168, 57.3 and 11.1 points, a trend of 3 over 1,000 points, and noise."""
    time = np.arange(points)
    waves = ((1.0, 24.0, 0.3), (0.8, 168.0, 1.1), (0.7, 57.3, 2.0), (0.4, 11.1, 0.7))
    clean = sum(size * np.sin(2.0 * math.pi * time / period + phase) for size, period, phase in waves)
    noise = np.random.Generator(np.random.Philox(seed)).normal(scale=NOISE, size=points)
    return np.asarray(clean + 0.003 * time + noise)


def write_tables(folder: Path, points: int) -> dict[str, Path]:
    """Write the first eight tenths of the series as train, the ninth as dev and the tenth as test.

    Dev and test start with the points that the model reads before its first forecast.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values = sines(points)
    first, second = int(points * 0.8), int(points * 0.9)
    parts = {"train": values[:first], "dev": values[first - PAST : second], "test": values[second - PAST :]}
    paths = {name: folder / f"{name}.csv" for name in parts}
    for name, part in parts.items():
        text = "".join(f"{value:.6f}\n" for value in part)
        paths[name].write_text(f"load\n{text}", encoding="utf-8", newline="\n")
    return paths


def train(work: Work, tables: dict[str, Path], likelihood: str) -> Path:
    """Run `transduce train`, resuming an interrupted run."""
    out = work.folder / likelihood
    command = [sys.executable, "-m", "transduce", "train", "--task", "time-series", "--out", str(out), "--resume"]
    command += ["--source", str(tables["train"]), "--dev-source", str(tables["dev"]), "--steps", str(work.steps)]
    command += ["--set", f"task.series.past={PAST}", "--set", f"task.series.horizon={HORIZON}"]
    command += ["--set", f"task.series.likelihood={likelihood}", "--set", "model.d_model=64"]
    command += ["--device", "cpu", "--threads", "1"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return out


def score(model: Path, table: Path, season: int) -> dict[str, Any]:
    """Return the errors on the test part, and those of repeating a season."""
    command = [sys.executable, "-m", "transduce", "forecast", str(model), str(table), "--score", "--json", "-"]
    command += ["--season", str(season), "--device", "cpu", "--threads", "1"]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def rows_of(model: Path, table: Path, likelihood: str, *, judged: bool) -> list[Row]:
    """Return rows with mean absolute and root mean square error, each compared with the better repetition."""
    scores = {name: score(model, table, season) for name, season in SEASONS.items()}
    rows = []
    for error in ("mean_absolute", "root_mean_square"):
        repeated = {name: found["series"]["load"][f"season_{error}"] for name, found in scores.items()}
        better = min(repeated, key=repeated.__getitem__)
        ours = scores[better]["series"]["load"][error]
        lower = 100.0 * (1.0 - ours / repeated[better])
        name = f"sum of sines, {likelihood}, {error.replace('_', ' ')} error"
        rows.append(
            Row(name, ours, "(noise 0.3)", f"the last {better} repeated", repeated[better], ours / repeated[better])
        )
        bar = f">= {BAR_PERCENT:g} % lower" if judged else None
        rows.append(Row(f"{name}, lower by", lower, "%", bar=bar, holds=lower >= BAR_PERCENT if judged else None))
    return rows


def main() -> int:
    """Train the unfinished models and report."""
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=800)
    options.add_argument("--points", type=int, default=8_000)
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "time-series")
    args = options.parse_args()
    work = Work(args.out / f"{args.points}-{args.steps}", args.points, args.steps)
    likelihoods = ["squared", "gaussian"]
    if args.quick:
        work, likelihoods = Work(args.out / "quick", 4_000, 300), ["squared"]
    print(machine(), file=sys.stderr)
    tables = write_tables(work.folder / "data", work.points)
    rows = []
    for likelihood in likelihoods:
        model = train(work, tables, likelihood)
        rows += rows_of(model, tables["test"], likelihood, judged=not args.quick)
    return report(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
