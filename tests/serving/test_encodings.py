"""Test the conversion of JSON, forms and multipart forms to typed messages."""

from typing import Any

import pytest

from transduce.serving.messages import RequestError, TranslateRequest
from transduce.serving.request_bodies import read_form, read_json, read_message, read_multipart

FORM = "application/x-www-form-urlencoded; charset=utf-8"
FIELDS = {"q": "a", "source": "de", "target": "en"}


def test_a_body_without_content_type_is_read_as_json_if_it_starts_so() -> None:
    assert read_message(b' {"q":"a","source":"de","target":"en"}', "", "", TranslateRequest).q == "a"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.api+json"])
def test_json_has_several_names(kind: str) -> None:
    assert read_message(b'{"q":"a","source":"de","target":"en"}', kind, "", TranslateRequest).target == "en"


def test_unknown_fields_are_ignored() -> None:
    body = b'{"q":"a","source":"de","target":"en","secret":[{"x":1}],"api_key":null,"format":null}'
    assert read_json(body, TranslateRequest).api_key is None
    assert read_message(b"q=a&source=de&target=en&secret=x&secret=y", FORM, "", TranslateRequest).q == "a"


@pytest.mark.parametrize(
    ("body", "repeated"),
    [
        (b'{"q":"a","source":"de","target":"en","q":"b"}', "q"),
        (b'{"q":"a","x":1,"source":"de","target":"en","x":1}', "x"),
        (b'{"q":"a","source":"de","target":"en","\\u0071":"b"}', "q"),
        ('{"q":"a","source":"de","target":"en","glossary":{"爱":"hate","爱":"like"}}'.encode(), "爱"),
        (b'{"q":"a","source":"de","target":"en","x":[{"y":{"z":1,"z":2}}]}', "z"),
    ],
)
def test_repeated_keys_of_json_objects_are_refused(body: bytes, repeated: str) -> None:
    with pytest.raises(RequestError, match=rf"each key of a JSON object must occur once, but `{repeated}` is repeated"):
        read_json(body, TranslateRequest)


def test_different_objects_may_have_the_same_key_and_white_space_is_ignored() -> None:
    body = b'{ "q" : "a\\u00e9" ,\n"source":"de","target":"en", "x": {"a":1, "b":{"a": 2}}}'
    assert read_json(body, TranslateRequest).q == "aé"


def test_a_byte_order_mark_before_json_is_ignored_and_broken_json_is_located() -> None:
    body = b'\xef\xbb\xbf{"q":"a","source":"de","target":"en"}'
    assert read_json(body, TranslateRequest).q == "a"
    with pytest.raises(RequestError, match=r"the body is not JSON in UTF-8 \(.*byte 9\)"):
        read_json(b'{"q":"a",}', TranslateRequest)


def test_form_fields_precede_query_fields() -> None:
    message = read_message(b"q=body", FORM, "q=query&source=de&target=en", TranslateRequest)
    assert (message.q, message.source) == ("body", "de")


@pytest.mark.parametrize(
    ("said", "name", "value"),
    [
        ("alternatives=2", "alternatives", 2),
        ("alternatives=", "alternatives", 0),
        ("stream=true", "stream", True),
        ("stream=0", "stream", False),
        ("timeout=1.5", "timeout", 1.5),
        ("timeout=", "timeout", None),
        ("api_key=", "api_key", ""),
        ("q=", "q", ""),
        ("q=null", "q", "null"),
        ("q=1", "q", "1"),
        ("q[]=a&q[]=b", "q", ["a", "b"]),
    ],
)
def test_form_values_are_converted_to_field_types(said: str, name: str, value: Any) -> None:
    fields = "&".join([said, *(f"{key}={text}" for key, text in FIELDS.items() if key != name)])
    assert getattr(read_message(fields.encode(), FORM, "", TranslateRequest), name) == value


def test_repeated_form_fields_that_are_no_list_are_refused() -> None:
    with pytest.raises(RequestError, match=r"the field `source` must occur once, but occurs 2 times"):
        read_message(b"q=a&source=de&source=fr&target=en", FORM, "", TranslateRequest)


def test_form_values_are_decoded() -> None:
    assert read_form(b"q=a+b%20%E8%8C%B6&q=&x") == {"q": ["a b 茶", ""], "x": [""]}


def test_multipart_contents_may_hold_anything_but_the_boundary() -> None:
    content = "a\r\n--not the mark\r\n\r\n茶\n"
    body = (
        '--mark\r\ncontent-disposition: form-data; name="q"\r\nContent-Type: text/plain\r\n\r\n' + content + "\r\n"
        '--mark\r\nContent-Disposition: form-data; name="q"; filename="a.txt"\r\n\r\nb\r\n--mark--\r\n'
    )
    assert read_multipart(body.encode(), "multipart/form-data; boundary=mark; charset=utf-8") == {"q": [content, "b"]}


@pytest.mark.parametrize(
    ("body", "kind", "sentence"),
    [
        (
            b"--m\r\n\r\na\r\n--m--",
            "multipart/form-data; boundary=m",
            "every part of the multipart form must have a name",
        ),
        (
            b'--m\r\ncontent-disposition: form-data; name="q"\r\n\r\na\r\n--m',
            "multipart/form-data; boundary=m",
            "must end with its boundary",
        ),
        (b"--n\r\n\r\na\r\n--n--", "multipart/form-data; boundary=m", "is broken"),
        (b"", "multipart/form-data; boundary=m", "must end with its boundary"),
        (b"--m--", f"multipart/form-data; boundary={'m' * 300}", "is broken"),
        (
            b'--m\r\ncontent-disposition: form-data; name="q"\r\n\r\n\r\n' * 1001 + b"--m--",
            "multipart/form-data; boundary=m",
            "has more than 1000 parts",
        ),
        (
            b"--m\r\nx: " + b"y" * 5000 + b"\r\n\r\na\r\n--m--",
            "multipart/form-data; boundary=m",
            "is broken",
        ),
        (b"--m--", "multipart/form-data", "must name its boundary"),
        (
            b'--m\r\ncontent-disposition: form-data; name="q"\r\n\r\n\xff\r\n--m--',
            "multipart/form-data; boundary=m",
            "is not UTF-8",
        ),
    ],
)
def test_a_broken_multipart_form_is_reported(body: bytes, kind: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        read_multipart(body, kind)
