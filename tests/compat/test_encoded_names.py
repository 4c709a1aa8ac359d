"""Test that records in files keep the keys of earlier versions, or read them under their current names."""

import importlib
import json
from pathlib import Path

import msgspec
import pytest

from transduce import deprecation

STORED_KEYS = {old: new for keys in deprecation.STORED_KEYS.values() for old, new in keys.items()}
CURRENT_NAMES = {old.rpartition(".")[2]: new.rpartition(".")[2] for old, new in STORED_KEYS.items()}
NAMES: dict[str, list[str]] = json.loads(Path(__file__).with_name("encoded_names.json").read_text("utf-8"))


@pytest.mark.parametrize("record", NAMES)
def test_a_record_keeps_its_field_names(record: str) -> None:
    module, name = record.split(":")
    fields = msgspec.structs.fields(getattr(importlib.import_module(module), name))
    names = {field.name for field in fields}
    earlier = {each if each in names else CURRENT_NAMES.get(each, each) for each in NAMES[record]}
    assert earlier <= names
    assert [field.name for field in fields if field.required and field.name not in earlier] == []
