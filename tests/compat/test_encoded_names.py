"""Test that records in files keep the keys of earlier versions, or read them under their current names."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from transduce import deprecation

STORED_KEYS = {old: new for keys in deprecation.STORED_KEYS.values() for old, new in keys.items()}
# The current path of a key from its own table, by its old name.
CURRENT_PATHS = {old.rpartition(".")[2]: new.split(".")[old.count(".") :] for old, new in STORED_KEYS.items()}
NAMES: dict[str, list[str]] = json.loads(Path(__file__).with_name("encoded_names.json").read_text("utf-8"))


@pytest.mark.parametrize("record", NAMES)
def test_a_record_keeps_its_field_names(record: str) -> None:
    module, name = record.split(":")
    struct = getattr(importlib.import_module(module), name)
    fields = msgspec.structs.fields(struct)
    names = {field.name for field in fields}
    earlier = [[each] if each in names else CURRENT_PATHS.get(each, [each]) for each in NAMES[record]]
    assert [path for path in earlier if not has_field(struct, path)] == []
    first_names = {path[0] for path in earlier}
    assert [field.name for field in fields if field.required and field.name not in first_names] == []


def has_field(struct: type[msgspec.Struct], path: Sequence[str]) -> bool:
    """Return whether a record has a field at a path of names, of which all but the last are records inside it."""
    types = {field.name: field.type for field in msgspec.structs.fields(struct)}
    name, *rest = path
    return name in types and (not rest or has_field(types[name], rest))
