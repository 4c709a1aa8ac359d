"""Freeze what one version writes: model folders of every kind, interrupted runs, a datastore and a prepared corpus.

    python tests/compat/make_all_kinds.py tests/compat/sets/NAME

Run the script once, when a version is released. A set never changes afterwards: `test_fixtures.py` opens every set with
the present code. Both files use public names and the command line alone, so that modules may move.
"""

import contextlib
import hashlib
import importlib
import inspect
import io
import json
import os
import platform
import random
import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import transduce

SUBJECTS = {"我": "I", "你": "you", "他": "he", "老师": "the teacher"}
VERBS = {"喜欢": "like", "买": "buy", "吃": "eat"}
OBJECTS = {"苹果": "apples", "书": "books", "茶": "tea", "鱼": "fish"}
TIMES = {"": "", "今天": " today", "明天": " tomorrow"}
SENTENCES = ["我喜欢苹果。", "今天老师买书。", "他明天吃鱼。", "你买茶。"]
TRANSLATIONS = ["I like apples.", "the teacher buy books today.", "he eat fish tomorrow.", "you buy tea."]
PROMPTS = ["the teacher", "I like"]
MASKED = ["The [MASK] sings.", "The cat [MASK]."]
TO_CLASSIFY = ["The cow eats, 7", "The bird sings, 3", "A dog runs."]
TO_PARSE = ["the cat sleeps .", "the dog sings ."]
ANIMALS, ACTIONS = ["cat", "dog", "bird", "cow"], ["sleeps", "sings", "runs", "eats"]
PAST, HORIZON = 12, 4
STOPPED_AT, STEPS = 12, 20

