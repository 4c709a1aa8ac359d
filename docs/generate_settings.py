"""Write docs/settings.md from the code: `python docs/generate_settings.py`.

Types, defaults, rules and presets are read from the package. The meaning of a setting is the docstring under its field,
or under the same field of the struct that the setting is resolved to.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from transduce.commands.options import SEARCH_OPTIONS, option_of
from transduce.model.config import ModelConfig
from transduce.tasks.settings.options import OPTIONS
from transduce.tasks.settings.presets import RECIPES
from transduce.tasks.settings.reading import struct_of
from transduce.tasks.settings.structs import ModelSettings, Settings, VocabularySettings
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.training import choices

PAGE = Path(__file__).with_name("settings.md")
Struct = type[msgspec.Struct]

# Structs whose fields document the fields of another struct.
_RESOLVED: dict[Struct, Struct] = {VocabularySettings: TokenizerSettings, ModelSettings: ModelConfig}

# Types that the annotation alone does not show in a useful form.
TYPES = {
    "training.lora_projections": "list of these",
    "task.series.columns": "list of strings",
    "task.class_weights": "`balanced` or a table",
    "search.forbidden": "list of strings",
    "tokenizer.user_symbols": "list of strings",
    "data.corpora": "tables of `source`, `target`, `dev_source`, `dev_target`, `languages`, "
    "`sampling_weight`, `upsample`, `share`, `tag`, `run`, `loss_weight`",
    "search.generate.forbidden_ids": "list of integers",
}

# What happens where the default is None. Sizes of the model follow the preset; other choices have a rule.
IF_NOT_SET = {
    "task.tags": "`true`",
    "task.merges": "`1000`",
    "task.next_sentence": "`true`",
    "task.class_weights": "all `1`",
    "data.languages": "the files' suffixes",
    "data.columns": "by their names",
    "data.language_tokens": "with several language pairs, or as in `init_from`",
    "data.weight_column": "none",
    "data.document_column": "empty lines",
    "data.prepared": "not set",
    "training.batch_size": "see `training.batch_tokens`",
    "training.unigram_alpha": "not set",
    "tokenizer.character_coverage": "by script and size",
    "tokenizer.placeholders": "`8`; `0` below 5,000 pairs or 500 tokens, or if the two languages are unknown",
    "init_from": "not set",
    "task.context": "`256`; `128` for encoders; with `--init-from`, the positions of a language model's folder",
    "task.noise.share": "`0.3`; `0.15` for `spans`",
    "tokenizer.byte_fallback": "true unless `kind` is `character` or `word`",
    "model.kind": "by the task",
    "model.embedding_size": "`d_model`",
    "model.num_key_value_heads": "`num_heads`",
    "model.final_norm": "true unless `norm_order` is `post`",
    "model.projection_bias": "`bias`",
    "model.attention_output_bias": "`bias`",
    "model.feed_forward_bias": "`bias`",
    "model.attention_scale": "`1 / √d_k`",
    "model.attention_window": "not set",
    "model.d_k": "`d_model / num_heads`",
    "model.d_v": "`d_model / num_heads`",
    "model.tie_source_target": "with a joint vocabulary",
    "task.series.columns": "all",
    "task.series.past": "4 × `horizon`",
    "task.series.season": "by autocorrelation",
    "training.minutes": "not set",
    "training.precision": "by the machine",
    "training.validate_every": "12 a run, 50 steps apart at least",
    "training.save_every": "12 a run, 50 steps apart at least",
    "training.patience": "`6`",
    "training.adapt_dropout": "true if `model.dropout` is not set",
    "training.lora_alpha": "`2 × lora_rank`",
    "word_vectors.source": "none",
    "word_vectors.target": "none",
    "search.max_length": "not set",
    "search.generate.forced_first_id": "none",
    "search.generate.forced_last_id": "none",
}

_OPTIONS = {option.setting: option_of(name) for name, option in (OPTIONS | SEARCH_OPTIONS).items()}

_TABLES = {
    "": "The whole run",
    "task": "`[task]`",
    "task.noise": "`[task.noise]`",
    "task.masking": "`[task.masking]`",
    "task.series": "`[task.series]`",
    "data": "`[data]`",
    "data.noise": "`[data.noise]`",
    "data.filters": "`[data.filters]`",
    "tokenizer": "`[tokenizer]`",
    "word_vectors": "`[word_vectors]`: with this table, embeddings start as word vectors",
    "model": "`[model]`",
    "training": "`[training]`",
    "search": "`[search]`",
    "search.sampling": "`[search.sampling]`: with this table, translations are sampled",
    "search.generate": "`[search.generate]`: with this table, search ranks as Hugging Face's `generate`",
}


def tables(struct: Struct = Settings, prefix: str = "") -> Iterator[tuple[str, Struct, list[str]]]:
    """Yield each table of a settings file: its name, its struct, and its fields that are not tables themselves."""
    inner: list[tuple[str, Struct]] = []
    plain: list[str] = []
    for name, hint in get_type_hints(struct).items():
        struct_inside = struct_of(hint)
        if struct_inside is not None:
            inner.append((name, struct_inside))
        else:
            plain.append(name)
    yield prefix, struct, plain
    for name, hint in inner:
        yield from tables(hint, f"{prefix}.{name}".removeprefix("."))


def docstrings(struct: Struct) -> dict[str, str]:
    """Return the docstring under each field of a struct that has one, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(struct)))
    assert isinstance(tree.body[0], ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in pairwise(tree.body[0].body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = " ".join(below.value.value.split())
    return found


def meaning(name: str, struct: Struct) -> str:
    """Return the meaning of a setting: the docstring under its field, or under the field that it is resolved to.

    Raises:
        LookupError: neither field has a docstring.
    """
    field = name.rpartition(".")[2]
    text = docstrings(struct).get(field)
    if not text and struct in _RESOLVED:
        text = docstrings(_RESOLVED[struct]).get(field)
    if not text:
        raise LookupError(f"the setting {name} has no docstring in the code: add one under its field")
    return text.replace("None:", "not set:")  # a settings file has no None


def show_type(hint: Any) -> str:
    """Return the name of a type as a reader of the page would write it."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    parts = [part for part in get_args(hint) if part is not type(None)]
    if get_origin(hint) is tuple:
        count = "" if parts[-1] is Ellipsis else f"{len(parts)} "
        first, *rest = show_type(parts[0]).split(" ", 1)
        return " ".join([f"list of {count}{first}s", *rest])
    if parts:
        return show_type(parts[0])
    return {int: "integer", float: "number", str: "string", bool: "true or false"}[hint]


def show_default(name: str, value: Any) -> str:
    """Return the default of a setting; for None, a text that describes the effect of leaving the setting out.

    Raises:
        LookupError: `IF_NOT_SET` and the rules do not have an entry for a default of None.
    """
    if value is None:
        return _show_if_not_set(name)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value) or "none"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _show_if_not_set(name: str) -> str:
    table, _, field = name.rpartition(".")
    if name in IF_NOT_SET:
        return IF_NOT_SET[name]
    if hasattr(choices, f"choose_{field}"):
        return f"[chosen](#choose_{field})"
    if table == "model" and field in choices.Preset.__struct_fields__:
        return "of the [preset](#presets)"
    usual = {each.name: each.default for each in msgspec.structs.fields(ModelConfig)}.get(field)
    if table == "model" and usual is not None:
        return show_default(name, usual)
    raise LookupError(f"the default of the setting {name} is None: add to IF_NOT_SET what happens then")


def settings_table(prefix: str, struct: Struct, names: list[str]) -> Iterator[str]:
    """Yield the lines of one table of settings."""
    hints = get_type_hints(struct)
    yield "| setting | type | default | meaning |"
    yield "|---|---|---|---|"
    for field in msgspec.structs.fields(struct):
        if field.name in names:
            name = f"{prefix}.{field.name}".removeprefix(".")
            text = meaning(name, struct).replace("|", "\\|")
            text += f" Option: `{_OPTIONS[name]}`." if name in _OPTIONS else ""
            kind = TYPES.get(name) or show_type(hints[field.name])
            yield f"| `{name}` | {kind} | {show_default(name, field.default)} | {text} |"


def presets_table() -> Iterator[str]:
    """Yield the lines of the table of presets and their sizes."""
    names = [field.name for field in msgspec.structs.fields(choices.Preset)]
    yield f"| preset | {' | '.join(f'`{name}`' for name in names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for preset, sizes in choices.PRESETS.items():
        yield f"| `{preset}` | {' | '.join(str(getattr(sizes, name)) for name in names)} |"
    yield ""
    yield "Some presets set more than sizes, for one or several tasks. A setting of yours replaces the preset's."
    yield ""
    yield "| preset | tasks | settings |"
    yield "|---|---|---|"
    for preset, recipe in RECIPES.items():
        values = (f"`{name}` = {_toml_value(value)}" for name, (value, _) in recipe.settings.items())
        yield f"| `{preset}` | {', '.join(f'`{task}`' for task in recipe.tasks)} | {', '.join(values)} |"


def _toml_value(value: Any) -> str:
    """Return a value as a settings file has it; a long number is shortened."""
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


def rules() -> Iterator[str]:
    """Yield a line for each rule that chooses a setting: the docstring of its function."""
    for name, function in inspect.getmembers(choices, inspect.isfunction):
        if name.startswith("choose_"):
            text = " ".join((inspect.getdoc(function) or "").partition("\n\nReturns:")[0].split())
            yield f'* <a id="{name}"></a>`{name}`: {_link_pages(text)}'


def _link_pages(text: str) -> str:
    return re.sub(r"docs/(\w+)\.md", r"[\1](\1.md)", text)


def page() -> str:
    """Return the whole page as Markdown."""
    lines = [
        "# Settings",
        "",
        "`docs/generate_settings.py` generates this page from the code; do not edit it by hand.",
        "",
        "    transduce train settings.toml --out DIR --set training.steps=2000",
        "",
        "A settings file is TOML; `--set` changes one value, or the named ones of a table, as in",
        "`--set 'training={steps=2000, seed=2}'`. An array of tables (`data.corpora`) is set as a whole. An unknown",
        "name is an error with a suggestion. *Chosen* means that the rules at the end of this page choose the value",
        "from the corpus and the machine. `--dry-run` shows every choice with its reason. The settings that a run used",
        "are in `settings.toml` in its folder.",
    ]
    for prefix, struct, names in tables():
        if names:
            lines += ["", f"## {_TABLES[prefix]}", "", *settings_table(prefix, struct, names)]
    lines += ["", "## Presets", "", *presets_table(), "", "## How settings are chosen", "", *rules()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8", newline="\n")
