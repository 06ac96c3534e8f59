"""``response_format``: which form an answer must have. Whether a schema can be followed is the engine's to say."""

from __future__ import annotations

from typing import Any

from pipeline.formats.checks import FLAG, OBJECT, TEXT, check_field
from pipeline.formats.problems import LineRefused, show_value

_TYPES = ("text", "json_object", "json_schema")


def check_response_format(value: Any, param: str) -> Any:
    """``text``, ``json_object``, or ``json_schema`` with a schema.

    Raises:
        LineRefused: ``invalid_type``, ``invalid_value`` or ``missing_field``.
    """
    OBJECT(value, param)
    check_field(value, "type", TEXT, param, required=True)
    kind = value["type"]
    if kind not in _TYPES:
        message = f"{param}.type must be one of {', '.join(_TYPES)}, not {show_value(kind)}"
        raise LineRefused("invalid_value", message, f"{param}.type")
    if kind == "json_schema":
        check_field(value, "json_schema", OBJECT, param, required=True)
        described, place = value["json_schema"], f"{param}.json_schema"
        check_field(described, "name", TEXT, place)
        check_field(described, "description", TEXT, place)
        check_field(described, "schema", OBJECT, place, required=True)
        check_field(described, "strict", FLAG, place)
    return value
