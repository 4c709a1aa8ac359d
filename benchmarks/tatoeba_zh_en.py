"""Compare Tatoeba Chinese to English with JoeyNMT 2.3.0: BLEU and chrF on test after the same training time.

    python benchmarks/tatoeba_zh_en.py                      # 45 minutes each; finished parts are not repeated
    python benchmarks/tatoeba_zh_en.py --only joeynmt-256   # one of: ours, joeynmt-ours, joeynmt-256
    taskset -c 1 python benchmarks/tatoeba_zh_en.py --only joeynmt-256 --peer-minutes 62   # JoeyNMT on one core, longer
    python benchmarks/tatoeba_zh_en.py --quick              # one minute each, few dev and test sentences

All have the same files and cores. Ours is `transduce train` with only the minutes set. JoeyNMT has the settings of its
examples, a joint vocabulary of 8,000 tokens and batches of 4,096 tokens, with our model sizes and with 6+6 layers x
256; the better of the two on test is the peer. JoeyNMT's clock excludes validation; ours includes it. Bar: +8 BLEU.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from choices import chosen_values, train_command
from environments import peer_python
from report import REPOSITORY, Row, data_folder, machine, parser, report

from transduce import score
from transduce.atomic_io import write_file
from transduce.machine import detect_machine
from transduce.text.files import read_lines

BAR_BLEU = 8.0
SOURCE, TARGET = "zh", "en"
# JoeyNMT 2.3.0 does not declare two packages that it imports, and fails with later versions of sentencepiece.
JOEYNMT = ("joeynmt==2.3.0", "importlib_metadata", "setuptools", "sentencepiece==0.2.0")
JOEYNMT_SETTINGS = {
    "vocabulary_size": 8000,
    "batch_tokens": 4096,
    # As in its transformer_small example, but a shorter warm-up than 1,000 steps: the run has one or two thousand.
    "learning_rate_factor": 0.5,
    "warmup_steps": 400,
    "beam_size": 5,
    "seed": 42,
}
JOEYNMT_256: dict[str, float] = {
    "num_encoder_layers": 6,
    "num_decoder_layers": 6,
    "d_model": 256,
    "d_ff": 1024,
    "num_heads": 4,
    "dropout": 0.3,
}
RESULT = "result.json"
PARTS = {"ours": "transduce", "joeynmt-ours": "JoeyNMT, our shape", "joeynmt-256": "JoeyNMT, 6+6 x 256"}


class Work(NamedTuple):
    """The scope of a comparison: full or quick."""

    folder: Path
    minutes: float
    peer_minutes: float
    joeynmt_dev_lines: int
    """Dev sentences with which JoeyNMT selects its best checkpoint; it decodes slowly, without a cache."""
    joeynmt_validations: int
    most_pieces: int
    """Maximum tokens of a translation by JoeyNMT; the longest training sentence has 46."""
    lines: int | None
    """Maximum number of dev and of test sentences; None: all."""


def full_work(out: Path, minutes: float, peer_minutes: float) -> Work:
    """Return the full scope, for which the bar is defined."""
    return Work(out / f"{minutes:g}min", minutes, peer_minutes, 500, 5, 60, None)


def quick_work(out: Path) -> Work:
    """Return a reduced scope with short translations, because a model trained for a minute repeats itself to
    the limit.
    """
    return Work(out / "quick", 1.0, 1.0, 40, 1, 20, 50)


Files = dict[str, dict[str, Path]]


def original_file(part: str, side: str) -> Path:
    """Return the file of a part of the Tatoeba corpus, such as "train", and a side, such as "zh"."""
    return data_folder() / "tatoeba-zh-en" / f"{part}.{side}.gz"


def write_corpus(source: Callable[[str, str], Path], folder: Path, limits: dict[str, int | None]) -> Files:
    """Write the corpus as plain text by part and language, each part cut to its limit."""
    folder.mkdir(parents=True, exist_ok=True)
    files: Files = {part: {side: folder / f"{part}.{side}" for side in (SOURCE, TARGET)} for part in limits}
    for part, limit in limits.items():
        for side, path in files[part].items():
            lines = itertools.islice(read_lines(source(part, side)), limit)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return files


def training_files(files: Files) -> dict[str, str]:
    """Return the corpus as options of `transduce train`."""
    options = {"source": ("train", SOURCE), "target": ("train", TARGET)}
    options |= {"dev-source": ("dev", SOURCE), "dev-target": ("dev", TARGET)}
    return {option: str(files[part][side]) for option, (part, side) in options.items()}


def run_ours(work: Work, folder: Path, files: Files) -> dict[str, Any]:
    """Train with default settings, resuming an interrupted run, and translate with the default search."""
    model, evaluated = folder / "model", folder / "evaluation.json"
    command = train_command(training_files(files), model)
    subprocess.run([*command, "--minutes", str(work.minutes), "--device", "cpu", "--resume"], check=True)
    command = [sys.executable, "-m", "transduce", "evaluate", str(model), "--device", "cpu", "--json", str(evaluated)]
    command += ["--source", str(files["test"][SOURCE]), "--reference", str(files["test"][TARGET])]
    subprocess.run([*command, "--output", str(folder / "test.hypotheses")], check=True)
    events = [json.loads(line) for line in read_lines(model / "metrics.jsonl")]
    last = [event for event in events if event["event"] == "train"][-1]
    training = {"steps": last["step"], "training_seconds": last["elapsed_seconds"]}
    return {"scores": json.loads(evaluated.read_text(encoding="utf-8")), "training": training}


def our_shape(work: Work, files: Files) -> dict[str, float]:
    """Return the model sizes that `transduce train` chooses for this corpus."""
    _, chosen = chosen_values(training_files(files), work.folder, work.minutes)
    values = {name: chosen[f"model.{name}"] for name in JOEYNMT_256}
    return {name: value if name == "dropout" else int(value) for name, value in values.items()}


def run_joeynmt(work: Work, folder: Path, files: Files, shape: dict[str, float]) -> dict[str, Any]:
    """Train and translate in JoeyNMT's environment, and score as ours."""
    folder.mkdir(parents=True, exist_ok=True)
    limits = {"train": None, "dev": work.joeynmt_dev_lines, "test": None}
    write_corpus(lambda part, side: files[part][side], folder / "data", limits)
    plan: dict[str, Any] = {
        **shape,
        **JOEYNMT_SETTINGS,
        "data": str(folder / "data"),
        "source": SOURCE,
        "target": TARGET,
        "most_pieces": work.most_pieces,
        "training_seconds": 60.0 * work.peer_minutes,
        "validations": work.joeynmt_validations,
        "threads": detect_machine("cpu").threads,
    }
    path = folder / "plan.json"
    path.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8", newline="\n")
    script = Path(__file__).with_name("joeynmt_run.py")
    subprocess.run([str(peer_python("joeynmt", JOEYNMT)), str(script), str(path)], check=True)
    report_of_scores = score(
        list(read_lines(folder / "test.hypotheses")),
        list(read_lines(files["test"][TARGET])),
        target_language=TARGET,
        decoding={"beam_size": plan["beam_size"], "length_penalty": 1.0, "precision": "fp32"},
    )
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    return {"scores": msgspec.to_builtins(report_of_scores), "training": training, "plan": plan}


