"""Compare Transformer variants and recurrent models on Tatoeba: attention, positions and norms, one setting at a time.

    python benchmarks/family.py                                    # German to English, every variant, 45 minutes each
    python benchmarks/family.py --variants transformer lstm-general lstm-none --plot lengths.png
    python benchmarks/family.py --groups positions                 # of kinds, attention, positions, norms, layers
    python benchmarks/family.py --groups positions --joined        # also train on joined sentences
    python benchmarks/family.py --corpus zh-en --groups attention --minutes 20
    python benchmarks/family.py --groups norms --curves            # also write a table of the dev loss by step
    python benchmarks/family.py --variants lstm-feeding --peer     # also JoeyNMT's LSTM, for as many steps
    python benchmarks/family.py --speed-by-length                  # training tokens/s for sentences of 8 to 512 tokens
    python benchmarks/family.py --quick                            # two variants on a part of the corpus: a minute

`family_variants.py` lists common settings and variants. Every variant has a folder; interrupted runs are resumed, and
finished ones are not repeated. Reported are BLEU on test (single sentences, and 2, 4 and 8 consecutive ones joined),
parameters, and target tokens/s of training and of the default search.

Bars: the Transformer is better than the LSTM with attention, which is better than the LSTM without; the LSTM is at most
1 BLEU below JoeyNMT's.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import family_speed
from environments import peer_python
from family_corpus import JOINS, Files, Texts, write_files, write_lines
from family_variants import (
    AS_PEER,
    BASELINE,
    CORPORA,
    GROUPS,
    QUICK_VARIANTS,
    VARIANTS,
    WITH_ATTENTION,
    WITHOUT_ATTENTION,
    Corpus,
    Settings,
    settings_of,
)
from report import REPOSITORY, Row, data_folder, machine, parser, report
from tatoeba_zh_en import JOEYNMT

from transduce import load, score
from transduce.atomic_io import write_file
from transduce.inference.translator import Translator
from transduce.inspection.plots import draw_chart, save_chart
from transduce.inspection.plots_runs import plot_lengths
from transduce.machine import detect_machine
from transduce.text.files import read_lines

RESULT, PEER = "result.json", "joeynmt-lstm"
QUICK_LINES, QUICK_STEPS = (2_000, 48), 40
PEER_BLEU = 1.0
_PEER_SETTINGS: Settings = {"beam_size": 5, "most_pieces": 60, "validations": 5, "seed": 42}


class Work(NamedTuple):
    """The scope of a comparison: a corpus, and the training time of each variant."""

    name: str
    corpus: Corpus
    folder: Path
    minutes: float | None
    """Training time of each variant; None if `steps` is set."""
    steps: int | None
    """Training steps of each variant; None if `minutes` is set."""
    joined: bool
    quick: bool

    def folder_of(self, variant: str) -> Path:
        """Return a variant's folder."""
        return self.folder / variant


Result = dict[str, Any]


# --- one variant ---


