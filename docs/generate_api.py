"""Write docs/api.md from `transduce.__all__`: `python docs/generate_api.py`.

Signatures and docstrings are read from the source. Every public name must be in one of the groups below.
"""

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

import transduce

PAGE = Path(__file__).with_name("api.md")

GROUPS = {
    "Train": [
        "train",
        "TrainResult",
        "RunEstimate",
        "ScoreEstimate",
        "Callback",
        "RunStart",
        "TrainEvent",
        "ValidationEvent",
        "CheckpointEvent",
        "RunEnd",
        "Tracker",
        "WandbTracker",
        "MlflowTracker",
        "TrackioTracker",
        "TensorBoardTracker",
        "prepare",
        "merge_shards",
        "PreparationReport",
        "ShardReport",
        "TokenizerReport",
        "demo",
        "DemoResult",
    ],
    "Load and save": [
        *("load", "pipeline", "save", "import_model", "ImportReport", "export", "ExportReport"),
        *("quantize", "QuantizeReport", "prove_int8", "Int8Proof", "Int8Comparison", "verify", "VerifyReport"),
    ],
    "Translate": [
        *("Translator", "Translation", "Alternative", "SearchSettings", "SamplingSettings", "GenerateSettings"),
        *("TextSettings", "Documents"),
    ],
    "Documents": ["translate_document", "DocumentSettings", "translate_markup", "MarkupSettings"],
    "Glossaries and kNN retrieval": ["Glossary", "Term", "read_glossary", "build_datastore", "Datastore"],
    "Score and compare": ["evaluate", "score", "ScoreReport", "compare", "Comparison", "Score"],
    "Quality warnings": ["estimate_quality", "redecode", "QualityWarning"],
    "Other tasks": [
        "Generator",
        "Generation",
        "Continuation",
        "TextScore",
        "Filler",
        "Filling",
        "Candidate",
        "Classifier",
        "Classification",
        "Tagger",
        "Tagging",
        "Embedder",
        "TokenStates",
        "Parser",
        "Parse",
        "Forecaster",
        "Forecast",
    ],
    "Look inside": [
        "inspect",
        "Inspection",
        "InspectionPage",
        "attention_maps",
        *("inspect_text", "TextInspection", "TextInspectionPage"),
        *("attribute", "attributions", "Attribution"),
        *("record_activations", "Recording", "hook_points", "HookPoint"),
        *("ablate", "Ablation", "patch_activations", "Patching", "logit_lens", "LogitLens", "probe", "Probing"),
        "word_attention",
        "align",
        "pronoun_attention",
        "PronounAttention",
        "PronounPair",
        "intervene",
        "Intervention",
        "Head",
        "replace_word",
        "examine",
        "DoctorSubject",
        "ResidualLayer",
        "SplitModel",
        "DoctorReport",
    ],
    "Experiments": ["experiment", "ExperimentReport"],
    "Models and tokenizers": [
        "Transformer",
        "Recurrent",
        "ModelConfig",
        "RotaryScaling",
        "Tokenizer",
        "TokenizerSettings",
        "add_lora",
        "merge_lora",
        "LowRankSettings",
        "register",
        "MultiHeadAttention",
        "AttentionMask",
        "AttentionTrace",
        "ScoredAttention",
        "import_tutorial",
        "language_model_config",
        "read_vocabulary",
        "TutorialNames",
        "fill_embeddings",
    ],
    "Installation": ["check_install", "InstallReport"],
    "Errors": ["TransduceError", "set_ui_language"],
}

_MOST_COLUMNS = 100
_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Warns):$")
_ITEM = re.compile(r"^ {4}(\S.*?): (.*)$")

_HEAD = """\
# Python API

`docs/generate_api.py` generates this page from `transduce.__all__`; do not edit it by hand.

    import transduce

    translator = transduce.load("models/zh-en")
    print(translator("我爱你").text)

**What is public.** The names on this page, with their arguments, methods and fields. Everything else in the package may
change in any release.

**When something is renamed.** The old name of a command, an option, a function, an argument or a field works for one
more minor release. So does that of a setting in `--set` and in Python; in files it works forever. In Python an old name
gives a `DeprecationWarning`; on the command line it prints one line. To find old names in a program of yours, run it
with `python -W error::DeprecationWarning`. The [changelog](../CHANGELOG.md) lists all renamed names.
"""