def run_part(part: str, work: Work, files: Files) -> None:
    """Run one side unless it is finished, and save its result."""
    folder = work.folder / part
    if (folder / RESULT).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if part == "ours":
        result = run_ours(work, folder, files)
    else:
        shape = JOEYNMT_256 if part == "joeynmt-256" else our_shape(work, files)
        result = run_joeynmt(work, folder, files, shape)
    minutes = work.minutes if part == "ours" else work.peer_minutes
    result |= {"minutes": minutes, "threads": detect_machine("cpu").threads, "machine": machine()}
    write_file(folder / RESULT, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())


def finished(work: Work) -> dict[str, dict[str, Any]]:
    """Return the results of the finished parts."""
    results = {part: work.folder / part / RESULT for part in PARTS}
    return {part: json.loads(path.read_text(encoding="utf-8")) for part, path in results.items() if path.exists()}


def make_rows(results: dict[str, dict[str, Any]], *, judged: bool) -> list[Row]:
    """Return the scores of every finished part, and if all are finished, the comparison with the better JoeyNMT."""
    rows = []
    for part, result in results.items():
        for metric in ("bleu", "chrf"):
            found = result["scores"][metric]
            rows.append(Row(f"Tatoeba zh-en, {PARTS[part]}, {found['metric']}", found["value"], found["metric"]))
    if len(results) < len(PARTS):
        return rows
    values = {part: result["scores"]["bleu"]["value"] for part, result in results.items()}
    ours = values.pop("ours")
    peer = max(values, key=values.__getitem__)
    difference = ours - values[peer]
    rows.append(
        Row(
            "Tatoeba zh-en, above the better JoeyNMT",
            difference,
            "BLEU",
            peer=PARTS[peer],
            peer_value=values[peer],
            bar=f">= +{BAR_BLEU:g}" if judged else None,
            holds=difference >= BAR_BLEU if judged else None,
        )
    )
    return rows


def describe(part: str, result: dict[str, Any]) -> str:
    """Return a readable summary of a part's training, scores and signatures."""
    training, scores = result["training"], result["scores"]
    decoding = ", ".join(f"{name}={value}" for name, value in scores["decoding"].items()) or "the default search"
    effort = f"{training['steps']:,} steps in {training['training_seconds']:,.0f} s on {result['threads']} threads"
    lines = [f"{PARTS[part]}: {effort}; {decoding}"]
    lines += [f"  {scores[m]['metric']} {scores[m]['value']:.2f}  {scores[m]['signature']}" for m in ("bleu", "chrf")]
    return "\n".join(lines)


def main() -> int:
    """Run the unfinished parts and report."""
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=45.0, help="training minutes of each side")
    options.add_argument("--peer-minutes", type=float, help="training minutes of JoeyNMT (default: as ours)")
    options.add_argument("--only", choices=PARTS, help="run one side; the comparison needs all")
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "tatoeba-zh-en")
    args = options.parse_args()
    work = quick_work(args.out) if args.quick else full_work(args.out, args.minutes, args.peer_minutes or args.minutes)
    print(machine(), file=sys.stderr)
    limits = {"train": None, "dev": work.lines, "test": work.lines}
    files = write_corpus(original_file, work.folder / "data", limits)
    for part in [args.only] if args.only else PARTS:
        run_part(part, work, files)
    results = finished(work)
    for part, result in results.items():
        print(describe(part, result), file=sys.stderr)
    return report(make_rows(results, judged=not args.quick), args.json)


if __name__ == "__main__":
    raise SystemExit(main())
