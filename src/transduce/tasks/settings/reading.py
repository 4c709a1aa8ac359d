"""Read the settings of a run, a TOML file changed by ``--set key=value``, with errors that name the mistake."""

import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from transduce.argument_checks import as_list, as_path, as_paths
from transduce.deprecation import SETTINGS, current_setting, with_current_items, with_current_settings
from transduce.errors import TransduceError, decode_utf8, near_name, shown_value, toml_error, with_half_width_hint
from transduce.model.config import REGISTERED_NAMES
from transduce.search.settings import EARLIER_DEFAULTS
from transduce.tasks.settings.options import FILES, FOLDER, FOLDERS, OPTIONS, PATHS
from transduce.tasks.settings.presets import with_preset
from transduce.tasks.settings.structs import Settings, convert_settings
from transduce.training.schedule import has_decay_of_steps

# --- line numbers for error messages ---
# A wrong value may also come from `--set`.


_TABLE = re.compile(r"\s*(\[\[?)([^\[\]]+)\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")
_NAME = re.compile(r"`([\w.\[\]]+)`")
_INDEX = re.compile(r"\[\d+\]")
_KEY_PART = r"""\s*(?:[\w-]+|"[^"]+"|'[^']+')\s*"""


class FileSettings(dict[str, Any]):
    """A dict of nested tables of settings that also knows the line of each setting in its file.

    Error messages about a wrong value can then name the line.
    """

    def __init__(self, content: Mapping[str, Any], path: Path, text: str) -> None:
        """Create the settings from the parsed content of a file, its path, and its TOML text."""
        super().__init__(content)
        self._path = path
        self._lines: dict[str, int | None] = dict.fromkeys(name for name, _ in dotted_settings(content))
        # A setting in an array of tables has the index of its table in its name, such as data.corpora[0].weight.
        self._lines |= {name: line for name, line in _keys(text) if name.partition("[")[0] in self._lines}
        training = content.get("training")
        self._chosen_decay: float | None = None
        if isinstance(training, dict) and has_decay_of_steps(training):
            self._chosen_decay = training["weight_decay"]

    def has_location(self, name: str) -> bool:
        """Return whether a setting, by its dotted name, still has the value from the file.

        The result is False if the file does not set it, or if another source has overridden the value.
        """
        return name in self._lines

    def drop_location(self, name: str) -> None:
        """Forget the line of a setting or table, because another source, such as --set, overrides its value."""
        self._lines = {
            name_in_file: line
            for name_in_file, line in self._lines.items()
            if not f"{name_in_file}.".startswith((f"{name}.", f"{name}["))
        }

    def drop_chosen_decay(self, name: str, value: Any) -> None:
        """Remove the file's weight decay if setting `training.<name>` gets another value.

        Only a default weight decay is removed, because it depends on that setting. A new default is chosen later.
        """
        if self._chosen_decay is None:
            return
        training = self["training"]
        if training.get(name) != value and training.get("weight_decay") == self._chosen_decay:
            del training["weight_decay"]

    def location_of(self, sentence: str) -> str | None:
        """Return the file, with the line if known, of the first setting that an error message names.

        The result is a text such as "a.toml, line 3". The result is None if the file sets none of the message's
        settings. The line is missing if it is unknown, as for keys of inline tables, or if the name in the message fits
        several settings.
        """
        for mentioned in _NAME.findall(sentence.partition(": ")[0]):  # after the colon, the message states the remedy
            matches = [setting for setting in self._lines if setting == mentioned or setting.endswith(f".{mentioned}")]
            tables = [setting for setting in self._lines if mentioned.startswith(f"{setting}.")]
            if mentioned in matches:
                matches = [mentioned]
            if setting := next(iter(matches), None) or max(tables, key=len, default=None):
                line = self._lines[setting] if len(matches) < 2 else None
                return str(self._path) if line is None else f"{self._path}, line {line}"
        return None


