"""What a model wrote between tool markers, as OpenAI's ``tool_calls``. The parsers are mlx-lm's."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from pipeline.ports import JsonObject

Parser = Callable[[str, Any], Any]


def parse_calls(text: str, parser: Parser, tools: Sequence[JsonObject]) -> list[JsonObject] | None:
    """``{"name", "arguments"}`` of each call in ``text``, arguments as a JSON string; None where it is no call."""
    try:
        parsed = parser(text, list(tools))
        calls = parsed if isinstance(parsed, list) else [parsed]
        return [_read_call(call) for call in calls] or None
    except Exception:  # noqa: BLE001 - parsers of model output raise whatever they stumble over
        return None


def _read_call(call: Any) -> JsonObject:
    """Raises ValueError, or what else a value of a wrong type makes."""
    name, arguments = call["name"], call["arguments"]
    if isinstance(arguments, str):  # some models write the arguments as a string of JSON
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError("not a call")
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    (name + written).encode()  # a lone surrogate fits into no file
    return {"name": name, "arguments": written}


def openai_call(call: JsonObject, seed: int, choice: int, place: int) -> JsonObject:
    """With an id that the same item gets on every run."""
    digest = blake2b(f"{seed}:{choice}:{place}".encode(), digest_size=12).hexdigest()
    return {"id": f"call_{digest}", "type": "function", "function": call}
