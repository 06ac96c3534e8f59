"""The envelope of a batch line."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.formats.openai_batch import looks_like_batch, read_batch_request
from pipeline.formats.problems import LineRefused
from pipeline.formats.requests import Request
from pipeline.specs.base import Endpoint

BODY = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": BODY}


def test_batch_request_is_read() -> None:
    assert read_batch_request(LINE) == Request("a", Endpoint.CHAT, "m", {"messages": BODY["messages"]})


@pytest.mark.parametrize("field", list(LINE))
def test_batch_request_without_a_field_is_refused(field: str) -> None:
    with pytest.raises(LineRefused) as caught:
        read_batch_request({key: value for key, value in LINE.items() if key != field})
    assert (caught.value.code, caught.value.param) == ("missing_field", field)


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"custom_id": 7}, "invalid_type", "custom_id"),
        ({"custom_id": None}, "invalid_type", "custom_id"),
        ({"custom_id": ""}, "invalid_value", "custom_id"),
        ({"custom_id": "x" * 513}, "invalid_value", "custom_id"),
        ({"custom_id": "x" * 1000}, "invalid_value", "custom_id"),
        ({"custom_id": "a\0b"}, "invalid_value", "custom_id"),
        ({"method": "GET"}, "invalid_value", "method"),
        ({"method": "post"}, "invalid_value", "method"),
        ({"method": 1}, "invalid_value", "method"),
        ({"url": "/v1/responses"}, "unsupported_endpoint", "url"),
        ({"url": "/v1/chat/completions/"}, "unsupported_endpoint", "url"),
        ({"url": None}, "unsupported_endpoint", "url"),
        ({"url": []}, "unsupported_endpoint", "url"),
        ({"body": None}, "invalid_type", "body"),
        ({"body": [BODY]}, "invalid_type", "body"),
        ({"body": BODY | {"model": 1}}, "invalid_type", "model"),
        ({"body": BODY | {"model": ""}}, "invalid_value", "model"),
        ({"metod": "POST"}, "unknown_parameter", "metod"),
        ({"temperature": 0}, "unknown_parameter", "temperature"),
    ],
)
def test_batch_request_is_refused(change: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(LineRefused) as caught:
        read_batch_request(LINE | change)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize("custom_id", ["x" * 512, "../../etc/passwd", "/", "\n", "\U0001f600", " "])
def test_batch_request_takes_any_other_id(custom_id: str) -> None:
    assert read_batch_request(LINE | {"custom_id": custom_id}).custom_id == custom_id


@pytest.mark.parametrize(
    ("line", "expected"),
    [(LINE, True), ({"url": "x"}, True), ({"body": {}}, True), ({"prompt": "x"}, False), ({"body": "a text"}, False)],
)
def test_looks_like_batch(line: dict[str, Any], expected: bool) -> None:
    assert looks_like_batch(line) is expected
