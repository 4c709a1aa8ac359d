"""Writes docs/settings.md out of the code: `python docs/generate_settings.py`.

Types, defaults, rules and presets are read from the package. A setting's meaning is the docstring below its field or
the comment above it, or those of the same field of the struct that it is resolved to; where several fields share one
or have none, `MEANINGS` says it.
"""

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from transduce.model.config import ModelConfig
from transduce.tasks.settings import ModelSettings, Settings, VocabularySettings
from transduce.tasks.settings_reading import struct_of
from transduce.text.sentencepiece_model import TokenizerSettings
from transduce.training import choices

PAGE = Path(__file__).with_name("settings.md")
Struct = type[msgspec.Struct]

# Structs whose comments tell what the fields of another mean.
_RESOLVED: dict[Struct, Struct] = {VocabularySettings: TokenizerSettings, ModelSettings: ModelConfig}

MEANINGS = {
    "preset": "The model's size and kind: one of the [presets](#presets).",
    "data.target": "Their translations, line by line: as many files, in the same order; none with files of pairs.",
    "data.format": "`lines`: a file a side; `tsv`: source, tab, target; `jsonl`: an object a line with `source` and "
    "`target`, or the two languages' codes, alone or inside `translation`, or with `text` where a task learns from "
    "text alone; `auto`: by suffix.",
    "data.dev_target": "The dev set's target side.",
    "tokenizer.kind": "`bpe`: pairs merged by frequency (section 5.1); `unigram`: a language model over pieces; "
    "`character`: every character is a piece.",
    "tokenizer.character_coverage": "Share of the characters (by occurrence) that get a piece.",
    "model.num_encoder_layers": "Encoder layers: N of Table 3.",
    "model.num_decoder_layers": "Decoder layers.",
    "model.d_model": "Width of embeddings and of every layer's output; an even number, a multiple of `num_heads`.",
    "model.d_ff": "Width inside the feed-forward layer.",
    "model.num_heads": "Heads of each attention: h of Table 3.",
    "model.d_k": "Width of one head's queries and keys.",
    "model.d_v": "Width of one head's values.",
    "model.dropout": "On every sub-layer's output, and on the sums of embeddings and positions (section 5.4).",
    "model.attention_dropout": "On attention weights; not in the paper.",
    "model.activation_dropout": "Inside the feed-forward layer; not in the paper.",
    "model.bias": "Whether projections and feed-forward layers have biases.",
    "model.tie_source_target": "One embedding matrix for both sides; needs a joint vocabulary.",
    "model.tie_output": "The target's embedding matrix is the output projection too (section 3.4).",
}

# What a type alone does not tell.
TYPES = {
    "training.lora_projections": "list of these",
    "task.series.columns": "list of strings",
    "search.forbidden": "list of strings",
    "search.generate.forbidden_ids": "list of integers",
}

# Where the default is None: what happens then. Sizes of the model follow the preset; other choices have a rule.
UNSAID = {
    "task.tags": "`true`",
    "task.merges": "`1000`",
    "task.next_sentence": "`true`",
    "data.languages": "the files' suffixes",
    "data.prepared": "not set",
    "tokenizer.character_coverage": "by script and size",
    "start_from": "not set",
    "task.context": "`256`; `128` for encoders; with `--from`, a language model takes the kept positions",
    "task.noise.share": "`0.3`; `0.15` for `spans`",
    "tokenizer.byte_fallback": "but for `character`",
    "model.kind": "by the task",
    "model.num_key_value_heads": "`num_heads`",
    "model.final_norm": "unless `norm_order` is `post`",
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
    "training.adapt_dropout": "true if no dropout is set",
    "training.lora_alpha": "`2 × lora_rank`",
    "word_vectors.source": "none",
    "word_vectors.target": "none",
    "search.max_length": "not set",
    "search.generate.forced_first_id": "none",
    "search.generate.forced_last_id": "none",
}

_TABLES = {
    "": "The whole run",
    "task": "`[task]`",
    "task.noise": "`[task.noise]`",
    "task.masking": "`[task.masking]`",
    "task.series": "`[task.series]`",
    "data": "`[data]`",
    "data.filters": "`[data.filters]`",
    "tokenizer": "`[tokenizer]`",
    "word_vectors": "`[word_vectors]`: where this table stands, embeddings begin as word vectors",
    "model": "`[model]`",
    "training": "`[training]`",
    "search": "`[search]`",
    "search.sampling": "`[search.sampling]`: where this table stands, translations are drawn",
    "search.generate": "`[search.generate]`: where this table stands, search ranks as Hugging Face's `generate`",
}


def tables(struct: Struct = Settings, prefix: str = "") -> Iterator[tuple[str, Struct, list[str]]]:
    """Each table of a settings file: its name, its struct, and its fields that are no tables themselves."""
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


