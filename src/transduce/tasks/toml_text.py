"""Write settings as TOML."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec


def to_toml(settings: msgspec.Struct) -> str:
    """Return settings as the text of a TOML file; settings that are None are left out."""
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
    # JSON strings, numbers and booleans are valid TOML, except for DEL, which TOML requires to be escaped.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
