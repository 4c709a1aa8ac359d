"""Errors that a user can fix: their exception, imports of optional packages, and the commands that messages suggest."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from transduce.ui_language import localized


class TransduceError(ValueError):
    """An error that the user can fix.

    The message is one or two sentences: the rule, the offending value with its file and line, and the remedy. The
    command line prints the message without a traceback and exits with code 2. `str(error)` is the message in the
    user's language (`transduce.set_ui_language`); `error.args[0]` is always English.
    """

    def __str__(self) -> str:
        return localized(super().__str__())


# --- lists in messages ---


MAX_SHOWN = 8
"""Names of a list that a message shows."""


def shown_names(names: Iterable[object], most: int = MAX_SHOWN) -> str:
    """Return a list as text of a message: "a, b, … (+37)" with the first names and the number of the others.

    An empty list is "none".
    """
    texts = list(map(str, names))
    others = len(texts) - most
    return ", ".join([*texts[:most], *([f"… (+{others:,})"] if others > 0 else [])]) or "none"


# --- packages ---
# Imports of optional packages, with an error message that names the extra to install.


def import_extra(package: str, extra: str, needed_by: str = "This") -> Any:
    """Import and return a package of one of transduce's extras; `needed_by` is the message's word for what needs it.

    Raises:
        TransduceError: the package is not installed.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        raise TransduceError(
            f"{needed_by} needs the package {error.name}, which is not installed: pip install 'transduce[{extra}]'."
        ) from None


class WrongLanguageWarning(UserWarning):
    """A warning that a text to translate seems not to be in the model's source language."""


class UntrainedDirectionWarning(UserWarning):
    """A warning that a multilingual model was not trained for a pair of languages, though it knows both."""


# --- suggested commands ---


_IS_WINDOWS = os.name == "nt"
_COMMON_OPTIONS: list[tuple[str, str]] = []


def shell_word(argument: str | Path) -> str:
    """Return an argument of a suggested command, quoted where this system's shell needs it.

    Before a leading dash it puts `./`, so that it is not read as an option.
    """
    word = str(argument)
    if word.startswith("-"):
        word = os.path.join(".", word)
    if not _IS_WINDOWS:
        return shlex.quote(word)
    return word if re.fullmatch(r"[\w.:/\\+=@-]+", word) else f'"{word}"'


def common_words() -> list[str]:
    """Return the options that `use_common_options` set, as words of a command line: ["--plugin", "FILE"].

    Another command for the same model needs them, too.
    """
    return [word for option in _COMMON_OPTIONS for word in option]


def common_options() -> str:
    """Return the options that `use_common_options` set, as text for the end of a suggested command.

    Values are quoted for the shell. The text begins with a space; without such options it is empty.
    """
    return "".join(f" {option} {shell_word(value)}" for option, value in _COMMON_OPTIONS)


@contextmanager
def use_common_options(options: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Add options, such as --plugin, to the commands that are suggested or started within a `with` block."""
    before = list(_COMMON_OPTIONS)
    _COMMON_OPTIONS.extend(options)
    try:
        yield
    finally:
        _COMMON_OPTIONS[:] = before