def comments(struct: Struct) -> dict[str, str]:
    """The comment right above each field that has one."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    tokens = list(tokenize.generate_tokens(io.StringIO(inspect.getsource(struct)).readline))
    for token, following in pairwise(tokens):
        if token.type == tokenize.COMMENT and token.line.strip().startswith("# ---"):
            waiting = []  # the title of a section
        elif token.type == tokenize.COMMENT and token.line.strip().startswith("#"):
            waiting.append(token.string.removeprefix("#").strip())
        elif token.type == tokenize.NAME and following.string == ":" and token.line.startswith("    " + token.string):
            if waiting:
                found[token.string] = " ".join(waiting)
            waiting = []
        elif token.type == tokenize.NAME:
            waiting = []
    return found


def field_docstrings(struct: Struct) -> dict[str, str]:
    """Return the docstring right below each field that has one."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(struct))).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            found[field.target.id] = " ".join(ast.literal_eval(below.value).split())
    return found


def _described(struct: Struct) -> dict[str, str]:
    return comments(struct) | field_docstrings(struct)


def meaning(name: str, struct: Struct) -> str:
    """What a setting means.

    Raises:
        LookupError: neither the code nor `MEANINGS` says it.
    """
    field = name.rpartition(".")[2]
    said = MEANINGS.get(name) or _described(struct).get(field)
    if not said and struct in _RESOLVED:
        said = _described(_RESOLVED[struct]).get(field)
    if not said:
        raise LookupError(f"the setting {name} has no comment in the code: add one above its field")
    return said.replace("None:", "not set:")  # which a file of settings cannot say


def show_type(hint: Any) -> str:
    """A type as a person writes it."""
    if get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(hint))
    parts = [part for part in get_args(hint) if part is not type(None)]
    if get_origin(hint) is tuple:
        return "list of files" if parts[-1] is Ellipsis else f"list of {len(parts)} strings"
    if parts:
        return show_type(parts[0])
    return {int: "integer", float: "number", str: "string", bool: "true or false"}[hint]


def show_default(name: str, value: Any) -> str:
    """The default; where it is None, what is done then.

    Raises:
        LookupError: nobody says what is done then.
    """
    if value is None:
        return _show_unsaid(name)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value) or "none"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _show_unsaid(name: str) -> str:
    table, _, field = name.rpartition(".")
    if name in UNSAID:
        return UNSAID[name]
    if hasattr(choices, f"choose_{field}"):
        return f"[chosen](#choose_{field})"
    if table == "model" and field in choices.Preset.__struct_fields__:
        return "of the [preset](#presets)"
    usual = {each.name: each.default for each in msgspec.structs.fields(ModelConfig)}.get(field)
    if table == "model" and usual is not None:
        return show_default(name, usual)
    raise LookupError(f"the setting {name} is None where nothing is said: say in UNSAID what happens then")


def settings_table(prefix: str, struct: Struct, names: list[str]) -> Iterator[str]:
    """One table of the page."""
    hints = get_type_hints(struct)
    yield "| setting | type | default | meaning |"
    yield "|---|---|---|---|"
    for field in msgspec.structs.fields(struct):
        if field.name in names:
            name = f"{prefix}.{field.name}".removeprefix(".")
            text = meaning(name, struct).replace("|", "\\|")
            kind = TYPES.get(name) or show_type(hints[field.name])
            yield f"| `{name}` | {kind} | {show_default(name, field.default)} | {text} |"


def presets_table() -> Iterator[str]:
    """The sizes that presets stand for."""
    names = [field.name for field in msgspec.structs.fields(choices.Preset)]
    yield f"| preset | {' | '.join(f'`{name}`' for name in names)} |"
    yield "|---" * (len(names) + 1) + "|"
    for preset, sizes in choices.PRESETS.items():
        yield f"| `{preset}` | {' | '.join(str(getattr(sizes, name)) for name in names)} |"


def rules() -> Iterator[str]:
    """The rules by which settings are chosen, in the words of their functions."""
    for name, function in inspect.getmembers(choices, inspect.isfunction):
        if name.startswith("choose_"):
            yield f'* <a id="{name}"></a>`{name}`: {" ".join((inspect.getdoc(function) or "").split())}'


def page() -> str:
    """The whole page."""
    lines = [
        "# Settings",
        "",
        "This page is written by `docs/generate_settings.py` out of the code; do not change it by hand.",
        "",
        "A settings file is TOML; `transduce train settings.toml --out DIR` reads it, and `--set training.steps=2000`",
        "changes one value. An unknown name is an error with a suggestion. *Chosen* means: from the corpus and the",
        "machine, by the rules at the end of this page; `--dry-run` shows every choice with its reason. What a run",
        "used is written to `settings.toml` in its folder.",
    ]
    for prefix, struct, names in tables():
        if names:
            lines += ["", f"## {_TABLES[prefix]}", "", *settings_table(prefix, struct, names)]
    lines += ["", "## Presets", "", *presets_table(), "", "## How settings are chosen", "", *rules()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8", newline="\n")
