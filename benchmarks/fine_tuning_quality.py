"""Measure fine-tuning of an imported model on another small corpus, fully and by LoRA: held-out loss and BLEU.

    python benchmarks/fine_tuning_quality.py            # three trainings, about three quarters of an hour on two cores
    python benchmarks/fine_tuning_quality.py --quick    # the same on less work, within five minutes
    python benchmarks/fine_tuning_quality.py --ranks 4 8 16 64

1. `transduce train` on Tatoeba English to German, post-norm. Its folder, without this package's metadata and with the
   tokenizer's files as in OPUS-MT, is a Hugging Face Marian model, which `transduce import` converts.
2. `transduce train --init-from` that model on the first 2,000 captions of Multi30k English to German: fully, and by
   LoRA with each rank, for the same steps. The best model is selected by the loss on Multi30k's val; other settings
   are defaults.
3. Loss and BLEU on Multi30k's test 2016 (what is learned) and on Tatoeba's test (what is forgotten).

Bars: the loss on test 2016 ends below the imported model's in all cases, and with the smallest rank at most a tenth of
the parameters are trained.
"""

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from report import REPOSITORY, Row, data_folder, machine, parser, report
from safetensors import safe_open

from transduce.interop.hugging_face.imported_tokenizer import load_tokenizer
from transduce.text.files import read_lines

SIDES = ("en", "de")
CAPTIONS = 2_000
WHOLE, IMPORTED = "as a whole", "imported"
BAR_SHARE = 0.1
RESULT = "result.json"


class Work(NamedTuple):
    """The scope of a comparison: full or quick."""

    folder: Path
    pretraining_minutes: float
    steps: int
    ranks: tuple[int, ...]
    test_lines: int | None


class Corpus(NamedTuple):
    """The files of a corpus's parts: source and target of each."""

    train: tuple[Path, Path]
    dev: tuple[Path, Path]
    test: tuple[Path, Path]

    def options(self) -> list[str]:
        """Return the files as options of `transduce train`."""
        names = ("--source", "--target", "--dev-source", "--dev-target")
        return [text for name, path in zip(names, (*self.train, *self.dev), strict=True) for text in (name, str(path))]


def transduce(*arguments: str | Path) -> str:
    """Run a command of transduce, and return what it prints."""
    command = [sys.executable, "-m", "transduce", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


def cut(path: Path, folder: Path, lines: int | None) -> Path:
    """Write the first `lines` lines of a file (None: all) as plain text, and return the path of the copy."""
    copy = folder / f"{path.parent.parent.name}-{path.name}".removesuffix(".gz")
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in itertools.islice(read_lines(path), lines))
    copy.write_text(text, encoding="utf-8", newline="\n")
    return copy


def corpora(work: Work) -> tuple[Corpus, Corpus]:
    """Return Tatoeba, and the captions of Multi30k."""
    tatoeba, captions = data_folder() / "tatoeba-de-en", data_folder() / "multi30k-en-de" / "raw"

    def pair(folder: Path, part: str, lines: int | None) -> tuple[Path, Path]:
        source, target = (cut(folder / f"{part}.{side}.gz", work.folder / "data", lines) for side in SIDES)
        return source, target

    return (
        Corpus(pair(tatoeba, "train", None), pair(tatoeba, "dev", 500), pair(tatoeba, "test", work.test_lines)),
        Corpus(
            pair(captions, "train", CAPTIONS),
            pair(captions, "val", work.test_lines),
            pair(captions, "test_2016_flickr", work.test_lines),
        ),
    )


