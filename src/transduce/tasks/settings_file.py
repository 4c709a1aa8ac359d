"""What a settings file says, and in which line: a mistake may as well be in `--set`."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([\w.\"'-]+)\s*=")
_NAME = re.compile(r"`([\w.]+)`")


class FileSettings(dict[str, Any]):
    """Nested tables of settings that know where the file has them."""

    def __init__(self, content: Mapping[str, Any], path: Path, text: str) -> None:
        """Of a file's path, its text, and what that says."""
        super().__init__(content)
        self._path = path
        self._lines: dict[str, int | None] = dict.fromkeys(_names(content, ""))
        self._lines |= {name: line for name, line in _keys(text) if name in self._lines}

    def forget(self, name: str) -> None:
        """A setting, or a table, that is said anew elsewhere."""
        self._lines = {known: line for known, line in self._lines.items() if not f"{known}.".startswith(f"{name}.")}

    def place(self, sentence: str) -> str | None:
        """Where the file has the first of the settings of a sentence that it has; None for those of no file."""
        for said in _NAME.findall(sentence.partition(": ")[0]):  # behind it stands what to do
            whole = [known for known in self._lines if known == said or known.endswith(f".{said}")]
            tables = [known for known in self._lines if said.startswith(f"{known}.")]
            if known := next(iter(whole), None) or max(tables, key=len, default=None):
                line = self._lines[known]
                return str(self._path) if line is None else f"{self._path}, line {line}"
        return None


def _names(content: Mapping[str, Any], prefix: str) -> Iterable[str]:
    """All settings with a value, tables aside, by their full names."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _keys(text: str) -> Iterable[tuple[str, int]]:
    """The keys at the beginnings of lines, by their full names; those within a line's braces have none."""
    table = ""
    for number, line in enumerate(text.split("\n"), 1):
        if found := _TABLE.match(line):
            table = f"{_bare(found[1])}."
        elif found := _KEY.match(line):
            yield table + _bare(found[1]), number


def _bare(key: str) -> str:
    return re.sub(r"[\s\"']", "", key)
