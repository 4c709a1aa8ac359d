"""Makes what a version leaves behind: a tiny run's folder with two checkpoints, and what is expected of it.

    python tests/compat/make_fixture.py tests/compat/0.1.0

Run once for a version, when it is released; what it made is never made again. The run is stopped after four fifths of
its steps, so that there is something to resume; what it then does is written down as `expected.json`.
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
    """All 144 sentences as the training text, and every ninth as the dev set."""
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
    """The loss of every step that was reported, by step."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").split("\n") if line]
    return {str(event["step"]): event["loss"] for event in events if event["event"] == "train"}


def translations(run: Path) -> list[str]:
    """Return the model's translations by beam search."""
    return [t.text for t in open_translator(run, precision="fp32", device="cpu", threads=1)(SENTENCES)]


def remove_what_is_not_needed(run: Path) -> None:
    """TensorBoard's file is big, and nothing reads it back."""
    shutil.rmtree(run / "tensorboard")


def make(out: Path) -> None:
    """Trains, keeps the folder as it was at the stop, and writes down what came after it."""
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
        remove_what_is_not_needed(kept)
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
