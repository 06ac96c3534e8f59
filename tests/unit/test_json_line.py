"""One line to one object, or the code that says why not."""

from __future__ import annotations

import pytest

from pipeline.formats.json_line import parse_object
from pipeline.formats.problems import LineRefused


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (b"{", "invalid_json", "character"),
        (b'{"a": 1} {"b": 2}', "invalid_json", "character"),
        (b'{"a": NaN}', "invalid_json", "NaN"),
        (b'{"a": -Infinity}', "invalid_json", "Infinity"),
        (b'{"a": 1e999}', "invalid_json", "infinity"),
        (b"{'a': 1}", "invalid_json", "character"),
        (b'{"a": ' + b"[" * 5000, "invalid_json", "depth"),
        (b'{"a": "\xff"}', "invalid_utf8", "byte 8"),
        (b'{"a": "\xed\xa0\x80"}', "invalid_utf8", "byte 8"),
        ('{"a": 1}'.encode("utf-16"), "invalid_utf8", "UTF-16"),
        (b'{"a": "\\ud800"}', "lone_surrogate", "surrogate"),
        (b'{"a": "\\ud800x"}', "lone_surrogate", "surrogate"),
        (b'{"a": "\\udc00"}', "lone_surrogate", "surrogate"),
        (b'{"a": "\\ud800\\u0041"}', "lone_surrogate", "surrogate"),
        (b"[]", "not_an_object", "an array"),
        (b"1", "not_an_object", "a number"),
        (b'"text"', "not_an_object", "a string"),
        (b"null", "not_an_object", "null"),
        (b"true", "not_an_object", "a boolean"),
    ],
)
def test_parse_object_refuses(line: bytes, code: str, said: str) -> None:
    with pytest.raises(LineRefused) as caught:
        parse_object(line)
    assert caught.value.code == code
    assert said in caught.value.message


def test_parse_object_says_that_a_cut_line_may_be_cut() -> None:
    with pytest.raises(LineRefused, match="cut short"):
        parse_object(b'{"a": "half', is_cut=True)


def test_parse_object_takes_a_whole_surrogate_pair() -> None:
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
