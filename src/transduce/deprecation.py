"""Keep renamed commands, options, settings and Python names working for one minor release, with a warning each.

In files, old names of settings work forever.

To rename a command, an option, a setting or a public name, enter the old and the new name in a table here. To rename an
argument or an attribute, use `renamed_arguments` or `renamed_attribute` where it is defined.
"""

import sys
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TextIO, TypeVar

from transduce.errors import TransduceWarning, warn
from transduce.process_environment import launched_ranks
from transduce.ui_language import localized

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")

REMOVED_IN = "0.3"
"""The version of transduce that will remove the old names in this module, but those of settings and keys in files."""

COMMANDS = {"remember": "build-datastore", "review": "estimate-quality", "fill": "fill-mask"}
# Commands that write a folder still have the option `--out`.
OPTIONS = {
    "--examples": "--datastore",
    "--look-again": "--redecode",
    "--teacher": "--distill-from",
    "--from": "--init-from",
    "--strict": "--batch-invariant",
    "--max-study-pieces": "--max-inspection-tokens",
    "--out": "--output",
    "--forecast": "--estimate-score",
}
# `*` stands for every table of an array. Entries stay forever, since files of settings do; from `REMOVED_IN` on, only
# `--set` and Python refuse the old names.
SETTINGS = {
    "start_from": "init_from",
    "data.teacher": "data.distill_from",
    "data.filters.max_pieces": "data.filters.max_tokens",
    "data.corpora.*.weight": "data.corpora.*.sampling_weight",
    "training.record": "training.cuda_graphs",
    "search.strict": "search.batch_invariant",
}
# The old and new keys of stored records, by the record's name; `*` stands for every key or item.
STORED_KEYS = {
    "ModelConfig": {"foretells_deviations": "predicts_deviations"},
    "RunState": {
        "best_step": "best.step",
        "best_value": "best.value",
        "best_loss": "best.loss",
        "best_highest": "best.highest",
        "best_contributions": "best.contributions",
        "lowest_loss": "best.lowest_loss",
        "perfect_validations": "best.perfect",
        "validations_without_better": "best.validations_since",
        "losses": "loss_window",
        "surroundings": "environment",
        "report.likelihood": "report.negative_log_likelihood",
    },
    "ImportedTokenizerRecord": {
        "source.cutting": "source.algorithm",
        "target.cutting": "target.algorithm",
        "source.marks": "source.special_tokens",
        "target.marks": "target.special_tokens",
    },
    "StoredWeightsCard": {"word_vectors.*.pieces": "word_vectors.*.tokens"},
}
PUBLIC_NAMES = {
    "Doubt": "QualityWarning",
    "Memory": "Datastore",
    "RunForecast": "RunEstimate",
    "ScoreForecast": "ScoreEstimate",
    "look_again": "redecode",
    "remember": "build_datastore",
    "review": "estimate_quality",
}


class RenamedWarning(DeprecationWarning):
    """A warning that the user's code, command or settings use an old name."""


def warn_renamed(old: str, new: str, *, in_file: bool = False) -> None:
    """Warn that an old name is used, with a `RenamedWarning` that names the line of the user's code.

    If `in_file` is set, the name is that of a setting in a file, where it works forever.
    """
    if in_file:
        warn(f"`{old}` is now `{new}`; settings files may keep the old name.", RenamedWarning)
    else:
        warn(f"`{old}` is now `{new}`; the old name works until version {REMOVED_IN}.", RenamedWarning)


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """In a `with` block, print all warnings of this package as lines on standard error.

    Python's own filters, which hide some warnings, do not apply. The same warning is printed once. If several processes
    train together, only the first prints.
    """
    with warnings.catch_warnings():
        shown, categories = set[str](), (RenamedWarning, TransduceWarning)
        for category in categories:
            warnings.simplefilter("always", category)
        show_others = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not issubclass(category, categories):
                show_others(message, category, filename, lineno, file, line)
            elif launched_ranks().rank == 0 and str(message) not in shown:
                shown.add(str(message))
                sys.stderr.write(localized(f"transduce: {message}\n"))

        warnings.showwarning = show
        yield


def current_command(command: str) -> str:
    """Return the current name of a command, with a warning if the command was renamed."""
    new = COMMANDS.get(command, command)
    if new != command:
        warn_renamed(f"transduce {command}", f"transduce {new}")
    return new


def current_options(arguments: Sequence[str], options: Container[str]) -> list[str]:
    """Return a list of command-line arguments in which old names of options are replaced by current ones.

    Each replacement gives a warning. An old name is replaced only if the command has an option of the new name and none
    of the old name. Arguments after `--` are not changed.

    Args:
        arguments: the arguments of a command.
        options: the options that the command has.
    """
    current = list(arguments)
    for number, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        new = OPTIONS.get(option)
        if option == "--":
            break
        if new is not None and option not in options and new in options:
            warn_renamed(option, new)
            current[number] = f"{new}{equals}{value}"
    return current


