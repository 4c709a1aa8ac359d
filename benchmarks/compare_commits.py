"""Compare the working tree with a base commit: losses, weights, outputs and speed, in one session on one machine.

    python benchmarks/compare_commits.py BASE                # every model kind, both kernels, fp32 and bf16; two sizes
    python benchmarks/compare_commits.py BASE --quick        # a few kinds, small sizes: about five minutes
    python benchmarks/compare_commits.py BASE --only equal   # no speed; `speed`: nothing else
    python benchmarks/compare_commits.py BASE --json rows.json

The base is checked out into a temporary folder (`git worktree`). Two worker processes, one on the source of each, do
the same jobs: training runs from the same settings, outputs of frozen models (`tests/compat/sets`) and of a model that
the base trained. The workers use public names and the command line alone, so that modules may move between the commits.
Speed measurements alternate, base first and then last, by wall clock (commands by processor time; `--cpu-time`: all).
Each ratio is the median of the ratios of adjacent measurements: above 1 the working tree is faster. The exit status is
1 if anything differs or is slower than 0.98 of the base.
"""

import argparse
import contextlib
import hashlib
import importlib
import io
import itertools
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from report import REPOSITORY, Row, machine, parser, report

COMPAT = REPOSITORY / "tests" / "compat"
SPEED_BAR = 0.98
QUICK_KINDS = ("translation-joint", "translation-rotary", "recurrent-lstm", "language-model", "time-series")
SIZES: dict[str, dict[str, int]] = {
    "64 x 1+1": {"d_model": 64, "d_ff": 256, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1},
    "128 x 2+2": {"d_model": 128, "d_ff": 512, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 2},
    "256 x 3+3": {"d_model": 256, "d_ff": 1024, "num_heads": 4, "num_encoder_layers": 3, "num_decoder_layers": 3},
    "512 x 6+6": {"d_model": 512, "d_ff": 2048, "num_heads": 8, "num_encoder_layers": 6, "num_decoder_layers": 6},
}
_ANSWER = "compare_commits answers: "


# --- the worker: runs on the source of one commit ---


def maker() -> Any:
    """Return `tests/compat/make_all_kinds.py` of the working tree, which describes models and reads their outputs."""
    if str(COMPAT) not in sys.path:
        sys.path.append(str(COMPAT))
    return importlib.import_module("make_all_kinds")


