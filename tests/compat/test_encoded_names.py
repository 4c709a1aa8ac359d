"""Test that records in files keep the keys of earlier versions, or read them under their current names."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from transduce.deprecation import STORED_KEYS
from transduce.interop.hugging_face.imported_tokenizer import ImportedTokenizerRecord
from transduce.model.config import ModelConfig
from transduce.tasks.run.initial_weights import StoredWeightsCard
from transduce.training.checkpoint import RunState

# The stored records that `STORED_KEYS` names; keys of the records inside them follow a path.
STORED_RECORDS = {kind.__name__: kind for kind in (ImportedTokenizerRecord, ModelConfig, RunState, StoredWeightsCard)}
NAMES: dict[str, list[str]] = json.loads(Path(__file__).with_name("encoded_names.json").read_text("utf-8"))


@pytest.mark.parametrize("record", NAMES)
def test_a_record_keeps_its_field_names(record: str) -> None:
    module, name = record.split(":")
    struct = getattr(importlib.import_module(module), name)
    fields = msgspec.structs.fields(struct)
    names, paths = {field.name for field in fields}, current_paths(struct)
    earlier = [[each] if each in names else paths.get(each, [each]) for each in NAMES[record]]
    assert [path for path in earlier if not has_field(struct, path)] == []
    first_names = {path[0] for path in earlier}
    assert [field.name for field in fields if field.required and field.name not in first_names] == []


def test_a_renamed_key_counts_for_its_own_record_only() -> None:
    assert current_paths(record_at(StoredWeightsCard, ["word_vectors", "*"])) == {"pieces": ["tokens"]}
    assert current_paths(record_at(RunState, ["report"])) == {"likelihood": ["negative_log_likelihood"]}
    assert current_paths(StoredWeightsCard) == {}
    assert current_paths(RunState)["losses"] == ["loss_window"]


def current_paths(struct: type) -> dict[str, list[str]]:
    """Return a dict from each old key of a record, by `STORED_KEYS`, to the current path of names from the record."""
    paths = {}
    for record, keys in STORED_KEYS.items():
        for old, new in keys.items():
            *tables, key = old.split(".")
            if record_at(STORED_RECORDS[record], tables) is struct:
                paths[key] = new.split(".")[len(tables) :]
    return paths


def record_at(kind: Any, path: Sequence[str]) -> Any:
    """Return the type of the record at a path of names from a record, where `*` stands for every key or item."""
    for name in path:
        if name != "*":  # else the type of the items is known already
            kind = next(field.type for field in msgspec.structs.fields(kind) if field.name == name)
            kind = next((each for each in get_args(kind) if hasattr(each, "__struct_fields__")), kind)
    return kind


def has_field(struct: type[msgspec.Struct], path: Sequence[str]) -> bool:
    """Return whether a record has a field at a path of names, of which all but the last are records inside it."""
    types = {field.name: field.type for field in msgspec.structs.fields(struct)}
    name, *rest = path
    return name in types and (not rest or has_field(types[name], rest))
