"""The settings of a run: a TOML file, changed by ``--set key=value``.

None stands for "choose from the corpus and the machine".
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from transduce.errors import TransduceError
from transduce.search.settings import SearchSettings
from transduce.text.corpus import Format
from transduce.text.filters import FilterSettings
from transduce.text.languages import valid_language
from transduce.training.choices import PRESETS
from transduce.training.settings import TrainingSettings


class TaskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is learnt. `task.*` in a settings file."""

    kind: Literal["translation"] = "translation"


class DataSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the text is. `data.*` in a settings file."""

    # Training text: files line by line on both sides, or files of pairs (.tsv, .jsonl) as source alone.
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    format: Format = "auto"
    # The dev set; a part of the training pairs is held out where there is none.
    dev_source: tuple[str, ...] = ()
    dev_target: tuple[str, ...] = ()
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
        if self.dev_target and not self.dev_source:
            raise TransduceError("`data.dev_target` needs the side that it translates: give `data.dev_source` too.")


class VocabularySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How text is cut into pieces. `tokenizer.*` in a settings file."""

    kind: Literal["bpe", "unigram"] = "bpe"
    vocabulary_size: int | None = None
    joint: bool = True
    byte_fallback: bool = True
    character_coverage: float | None = None
    nfc: bool = False


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model. `model.*` in a settings file; what is not said follows the preset."""

    kind: Literal["transformer"] = "transformer"
    num_encoder_layers: int | None = None
    num_decoder_layers: int | None = None
    d_model: int | None = None
    d_ff: int | None = None
    num_heads: int | None = None
    d_k: int | None = None
    d_v: int | None = None
    dropout: float | None = None
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    norm: Literal["layer"] = "layer"
    norm_order: Literal["pre", "post"] | None = None
    positions: Literal["sinusoidal", "none"] = "sinusoidal"
    attention_score: Literal["scaled"] = "scaled"
    bias: bool = True
    tie_source_target: bool | None = None
    tie_output: bool = True


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides a run."""

    # tiny, small, base, big; paper-base, paper-big. Chosen by the number of pairs where nothing is said.
    preset: str | None = None
    task: TaskSettings = TaskSettings()
    data: DataSettings = DataSettings()
    tokenizer: VocabularySettings = VocabularySettings()
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
    if path is not None:
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except OSError as error:
            raise TransduceError(f"The settings file {path} cannot be read: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise TransduceError(f"The settings file {path} is not valid TOML: {error}.") from error
    for assignment in assignments:
        _assign(content, assignment)
    return content


def _assign(content: dict[str, Any], assignment: str) -> None:
    key, equals, text = assignment.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+)*", key.strip()):
        raise TransduceError(
            f"`--set` takes a key and a value, such as training.steps=2000, but was given `{assignment}`."
        )
    put_setting(content, key.strip(), _parse_value(text.strip()))


def put_setting(content: dict[str, Any], name: str, value: Any) -> None:
    """Enters a setting by its dotted name into nested tables.

    Raises:
        TransduceError: one of the tables is a value.
    """
    *tables, last = name.split(".")
    for table in tables:
        inner = content.setdefault(table, {})
        if not isinstance(inner, dict):
            raise TransduceError(f"`{name}` stands in the table `{table}`, but that was given the value {inner!r}.")
        content = inner
    content[last] = value


def _parse_value(text: str) -> Any:
    """A TOML value; what is none is taken as a string, so that quotes may be left out."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def make_settings(content: Mapping[str, Any]) -> Settings:
    """Checks keys and types.

    Raises:
        TransduceError: a key that does not exist, with the nearest one that does; a value of the wrong type.
    """
    _refuse_unknown_keys(content, Settings, ())
    try:
        return msgspec.convert(dict(content), Settings)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, TransduceError):
            raise error.__cause__ from None
        reason, _, place = str(error).partition(" - at `$.")
        raise TransduceError(f"The setting `{place.rstrip('`') or 'file'}` has the wrong value: {reason}.") from error


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
    suggestion = next(iter(same_word or near), None)
    return f"There is no setting `{name}`" + (f": did you mean `{suggestion}`?" if suggestion else ".")


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
    if get_origin(hint) in (Union, UnionType):
        return next((s for s in map(struct_of, get_args(hint)) if s is not None), None)
    return None


def to_toml(settings: msgspec.Struct) -> str:
    """The settings as a TOML file; what is None is left out."""
    return "\n".join(_toml_lines(msgspec.to_builtins(settings), "")).strip() + "\n"


def _toml_lines(content: Mapping[str, Any], prefix: str) -> Iterable[str]:
    for key, value in content.items():
        if value is not None and not isinstance(value, Mapping):
            yield f"{key} = {_toml_value(value)}"
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield f"\n[{prefix}{key}]"
            yield from _toml_lines(value, f"{prefix}{key}.")


def _toml_value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    # JSON's strings, numbers and booleans are TOML's; DEL alone would need an escape there.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
