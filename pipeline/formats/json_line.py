"""One line of JSON Lines: bytes to an object, or the code that says why not. Knows nothing about what is in it."""

from __future__ import annotations

import codecs

import orjson

from pipeline.formats.problems import LineRefused
from pipeline.ports import JsonObject


def parse_object(line: bytes, *, is_cut: bool = False) -> JsonObject:
    """Parse a line that must hold one JSON object.

    Args:
        line: without its ending.
        is_cut: the line is the file's last and has no newline; only changes the message.

    Raises:
        LineRefused: ``invalid_utf8``, ``lone_surrogate`` (an escape like ``\\ud800`` without its other half, which
            no UTF-8 can hold), ``invalid_json`` (NaN and infinities included), ``not_an_object``.
    """
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _refusal(line, error, is_cut) from None
    if type(value) is not dict:
        raise LineRefused("not_an_object", f"a line must be a JSON object, not {_name(value)}")
    return value


def _refusal(line: bytes, error: orjson.JSONDecodeError, is_cut: bool) -> LineRefused:
    cut = "; the last line has no newline, so the file may be cut short" if is_cut else ""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as wrong:
        utf16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        guess = "; this looks like UTF-16" if utf16 else cut
        return LineRefused("invalid_utf8", f"byte {wrong.start + 1} is not UTF-8{guess}")
    if "surrogate" in error.msg:
        return LineRefused("lone_surrogate", f"a \\u escape near character {error.colno} is half a surrogate pair")
    if text.startswith(("NaN", "Infinity", "-Infinity"), error.pos):
        return LineRefused("invalid_json", f"NaN and Infinity at character {error.colno} are not JSON")
    return LineRefused("invalid_json", f"{error.msg} at character {error.colno}{cut}")


def _name(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case _:
            return "an array"
