"""The answer of an item that cannot be answered, in the form every engine gives it."""

from __future__ import annotations

from pipeline.errors import ItemError
from pipeline.ports import Answer


def error_answer(index: int, error: ItemError) -> Answer:
    """``error`` becomes ``{"code", "message", "param"}``."""
    return Answer(index=index, error={"code": error.item_code, "message": error.message, "param": error.param})
