"""Test that the OpenAPI document is complete, made from the types, and true of a live server."""

import inspect
from typing import Any

import pytest

from transduce.serving.app import Application
from transduce.serving.inspection_api import InspectionHandlers
from transduce.serving.messages import TranslateRequest, operations_of
from transduce.serving.service import ModelCatalog, Service
from transduce.serving.settings import ServingSettings


@pytest.fixture(scope="module")
def spec(live: Any) -> Any:
    return live.ask("GET", "/spec").json


def test_the_document_is_of_version_3_1(spec: Any) -> None:
    assert spec["openapi"] == "3.1.0"
    assert spec["info"]["title"] == "transduce"


def test_every_path_has_one_handler(gated_model: Any) -> None:
    operations = Application(Service(ModelCatalog([gated_model()]), ServingSettings())).operations
    assert len({operation.path for operation, _ in operations}) == 30
    handlers: dict[str, Any] = {}
    for operation, handler in operations:
        assert handlers.setdefault(operation.path, handler) == handler


def test_every_field_of_a_message_is_described(spec: Any) -> None:
    properties = spec["components"]["schemas"]["TranslateRequest"]["properties"]
    assert list(properties) == list(TranslateRequest.__struct_fields__)
    assert spec["components"]["schemas"]["TranslateRequest"]["required"] == ["q", "source", "target"]


def test_limits_stand_in_the_document(spec: Any) -> None:
    schemas = spec["components"]["schemas"]
    text, several = schemas["TranslateRequest"]["properties"]["q"]["anyOf"]
    assert (text["maxLength"], several["maxItems"]) == (20_000, 128)
    number, _ = schemas["TranslateRequest"]["properties"]["alternatives"]["anyOf"]
    assert number["maximum"] == 3
    assert schemas["DetectRequest"]["properties"]["q"]["maxLength"] == 20_000
    assert "x-limited" not in str(spec)
    text, parts, _ = schemas["OllamaMessage"]["properties"]["content"]["anyOf"]
    assert (text["maxLength"], parts["maxItems"]) == (20_000, 128)


def test_all_three_encodings_are_offered(spec: Any) -> None:
    content = spec["paths"]["/translate"]["post"]["requestBody"]["content"]
    assert sorted(content) == ["application/json", "application/x-www-form-urlencoded", "multipart/form-data"]


def test_keys_are_asked_for_only_where_there_are_some(spec: Any, serve: Any, gated_model: Any) -> None:
    assert "securitySchemes" not in spec["components"]
    with serve(gated_model(), api_keys=("secret",)) as live:
        guarded = live.ask("GET", "/spec").json
    assert guarded["components"]["securitySchemes"]["key"] == {"type": "http", "scheme": "bearer"}
    asked = {path for path, methods in guarded["paths"].items() if "security" in next(iter(methods.values()))}
    assert asked >= {"/translate", "/translate_file", "/detect", "/metrics", "/v1/chat/completions", "/v2/usage"}
    free = set(guarded["paths"]) - asked
    assert {"/health", "/spec", "/languages", "/v1/models", "/v2/languages"} <= free


def test_references_have_a_target(spec: Any) -> None:
    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if "$ref" in value else []
            return own + [found for entry in value.values() for found in references(entry)]
        return [found for entry in value for found in references(entry)] if isinstance(value, list) else []

    found = references(spec)
    assert len(found) > 10
    assert {name.rpartition("/")[2] for name in found} <= set(spec["components"]["schemas"])


def test_generated_requests_are_answered_as_the_document_says(live: Any, load_benchmark: Any) -> None:
    """A small form of benchmarks/serving_fuzz.py."""
    fuzz = load_benchmark("serving_fuzz")
    # Hypothesis draws constants of whatever modules are imported, too: of few requests none may be a 404.
    statuses, findings = fuzz.fuzz(live.url, 400)
    assert findings == []
    assert set(statuses) == {200, 400, 403, 404}  # 403: suggestions are off
    assert statuses[200] > 15  # others have a wrong value among many right ones
    _, damaged = fuzz.mutate(live.url, 60)
    assert damaged == []


def test_the_checks_find_an_answer_that_the_document_does_not_know(spec: Any, load_benchmark: Any) -> None:
    document = load_benchmark("serving_fuzz").Document(spec, {})
    schema = spec["paths"]["/translate"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert document.mismatch({"translatedText": ["a"]}, schema) is None
    assert document.mismatch({"translatedText": "a", "alternatives": [["b"]]}, schema) is None
    assert document.mismatch({"translatedText": 5}, schema) == "$.translatedText is none of 2 kinds"
    assert "lacks ['translatedText']" in str(document.mismatch({}, schema))
    assert "has ['more']" in str(document.mismatch({"translatedText": "a", "more": 1}, schema))


def test_operations_that_check_the_queue_are_refused_before_they_are_read(live: Any) -> None:
    inspection = operations_of(InspectionHandlers.__new__(InspectionHandlers))
    for operation, handler in [*live.server.application.operations, *inspection]:
        checks_queue = "self.checks.read(" in inspect.getsource(handler)
        assert operation.decodes == (checks_queue and operation.path != "/detect"), operation.path
