"""The settings of a run: a TOML file, changed by ``--set key=value``.

None stands for "choose from the corpus and the machine".
"""

import difflib
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from transduce.data.masking import MaskingSettings
from transduce.data.series_windows import SeriesSettings
from transduce.errors import TransduceError
from transduce.interop.word_vectors import WordVectorSettings
from transduce.model.config import Activation, AttentionKind, AttentionScore, Kind, Norm, NormOrder, Positions
from transduce.search.settings import SearchSettings
from transduce.tasks.noise import NoiseSettings
from transduce.tasks.settings_file import FileSettings
from transduce.text.corpus import Format
from transduce.text.filters import FilterSettings
from transduce.text.languages import valid_language
from transduce.training.choices import PRESETS
from transduce.training.settings import TrainingSettings

_UNIONS = (Union, UnionType)
# What else the field calls a value.
_OTHER_NAMES = {
    "rope": "rotary",
    "lm": "language-model",
    "gpt": "language-model",
    "mlm": "masked-language-model",
    "bert": "masked-language-model",
    "bart": "denoising",
    "layernorm": "layer",
    "rmsnorm": "rms",
    "batchnorm": "batch",
    "luong": "general",
    "lstm": "recurrent",
    "gru": "recurrent",
}


class TaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is learnt. `task.*` in a settings file."""

    # translation: one text from another; language-model: to continue a text; denoising: to mend a spoilt text, before
    # another task is learnt; masked-language-model: to find hidden pieces (BERT); classification: labels of texts;
    # parsing: constituency trees; time-series: what numbers come next.
    kind: Literal[
        "translation",
        "language-model",
        "denoising",
        "masked-language-model",
        "classification",
        "parsing",
        "time-series",
    ] = "translation"
    # Of a language model, masked or not, and of classification: pieces that are seen at a time, at most.
    context: int | None = None
    # Of denoising: how text is spoilt.
    noise: NoiseSettings | None = None
    # Of a masked language model: what is hidden, and how.
    masking: MaskingSettings | None = None
    # Of a masked language model: whether it also learns if one stretch of text follows another; None: it does.
    next_sentence: bool | None = None
    # Of parsing: whether the tag of each word is written too; None: it is.
    tags: bool | None = None
    # Of parsing: of what lies between two words, so many most frequent runs of symbols are one piece each; None: 1,000.
    merges: int | None = None
    # Of time series: what is read of them, and what is foretold.
    series: SeriesSettings | None = None

    def __post_init__(self) -> None:
        if self.context is not None and self.context < 2:
            raise TransduceError(f"`task.context` must be at least 2, but is {self.context}.")
        if self.merges is not None and self.merges < 0:
            raise TransduceError(f"`task.merges` must not be negative, but is {self.merges}.")


class DataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the text is. `data.*` in a settings file."""

    # Training text: files line by line on both sides, or files of pairs (.tsv, .jsonl) as source alone. A task that
    # learns from text alone has its files here.
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    # In place of files: the folder that `transduce prepare` wrote. It stays where it is, and is read from there.
    prepared: str | None = None
    format: Format = "auto"
    # The dev set; a part of the training pairs is held out where there is none.
    dev_source: tuple[str, ...] = ()
    dev_target: tuple[str, ...] = ()
    # Those of `source` that a machine wrote, by translating their targets back: a tag begins each sentence of theirs,
    # and none of them is held out as a dev set.
    back_translated: tuple[str, ...] = ()
    # Text in the target's language that nobody translated: `transduce train` first trains the other direction, has it
    # translated back, and learns from that too.
    monolingual: tuple[str, ...] = ()
    # Source and target language; the files' suffixes where nothing is said.
    languages: tuple[str, str] | None = None
    # Pairs that are left out.
    filters: FilterSettings = FilterSettings()

    def __post_init__(self) -> None:
        for code in self.languages or ():
            if not valid_language(code):
                raise TransduceError(f"`data.languages` must be language codes such as zh or en, but one is `{code}`.")
        if self.target and not self.source:
            raise TransduceError("`data.target` needs the side that it translates: give `data.source` too.")
        for path in self.back_translated:
            if path not in self.source:
                raise TransduceError(
                    f"`data.back_translated` names some of the files of `data.source`, but {path} is none of them: "
                    "name it there too."
                )
        if self.dev_target and not self.dev_source:
            raise TransduceError("`data.dev_target` needs the side that it translates: give `data.dev_source` too.")


class VocabularySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How text is cut into pieces. `tokenizer.*` in a settings file."""

    kind: Literal["bpe", "unigram", "character"] = "bpe"
    vocabulary_size: int | None = None
    joint: bool = True
    byte_fallback: bool | None = None
    character_coverage: float | None = None
    nfc: bool = False
    # Files of further text that the vocabulary is learnt from, such as the other language's before a translation.
    text: tuple[str, ...] = ()


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model. `model.*` in a settings file; what is not said follows the task and the preset."""

    kind: Kind | None = None
    num_encoder_layers: int | None = None
    num_decoder_layers: int | None = None
    d_model: int | None = None
    d_ff: int | None = None
    num_heads: int | None = None
    num_key_value_heads: int | None = None
    d_k: int | None = None
    d_v: int | None = None
    share_layers: bool | None = None
    dropout: float | None = None
    attention_dropout: float | None = None
    activation_dropout: float | None = None
    activation: Activation | None = None
    norm: Norm | None = None
    norm_order: NormOrder | None = None
    norm_epsilon: float | None = None
    final_norm: bool | None = None
    bias: bool | None = None
    projection_bias: bool | None = None
    attention_output_bias: bool | None = None
    feed_forward_bias: bool | None = None
    positions: Positions | None = None
    max_positions: int | None = None
    position_offset: int | None = None
    sinusoids_to_end: bool | None = None
    rotary_base: float | None = None
    relative_buckets: int | None = None
    relative_max_distance: int | None = None
    attention_score: AttentionScore | None = None
    attention_kind: AttentionKind | None = None
    attention_scale: float | None = None
    attention_window: int | None = None
    tie_source_target: bool | None = None
    tie_output: bool | None = None
    scale_embeddings: bool | None = None
    embedding_norm: bool | None = None
    zero_padding_row: bool | None = None
    output_bias: bool | None = None
    output_scale: float | None = None
    recurrent_cell: Literal["lstm", "gru"] | None = None
    bidirectional: bool | None = None
    recurrent_attention: Literal["luong", "bahdanau", "none"] | None = None
    input_feeding: bool | None = None
    recurrent_self_attention: bool | None = None
    recurrent_context: Literal["last", "linear", "mean"] | None = None
    recurrent_context_to: Literal["initial", "steps", "both"] | None = None


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides a run."""

    # tiny, small, base, big; paper-base, paper-big. Chosen by the number of pairs where nothing is said.
    preset: str | None = None
    # The folder of a model whose weights training begins with; its tokenizer and its model's settings are kept.
    start_from: str | None = None
    task: TaskSettings = TaskSettings()
    data: DataSettings = DataSettings()
    tokenizer: VocabularySettings = VocabularySettings()
    # Embeddings that begin as word vectors; where nothing stands here they are random.
    word_vectors: WordVectorSettings | None = None
    model: ModelSettings = ModelSettings()
    training: TrainingSettings = TrainingSettings()
    search: SearchSettings = SearchSettings()

    def __post_init__(self) -> None:
        if self.preset is not None and self.preset not in PRESETS:
            raise TransduceError(f"`preset` must be one of {', '.join(PRESETS)}, but is `{self.preset}`.")


def read_settings(path: Path | None, assignments: Iterable[str] = ()) -> dict[str, Any]:
    """The content of a settings file, with ``key.name=value`` assignments applied in turn.

    Raises:
        TransduceError: the file is no TOML, or an assignment has no form.
    """
    content: dict[str, Any] = {}
    pairs = [_parse(assignment) for assignment in assignments]  # a mistake in them may have become the path
    if path is not None:
        try:
            text = path.read_text("utf-8-sig")
            content = FileSettings(tomllib.loads(text), path, text)
        except OSError as error:
            raise TransduceError(f"The settings file {path} cannot be read: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise TransduceError(f"The settings file {path} is not valid TOML: {error}.") from error
    for name, value in pairs:
        put_setting(content, name, value)
    return content


def _parse(assignment: str) -> tuple[str, Any]:
    key, equals, text = assignment.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+)*", key.strip()):
        raise TransduceError(
            f"`--set` takes a key and a value, such as training.steps=2000, but was given `{assignment}`."
        )
    return key.strip(), _parse_value(text.strip())


def put_setting(content: dict[str, Any], name: str, value: Any) -> None:
    """Enters a setting by its dotted name into nested tables; a table joins what is said of it already.

    Raises:
        TransduceError: one of the tables is a value, or the name is no text.
    """
    if not isinstance(name, str):
        raise TransduceError(f"A setting's name is a text, such as `training.steps`, but one is {name!r}.")
    if isinstance(content, FileSettings):
        content.forget(name)
    *tables, last = name.split(".")
    for table in tables:
        inner = content.setdefault(table, {})
        if not isinstance(inner, dict):
            raise TransduceError(f"`{name}` stands in the table `{table}`, but that was given the value {inner!r}.")
        content = inner
    if not isinstance(value, Mapping):
        content[last] = _plain(value)
        return
    content.setdefault(last, {})
    for key, own in value.items():
        put_setting(content, f"{last}.{key}", own)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, paths as texts."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _parse_value(text: str) -> Any:
    """A TOML value; what is none is taken as a string, so that quotes may be left out, but for a number as `.5`."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return float(text) if re.fullmatch(r"[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?", text, re.ASCII | re.I) else text


def make_settings(content: Mapping[str, Any]) -> Settings:
    """Checks keys and types.

    Raises:
        TransduceError: a key that does not exist, with the nearest one that does; a value of the wrong type. What
            `read_settings` has from a file comes with file and line.
    """
    try:
        return _checked(content)
    except TransduceError as error:
        place = content.place(str(error)) if isinstance(content, FileSettings) else None
        if place is None:
            raise
        raise TransduceError(f"{place}: {error}") from error


def _checked(content: Mapping[str, Any]) -> Settings:
    _refuse_unknown_keys(content, Settings, ())
    _refuse_infinite(content, "")
    try:
        return msgspec.convert(dict(content), Settings)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, TransduceError):
            raise error.__cause__ from None
        _, _, place = str(error).partition(" - at `$.")
        raise TransduceError(_wrong_value(place.partition("[")[0].rstrip("`").split("."), content)) from error