def current_setting(name: str, *, in_file: bool = False) -> str:
    """Return the current dotted name of a setting, with a warning if the setting was renamed.

    `in_file` is set if a file has the name: its warning says that the old name stays valid.
    """
    new = SETTINGS.get(name, name)
    if new != name:
        warn_renamed(name, new, in_file=in_file)
    return new


def with_current_settings(content: Mapping[str, Any], *, warn: bool, in_file: bool = False) -> dict[str, Any]:
    """Return a copy of nested tables of settings, with renamed settings under their current names.

    If a setting is set under both names, the value of the current name stays. If `warn` is set, each old name gives a
    warning; if `in_file` is set too, it says that the old name stays valid in files.
    """
    current: dict[str, Any]
    current, found = _renamed(content, SETTINGS)
    for old in found if warn else ():
        warn_renamed(old.replace(".*", ""), SETTINGS[old].replace(".*", ""), in_file=in_file)
    return current


def with_current_items(setting: str, value: Any, *, in_file: bool = False) -> Any:
    """Return a copy of a setting's array of tables in which old keys are replaced by current ones.

    Each old key gives a warning. A value that is no array of tables stays as it is.

    Args:
        setting: the dotted name of the setting, such as `data.corpora`.
        value: the value of the setting.
        in_file: a file has the value: warnings say that old names stay valid.
    """
    prefix = f"{setting}."
    names = {old: new for old, new in SETTINGS.items() if old.startswith(f"{prefix}*.")}
    if not names:
        return value
    items, found = _renamed(value, {old.removeprefix(prefix): new.removeprefix(prefix) for old, new in names.items()})
    for old in found:
        new = names[f"{setting}.{old}"]
        warn_renamed(f"{setting}.{old}".replace(".*", ""), new.replace(".*", ""), in_file=in_file)
    return items


def decode_stored(content: bytes, kind: type[_T]) -> _T:
    """Return a stored record of type `kind` from JSON bytes, which may have the keys of an older version.

    Raises:
        msgspec.MsgspecError: the content is not JSON, or is no such record.
        UnicodeDecodeError: the content is not UTF-8.
    """
    import msgspec  # here, since commands that only print their help need it not

    if kind.__name__ not in STORED_KEYS:
        return msgspec.json.decode(content, type=kind)
    return msgspec.convert(with_current_keys(msgspec.json.decode(content), kind), kind)


def with_current_keys(content: Any, kind: type) -> Any:
    """Return a copy of a stored record of type `kind`, in plain values, with renamed keys under their current names."""
    return _renamed(content, STORED_KEYS.get(kind.__name__, {}))[0]


def _renamed(content: Any, names: Mapping[str, str]) -> tuple[Any, list[str]]:
    """Return a copy of nested tables with renamed keys under their current names, and the old names that were found.

    Args:
        content: the tables, with plain values.
        names: the current dotted name of each key, by its old one; `*` stands for every key or item. The current
            key may lie in a table that is nested in the table of the old key.
    """
    current, found = _copied(content), []
    for old, new in names.items():
        *tables, old_key = old.split(".")
        holders = [table for table in _inner_tables(current, tables) if old_key in table]
        for table in holders:
            value = table.pop(old_key)
            *inner_tables, new_key = new.split(".")[len(tables) :]
            for name in inner_tables:
                table = table.setdefault(name, {})
            if isinstance(table, dict):
                table.setdefault(new_key, value)
        if holders:
            found.append(old)
    return current, found


def _inner_tables(content: Any, path: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the tables at a path of keys, where `*` stands for every key or item."""
    if not path:
        if isinstance(content, dict):
            yield content
        return
    key, *rest = path
    if key == "*":
        inner = content.values() if isinstance(content, dict) else content if isinstance(content, list | tuple) else ()
    else:
        inner = [content[key]] if isinstance(content, dict) and key in content else ()
    for each in inner:
        yield from _inner_tables(each, rest)


def _copied(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {name: _copied(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        copies = [_copied(each) for each in content]
        return copies if isinstance(content, list) else tuple(copies)
    return content


def renamed_arguments(**current_names: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that accepts keyword arguments under their old names, with a warning for each.

    Args:
        **current_names: the current name of each argument, by its old name.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            for old in [name for name in kwargs if name in current_names]:
                new = current_names[old]
                if new in kwargs:
                    raise TypeError(f"{function.__name__}() got `{new}` and its old name `{old}`: leave out `{old}`")
                warn_renamed(f"{old}=", f"{new}=")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_attribute(old: str, new: str) -> Any:
    """Return a read-only property that gives the attribute `new` under its old name, with a warning."""

    def get(self: object) -> Any:
        warn_renamed(old, new)
        return getattr(self, new)

    get.__doc__ = f"Return `{new}`, under its old name."
    return property(get)
