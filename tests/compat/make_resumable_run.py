"""Freeze a tiny training run of one version, with the losses and translations that later versions must reproduce.

    python tests/compat/make_resumable_run.py tests/compat/0.1.0

Run the script once, when a version is released; its output never changes afterwards. The frozen folder is that of the
run after four fifths of its steps, with two checkpoints. `expected.json` has the losses of the steps after it.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from transduce.inference.load import open_translator
from transduce.tasks.train import train

STOPPED_AT, STEPS = 120, 150
SENTENCES = ["我喜欢苹果。", "今天老师买书。", "他明天吃鱼。"]
SUBJECTS = {"我": "I", "你": "you", "他": "he", "老师": "the teacher"}
VERBS = {"喜欢": "like", "买": "buy", "吃": "eat"}
OBJECTS = {"苹果": "apples", "书": "books", "茶": "tea", "鱼": "fish"}
TIMES = {"": "", "今天": " today", "明天": " tomorrow"}
SETTINGS: dict[str, Any] = {
    "preset": "tiny",
    "tokenizer.vocabulary_size": 80,
    "tokenizer.byte_fallback": False,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 12,
    "model.d_ff": 24,
    "model.num_heads": 2,
    "model.dropout": 0.1,
    "training.batch_tokens": 300,
    "training.learning_rate": 0.02,
    "training.steps": STEPS,
    "training.precision": "fp32",
    "training.accumulate": 2,
    "training.report_every": 1,
    "training.validate_every": 30,
    "training.save_every": 30,
    "training.translate_dev": 4,
    "training.best_by": "loss",
    "training.patience": 0,
    "training.keep_checkpoints": 2,
}


def corpus(folder: Path) -> dict[str, list[str]]:
    """Write all 144 pairs as the training set and every ninth as the dev set; return the settings of their files."""
    pairs = [
        (f"{time}{subject}{verb}{thing}。", f"{SUBJECTS[subject]} {VERBS[verb]} {OBJECTS[thing]}{TIMES[time]}.")
        for time in TIMES
        for subject in SUBJECTS
        for verb in VERBS
        for thing in OBJECTS
    ]
    for name, part in (("train", pairs), ("dev", pairs[::9])):
        for side, language in enumerate(("zh", "en")):
            text = "".join(f"{pair[side]}\n" for pair in part)
            (folder / f"{name}.{language}").write_text(text, "utf-8", newline="\n")
    return {
        "data.source": ["train.zh"],
        "data.target": ["train.en"],
        "data.dev_source": ["dev.zh"],
        "data.dev_target": ["dev.en"],
    }


def losses(run: Path) -> dict[str, float]:
    """Return the training loss of every reported step, by step."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").split("\n") if line]
    return {str(event["step"]): event["loss"] for event in events if event["event"] == "train"}


def translations(run: Path) -> list[str]:
    """Return the translations of `SENTENCES` by a run's model with beam search."""
    return [t.text for t in open_translator(run, precision="fp32", device="cpu", threads=1)(SENTENCES)]


def make(out: Path) -> None:
    """Train a run, freeze its folder as of step `STOPPED_AT`, and write the expected results of the later steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)  # the stored settings name files by relative paths
        files = corpus(folder)
        train(out="run", settings=SETTINGS | files, device="cpu", threads=1)
        run = folder / "run"
        kept = folder / "kept"
        shutil.copytree(run, kept)
        shutil.rmtree(kept / "checkpoints" / f"step-{STEPS:09d}")
        (kept / "dev_score.json").unlink()
        shutil.rmtree(kept / "tensorboard")  # large, and never read back
        for path in folder.glob("*.*"):
            shutil.copy(path, kept / path.name)
        expected = {
            "stopped_at": STOPPED_AT,
            "losses": {step: loss for step, loss in losses(run).items() if int(step) > STOPPED_AT},
            "sentences": SENTENCES,
            "translations": translations(run),
        }
        (kept / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n", "utf-8")
        shutil.copytree(kept, out)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
