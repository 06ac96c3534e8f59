"""A request as every input format gives it, and the rules that all formats share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from pipeline.formats.problems import LineRefused, show_value
from pipeline.ports import JsonObject
from pipeline.specs.base import Endpoint

#: Longest custom_id, in characters.
MAX_ID_CHARS = 512

#: Longer names are never typing errors, and comparing them costs their length squared.
_LONGEST_NAME = 64


class Request(NamedTuple):
    """One valid line. ``body`` is in OpenAI's words for ``endpoint``, without ``model``."""

    custom_id: str | None
    endpoint: Endpoint
    model: str | None
    body: JsonObject


def check_custom_id(value: Any, param: str = "custom_id") -> str:
    """A string of 1 to 512 characters; any but NUL, which PostgreSQL's text cannot hold. Ids never become paths."""
    if type(value) is not str:
        raise LineRefused("invalid_type", f"{param} must be a string, not {show_value(value)}", param)
    if not 1 <= len(value) <= MAX_ID_CHARS:
        message = f"{param} must have 1 to {MAX_ID_CHARS} characters; it has {len(value):,}"
        raise LineRefused("invalid_value", message, param)
    if "\0" in value:
        raise LineRefused("invalid_value", f"{param} must not hold the character NUL", param)
    return value


def check_model(value: Any, param: str = "model") -> str | None:
    """A model's name, None where there is none."""
    if value is None:
        return None
    if type(value) is not str:
        raise LineRefused("invalid_type", f"{param} must be a string, not {show_value(value)}", param)
    if not 1 <= len(value) <= MAX_ID_CHARS or "\0" in value:
        raise LineRefused("invalid_value", f"{param} must have 1 to {MAX_ID_CHARS} characters, none of them NUL", param)
    return value


def unknown_parameter(name: str, known: Iterable[str], *, place: str = "", hint: str = "") -> LineRefused:
    """The refusal of a name nobody knows, with the nearest known one. ``place`` is the path before it, with its dot."""
    near = _nearest(name, frozenset(known)) if len(name) <= _LONGEST_NAME else None
    guess = f"; did you mean {near}?" if near else ""
    shown = show_value(name)
    param = name if f'"{name}"' == shown else shown
    return LineRefused("unknown_parameter", f"unknown parameter {shown}{guess}{hint}", f"{place}{param}")


@lru_cache(maxsize=256)
def _nearest(name: str, known: frozenset[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)
