"""Find the line of a setting in a settings file, for error messages; a wrong value may also come from `--set`."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")
_NAME = re.compile(r"`([\w.]+)`")


class FileSettings(dict[str, Any]):
    """Nested tables of settings that know the line of each setting in their file."""

    def __init__(self, content: Mapping[str, Any], path: Path, text: str) -> None:
        """Create the settings of a file from its content, path and text."""
        super().__init__(content)
        self._path = path
        self._lines: dict[str, int | None] = dict.fromkeys(_names(content, ""))
        self._lines |= {name: line for name, line in _keys(text) if name in self._lines}

    def forget(self, name: str) -> None:
        """Forget the line of a setting or table that is overridden elsewhere."""
        self._lines = {
            name_in_file: line
            for name_in_file, line in self._lines.items()
            if not f"{name_in_file}.".startswith(f"{name}.")
        }

    def place(self, sentence: str) -> str | None:
        """Return the file and line of the first setting that an error message names; None if no file sets it."""
        for mentioned in _NAME.findall(sentence.partition(": ")[0]):  # after the colon, the message states the remedy
            matches = [setting for setting in self._lines if setting == mentioned or setting.endswith(f".{mentioned}")]
            tables = [setting for setting in self._lines if mentioned.startswith(f"{setting}.")]
            if setting := next(iter(matches), None) or max(tables, key=len, default=None):
                line = self._lines[setting]
                return str(self._path) if line is None else f"{self._path}, line {line}"
        return None


def _names(content: Mapping[str, Any], prefix: str) -> Iterable[str]:
    """Yield the full names of all settings that have a value; tables are left out."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _keys(text: str) -> Iterable[tuple[str, int]]:
    """Yield the full name and line number of each key at the start of a line, not inside inline tables."""
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        if match := _TABLE.match(line):
            table = f"{_bare(match[1])}."
        elif match := _KEY.match(line):
            yield table + _bare(match[1]), number


def _bare(key: str) -> str:
    return re.sub(r"[\s\"']", "", key)