def dotted_settings(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a pair (dotted name, value) for each setting in nested tables; names start with `prefix`."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from dotted_settings(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _keys(text: str) -> Iterable[tuple[str, int]]:
    """Yield a pair (dotted name, line number) for each key in a TOML text, except keys of inline tables.

    Names in an array of tables have the index of their table, from 0. The array itself has the line of its first table.
    """
    table, counts = "", dict[str, int]()
    for number, line in enumerate(text.split("\n"), 1):
        if match := _TABLE.match(line):
            name = _bare(match[2])
            table = f"{name}."
            if match[1] == "[[":
                counts[name] = counts.get(name, 0) + 1
                table = f"{name}[{counts[name] - 1}]."
                if counts[name] == 1:
                    yield name, number
                yield table[:-1], number
            else:
                for array, count in counts.items():
                    if table.startswith(f"{array}."):
                        table = f"{array}[{count - 1}].{table.removeprefix(f'{array}.')}"
        elif match := _KEY.match(line):
            name = table + _bare(match[1])
            new = SETTINGS.get(_INDEX.sub(".*", name))
            yield name if new is None else f"{name.rpartition('.')[0]}.{new.rpartition('.')[2]}".lstrip("."), number


def _bare(key: str) -> str:
    return re.sub(r"[\s\"']", "", key)


# --- reading and checking ---


_UNIONS = (Union, UnionType)
# Common names of values in other toolkits and papers, for suggestions.
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


def read_settings(path: Path | None, assignments: Iterable[str] = ()) -> dict[str, Any]:
    """Return the content of a settings file, with ``key.name=value`` assignments applied in order.

    Without a file (`path` is None), the result has the assignments only. Values are not checked yet.

    Raises:
        TransduceError: the file cannot be read or is not valid TOML, or an assignment is malformed.
    """
    content: dict[str, Any] = {}
    # parsed first, because a malformed assignment may have been taken for the path
    pairs = [_parse(assignment) for assignment in assignments]
    if path is not None:
        try:
            text = decode_utf8(path.read_bytes(), path)
        except OSError as error:
            raise TransduceError(f"The settings file {path} cannot be read: {error.strerror}.") from error
        try:
            content = FileSettings(with_current_settings(tomllib.loads(text), warn=True, in_file=True), path, text)
        except tomllib.TOMLDecodeError as error:
            raise toml_error(f"The settings file {path} is not valid TOML: {error}.", text, error) from error
    for name, value in pairs:
        put_setting(content, name, value)
    return content


def _parse(assignment: str) -> tuple[str, Any]:
    """Return the dotted name and the value of ``name=value``; parts of the name may be quoted, as in TOML."""
    key, equals, text = assignment.partition("=")
    if _INDEX.search(key):
        raise _error_for_array(key.strip(), key.strip())
    if not equals or not re.fullmatch(rf"{_KEY_PART}(\.{_KEY_PART})*", key):
        message = f"`--set` takes a key and a value, such as training.steps=2000, but was given `{assignment}`."
        raise TransduceError(with_half_width_hint(message, assignment))
    return ".".join(part.strip().strip("\"'") for part in re.findall(_KEY_PART, key)), _parse_value(text.strip())


def _error_for_array(name: str, tables: str) -> TransduceError:
    """Return the error for setting a single value inside an array of tables.

    Args:
        name: the dotted name of the setting, such as `data.corpora[0].share`.
        tables: the part of the name that leads to the table in the array.
    """
    array = _INDEX.split(tables)[0]
    return TransduceError(
        f"`{name}` is in an array of tables, which can only be set as a whole: write `{array}=[{{…}}, {{…}}]` with all "
        "its tables, or change the settings file."
    )


# The two names of the size of a step: a value that is set by one name overrides a file's value by the other name.
_OTHER_NAME_OF_SIZE = {
    "training.batch_size": "training.batch_tokens",
    "training.batch_tokens": "training.batch_size",
}

# Settings whose value is a table with keys of the user, which may have dots.
_TABLES_OF_VALUES = ("task.class_weights",)


def put_setting(content: dict[str, Any], name: str, value: Any, *, in_file: bool = False) -> None:
    """Set a setting by its dotted name in nested tables, in place; a table is merged with an existing one.

    `in_file` is set if a file has the setting: warnings about renamed settings then say that old names stay valid.

    Raises:
        TransduceError: a part of the name is a value and not a table, or the name is not a text.
    """
    if not isinstance(name, str):
        raise TransduceError(f"A setting's name is a text, such as `training.steps`, but one is {name!r}.")
    name = current_setting(name, in_file=in_file)
    is_table = isinstance(value, Mapping) and name not in _TABLES_OF_VALUES
    for key, inner_value in value.items() if is_table else ():
        put_setting(content, f"{name}.{key}", inner_value, in_file=in_file)
    if isinstance(content, FileSettings) and not is_table:
        content.drop_location(name)
        if name in ("training.steps", "training.minutes", "training.learning_rate"):
            content.drop_chosen_decay(name.removeprefix("training."), value)
        other_name = _OTHER_NAME_OF_SIZE.get(name)
        if other_name is not None and content.has_location(other_name):
            content.drop_location(other_name)
            del content["training"][other_name.removeprefix("training.")]
    dots = next((table.count(".") + 1 for table in _TABLES_OF_VALUES if name.startswith(f"{table}.")), -1)
    keys = name.split(".", dots)  # the user's keys may have dots
    for number, table in enumerate(keys[:-1], 1):
        tables, inner = ".".join(keys[:number]), content.setdefault(table, {})
        if _INDEX.search(table) or (isinstance(inner, list) and any(isinstance(each, Mapping) for each in inner)):
            raise _error_for_array(name, tables)
        if not isinstance(inner, dict):
            raise TransduceError(f"`{name}` belongs to the table `{tables}`, but `{tables}` was set to {inner!r}.")
        content = inner
    if is_table:
        content.setdefault(keys[-1], {})
    else:
        content[keys[-1]] = with_current_items(name, _plain(value), in_file=in_file)


def put_options(content: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set the settings of several options in nested tables.

    Args:
        content: nested tables of settings, which are changed.
        values: values by the options' Python names, such as "batch_tokens". None leaves a setting as it is.

    Raises:
        TransduceError: a setting lies in a table that `content` sets to a value.
    """
    for name, value in values.items():
        if value is not None:
            put_setting(content, OPTIONS[name].setting, value)


def put_arguments(
    content: dict[str, Any], arguments: Mapping[str, Any], settings: Mapping[str, Any] | None = None
) -> None:
    """Set settings by the arguments of a Python function, and then by their dotted names.

    Args:
        content: nested tables of settings, which are changed.
        arguments: the values of arguments by their names in `OPTIONS`; None leaves a setting as it is.
        settings: values by dotted names; None leaves a setting as it is.

    Raises:
        TransduceError: an argument is no path, list or mapping where one is expected.
    """
    if settings is not None and not isinstance(settings, Mapping):
        raise TransduceError(f"`settings` must be a mapping of dotted names, but is {shown_value(settings)}.")
    put_options(content, {name: None if value is None else _argument(name, value) for name, value in arguments.items()})
    for name, value in (settings or {}).items():
        if value is not None:
            put_setting(content, name, value)


def _argument(name: str, value: Any) -> Any:
    """Return the value of a Python argument in the form of a setting: paths as texts, and several in a list."""
    form = OPTIONS[name].form
    if form in (FILES, FOLDERS, PATHS):
        return [str(path) for path in as_paths(value, f"`{name}`")]
    if form == FOLDER:
        return str(as_path(value, f"`{name}`"))
    return as_list(value, name) if "nargs" in form else value


def _plain(value: Any) -> Any:
    """Convert NumPy scalars to Python numbers, and paths to strings, so that TOML can hold them."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _parse_value(text: str) -> Any:
    """Parse the value of `--set key=value` as TOML.

    Text that is not TOML becomes a float if it looks like a number such as `.5`, otherwise a string. Strings may
    therefore omit their quotes.
    """
    try:
        (value,) = tomllib.loads(f"value = {text}").values()
        return value
    except ValueError:  # no TOML, or more lines of it
        return float(text) if re.fullmatch(r"[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?", text, re.ASCII | re.I) else text


def make_settings(content: Mapping[str, Any]) -> Settings:
    """Check nested tables of settings, and return the settings that they describe, completed by those of the preset.

    Raises:
        TransduceError: a key does not exist, or a value has the wrong type or range, is infinite or is NaN. For an
            unknown key, the message names a similar one if there is one. For settings of a file, the message starts
            with file and line.
    """
    try:
        current = with_current_settings(without_idle_defaults(content), warn=True)
        return check_settings(with_preset(current))
    except TransduceError as error:
        location = content.location_of(str(error)) if isinstance(content, FileSettings) else None
        if location is None:
            raise
        raise TransduceError(f"{location}: {error}") from error


def without_idle_defaults(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of nested settings without old default values that have no effect.

    Runs of earlier versions wrote these values to `settings.toml` although the user had not set them; today they would
    be an error. Only values that come from a file are removed.
    """
    found, search = dict(content), content.get("search")
    if isinstance(content, FileSettings) and isinstance(search, Mapping) and search.get("diverse_groups", 1) == 1:
        idle = {
            name
            for name, value in EARLIER_DEFAULTS
            if name in search and search[name] == value and content.has_location(f"search.{name}")
        }
        found["search"] = {name: value for name, value in search.items() if name not in idle}
    return found


def check_settings(content: Mapping[str, Any]) -> Settings:
    """Check nested tables of settings, and return the settings that they describe.

    The settings of a preset are not added.

    Raises:
        TransduceError: a key does not exist, or a value has the wrong type or range, is infinite or is NaN.
    """
    _refuse_unknown_keys(content, Settings, ())
    _refuse_infinite(content)
    try:
        return convert_settings(content)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, TransduceError):
            raise error.__cause__ from None
        _, _, location = str(error).partition(" - at `$.")
        raise TransduceError(_wrong_value(_path_of(location), content)) from error


def _path_of(location: str) -> list[str]:
    """Return a list of the keys that lead to a wrong value, such as ["a", "b[0]", "c"].

    `location` is the text in msgspec's error, such as `a.b[0].c`. An index after the last key is left out.
    """
    keys = location.rstrip("`").partition("[...]")[0].split(".")  # behind it is a key of a table of values
    return [*keys[:-1], keys[-1].partition("[")[0]]


def _refuse_infinite(content: Mapping[str, Any]) -> None:
    """Raise an error for infinite values and NaN, which a settings file cannot store."""
    for name, value in dotted_settings(content):
        if isinstance(value, float) and not math.isfinite(value):
            raise TransduceError(f"`{name}` must be finite, but is {value}.")


def _wrong_value(path: Sequence[str], content: Any) -> str:
    hint: Any = Settings
    for step in path:
        key, _, index = step.rstrip("]").partition("[")
        hint = get_type_hints(struct_of(hint) or Settings)[key]
        content = content[key]
        if index and (entry := _entry_struct(hint)) is not None:
            hint, content = entry, content[int(index)]
    kinds, name, value = _kinds(hint), ".".join(path), str(content)
    registered = sorted(REGISTERED_NAMES.get(path[-1], ())) if path[0] == "model" else []
    names = [*_names(hint), *registered]
    intended = _OTHER_NAMES.get(value.lower())
    close_name = intended if intended in names else near_name(value, names)
    suggestion = f": did you mean `{close_name}`?" if close_name else ""
    if not close_name and path[0] == "model" and path[-1] in REGISTERED_NAMES:
        suggestion = "; a component of your own needs the file that registers it (--plugin FILE.py, or `plugins`)."
    choices = ", ".join(names)
    if kinds and choices:
        return (
            f"`{name}` must be {kinds} or {'one of ' if len(names) > 1 else ''}{choices}, but is `{value}`"
            f"{suggestion if suggestion else '.'}"
        )
    if choices:
        return f"`{name}` must be one of {choices}, but is `{value}`{suggestion if suggestion else '.'}"
    message = f"`{name}` must be {kinds}, but is `{value}`{suggestion if suggestion else '.'}"
    return with_half_width_hint(message, value if isinstance(content, str) else "")


def _kinds(hint: Any) -> str:
    """Describe the values that a setting of type `hint` accepts, such as "a whole number".

    If the setting accepts only specific names, such as "cpu", the result is empty.
    """
    if struct_of(hint) is not None:
        return "a table"
    if get_origin(hint) in _UNIONS:
        kinds = (_kinds(inner) for inner in get_args(hint) if inner is not type(None))
        return " or ".join(dict.fromkeys(filter(None, kinds)))
    if _names(hint):
        return ""
    if get_origin(hint) in (tuple, list):
        count = "" if get_origin(hint) is list or ... in get_args(hint) else f" of {len(get_args(hint))}"
        return f'a list{count}, such as ["a", "b"]'
    if get_origin(hint) is dict:
        return "a table"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(hint, "a text")


def _names(hint: Any) -> list[str]:
    """Return a list of the names that a setting of type `hint` accepts; empty if it is not limited to names."""
    if get_origin(hint) is Literal:
        return [str(name) for name in get_args(hint)]
    return [name for inner in get_args(hint) for name in _names(inner)] if get_origin(hint) in _UNIONS else []


def _refuse_unknown_keys(content: Mapping[str, Any], struct: type[msgspec.Struct], path: tuple[str, ...]) -> None:
    hints = get_type_hints(struct)
    for key, value in content.items():
        if key not in hints:
            inside = f"{'.'.join(path)}." if _INDEX.search(".".join(path)) else None
            existing = setting_names() if inside is None else [f"{inside}{name}" for name in hints]
            raise TransduceError(_unknown_key((*path, key, *_first_inside(value)), list(existing), inside or ""))
        inner = struct_of(hints[key])
        if inner is not None and isinstance(value, Mapping):
            _refuse_unknown_keys(value, inner, (*path, key))
        for index, table in enumerate(value if isinstance(value, list | tuple) else ()):
            if isinstance(table, Mapping) and (entry := _entry_struct(hints[key])) is not None:
                _refuse_unknown_keys(table, entry, (*path, f"{key}[{index}]"))


def _entry_struct(hint: Any) -> type[msgspec.Struct] | None:
    """Return the settings struct of each table if a field is an array of tables, else None.

    `hint` is the field's type.
    """
    return next(filter(None, map(struct_of, get_args(hint))), None) if get_origin(hint) is tuple else None


def _first_inside(value: Any) -> tuple[str, ...]:
    """Return a tuple of the keys that lead to the first value in nested tables.

    The tuple is empty if `value` is no table or an empty one.
    """
    if not isinstance(value, Mapping) or not value:
        return ()
    key, inner = next(iter(value.items()))
    return (key, *_first_inside(inner))


def _unknown_key(path: tuple[str, ...], existing: Sequence[str], table: str) -> str:
    """Return the message about an unknown setting, with the name that was probably meant.

    Args:
        path: the keys of the setting.
        existing: the dotted names of the settings that may be there.
        table: the beginning of these names if the setting is in an array of tables, such as `data.corpora[1].`.
    """
    # A mistyped former name means the present one.
    former = {table + old.rpartition("*.")[2]: table + new.rpartition("*.")[2] for old, new in SETTINGS.items()}
    known = [*existing, *(old for old, new in former.items() if new in existing)]
    name = ".".join(path)
    if name in existing:  # a key with dots
        return f"`{name}` is quoted as one key, but its dots separate tables: write it without quotes."
    same_word = [other for other in known if other.split(".")[-1] == path[-1]]
    close_name = near_name(name, known, cutoff=0.5)
    near_word = near_name(path[-1], (other.split(".")[-1] for other in known))
    same_last_word = [other for other in known if other.split(".")[-1] == near_word]
    suggestion = next(iter([*same_word, *filter(None, [close_name]), *same_last_word]), None)
    suggestion = former.get(suggestion or "", suggestion)
    hint = f"did you mean `{suggestion}`?" if suggestion else "docs/settings.md lists all there are."
    return f"There is no setting `{name}`: {hint}"


def setting_names(struct: type[msgspec.Struct] = Settings, prefix: str = "") -> Iterable[str]:
    """Yield the dotted names, starting with `prefix`, of all settings that a settings struct and its tables have."""
    for key, hint in get_type_hints(struct).items():
        inner = struct_of(hint)
        if inner is None:
            yield prefix + key
        else:
            yield from setting_names(inner, f"{prefix}{key}.")


def struct_of(hint: Any) -> type[msgspec.Struct] | None:
    """Return the settings struct in the type of a field; None if the type contains no struct.

    The type may be a struct, or a union with one, such as an optional struct.
    """
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    if get_origin(hint) in _UNIONS:
        return next((s for s in map(struct_of, get_args(hint)) if s is not None), None)
    return None
