"""Tools that a chat may call, and the calls in its messages. Knows nothing about models or templates.

Checked here is the form. A type of tool other than ``function`` passes: an engine says what it does not honour.
"""

from __future__ import annotations

from typing import Any

from pipeline.formats.checks import FLAG, OBJECT, TEXT, check_field, check_nonempty, wrong_type
from pipeline.formats.problems import LineRefused, show_value

_CHOICES = frozenset({"none", "auto", "required"})


def check_tools(value: Any, param: str) -> list[Any]:
    """Descriptions of tools; an empty array is no tools.

    Raises:
        LineRefused: ``invalid_type``, ``invalid_value`` or ``missing_field``.
    """
    if type(value) is not list:
        raise wrong_type(param, "an array", value)
    for place, tool in enumerate(value):
        _check_tool(tool, f"{param}[{place}]")
    return value


def _check_tool(tool: Any, param: str) -> None:
    OBJECT(tool, param)
    check_field(tool, "type", TEXT, param, required=True)
    if tool["type"] != "function":
        return
    check_field(tool, "function", OBJECT, param, required=True)
    function, place = tool["function"], f"{param}.function"
    check_field(function, "name", check_nonempty, place, required=True)
    check_field(function, "description", TEXT, place)
    check_field(function, "parameters", OBJECT, place)
    check_field(function, "strict", FLAG, place)


def check_tool_choice(value: Any, param: str) -> Any:
    """One of the three words, or an object that names a tool."""
    if type(value) is str:
        if value not in _CHOICES:
            wanted = ", ".join(sorted(_CHOICES))
            raise LineRefused("invalid_value", f"{param} must be one of {wanted}, not {show_value(value)}", param)
        return value
    if type(value) is not dict:
        raise wrong_type(param, "a string or an object", value)
    check_field(value, "type", TEXT, param, required=True)
    if value["type"] == "function":
        check_field(value, "function", OBJECT, param, required=True)
        check_field(value["function"], "name", check_nonempty, f"{param}.function", required=True)
    return value


def check_tool_calls(value: Any, param: str) -> list[Any]:
    """Calls that an assistant's message made: ``{"id", "type": "function", "function": {"name", "arguments"}}``."""
    if type(value) is not list:
        raise wrong_type(param, "an array", value)
    for place, call in enumerate(value):
        where = f"{param}[{place}]"
        OBJECT(call, where)
        check_field(call, "id", TEXT, where)
        check_field(call, "type", TEXT, where)
        check_field(call, "function", OBJECT, where, required=call.get("type", "function") == "function")
        if type(call.get("function")) is dict:
            check_field(call["function"], "name", check_nonempty, f"{where}.function", required=True)
            check_field(call["function"], "arguments", TEXT, f"{where}.function", required=True)
    return value