def import_pretrained(work: Work, tatoeba: Corpus) -> Path:
    """Train a model on the first corpus, convert it to a Hugging Face folder, import that, and return the imported
    folder.
    """
    trained, hugging_face, imported = (work.folder / name for name in ("pretraining", "marian", IMPORTED))
    if imported.exists():
        return imported
    shared = ["--device", "cpu", "--preset", "tiny", "--set=model.norm_order=post"]
    shared += ["--minutes", str(work.pretraining_minutes), "--languages", *SIDES]
    transduce("train", "--out", trained, "--resume", *tatoeba.options(), *shared)
    shutil.rmtree(hugging_face, ignore_errors=True)
    hugging_face.mkdir()
    for name in ("model.safetensors", "generation_config.json"):
        shutil.copy(trained / name, hugging_face)
    for name in ("source.spm", "target.spm"):
        shutil.copy(trained / "sentencepiece.model", hugging_face / name)
    vocabulary = load_tokenizer(trained).source
    ids = {vocabulary.token(id): id for id in range(vocabulary.size)}
    config = json.loads((trained / "config.json").read_text(encoding="utf-8"))
    del config["transduce"]
    for name, content in (("vocab.json", ids), ("config.json", config)):
        (hugging_face / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(transduce("import", hugging_face, imported), end="", file=sys.stderr)
    return imported


def adapt(work: Work, imported: Path, captions: Corpus, name: str, options: list[str]) -> dict[str, Any]:
    """Fine-tune the imported model unless that is done, and return the time and number of trained parameters."""
    folder = work.folder / name.replace(" ", "-").replace(",", "")
    shared = ["--device", "cpu", "--init-from", str(imported), "--steps", str(work.steps)]
    shared += ["--set=training.best_by=loss", "--set=training.translate_dev=0"]
    transduce("train", "--out", folder, "--resume", *captions.options(), *shared, *options)
    events = [json.loads(line) for line in read_lines(folder / "metrics.jsonl")]
    seconds = [event for event in events if event["event"] == "train"][-1]["elapsed_seconds"]
    newest = max((folder / "checkpoints").iterdir())
    return {"folder": folder, "seconds": seconds, "parameters": count_parameters(newest / "weights.safetensors")}


def count_parameters(path: Path) -> int:
    """Return the number of values in all tensors of a file."""
    with safe_open(path, framework="np") as file:
        return sum(file.get_slice(name).get_shape()[0] * _rest(file, name) for name in file.keys())  # noqa: SIM118


def _rest(file: Any, name: str) -> int:
    shape = file.get_slice(name).get_shape()
    return int(shape[1]) if len(shape) > 1 else 1


def measure(folder: Path, corpus: Corpus) -> dict[str, float]:
    """Return the loss in nats per token and the BLEU on the test set."""
    source, target = map(str, corpus.test)
    computing = ["--device", "cpu", "--precision", "fp32"]
    scored = json.loads(transduce("score", folder, "--source", source, "--target", target, "--json", "-", *computing))
    files = ["--source", source, "--reference", target, "--max-length", "60"]
    evaluated = json.loads(transduce("evaluate", folder, *files, "--json", "-", *computing))
    return {"loss": -scored["log_probability"] / scored["tokens"], "bleu": evaluated["bleu"]["value"]}


def run(work: Work) -> dict[str, dict[str, Any]]:
    """Run all fine-tunings, and return their results and the imported model's, by name."""
    tatoeba, captions = corpora(work)
    imported = import_pretrained(work, tatoeba)
    ways = {WHOLE: list[str]()} | {f"LoRA, rank {rank}": [f"--set=training.lora_rank={rank}"] for rank in work.ranks}
    results: dict[str, dict[str, Any]] = {IMPORTED: {"folder": imported}}
    for name, options in ways.items():
        results[name] = adapt(work, imported, captions, name, options)
    for result in results.values():
        path = result["folder"] / RESULT
        if not path.exists():
            measured = {"captions": measure(result["folder"], captions), "tatoeba": measure(result["folder"], tatoeba)}
            path.write_text(json.dumps(measured) + "\n", encoding="utf-8")
        result |= json.loads(path.read_text(encoding="utf-8"))
    return results


def make_rows(results: dict[str, dict[str, Any]]) -> list[Row]:
    """Return rows that compare each fine-tuning with the imported model."""
    before = results.pop(IMPORTED)
    least = min(result["parameters"] for result in results.values())
    rows = []
    for name, found in results.items():
        loss, old = found["captions"]["loss"], before["captions"]["loss"]
        bar, holds = f"< {old:.3f}", loss < old
        rows.append(Row(f"{name}: loss on captions", loss, "nats per token", IMPORTED, old, loss / old, bar, holds))
        for corpus, shown in (("captions", "captions"), ("tatoeba", "Tatoeba, which it began with")):
            now, then = found[corpus]["bleu"], before[corpus]["bleu"]
            rows.append(Row(f"{name}: BLEU on {shown}", now, "BLEU", IMPORTED, then))
        whole = results[WHOLE]["parameters"]
        share = found["parameters"] / whole
        judged = name != WHOLE and found["parameters"] == least
        bar_of_share, small = (f"<= {BAR_SHARE:g}", share <= BAR_SHARE) if judged else (None, None)
        trained_parameters = found["parameters"]
        rows.append(Row(f"{name}: trained", trained_parameters, "parameters", WHOLE, whole, share, bar_of_share, small))
        seconds = found["seconds"]
        rows.append(Row(f"{name}: training", seconds, "s", WHOLE, results[WHOLE]["seconds"]))
    return rows


def main() -> int:
    """Run the unfinished parts and report."""
    options = parser(__doc__)
    options.add_argument("--pretraining-minutes", type=float, default=20.0)
    options.add_argument("--steps", type=int, default=400, help="steps of each fine-tuning")
    options.add_argument("--ranks", type=int, nargs="+", default=[4, 16], help="ranks of LoRA")
    options.add_argument("--out", type=Path, default=REPOSITORY / "models" / "finetuning")
    args = options.parse_args()
    folder = args.out / f"{args.pretraining_minutes:g}min-{args.steps}steps"
    work = Work(folder, args.pretraining_minutes, args.steps, tuple(args.ranks), None)
    if args.quick:
        work = Work(args.out / "quick", 1.0, 60, (4,), 100)
    print(machine(), file=sys.stderr)
    return report(make_rows(run(work)), args.json)


if __name__ == "__main__":
    sys.exit(main())