def definition(item: Any) -> ast.ClassDef | ast.FunctionDef:
    """Return the syntax tree of a class or function, without its decorators."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(item)))).body[0]
    assert isinstance(tree, ast.ClassDef | ast.FunctionDef)
    return tree


def signature(name: str, function: ast.FunctionDef) -> str:
    """Return the signature of a function or method as its source has it, without `self`, on as few lines as fit."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    parts = [_argument(*pair) for pair in zip(positional, defaults, strict=True) if pair[0].arg not in ("self", "cls")]
    if arguments.vararg is not None:
        parts.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [_argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg is not None:
        parts.append(f"**{_argument(arguments.kwarg, None)}")
    returned = (
        ""
        if function.returns is None or name.rpartition(".")[2][:1].isupper()
        else f" -> {ast.unparse(function.returns)}"
    )
    line = f"{name}({', '.join(parts)}){returned}"
    if len(line) <= _MOST_COLUMNS:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = "" if argument.annotation is None else f": {ast.unparse(argument.annotation)}"
    equals = " = " if annotation else "="
    return argument.arg + annotation + ("" if default is None else equals + _literal(default))


def _literal(value: ast.expr) -> str:
    """Return the source of a value, with texts in double quotes."""
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return f'"{value.value}"' if is_text else ast.unparse(value)  # type: ignore[attr-defined]


def render(docstring: str) -> str:
    """Return a docstring as Markdown; its sections of arguments, results and errors become lists."""
    lines: list[str] = []
    section = None
    for line in inspect.cleandoc(docstring).splitlines():
        if match := _SECTION.match(line):
            section = match[1]
            lines += [f"**{section}**", ""]
        elif section in ("Args", "Raises", "Warns") and (item := _ITEM.match(line)):
            lines.append(f"* `{item[1]}`: {item[2]}")
        elif section in ("Args", "Raises", "Warns") and line.strip():
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line.strip() if section else line)
    return _escape("\n".join(lines))


def _escape(text: str) -> str:
    """Escape tags outside code, and link the pages that a text names."""
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;") for part in parts[::2]]
    return re.sub(r"\bdocs/(\w+)\.md", r"[\1](\1.md)", "`".join(parts).replace("docs/benchmarks.md", "docs/results.md"))


def fields(tree: ast.ClassDef) -> Iterator[str]:
    """Yield a list item for each field of a class: its name, type, default and docstring."""
    for field, below in pairwise([*tree.body, ast.Pass()]):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if field.target.id.startswith("_") or ast.unparse(field.annotation).startswith("ClassVar"):
            continue
        text = ""
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            text = ": " + _escape(" ".join(below.value.value.split()))
        default = "" if field.value is None else _default(field.value)
        yield f"* `{field.target.id}: {ast.unparse(field.annotation)}{default}`{text}"


def _default(value: ast.expr) -> str:
    """Return the default of a field; a call of `msgspec.field` has it as an argument, or has none."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "msgspec.field":
        defaults = [keyword.value for keyword in value.keywords if keyword.arg == "default"]
        return "".join(f" = {_literal(default)}" for default in defaults)
    return f" = {_literal(value)}"


def members(owner: str, item: type) -> Iterator[str]:
    """Yield the Markdown of the methods and properties of a class with the public name `owner`, and of its bases."""
    shown: set[str] = set()
    for base in item.__mro__:
        if not base.__module__.startswith("transduce."):
            continue
        for name, member in vars(base).items():
            text = inspect.getdoc(member)
            if (name.startswith("_") and name != "__call__") or name in shown or not text:
                continue
            shown.add(name)
            if "under its old name" in text:
                continue
            if isinstance(member, property):
                yield f"#### `{owner}.{name}` (property)\n\n{render(text)}\n"
            elif callable(inspect.unwrap(getattr(base, name))) and not isinstance(member, type):
                function = definition(getattr(base, name))
                if isinstance(function, ast.FunctionDef):
                    yield f"#### `{owner}.{name}`\n"
                    yield f"```python\n{signature(name, function)}\n```\n\n{render(text)}\n"


def entry(name: str) -> Iterator[str]:
    """Yield the Markdown of one public name."""
    item = getattr(transduce, name)
    tree = definition(item)
    yield f'### <a id="{name}"></a>`{name}`\n'
    if isinstance(tree, ast.FunctionDef):
        yield f"```python\n{signature(f'transduce.{name}', tree)}\n```\n"
        yield render(inspect.getdoc(item) or "") + "\n"
        return
    yield render(inspect.getdoc(item) or "") + "\n"
    constructor = vars(item).get("__init__")
    is_record = dataclasses.is_dataclass(item) or issubclass(item, msgspec.Struct | Exception | tuple)
    # Not `inspect.getdoc`, which returns the docstring of a base class, such as PyTorch's, if there is no other.
    if constructor is not None and not is_record and constructor.__doc__:
        function = definition(constructor)
        assert isinstance(function, ast.FunctionDef)
        yield f"```python\n{signature(f'transduce.{name}', function)}\n```\n"
        yield render(constructor.__doc__) + "\n"
    if listed := list(fields(tree)):
        yield "\n".join(listed) + "\n"
    yield from members(name, item)


def page() -> str:
    """Return the whole page as Markdown.

    Raises:
        LookupError: a public name is in no group, or in several.
    """
    grouped = sorted(name for names in GROUPS.values() for name in names)
    if grouped != sorted(transduce.__all__):
        different = sorted({*grouped} ^ {*transduce.__all__}) or "one is in two groups"
        raise LookupError(f"each public name must be in one group of docs/generate_api.py: {different}")
    lines = [_HEAD, "| | |", "|---|---|"]
    for title, names in GROUPS.items():
        lines.append(f"| {title} | {', '.join(f'[`{name}`](#{name})' for name in names)} |")
    for title, names in GROUPS.items():
        lines += [f"\n## {title}\n", *(line for name in names for line in entry(name))]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8", newline="\n")
