"""The grammar of an answer that must call a function, for models that write calls as JSON between two markers.

That is the form of Hermes and Qwen: ``{"name": ..., "arguments": ...}`` on a line of its own between ``<tool_call>`` and
``</tool_call>``. Other forms have no grammar here. Knows nothing about tokens beyond the two markers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pipeline.ports import JsonObject
from workers.engines.structured import COMPILE


def call_grammar(functions: Sequence[JsonObject], start: str, end: str, *, parallel: bool) -> str:
    """In Lark's words: at least one call of one of ``functions``, and with ``parallel`` any number.

    Args:
        functions: ``{"name", "parameters"}`` each; without parameters any object may be the arguments.
        start: the marker before a call, as a terminal.
        end: the marker behind it.
    """
    bodies = [_body(place, function) for place, function in enumerate(functions)]
    rest = r' ("\n" call)*' if parallel else ""
    names = " | ".join(f"body_{place}" for place in range(len(bodies)))
    lines = [f"start: call{rest}", rf'call: {start} "\n" ({names}) "\n" {end}', *bodies]
    return "\n".join(lines) + "\n"


def _body(place: int, function: JsonObject) -> str:
    head = json.dumps(f'{{"name": {json.dumps(function["name"])}, "arguments": ')
    schema = {"type": "object", **function.get("parameters", {}), "x-guidance": COMPILE}
    return f'body_{place}: {head} %json {json.dumps(schema)} "}}"'