SMALL: dict[str, Any] = {"model.d_model": 16, "model.d_ff": 32, "model.num_heads": 2, "model.dropout": 0.1}
TWO_SIDES: dict[str, Any] = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 2}
CUT: dict[str, Any] = {"tokenizer.vocabulary_size": 80, "tokenizer.byte_fallback": False}
TRAINING: dict[str, Any] = {
    "preset": "tiny",
    "training.steps": STEPS,
    "training.batch_tokens": 256,
    "training.learning_rate": 0.02,
    "training.warmup_steps": 5,
    "training.precision": "fp32",
    "training.kernels": "torch",
    "training.report_every": 1,
    "training.validate_every": STEPS,
    "training.save_every": STEPS,
}
PAIRS: dict[str, Any] = {
    "data.source": ["train.zh"],
    "data.target": ["train.en"],
    "data.dev_source": ["dev.zh"],
    "data.dev_target": ["dev.en"],
    "training.translate_dev": 4,
}
TRANSLATION = TRAINING | SMALL | TWO_SIDES | CUT | PAIRS
TEXT_ALONE: dict[str, Any] = {"data.source": ["train.en"], "data.dev_source": ["dev.en"]}
LANGUAGE_MODEL = (
    TRAINING | SMALL | TEXT_ALONE | {"task.kind": "language-model", "task.context": 24, "model.num_decoder_layers": 1}
)
# The settings of every model folder by its name. A name that begins with another one's settings trains after it.
MODELS: dict[str, dict[str, Any]] = {
    "translation-joint": TRANSLATION,
    "translation-separate": TRANSLATION
    | {
        "tokenizer.joint": False,
        "tokenizer.kind": "unigram",
        "tokenizer.vocabulary_size": 32,
        "model.norm_order": "post",
        "model.positions": "learned",
        "model.max_positions": 64,
        "model.activation": "gelu",
        "model.tie_source_target": False,
    },
    "translation-rotary": TRANSLATION
    | {
        "model.positions": "rotary",
        "model.norm": "rms",
        "model.activation": "swiglu",
        "model.num_heads": 4,
        "model.num_key_value_heads": 2,
        "model.bias": False,
        "training.optimizer": "muon",
    },
    "translation-relative": TRANSLATION
    | {
        "tokenizer.kind": "character",
        "tokenizer.vocabulary_size": None,
        "tokenizer.byte_fallback": None,
        "model.positions": "relative",
        "model.attention_score": "dot",
        "model.tie_output": False,
        "model.output_bias": True,
        "model.scale_embeddings": False,
    },
    "translation-unusual": TRANSLATION
    | {
        "model.norm": "batch",
        "model.norm_order": "sandwich",
        "model.attention_score": "additive",
        "model.attention_kind": "hard",
        "model.d_k": 6,
        "model.d_v": 10,
        "model.share_layers": True,
        "model.embedding_norm": True,
    },
    "translation-window": TRANSLATION | {"model.attention_window": 3, "model.attention_score": "general"},
    "recurrent-lstm": TRANSLATION
    | {"model.kind": "recurrent", "model.attention_score": "general", "model.input_feeding": True},
    "recurrent-gru": TRANSLATION
    | {
        "model.kind": "recurrent",
        "model.recurrent_cell": "gru",
        "model.recurrent_attention": "bahdanau",
        "model.attention_score": "additive",
        "model.recurrent_context": "mean",
        "model.recurrent_context_to": "both",
    },
    "denoising": TRAINING
    | SMALL
    | TWO_SIDES
    | CUT
    | TEXT_ALONE
    | {"task.kind": "denoising", "tokenizer.text": ["train.zh"], "task.noise.kind": "infilling"},
    "translation-continued": TRAINING | PAIRS | {"preset": None, "init_from": "models/denoising"},
    "language-model": LANGUAGE_MODEL | {"tokenizer.kind": "character"},
    "language-model-rotary": LANGUAGE_MODEL
    | CUT
    | {
        "model.positions": "rotary",
        "model.norm": "rms",
        "model.activation": "swiglu",
        "tokenizer.vocabulary_size": 60,
    },
    "masked-language-model": TRAINING
    | SMALL
    | {
        "task.kind": "masked-language-model",
        "task.context": 24,
        "data.source": ["books.txt"],
        "tokenizer.vocabulary_size": 300,
        "model.num_encoder_layers": 1,
        "training.batch_tokens": 384,
    },
    "classification": TRAINING
    | {
        "task.kind": "classification",
        "data.source": ["texts.txt"],
        "data.target": ["labels.txt"],
        "preset": None,
        "init_from": "models/masked-language-model",
    },
    "parsing": TRAINING
    | SMALL
    | TWO_SIDES
    | {
        "task.kind": "parsing",
        "task.merges": 4,
        "data.source": ["train.trees"],
        "data.dev_source": ["dev.trees"],
        "tokenizer.vocabulary_size": 300,
    },
    "time-series": TRAINING
    | SMALL
    | TWO_SIDES
    | {
        "task.kind": "time-series",
        "task.series.past": PAST,
        "task.series.horizon": HORIZON,
        "data.source": ["table.csv"],
    },
}
# Settings files with names that no run's own `settings.toml` has.
SETTINGS_FILES = {
    "translation": """preset = "tiny"
[data]
source = ["train.zh"]
target = ["train.en"]
[tokenizer]
character_coverage = 0.9995
[model]
final_norm = true
projection_bias = false
attention_output_bias = true
feed_forward_bias = true
attention_scale = 0.3
[training]
minutes = 1.5
[search]
max_length = 40
[search.sampling]
temperature = 0.7
top_k = 5
top_p = 0.9
seed = 2
""",
    "adaptation": """init_from = "models/translation-joint"
[data]
source = ["train.zh"]
target = ["train.en"]
[training]
lora_rank = 2
lora_alpha = 4.0
""",
    "denoising": """[task]
kind = "denoising"
[task.noise]
kind = "spans"
share = 0.2
[data]
source = ["train.en"]
""",
    "masked-language-model": """[task]
kind = "masked-language-model"
context = 16
next_sentence = false
[task.masking]
share = 0.2
masked = 0.7
random = 0.1
[data]
source = ["books.txt"]
""",
    "parsing": """[task]
kind = "parsing"
tags = false
merges = 3
[data]
source = ["train.trees"]
dev_source = ["dev.trees"]
""",
    "time-series": """[task]
kind = "time-series"
[task.series]
past = 12
horizon = 4
season = 3
[data]
source = ["table.csv"]
""",
}
# Long enough for texts that do not depend on the last bits of a logit.
LONGER: dict[str, Any] = {
    "training.steps": 200,
    "training.report_every": 50,
    "training.validate_every": 200,
    "training.save_every": 200,
}
CHECKPOINT: dict[str, Any] = {"training.save_every": STOPPED_AT, "training.keep_checkpoints": 2}
RUNS: dict[str, dict[str, Any]] = {
    "translation": TRANSLATION | CHECKPOINT | {"training.accumulate": 2, "training.average_decay": 0.9},
    "language-model": MODELS["language-model"] | CHECKPOINT | {"training.optimizer": "muon"},
    "recurrent": MODELS["recurrent-lstm"] | CHECKPOINT,
}


