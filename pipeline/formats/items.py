"""The item file: what intake writes, once per job, and everybody after it reads.

One JSON object per line, UTF-8, ``\n``: ``{"id", "line", "body"}`` for a request, ``{"id", "line", "error"}`` for a
line that intake found invalid and ``--skip-invalid`` kept. ``line`` is the line of the user's file, from 1. Byte
offsets into this file are what shards are made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from pipeline.errors import ArtifactCorrupt
from pipeline.ports import JsonObject


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the item file. Exactly one of ``body`` and ``error`` is set.

    ``error`` is ``{"code", "message", "param", "line"}``.
    """

    custom_id: str
    line: int
    body: JsonObject | None = None
    error: JsonObject | None = None


def dump_item(item: Item) -> bytes:
    """One line with its newline; the same item always gives the same bytes."""
    payload: JsonObject = {"id": item.custom_id, "line": item.line}
    if item.error is None:
        payload["body"] = item.body
    else:
        payload["error"] = item.error
    return orjson.dumps(payload) + b"\n"


def parse_item(line: bytes) -> Item:
    """Raises ArtifactCorrupt: what intake wrote can be read, so the file is not what it was."""
    try:
        payload = orjson.loads(line)
        return Item(payload["id"], payload["line"], payload.get("body"), payload.get("error"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactCorrupt(f"a line of the item file is no item: {type(error).__name__}: {error}") from error


def parse_items(data: bytes) -> list[Item]:
    """All items of a byte range that starts and ends at line boundaries."""
    return [parse_item(line) for line in data.splitlines() if line]
