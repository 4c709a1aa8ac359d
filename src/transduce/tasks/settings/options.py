"""List the settings that have an option of their own, which is also an argument of `train` and `prepare` in Python.

The module imports nothing heavy, so that `--help` answers at once.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from transduce.tasks import TaskName
from transduce.training import PRESET_SIZES

TASK_KINDS = get_args(TaskName)

Form = Mapping[str, Any]
"""Keyword arguments with which argparse reads an option, without its help."""

TEXT: Form = {}
NAME: Form = {"metavar": "NAME"}
FOLDER: Form = {"metavar": "DIR"}
FILES: Form = {"nargs": "+", "metavar": "FILE"}
FOLDERS: Form = {"nargs": "+", "metavar": "DIR"}
PATHS: Form = {"nargs": "+", "metavar": "PATH"}
SIDES: Form = {"nargs": 2, "metavar": ("SOURCE", "TARGET")}
FLAG: Form = {"action": "store_const", "const": True}
COUNT: Form = {"type": int, "metavar": "N"}


class SettingOption(NamedTuple):
    """An option of commands, such as --steps, which is also an argument of Python functions, and sets a setting."""

    setting: str
    """The dotted name of the setting, such as "training.steps"."""
    help: str
    form: Form = TEXT


OPTIONS = {
    "task": SettingOption(
        "task.kind",
        f"what to train: {', '.join(TASK_KINDS)} (default: translation)",
        {"choices": TASK_KINDS, "metavar": "KIND"},
    ),
    "preset": SettingOption(
        "preset", f"size of the model: {', '.join(PRESET_SIZES)} (default: by the number of pairs)", NAME
    ),
    "init_from": SettingOption("init_from", "start from the weights and the tokenizer of this model", FOLDER),
    "steps": SettingOption("training.steps", "total parameter updates, including those before a resume", COUNT),
    "minutes": SettingOption("training.minutes", "training time, instead of --steps", {"type": float, "metavar": "M"}),
    "seed": SettingOption("training.seed", "seed of all random numbers (default: 1)", COUNT),
    "precision": SettingOption(
        "training.precision",
        "auto: bf16 if the hardware multiplies it faster",
        {"default": "auto", "choices": ("auto", "fp32", "bf16")},
    ),
    # --- texts ---
    "source": SettingOption(
        "data.source",
        "source text, one sentence per line, plain or compressed; or files of pairs (.tsv, .jsonl, .csv, "
        ".parquet, .arrow, .tmx, a datasets folder, or - for standard input); or monolingual text, trees or tables "
        "(.csv, .tsv), depending on the task",
        FILES,
    ),
    "target": SettingOption("data.target", "translations of --source, line by line", FILES),
    "prepared": SettingOption("data.prepared", "output of `transduce prepare`, instead of files", FOLDER),
    "dev_source": SettingOption("data.dev_source", "dev set (default: a part of the training pairs)", FILES),
    "dev_target": SettingOption("data.dev_target", "target side of the dev set", FILES),
    "corpus": SettingOption(
        "data.corpora",
        "SOURCE TARGET [KEY=VALUE …]: one of several corpora, instead of --source, with settings such as "
        "tag=news, share=0.3 or sampling_weight=2; can be repeated",
        {"nargs": "+", "action": "append", "metavar": "FILE"},
    ),
    "mix": SettingOption(
        "data.mix",
        "the folder of an earlier run, whose training text makes up this share of all pairs, such as old:0.3",
        {"nargs": "+", "metavar": "OLD:SHARE"},
    ),
    "columns": SettingOption(
        "data.columns", "columns or JSON fields that hold the texts (default: language codes or usual names)", SIDES
    ),
    "weight_column": SettingOption(
        "data.weight_column", "column or JSON field with the weight of each pair in the loss", NAME
    ),
    "document_column": SettingOption(
        "data.document_column",
        "column or JSON field that names the document of each pair, for --context-before (default: blank lines "
        "separate documents)",
        NAME,
    ),
    "context_before": SettingOption(
        "data.context_before",
        "the model reads up to N earlier sentences of the document before each sentence (default: 0)",
        COUNT,
    ),
    "strict_format": SettingOption(
        "data.strict_format",
        "stop at a line of a .tsv file that has other than two columns, instead of skipping it",
        FLAG,
    ),
    "languages": SettingOption("data.languages", "language codes (default: the files' suffixes)", SIDES),
    "monolingual": SettingOption(
        "data.monolingual",
        "target-language text without translations: a reverse model is trained first and back-translates it",
        FILES,
    ),
    "back_translated": SettingOption(
        "data.back_translated",
        "files of --source that were back-translated by a machine from their targets; their source "
        "sentences start with a tag that marks them",
        FILES,
    ),
    "distill_from": SettingOption(
        "data.distill_from",
        "instead of --target: a teacher model (or an ensemble) that translates the source text for distillation",
        FOLDERS,
    ),
    # --- vocabulary ---
    "vocabulary": SettingOption(
        "tokenizer.vocabulary",
        "existing vocabulary for both sides, or one for each: a sentencepiece model, a tokenizer.json, a word "
        "list, or a model folder (default: learned from the text)",
        PATHS,
    ),
    "user_symbols": SettingOption(
        "tokenizer.user_symbols",
        "tokens that are never split; with --init-from, those that the base model lacks are added to its vocabulary",
        {"nargs": "+", "metavar": "TOKEN"},
    ),
    "line_feeds": SettingOption(
        "tokenizer.line_feeds",
        "a token for line feeds inside texts (of JSON lines), which translation then keeps",
        FLAG,
    ),
}
"""The options that set settings: name in Python, such as "dev_source" for --dev-source → `SettingOption`."""