def _refuse_infinite(content: Mapping[str, Any], prefix: str) -> None:
    """A settings file could not keep what is infinite or no number."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            _refuse_infinite(value, f"{prefix}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise TransduceError(f"`{prefix}{name}` must be finite, but is {value}.")


def _wrong_value(path: Sequence[str], content: Any) -> str:
    hint: Any = Settings
    for name in path:
        hint = get_type_hints(struct_of(hint) or Settings)[name]
        content = content[name]
    wanted, said = _kinds(hint), str(content)
    meant = _OTHER_NAMES.get(said.lower())
    near = [meant] if meant in _names(hint) else difflib.get_close_matches(said, _names(hint), 1, 0.6)
    suggestion = f": did you mean `{near[0]}`?" if near else "."
    return f"`{'.'.join(path)}` must be {wanted}, but is `{said}`{suggestion}"


def _kinds(hint: Any) -> str:
    """What values a setting takes, in words."""
    if struct_of(hint) is not None:
        return "a table"
    if get_origin(hint) in _UNIONS:
        return " or ".join(dict.fromkeys(_kinds(inner) for inner in get_args(hint) if inner is not type(None)))
    if names := _names(hint):
        return "one of " + ", ".join(names)
    if get_origin(hint) in (tuple, list):
        count = "" if get_origin(hint) is list or ... in get_args(hint) else f" of {len(get_args(hint))}"
        return f'a list{count}, such as ["a", "b"]'
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(hint, "a text")


def _names(hint: Any) -> list[str]:
    """The words that a setting chooses among."""
    if get_origin(hint) is Literal:
        return [str(name) for name in get_args(hint)]
    return [name for inner in get_args(hint) for name in _names(inner)] if get_origin(hint) in _UNIONS else []


def _refuse_unknown_keys(content: Mapping[str, Any], struct: type[msgspec.Struct], path: tuple[str, ...]) -> None:
    hints = get_type_hints(struct)
    for key, value in content.items():
        if key not in hints:
            raise TransduceError(_unknown_key((*path, key, *_first_inside(value))))
        inner = struct_of(hints[key])
        if inner is not None and isinstance(value, Mapping):
            _refuse_unknown_keys(value, inner, (*path, key))


def _first_inside(value: Any) -> tuple[str, ...]:
    """The first setting of a table that does not exist: its last word tells most about what was meant."""
    if not isinstance(value, Mapping) or not value:
        return ()
    key, inner = next(iter(value.items()))
    return (key, *_first_inside(inner))


def _unknown_key(path: tuple[str, ...]) -> str:
    name = ".".join(path)
    known = list(setting_names())
    near = difflib.get_close_matches(name, known, 1, 0.5)
    same_word = [other for other in known if other.split(".")[-1] == path[-1]]
    near_word = difflib.get_close_matches(path[-1], [other.split(".")[-1] for other in known], 1, 0.6)
    alike = [other for other in known if other.split(".")[-1] in near_word]
    suggestion = next(iter(same_word or near or alike), None)
    hint = f"did you mean `{suggestion}`?" if suggestion else "docs/settings.md lists all there are."
    return f"There is no setting `{name}`: {hint}"


def setting_names(struct: type[msgspec.Struct] = Settings, prefix: str = "") -> Iterable[str]:
    """All settings by their full names."""
    for key, hint in get_type_hints(struct).items():
        inner = struct_of(hint)
        if inner is None:
            yield prefix + key
        else:
            yield from setting_names(inner, f"{prefix}{key}.")


def struct_of(hint: Any) -> type[msgspec.Struct] | None:
    """The table of settings that a field of this type holds, or None."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    if get_origin(hint) in _UNIONS:
        return next((s for s in map(struct_of, get_args(hint)) if s is not None), None)
    return None
