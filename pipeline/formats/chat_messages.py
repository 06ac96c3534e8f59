"""The ``messages`` of a chat request: who says what. Text only; knows nothing about templates."""

from __future__ import annotations

from typing import Any

from pipeline.formats.problems import LineRefused, show_value
from pipeline.formats.requests import unknown_parameter
from pipeline.formats.tools import check_tool_calls

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

#: Keys of a message beside role and content, and the type of their values. ``null`` is the same as absent.
_EXTRAS: dict[str, tuple[type, str]] = {
    "name": (str, "a string"),
    "refusal": (str, "a string"),
    "tool_call_id": (str, "a string"),
    "tool_calls": (list, "an array"),
    "function_call": (dict, "an object"),
    "audio": (dict, "an object"),
}

#: Content parts that OpenAI's API knows and a text model cannot read.
_FOREIGN_PARTS = frozenset({"image_url", "input_audio", "file", "refusal"})


def check_messages(value: Any, param: str) -> list[Any]:
    """A list of at least one message; text parts are joined to one string, since templates of text models take one.

    Raises:
        LineRefused: ``invalid_type``, ``invalid_value``, ``missing_field``, ``unknown_parameter``, or
            ``unsupported_content`` for images, sound and files.
    """
    if type(value) is not list:
        raise LineRefused("invalid_type", f"{param} must be an array, not {show_value(value)}", param)
    if not value:
        raise LineRefused("invalid_value", f"{param} must not be empty", param)
    for place, message in enumerate(value):
        # The ordinary message, {"role", "content"} with a string, is let through without a closer look.
        if (
            type(message) is dict
            and len(message) == 2
            and type(message.get("content")) is str
            and type(role := message.get("role")) is str
            and role in _ROLES
        ):
            continue
        value[place] = _check_message(message, f"{param}[{place}]")
    return value


def _check_message(message: Any, param: str) -> dict[str, Any]:
    if type(message) is not dict:
        raise LineRefused("invalid_type", f"{param} must be an object, not {show_value(message)}", param)
    role = message.get("role")
    if role is None:
        raise LineRefused("missing_field", f"{param} has no role", f"{param}.role")
    if type(role) is not str:
        raise LineRefused("invalid_type", f"{param}.role must be a string, not {show_value(role)}", f"{param}.role")
    if role not in _ROLES:
        message_text = f"{param}.role must be one of {', '.join(sorted(_ROLES))}, not {show_value(role)}"
        raise LineRefused("invalid_value", message_text, f"{param}.role")
    checked: dict[str, Any] = {"role": role, "content": None}
    for key, value in message.items():
        if key in checked or value is None:
            continue
        if key not in _EXTRAS:
            raise unknown_parameter(key, {"role", "content", *_EXTRAS}, place=f"{param}.")
        kind, wanted = _EXTRAS[key]
        if type(value) is not kind:
            wrong = f"{param}.{key} must be {wanted}, not {show_value(value)}"
            raise LineRefused("invalid_type", wrong, f"{param}.{key}")
        checked[key] = check_tool_calls(value, f"{param}.{key}") if key == "tool_calls" else value
    checked["content"] = _check_content(message.get("content"), f"{param}.content", checked)
    return checked


def _check_content(content: Any, param: str, message: dict[str, Any]) -> str | None:
    if type(content) is str:
        return content
    if content is None:
        if message["role"] == "assistant" and not message.keys().isdisjoint({"tool_calls", "function_call", "refusal"}):
            return None
        raise LineRefused("missing_field", f"{param} is missing", param)
    if type(content) is not list:
        wrong = f"{param} must be a string or an array of parts, not {show_value(content)}"
        raise LineRefused("invalid_type", wrong, param)
    if not content:
        raise LineRefused("invalid_value", f"{param} must not be empty", param)
    return "".join(_part_text(part, f"{param}[{place}]") for place, part in enumerate(content))


def _part_text(part: Any, param: str) -> str:
    if type(part) is not dict or type(part.get("type")) is not str:
        raise LineRefused("invalid_type", f"{param} must be an object with a type, not {show_value(part)}", param)
    kind = part["type"]
    if kind in _FOREIGN_PARTS:
        raise LineRefused("unsupported_content", f"{param} is of type {kind}; only text is supported", param)
    if kind != "text":
        raise LineRefused("invalid_value", f"{param}.type must be text, not {show_value(kind)}", f"{param}.type")
    if type(part.get("text")) is not str:
        raise LineRefused("invalid_type", f"{param}.text must be a string", f"{param}.text")
    for key in part.keys() - {"type", "text"}:
        raise unknown_parameter(key, {"type", "text"}, place=f"{param}.")
    return str(part["text"])