def run_variant(name: str, work: Work, files: Files) -> Result:
    """Train and evaluate a variant unless it is finished, and return its result."""
    place = work.folder_of(name)
    result = place / RESULT
    if not result.exists():
        settings = settings_of(VARIANTS[name], work.corpus, quick=work.quick)
        train(place / "model", settings, work, files)
        found = measure(place, files) | {"settings": settings, "machine": machine()}
        write_file(result, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    finished: Result = json.loads(result.read_text(encoding="utf-8"))
    return finished


def train(model: Path, settings: Settings, work: Work, files: Files) -> None:
    """Run `transduce train`, resuming an interrupted run."""
    command = [sys.executable, "-m", "transduce", "train", "--out", str(model), "--resume", "--device", "cpu"]
    for option, path in files.training.items():
        command += [f"--{option}", str(path)]
    command += ["--minutes", f"{work.minutes:g}"] if work.steps is None else ["--steps", str(work.steps)]
    for setting, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        command += ["--preset", text] if setting == "preset" else ["--set", f"{setting}={text}"]
    subprocess.run(command, check=True, stdout=sys.stderr)


def measure(place: Path, files: Files) -> Result:
    """Translate all tests, and return the BLEU of each, sizes and speeds."""
    translator = load(place / "model", device="cpu")
    assert isinstance(translator, Translator)
    bleu, signature, pieces, seconds = {}, "", 0, 0.0
    for count, texts in files.tests.items():
        started_at = time.monotonic()
        translations = translator(texts.source)
        if count == 1:
            seconds = time.monotonic() - started_at
            pieces = sum(len(each.alternatives[0].tokens) for each in translations)
        hypotheses = [each.text for each in translations]
        write_lines(_hypotheses(place, count), hypotheses)
        found = score(hypotheses, texts.target, target_language=translator.target_language).bleu
        bleu[str(count)], signature = found.value, found.signature
    reports = [event for event in _events(place) if event["event"] == "train"]
    return {
        "bleu": bleu,
        "signature": signature,
        "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
        "steps": reports[-1]["step"],
        "training_seconds": reports[-1]["elapsed_seconds"],
        "training_tokens_per_second": median(event["tokens_per_second"] for event in reports),
        "decoding_tokens_per_second": pieces / seconds,
        "threads": detect_machine("cpu").threads,
    }


def _hypotheses(place: Path, count: int) -> Path:
    return place / f"test-{count}.hypotheses"


def _events(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in read_lines(place / "model" / "metrics.jsonl")]


# --- the peer ---


def run_peer(work: Work, files: Files, ours: Result) -> Result:
    """Run JoeyNMT's LSTM on the same files for as many steps, and return its result."""
    place = work.folder_of(PEER)
    result = place / RESULT
    if not result.exists():
        test = files.tests[1]
        sides = work.corpus.source, work.corpus.target
        for part in ("train", "dev"):
            for option, side in zip(("source", "target"), sides, strict=True):
                path = files.training[option if part == "train" else f"dev-{option}"]
                (place / "data").mkdir(parents=True, exist_ok=True)
                most = None if part == "train" else 500  # JoeyNMT's recurrent decoder has no cache
                write_lines(place / "data" / f"{part}.{side}", list(read_lines(path))[:most])
        for side, lines in zip(sides, test, strict=True):
            write_lines(place / "data" / f"test.{side}", lines)
        plan = _peer_plan(work, place, ours["steps"])
        (place / "plan.json").write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8", newline="\n")
        script = Path(__file__).with_name("joeynmt_rnn.py")
        # JoeyNMT's Hugging Face packages would try to connect to a server.
        offline = os.environ | {"HF_HUB_OFFLINE": "1"}
        python = peer_python("joeynmt", JOEYNMT)
        subprocess.run([str(python), str(script), str(place / "plan.json")], check=True, env=offline, stdout=sys.stderr)
        hypotheses = list(read_lines(place / "test.hypotheses"))
        bleu = score(hypotheses, test.target, target_language=work.corpus.target).bleu
        training = json.loads((place / "training.json").read_text(encoding="utf-8"))
        found = {"bleu": {"1": bleu.value}, "signature": bleu.signature, "plan": plan, "machine": machine()} | training
        write_file(result, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode())
    peer: Result = json.loads(result.read_text(encoding="utf-8"))
    return peer


def _peer_plan(work: Work, place: Path, steps: int) -> Settings:
    """Return the peer's plan, with the sizes and learning rate of our LSTM."""
    settings = settings_of(VARIANTS[AS_PEER], work.corpus, quick=work.quick)
    config = json.loads((work.folder_of(AS_PEER) / "model" / "config.json").read_text(encoding="utf-8"))["transduce"]
    return _PEER_SETTINGS | {
        "data": str(place / "data"),
        "source": work.corpus.source,
        "target": work.corpus.target,
        "num_layers": config["num_encoder_layers"],
        "d_model": config["d_model"],
        "dropout": config["dropout"],
        "vocabulary_size": config["target_vocabulary_size"],
        "batch_tokens": settings["training.batch_tokens"],
        "learning_rate": settings["training.learning_rate"],
        "steps": steps,
        "threads": detect_machine("cpu").threads,
    }


# --- results ---


def rows_of(work: Work, results: dict[str, Result], peer: Result | None) -> list[Row]:
    """Return rows that compare every variant with the Transformer, and the bars whose variants have been run."""
    title = f"Tatoeba {work.name}{', joined ones trained on too' if work.joined else ''}"
    base = results.get(BASELINE)
    rows = []
    for name, result in results.items():
        for count in map(str, JOINS):
            what = "test" if count == "1" else f"{count} sentences joined"
            row = Row(f"{title}, {name}, {what}", result["bleu"][count], "BLEU")
            if base is not None and name != BASELINE:
                row = row._replace(peer=BASELINE, peer_value=base["bleu"][count])
            rows.append(row)
        rows.append(Row(f"{title}, {name}, parameters", result["parameters"] / 1e6, "millions"))
        rows.append(Row(f"{title}, {name}, training", result["training_tokens_per_second"], "target tokens/s"))
        rows.append(Row(f"{title}, {name}, search", result["decoding_tokens_per_second"], "target tokens/s"))
    for better, worse in ((BASELINE, WITH_ATTENTION), (WITH_ATTENTION, WITHOUT_ATTENTION)):
        if better in results and worse in results:
            gain = _test_bleu(results[better]) - _test_bleu(results[worse])
            row = Row(f"{title}, {better} above {worse}", gain, "BLEU")
            rows.append(row if work.quick else row._replace(bar="> 0", holds=gain > 0.0))
    if peer is not None:
        ours, theirs = _test_bleu(results[AS_PEER]), _test_bleu(peer)
        row = Row(f"{title}, {AS_PEER} and JoeyNMT's LSTM, {peer['steps']} steps", ours, "BLEU", PEER, theirs)
        bar = f"at most {PEER_BLEU:g} below"
        rows.append(row if work.quick else row._replace(bar=bar, holds=ours >= theirs - PEER_BLEU))
    return rows


def _test_bleu(result: Result) -> float:
    value: float = result["bleu"]["1"]
    return value


def plot(work: Work, results: dict[str, Result], files: Files, picture: Path | None) -> None:
    """Draw BLEU by length over all tests, as `transduce plot lengths` does, and write the files for drawing
    it again.
    """
    together = Texts(*([line for texts in files.tests.values() for line in texts[side]] for side in (0, 1)))
    write_lines(work.folder / f"lengths.{work.corpus.source}", together.source)
    write_lines(work.folder / f"lengths.{work.corpus.target}", together.target)
    systems = {}
    for name in results:
        systems[name] = [line for count in files.tests for line in read_lines(_hypotheses(work.folder_of(name), count))]
        write_lines(work.folder_of(name) / "lengths.hypotheses", systems[name])
    chart = plot_lengths(*together, systems, target_language=work.corpus.target)
    if picture is None:
        sys.stderr.write(draw_chart(chart, columns=100) + "\n")
    else:
        save_chart(chart, picture)


def write_curves(work: Work, names: list[str]) -> None:
    """Write the dev loss by step of every variant as a tab-separated table."""
    curves = {name: _dev_losses(work.folder_of(name)) for name in names}
    steps = sorted({step for curve in curves.values() for step in curve})
    lines = ["\t".join(["step", *curves])]
    for step in steps:
        cells = (f"{curve[step]:.4f}" if step in curve else "" for curve in curves.values())
        lines.append("\t".join([str(step), *cells]))
    path = write_lines(work.folder / "dev_loss.tsv", lines)
    sys.stderr.write("\n".join(lines) + f"\nThis table is {path}.\n")


def _dev_losses(place: Path) -> dict[int, float]:
    return {event["step"]: event["loss"] for event in _events(place) if event["event"] == "validation"}


# --- command line ---


def main() -> int:
    """Run the unfinished parts and report."""
    options = parser(__doc__)
    options.add_argument("--corpus", choices=CORPORA, default="de-en")
    options.add_argument("--minutes", type=float, default=45.0, help="training minutes of each variant")
    options.add_argument("--steps", type=int, help="training steps, instead of minutes")
    options.add_argument("--variants", nargs="+", choices=VARIANTS, metavar="NAME", help=", ".join(VARIANTS))
    options.add_argument("--groups", nargs="+", choices=GROUPS, metavar="NAME", help=", ".join(GROUPS))
    options.add_argument("--joined", action="store_true", help="also train on joined sentences")
    options.add_argument("--peer", action="store_true", help=f"also run JoeyNMT's LSTM, the peer of {AS_PEER}")
    options.add_argument("--curves", action="store_true", help="write the dev losses over the steps")
    options.add_argument("--plot", type=Path, metavar="FILE", help="draw BLEU by length as PNG, SVG or PDF")
    options.add_argument("--speed-by-length", action="store_true", help="only measure training speed")
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "family")
    args = options.parse_args()
    sys.stderr.write(machine() + "\n")
    if args.speed_by_length:
        return report(family_speed.rows(quick=args.quick), args.json)
    data_folder()  # fails early if the corpora are missing
    work = work_of(args.corpus, args.out, args.minutes, args.steps, joined=args.joined, quick=args.quick)
    lines = QUICK_LINES if args.quick else (None, None)
    files = write_files(work.corpus, work.folder / "data", joined=args.joined, lines=lines)
    names = chosen(args.variants, args.groups, quick=args.quick, peer=args.peer)
    results = {name: run_variant(name, work, files) for name in names}
    peer = run_peer(work, files, results[AS_PEER]) if args.peer else None
    plot(work, results, files, args.plot)
    if args.curves:
        write_curves(work, names)
    return report(rows_of(work, results, peer), args.json)


def work_of(corpus: str, out: Path, minutes: float, steps: int | None, *, joined: bool, quick: bool) -> Work:
    """Return the scope of a run, with a separate folder for each scope."""
    if quick:
        minutes, steps = 1.0, QUICK_STEPS
    length = f"{minutes:g}min" if steps is None else f"{steps}-steps"
    name = f"{corpus}{'-joined' if joined else ''}-{length}{'-quick' if quick else ''}"
    return Work(corpus, CORPORA[corpus], out / name, minutes if steps is None else None, steps, joined, quick)


def chosen(variants: list[str] | None, groups: list[str] | None, *, quick: bool, peer: bool) -> list[str]:
    """Return the selected variants in the order of the tables: named ones, those of named groups, or all."""
    wanted = set(variants or [])
    wanted |= {variant.name for variant in VARIANTS.values() if variant.group in (groups or [])}
    if groups:
        wanted.add(BASELINE)
    if not wanted:
        wanted = set(QUICK_VARIANTS if quick else VARIANTS)
    return [name for name in VARIANTS if name in wanted or (peer and name == AS_PEER)]


if __name__ == "__main__":
    sys.exit(main())
