"""Checks of single values: type and range. Knows nothing about which parameter has which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.formats.problems import LineRefused, show_value

#: Takes (value, its param path), returns the normalised value, raises LineRefused. Never sees null.
Check = Callable[[Any, str], Any]


def wrong_type(param: str, wanted: str, value: Any) -> LineRefused:
    return LineRefused("invalid_type", f"{param} must be {wanted}, not {show_value(value)}", param)


def typed(kind: type, wanted: str) -> Check:
    def check(value: Any, param: str) -> Any:
        if type(value) is not kind:
            raise wrong_type(param, wanted, value)
        return value

    return check


def integer(low: int, high: int | None = None) -> Check:
    wanted = f"at least {low}" if high is None else f"from {low} to {high}"

    def check(value: Any, param: str) -> Any:
        if type(value) is not int:
            raise wrong_type(param, "an integer", value)
        if value < low or (high is not None and value > high):
            raise LineRefused("invalid_value", f"{param} must be {wanted}, not {value}", param)
        return value

    return check


def number(low: float, high: float, *, above: bool = False) -> Check:
    """From ``low`` (or, with ``above``, anything over it) to ``high``."""
    wanted = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"

    def check(value: Any, param: str) -> Any:
        if type(value) is not float and type(value) is not int:
            raise wrong_type(param, "a number", value)
        if not low <= value <= high or (above and value == low):
            raise LineRefused("invalid_value", f"{param} must be {wanted}, not {value}", param)
        return value

    return check


def either(*checks: Check, wanted: str) -> Check:
    """The first check that does not say ``invalid_type`` decides."""

    def check(value: Any, param: str) -> Any:
        for candidate in checks:
            try:
                return candidate(value, param)
            except LineRefused as refused:
                if refused.code != "invalid_type":
                    raise
        raise wrong_type(param, wanted, value)

    return check


TEXT = typed(str, "a string")
FLAG = typed(bool, "true or false")
OBJECT = typed(dict, "an object")
ARRAY = typed(list, "an array")


def check_nonempty(value: Any, param: str) -> Any:
    """A string with something in it."""
    if type(value) is not str:
        raise wrong_type(param, "a string", value)
    if not value:
        raise LineRefused("invalid_value", f"{param} must not be empty", param)
    return value


def check_field(value: dict[str, Any], name: str, check: Check, param: str, *, required: bool = False) -> None:
    """One field of an object; null is the same as absent."""
    if value.get(name) is not None:
        check(value[name], f"{param}.{name}")
    elif required:
        raise LineRefused("missing_field", f"{param} has no {name}", f"{param}.{name}")
