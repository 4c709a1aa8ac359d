"""Measure exact match on tasks that beginners try first: dates, numbers, sums, sorting, reversing, by default settings.

    python benchmarks/first_tasks.py                     # six tasks one after another: more than an hour of one core
    python benchmarks/first_tasks.py --only sort dates
    python benchmarks/first_tasks.py --set model.dropout=0.3
    python benchmarks/first_tasks.py --quick             # one task, few steps, no bar
    python benchmarks/first_tasks.py --json rows.json    # the figures as a list of rows; `-` for standard output

Each task has 10,000 to 40,000 generated training pairs and 1,000 held-out ones. `transduce train` gets two files and a
seed, and decides when to stop. Bar: at least 99 % of the held-out lines are exactly right by `transduce evaluate`. The
exit status is 1 if the bar is missed.
"""

import datetime
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from report import Row, machine, parser, report

HELD_OUT = 1000
BAR_PERCENT = 99.0
DATE_FORMATS = ("%d %B %Y", "%B %d, %Y", "%d/%m/%y", "%A, %d %B %Y", "%b %d %Y", "%d.%m.%Y", "%d %b %y")
NOUNS = "apple bear cat dog egg fish goat hat ice jam kite lion moon nest owl pig queen rat sun tree urn van wolf yak"
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"

Pair = tuple[str, str]


def date(random: random.Random) -> Pair:
    """Return a date in a common format, and in ISO 8601."""
    day = datetime.date(1970, 1, 1) + datetime.timedelta(random.randrange(20_000))
    return day.strftime(random.choice(DATE_FORMATS)), day.isoformat()


def number(random: random.Random) -> Pair:
    """Return a number in words, and in digits."""
    value = random.randrange(10 ** random.randint(1, 6))
    return in_words(value), str(value)


def in_words(value: int) -> str:
    """Return a number below a million in British English words."""
    if value < 20:
        return ONES.split()[value]
    if value < 100:
        return TENS.split()[value // 10 - 2] + (f"-{in_words(value % 10)}" if value % 10 else "")
    if value < 1000:
        return f"{in_words(value // 100)} hundred" + (f" and {in_words(value % 100)}" if value % 100 else "")
    thousands, rest = divmod(value, 1000)
    return f"{in_words(thousands)} thousand" + (f"{' ' if rest >= 100 else ' and '}{in_words(rest)}" if rest else "")


def addition(random: random.Random) -> Pair:
    """Return a sum of two numbers of up to four digits, and its result."""
    one, other = (random.randrange(10 ** random.randint(1, 4)) for _ in range(2))
    return f"{one}+{other}", str(one + other)


def some_words(random: random.Random) -> list[str]:
    """Return one to nine random words, possibly repeated."""
    return random.choices(NOUNS.split(), k=random.randint(1, 9))


def sorting(random: random.Random) -> Pair:
    """Return words, and the words in alphabetical order."""
    words = some_words(random)
    return " ".join(words), " ".join(sorted(words))


def reversing(random: random.Random) -> Pair:
    """Return words, and the words in reverse order."""
    words = some_words(random)
    return " ".join(words), " ".join(reversed(words))


def spelling(random: random.Random) -> Pair:
    """Return a word of random letters, and its letters in reverse order, separated by dots."""
    word = "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=random.randint(3, 10)))
    return word, ".".join(reversed(word))


# The generator of pairs, and the number of training pairs.
TASKS: dict[str, tuple[Callable[[random.Random], Pair], int]] = {
    "dates": (date, 10_000),
    "numbers": (number, 10_000),
    "addition": (addition, 40_000),
    "sort": (sorting, 16_000),
    "reverse": (reversing, 16_000),
    "spell": (spelling, 16_000),
}


def write_task(name: str, seed: int, folder: Path) -> None:
    """Write `train.in`, `train.out`, `test.in` and `test.out` with distinct sources."""
    make, count = TASKS[name]
    drawn = random.Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < count + HELD_OUT:
        source, target = make(drawn)
        pairs[source] = target
    listed = list(pairs.items())
    drawn.shuffle(listed)
    for part, chosen in (("test", listed[:HELD_OUT]), ("train", listed[HELD_OUT:])):
        for side, suffix in enumerate(("in", "out")):
            text = "".join(f"{pair[side]}\n" for pair in chosen)
            (folder / f"{part}.{suffix}").write_text(text, encoding="utf-8", newline="\n")


def run_task(name: str, seed: int, options: list[str], folder: Path) -> Row:
    """Train on a task, and return a row with the score on held-out pairs."""
    write_task(name, seed, folder)
    command = [sys.executable, "-m", "transduce"]
    files = ["--source", str(folder / "train.in"), "--target", str(folder / "train.out")]
    started_at = time.monotonic()
    run = subprocess.run(
        [*command, "train", *files, "--out", str(folder / "model"), "--seed", str(seed), *options],
        check=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    minutes = (time.monotonic() - started_at) / 60
    files = ["--source", str(folder / "test.in"), "--reference", str(folder / "test.out")]
    scored = subprocess.run(
        [*command, "evaluate", str(folder / "model"), *files, "--json", "-"],
        check=True,
        capture_output=True,
        text=True,
    )
    exact = 100 * json.loads(scored.stdout)["exact_match"] / HELD_OUT
    stopped = re.search(r"(?:Stopped after|Finished at) step ([\d,]+)(?: \((.*?)\))?", run.stderr)
    steps = f"{stopped[1]} steps ({stopped[2] or 'finished'})" if stopped else "?"
    off = re.search(r"Dropout is off from step ([\d,]+)", run.stderr)
    dropout = f", dropout off from {off[1]}" if off else ""
    what = f"{name}, seed {seed}: exact after {steps}, {minutes:.1f} min{dropout}"
    return Row(what, exact, "%", bar=f"≥ {BAR_PERCENT:g} %", holds=exact >= BAR_PERCENT)


def main() -> int:
    """Run the selected tasks and report."""
    options = parser(__doc__)
    options.add_argument("--only", nargs="+", choices=tuple(TASKS), default=list(TASKS), help="tasks to run")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting for `transduce train`"
    )
    args = options.parse_args()
    more = [option for value in args.set for option in ("--set", value)]
    names = args.only
    if args.quick:
        names, more = names[:1], [*more, "--steps", "300"]
    print(machine(), file=sys.stderr)
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            row = run_task(name, args.seed, more, Path(folder))
        rows.append(row._replace(bar=None, holds=None) if args.quick else row)
        print(rows[-1].name, f"{rows[-1].value:.1f} %", file=sys.stderr, flush=True)
    return report(rows, args.json)


if __name__ == "__main__":
    sys.exit(main())