def train_job(out: str, settings: dict[str, Any], threads: int) -> dict[str, Any]:
    """Train, and return the losses of all reported steps, their speed and the hash of the weights."""
    import transduce

    start = time.process_time()
    try:
        transduce.train(out=out, settings=settings, device="cpu", threads=threads)
    except transduce.TransduceError as error:
        return {"refused": str(error)}
    events = [json.loads(line) for line in Path(out, "metrics.jsonl").read_text("utf-8").split("\n") if line]
    steps = [event for event in events if "loss" in event and event["event"] == "train"]
    return {
        "losses": [step["loss"] for step in steps],
        "dev_losses": [event["loss"] for event in events if event["event"] == "validation"],
        "tokens_per_second": statistics.median(step["tokens_per_second"] for step in steps[len(steps) // 3 :]),
        "cpu_seconds": time.process_time() - start,
        "weights": weights_hash(Path(out, "model.safetensors")),
    }


def weights_hash(path: Path) -> str:
    """Return a hash of the tensors by name, which does not depend on the file's metadata."""
    from safetensors import safe_open

    digest = hashlib.sha256()
    with safe_open(path, framework="np") as file:
        for name in sorted(file.keys()):
            digest.update(name.encode())
            digest.update(file.get_tensor(name).tobytes())
    return digest.hexdigest()


def outputs_job(folder: str) -> dict[str, Any]:
    """Return the texts and numbers that a frozen model of any kind computes."""
    texts, numbers = maker().outputs(maker().open_model(Path(folder)), "model")
    return {"texts": texts, "numbers": {name: values.ravel().tolist() for name, values in numbers.items()}}


class Decoder:
    """A cache of opened translators, so that measured times exclude opening."""

    def __init__(self) -> None:
        self.opened: dict[tuple[str, str, int], Any] = {}

    def decode_job(self, folder: str, precision: str, beam_size: int, lines: list[str], threads: int) -> dict[str, Any]:
        """Translate lines, and return texts, scores and seconds."""
        import transduce

        key = folder, precision, threads
        if key not in self.opened:
            self.opened[key] = transduce.load(folder, precision=precision, device="cpu", threads=threads)
        start, cpu_start = time.perf_counter(), time.process_time()
        found = self.opened[key](lines, beam_size=beam_size, max_length=30)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        scores = [each.alternatives[0].score for each in found]
        texts = [each.text for each in found]
        return {"texts": texts, "scores": scores, "seconds": seconds, "cpu_seconds": cpu_seconds}

    def latency_job(self, folder: str, line: str, times: int, threads: int) -> dict[str, Any]:
        """Return the median seconds of translating one sentence alone."""
        found = [self.decode_job(folder, "fp32", 4, [line], threads) for _ in range(times)]
        return {name: statistics.median(each[name] for each in found) for name in ("seconds", "cpu_seconds")}


def serve_jobs() -> None:
    """Run the jobs that standard input names as JSON objects, one per line, and answer each with a line."""
    decoder, answers = Decoder(), sys.stdout
    jobs: dict[str, Callable[..., dict[str, Any]]] = {
        "train": train_job,
        "outputs": outputs_job,
        "decode": decoder.decode_job,
        "latency": decoder.latency_job,
    }
    for line in sys.stdin:
        job = json.loads(line)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            answer = jobs[job.pop("job")](**job)
        answers.write(_ANSWER + json.dumps(answer) + "\n")
        answers.flush()


# --- both sides ---


class Side:
    """The source tree of one commit, with a worker process that uses it."""

    def __init__(self, name: str, tree: Path) -> None:
        self.name, self.folder = name, tree / "work"
        folder = self.folder
        folder.mkdir()
        self.environment = os.environ | {
            "PYTHONPATH": str(tree / "src"),
            "TRANSDUCE_CACHE": str(folder / "cache"),
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONWARNINGS": "ignore",
        }
        shutil.copytree(newest_set() / "corpora", folder, dirs_exist_ok=True)
        self._worker = subprocess.Popen(
            [sys.executable, __file__, "--worker"],
            env=self.environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def ask(self, job: str, **arguments: Any) -> dict[str, Any]:
        """Send the worker a job, and return its answer."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(json.dumps({"job": job} | arguments) + "\n")
        self._worker.stdin.flush()
        for line in self._worker.stdout:
            if line.startswith(_ANSWER):
                answer: dict[str, Any] = json.loads(line.removeprefix(_ANSWER))
                return answer
        raise SystemExit(f"The worker on the {self.name} ended during `{job}` {arguments}.")

    def run(self, *command: str) -> tuple[str, float]:
        """Run Python with these arguments; return what it prints, and its seconds of processor time."""
        start = _seconds_of_children()
        found = subprocess.run(
            [sys.executable, *command],
            env=self.environment,
            cwd=self.folder,
            check=True,
            capture_output=True,
            text=True,
        )
        return found.stdout, _seconds_of_children() - start

    def close(self) -> None:
        """End the worker."""
        assert self._worker.stdin is not None
        self._worker.stdin.close()
        self._worker.wait()


def _seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def newest_set() -> Path:
    """Return the folder of the newest frozen set."""
    return sorted((COMPAT / "sets").iterdir())[-1]


Sides = tuple[Side, Side]


# --- equality ---


def training_rows(sides: Sides, *, quick: bool) -> Iterator[Row]:
    """Train every kind of model with both commits, and compare all losses and the final weights."""
    steps = 8 if quick else 20
    for name, settings in maker().MODELS.items():
        if quick and name not in QUICK_KINDS:
            continue
        for kernels, precision in itertools.product(("torch", "native"), ("fp32",) if quick else ("fp32", "bf16")):
            changed = {"kernels": kernels, "precision": precision, "steps": steps, "validate_every": steps}
            run_settings = {key: value for key, value in settings.items() if value is not None}
            run_settings |= {f"training.{key}": value for key, value in changed.items()}
            if "start_from" in run_settings:
                run_settings["start_from"] = str(newest_set() / run_settings["start_from"])
            out = f"equal/{name}-{kernels}-{precision}"
            base, head = (side.ask("train", out=out, settings=run_settings, threads=1) for side in sides)
            title = f"training {name}, {kernels}, {precision}"
            if "refused" in base or "refused" in head:
                agree = ("refused" in base) == ("refused" in head)
                yield Row(f"{title}: refused by both", float(agree), "of 1", bar="1", holds=agree)
                continue
            yield difference(
                f"{title}: losses", base["losses"] + base["dev_losses"], head["losses"] + head["dev_losses"]
            )
            yield Row(
                f"{title}: weights' hashes equal",
                float(base["weights"] == head["weights"]),
                "of 1",
                bar="1",
                holds=base["weights"] == head["weights"],
            )


def difference(name: str, base: list[float], head: list[float]) -> Row:
    """Return a row with the largest difference of two lists of numbers, which must be 0."""
    same_length = len(base) == len(head)
    largest = max((abs(a - b) for a, b in zip(base, head, strict=False)), default=0.0) if same_length else float("inf")
    return Row(f"{name}, largest difference", largest, "", peer="base", peer_value=0.0, bar="0", holds=largest == 0.0)


def output_rows(sides: Sides) -> Iterator[Row]:
    """Compare the outputs of every frozen model."""
    for folder in sorted((newest_set() / "models").iterdir()):
        base, head = (side.ask("outputs", folder=str(folder)) for side in sides)
        yield differing(f"outputs of {folder.name}: texts that differ", base["texts"], head["texts"])
        numbers = (
            [value for key in sorted(each["numbers"]) for value in each["numbers"][key]] for each in (base, head)
        )
        yield difference(f"outputs of {folder.name}: numbers", *numbers)


def differing(name: str, base: list[str], head: list[str]) -> Row:
    """Return a row with the number of texts that differ, which must be 0."""
    count = sum(a != b for a, b in itertools.zip_longest(base, head))
    return Row(name, float(count), f"of {len(base)}", peer="base", peer_value=0.0, bar="0", holds=count == 0)


# --- a larger model: outputs and speed ---


def write_corpus(folder: Path, pairs: int = 2000) -> list[str]:
    """Write random sentences of made-up words and their word-by-word translations; return some sources."""
    chooser = random.Random(1)
    words = ["".join(chooser.choice("bdfgklmnprstvz") + chooser.choice("aeiou") for _ in range(3)) for _ in range(600)]
    sources = [" ".join(chooser.choices(words, k=chooser.randint(4, 24))) for _ in range(pairs)]
    for name, part in (("random", sources), ("random_dev", sources[:20])):
        (folder / f"{name}.aa").write_text("".join(f"{line}\n" for line in part), "utf-8")
        (folder / f"{name}.bb").write_text("".join(f"{line[::-1]}\n" for line in part), "utf-8")
    return sources[:400]


def size_settings(size: dict[str, int], steps: int, kernels: str) -> dict[str, Any]:
    """Return the settings for training a model of this size on the random corpus."""
    training = {"steps": steps, "batch_tokens": 2048, "report_every": 2, "validate_every": steps, "save_every": steps}
    run_settings: dict[str, Any] = {
        "preset": "tiny",
        "tokenizer.vocabulary_size": 2000,
        "tokenizer.byte_fallback": False,
    }
    run_settings |= {f"model.{name}": value for name, value in size.items()}
    run_settings |= {f"training.{name}": value for name, value in training.items()}
    run_settings["search.min_length"] = 20  # a model of so few steps would end at once
    run_settings |= {"training.kernels": kernels, "training.precision": "fp32", "training.translate_dev": 2}
    for name, file in (("source", "random.aa"), ("target", "random.bb"), ("dev_source", "random_dev.aa")):
        run_settings[f"data.{name}"] = [file]
    return run_settings | {"data.dev_target": ["random_dev.bb"]}


def size_rows(sides: Sides, title: str, options: argparse.Namespace) -> Iterator[Row]:
    """Compare training speed, translations and decoding speed of a model of one size."""
    lines, _ = (write_corpus(side.folder) for side in sides)
    turns, steps, threads = (3, 12, options.threads) if options.quick else (7, 24, options.threads)
    size = SIZES[title]
    for kernels in ("native", "torch"):
        run_settings = size_settings(size, steps, kernels)
        outs = iter(range(10_000))

        def train(
            side: Side, run_settings: dict[str, Any] = run_settings, kernels: str = kernels, outs: Iterator[int] = outs
        ) -> float:
            out = f"speed/{title}-{kernels}-{next(outs)}"
            answer = side.ask("train", out=out, settings=run_settings, threads=threads)
            shutil.rmtree(side.folder / out / "checkpoints")
            return float(answer["cpu_seconds"] if options.cpu_time else 1.0 / answer["tokens_per_second"])

        if options.only != "equal":
            if options.cpu_time:
                yield speed_row(f"training run of {steps} steps {title}, {kernels}", sides, train, turns)
            else:
                row = f"training step {title}, {kernels}, seconds a token"
                yield speed_row(row, sides, train, turns, scale=1e6, unit="µs")
    trained = sides[0].folder / "trained" / title
    sides[0].ask("train", out=str(trained), settings=size_settings(size, 60, "torch"), threads=threads)
    copy = sides[1].folder / "trained" / title
    shutil.copytree(trained, copy)
    folders = {sides[0]: str(trained), sides[1]: str(copy)}
    yield from decoding_rows(sides, title, folders, lines[: 60 if options.quick else 400], options)


def decoding_rows(
    sides: Sides, title: str, folders: dict[Side, str], lines: list[str], options: argparse.Namespace
) -> Iterator[Row]:
    """Compare translations, scores and speed of a model that the base trained."""
    turns, clock = 9 if options.quick else 21, "cpu_seconds" if options.cpu_time else "seconds"
    for precision, beam_size in itertools.product(("fp32",) if options.quick else ("fp32", "bf16", "int8"), (1, 4)):
        how = f"{title}, {precision}, {'greedy' if beam_size == 1 else f'beam {beam_size}'}"
        job = {"precision": precision, "beam_size": beam_size, "lines": lines, "threads": options.threads}
        base, head = (side.ask("decode", folder=folders[side], **job) for side in sides)
        if options.only != "speed":
            yield differing(f"translations {how}: texts that differ", base["texts"], head["texts"])
            yield difference(f"translations {how}: scores", base["scores"], head["scores"])
        if options.only != "equal":

            def decode(side: Side, job: dict[str, Any] = job) -> float:
                return float(side.ask("decode", folder=folders[side], **job)[clock])

            yield speed_row(f"decoding {how}", sides, decode, turns)
    if options.only != "equal":

        def latency(side: Side) -> float:
            one = {"line": lines[0], "times": 20, "threads": options.threads}
            return float(side.ask("latency", folder=folders[side], **one)[clock])

        yield speed_row(f"one sentence {title}, beam 4", sides, latency, turns, scale=1e3, unit="ms")


def command_rows(sides: Sides, options: argparse.Namespace) -> Iterator[Row]:
    """Compare the command line: translations of a frozen model, and the times of `--help` and of imports."""
    folder, lines = str(newest_set() / "models" / "translation-joint"), "dev.zh"
    if options.only != "speed":
        translate = ("-m", "transduce", "translate", folder, lines, "--device", "cpu", "--threads", "1")
        base, head = (side.run(*translate)[0].split("\n") for side in sides)
        yield differing("`transduce translate`: lines that differ", base, head)
    if options.only != "equal":
        turns = 3 if options.quick else 15
        for name, command in (
            ("import transduce", ["-c", "import transduce"]),
            (
                "import of all public names",
                ["-c", "import transduce; [getattr(transduce, n) for n in transduce.__all__]"],
            ),
            ("transduce --help", ["-m", "transduce", "--help"]),
            ("transduce translate --help", ["-m", "transduce", "translate", "--help"]),
        ):

            def run(side: Side, command: Sequence[str] = command) -> float:
                return side.run(*command)[1]

            yield speed_row(name, sides, run, turns, scale=1e3, unit="ms")


def speed_row(
    name: str, sides: Sides, measure: Callable[[Side], float], turns: int, *, scale: float = 1.0, unit: str = "s"
) -> Row:
    """Measure both sides alternately after a warm-up, and return a row with medians and the median ratio."""
    for side in sides:
        measure(side)
    taken: dict[Side, list[float]] = {side: [] for side in sides}
    for turn in range(turns):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            taken[side].append(measure(side))
    base, head = (statistics.median(taken[side]) * scale for side in sides)
    ratio = statistics.median(b / h for b, h in zip(taken[sides[0]], taken[sides[1]], strict=True))
    return Row(
        name,
        head,
        unit,
        peer="base",
        peer_value=base,
        ratio=ratio,
        bar=f"ratio at least {SPEED_BAR}",
        holds=ratio >= SPEED_BAR,
    )


# --- both together ---


@contextlib.contextmanager
def both_sources(commit: str) -> Iterator[tuple[Path, Path]]:
    """Yield two folders whose `src` contains the source of a commit and of the working tree."""
    git = ["git", "-C", str(REPOSITORY)]
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name, "tree")
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)
        # Both sources are on one file system at paths of equal length, so that import times are comparable.
        copied = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / "src", Path(name, "head", "src"), ignore=copied)
        shutil.copytree(tree / "src", Path(name, "base", "src"), ignore=copied)
        try:
            yield Path(name, "base"), Path(name, "head")
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)


def rows(sides: Sides, options: argparse.Namespace) -> Iterator[Row]:
    """Yield all requested rows."""
    if options.only != "speed":
        yield from output_rows(sides)
        yield from training_rows(sides, quick=options.quick)
    yield from command_rows(sides, options)
    for title in ("64 x 1+1", "128 x 2+2") if options.quick else ("256 x 3+3", "512 x 6+6"):
        yield from size_rows(sides, title, options)


def main() -> int:
    """Compare both sides, and print each row when it is measured."""
    made = parser(__doc__)
    made.add_argument("base", metavar="BASE", help="the commit to compare with, such as main or HEAD~3")
    made.add_argument("--only", choices=("equal", "speed"), help="only compare results, or only measure speed")
    made.add_argument("--cpu-time", action="store_true", help="measure processor time, if other programs are running")
    made.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads of the speed measurements")
    options = made.parse_args()
    sys.stderr.write(f"{machine()}\n")
    found = []
    with both_sources(options.base) as (base, head):
        sides = Side("base", base), Side("working tree", head)
        try:
            for row in rows(sides, options):
                found.append(row)
                ratio = "" if row.ratio is None else f", ratio {row.ratio:.3f}"
                sys.stderr.write(f"{'ok ' if row.holds else 'BAD'} {row.name}: {row.value:g} {row.unit}{ratio}\n")
        finally:
            for side in sides:
                side.close()
    return report(found, options.json)


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        serve_jobs()
    else:
        raise SystemExit(main())