# --- corpora ---


def write_corpora(folder: Path) -> None:
    """Write every training file into a folder."""
    chooser = random.Random(1)
    pairs = [
        (f"{time}{subject}{verb}{thing}。", f"{SUBJECTS[subject]} {VERBS[verb]} {OBJECTS[thing]}{TIMES[time]}.")
        for time in TIMES
        for subject in SUBJECTS
        for verb in VERBS
        for thing in OBJECTS
    ]
    for name, part in (("train", pairs), ("dev", pairs[::9])):
        for side, language in enumerate(("zh", "en")):
            _write(folder / f"{name}.{language}", (pair[side] for pair in part))
    books = []
    for _ in range(60):
        who, first = chooser.choice(ANIMALS), chooser.randrange(4)
        books += [*(f"The {who} {ACTIONS[(first + step) % 4]}." for step in range(4)), ""]
    _write(folder / "books.txt", books)
    animals = [chooser.choice(ANIMALS) for _ in range(80)]
    _write(folder / "texts.txt", (f"The {who} {chooser.choice(ACTIONS)}, {n}" for n, who in enumerate(animals)))
    _write(folder / "labels.txt", (f"a {who}" for who in animals))
    for name, count in (("train", 80), ("dev", 10)):
        _write(folder / f"{name}.trees", (_tree(chooser) for _ in range(count)))
    _write(folder / "table.csv", ["load,heat", *(f"{first:.4f},{second:.4f}" for first, second in series())])


