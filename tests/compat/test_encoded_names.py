"""Test that records in files and JSON output keep the field names of earlier versions."""

import importlib
import json
from pathlib import Path

import msgspec
import pytest

NAMES: dict[str, list[str]] = json.loads(Path(__file__).with_name("encoded_names.json").read_text("utf-8"))


@pytest.mark.parametrize("record", NAMES)
def test_a_record_keeps_its_field_names(record: str) -> None:
    module, name = record.split(":")
    fields = msgspec.structs.fields(getattr(importlib.import_module(module), name))
    assert [each for each in NAMES[record] if each not in {field.encode_name for field in fields}] == []
    assert [field.name for field in fields if field.required and field.encode_name not in NAMES[record]] == []