def _write(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")


def _tree(chooser: random.Random) -> str:
    noun, verb = chooser.choice(ANIMALS), chooser.choice(ACTIONS)
    return f"( (S (NP (DT the) (NN {noun})) (VP (VBZ {verb})) (. .)) )"


def series() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return two waves of different scales, (150, 2)."""
    time = np.arange(150)
    return np.stack([np.sin(time / 2.0) + 0.02 * time, 40.0 + 9.0 * np.cos(time / 3.0)], axis=1)


# --- outputs ---


def open_model(folder: Path) -> Any:
    """Open a model folder in float32 on one thread of the CPU, and return the model."""
    return transduce.load(folder, precision="fp32", device="cpu", threads=1)


def outputs(opened: Any, folder_name: str) -> tuple[list[Any], dict[str, np.ndarray[Any, Any]]]:
    """Return what an opened model writes (texts, compared exactly) and its numbers by name (compared closely)."""
    kind = type(opened).__name__
    by_kind = {
        "Translator": _of_translator,
        "Generator": _of_generator,
        "Filler": _of_filler,
        "Classifier": _of_classifier,
        "Parser": _of_parser,
        "Forecaster": _of_forecaster,
    }
    texts, numbers = by_kind[kind](opened)
    return texts, {f"{folder_name}.{name}": values for name, values in numbers.items()}


Outputs = tuple[list[Any], dict[str, np.ndarray[Any, Any]]]


def _of_translator(translator: Any) -> Outputs:
    texts, logits = [], {}
    for beam_size in (1, 4):
        texts += [found.text for found in translator(SENTENCES, beam_size=beam_size)]
    scores = translator.score(SENTENCES, TRANSLATIONS)
    tokenizer, start = translator.tokenizer, translator.model.config.start_id
    for number, (source, target) in enumerate(zip(SENTENCES, TRANSLATIONS, strict=True)):
        ids = [start, *tokenizer.target.encode(target)]
        logits[f"logits{number}"] = _logits(translator.model, tokenizer.source.encode(source), ids)
    return texts, {"scores": np.array([each.score for each in scores])} | logits


def _logits(model: Any, *ids: Sequence[int]) -> np.ndarray[Any, Any]:
    with torch.inference_mode():
        found: torch.Tensor = model(*(torch.tensor([each]) for each in ids))
    return found[0].float().numpy()


def _of_generator(generator: Any) -> Outputs:
    texts = [generator(prompt, max_length=12, search=_greedy()).text for prompt in PROMPTS]
    ids = [generator.model.config.start_id, *generator.tokenizer.source.encode(TRANSLATIONS[0])]
    bits = np.array([generator.score(text).bits_per_character for text in TRANSLATIONS])
    return texts, {"bits": bits, "logits": _logits(generator.model, ids)}


def _greedy() -> Any:
    public = getattr(transduce, "SearchSettings", None)
    return (public or importlib.import_module("transduce.search.settings").SearchSettings)(beam_size=1)


def _of_filler(filler: Any) -> Outputs:
    found = [filler(text, candidates=3) for text in MASKED]
    chances = np.array([[candidate.probability for candidate in each.masks[0]] for each in found])
    return [each.text for each in found], {"chances": chances}


def _of_classifier(classifier: Any) -> Outputs:
    labels = [each.label for each in classifier(TO_CLASSIFY)]
    return labels, {"chances": classifier.probabilities(TO_CLASSIFY).numpy()}


def _of_parser(parser: Any) -> Outputs:
    found = parser(TO_PARSE)
    return [str(each) for each in found], {"scores": np.array([each.log_probability for each in found])}


def _of_forecaster(forecaster: Any) -> Outputs:
    found = forecaster(series(), HORIZON)
    return list(forecaster.card.columns), {"values": np.asarray(found.values)}


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def losses(run: Path) -> dict[str, float]:
    """Return the training loss of every reported step, by step."""
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").split("\n") if line]
    return {str(event["step"]): event["loss"] for event in events if event["event"] == "train"}


def machine() -> str:
    """Return a text that is equal on machines whose float32 sums are expected to agree bit by bit."""
    capability = torch.backends.cpu.get_cpu_capability()
    model = next((line for line in _cpu_lines() if line.startswith("model name")), platform.processor())
    return f"torch {torch.__version__}, {capability}, {model.split(':')[-1].strip()}"


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text("utf-8").split("\n") if path.exists() else []


def command(*arguments: str) -> int:
    """Run `transduce` in this process, and return its exit status."""
    before = sys.argv
    sys.argv = ["transduce", *arguments]
    try:
        runpy.run_module("transduce", run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0


def public_names() -> dict[str, list[str]]:
    """Return every public name, with the parameters of those that can be called."""
    found = {}
    for name in sorted(transduce.__all__):
        value = getattr(transduce, name)
        try:
            found[name] = list(inspect.signature(value).parameters)
        except (TypeError, ValueError):
            found[name] = []
    return found


def printed(*arguments: str) -> str:
    """Return what a command writes to both standard streams."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        command(*arguments)
    return text.getvalue()


def accepts(verb: str, options: Sequence[str]) -> bool:
    """Return whether a command accepts all of these options."""
    return "there is no option" not in printed(verb, *options, "--help")


def options_by_verb() -> dict[str, list[str]]:
    """Return the options of every command that `transduce --help` lists."""
    verbs = re.findall(r"^  ([a-z][a-z-]*)  ", printed("--help"), re.MULTILINE)
    named = {verb: sorted(set(re.findall(r"--[a-z][a-z0-9-]*", printed(verb, "--help")))) for verb in verbs}
    return {verb: [option for option in options if accepts(verb, [option])] for verb, options in named.items()}


# --- making a set ---


def train(out: str, settings: Mapping[str, Any]) -> None:
    """Train in the current folder on one thread."""
    transduce.train(out=out, settings=dict(settings), device="cpu", threads=1)


def make_models(kept: Path) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Train every model, keep the files that using it needs, and return its outputs."""
    texts, numbers = {}, dict[str, np.ndarray[Any, Any]]()
    for name, settings in MODELS.items():
        train(f"models/{name}", settings | LONGER)
        unneeded = ("checkpoints", "tensorboard", "metrics.jsonl", "corpus", "corpus-dev", "*.lock")
        shutil.copytree(f"models/{name}", kept / "models" / name, ignore=shutil.ignore_patterns(*unneeded))
        texts[name], found = outputs(open_model(kept / "models" / name), name)
        numbers |= found
    return texts, numbers


def make_runs(kept: Path) -> dict[str, Any]:
    """Train every run to its end, freeze it as of the first checkpoint, and return the results of the later steps."""
    expected = {}
    for name, settings in RUNS.items():
        train(f"runs/{name}", settings)
        run, frozen = Path("runs", name), kept / "runs" / name
        expected[name] = {
            "losses": {step: loss for step, loss in losses(run).items() if int(step) > STOPPED_AT},
            "weights": file_hash(run / "model.safetensors"),
        }
        shutil.copytree(run, frozen, ignore=shutil.ignore_patterns("tensorboard", "dev_score.json", "*.lock"))
        shutil.rmtree(frozen / "checkpoints" / f"step-{STEPS:09d}")
        (frozen / "model.safetensors").unlink()
    return expected


def make_others(kept: Path) -> dict[str, Any]:
    """Write a prepared folder, a datastore and a glossary, and return translations with the latter two."""
    pairs = ["--source", "train.zh", "--target", "train.en", "--dev-source", "dev.zh", "--dev-target", "dev.en"]
    cut = ["--set", "tokenizer.vocabulary_size=80", "--set", "tokenizer.byte_fallback=false"]
    if command("prepare", *pairs, *cut, "--out", str(kept / "prepared")):
        raise RuntimeError("`transduce prepare` failed")
    translator = open_model(kept / "models" / "translation-joint")
    lines = (Path(f"train.{language}").read_text("utf-8").splitlines()[::6] for language in ("zh", "en"))
    transduce.build_datastore(translator, *lines).write(kept / "datastore.safetensors")
    _write(kept / "glossary.tsv", ["苹果\tpears", "老师\tthe professor\tthe lecturer"])
    translator = transduce.load(
        kept / "models" / "translation-joint",
        task="translation",
        precision="fp32",
        device="cpu",
        threads=1,
        datastore=kept / "datastore.safetensors",
    )
    return {"datastore": [each.text for each in translator(SENTENCES)]}


def make(out: Path) -> None:
    """Make a whole set in a temporary folder, and copy it to its destination."""
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)  # stored settings name files by relative paths
        kept = Path(name, "kept")
        (kept / "corpora").mkdir(parents=True)
        write_corpora(kept / "corpora")
        shutil.copytree(kept / "corpora", name, dirs_exist_ok=True)
        texts, numbers = make_models(kept)
        expected = {
            "version": transduce.__version__,
            "machine": machine(),
            "texts": texts,
            "runs": make_runs(kept),
            "others": make_others(kept),
            "public_names": public_names(),
            "options": options_by_verb(),
        }
        _write(kept / "expected_outputs.json", [json.dumps(expected, ensure_ascii=False, indent=1)])
        (kept / "settings").mkdir()
        for setting, content in SETTINGS_FILES.items():
            (kept / "settings" / f"{setting}.toml").write_text(content, "utf-8", newline="\n")
        np.savez_compressed(kept / "expected_numbers.npz", allow_pickle=False, **numbers)
        shutil.copytree(kept, out)


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
