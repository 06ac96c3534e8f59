"""The wire between a parent and its child: length-prefixed frames, JSON plus raw bytes, never pickle.

A frame is ``>II`` (length of the JSON, length of the blob), the JSON, the blob. The JSON has a ``type``.

Parent to child: ``load`` (an EngineRequest), ``run`` (items, options, done), ``cancel``, ``stats``, ``shutdown``.
Child to parent: ``hello`` (pid, versions), ``loaded`` (an EngineInfo), ``answer``, ``progress``, ``boundary``,
``started``, ``done`` (RunStats), ``failed`` (class job | transient, code, message, hint, verdicts), ``stats``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, BinaryIO

import orjson

from pipeline.ports import (
    Answer,
    Boundary,
    EngineEvent,
    EngineInfo,
    EngineRequest,
    JsonObject,
    Progress,
    RunStats,
    Started,
    VectorRow,
    Verdict,
    WorkItem,
)

_HEADER = struct.Struct(">II")

#: Largest JSON or blob one frame may carry, in bytes; a longer one means the stream is out of step.
MAX_FRAME_BYTES = 1 << 30


class WireError(Exception):
    """The bytes on the pipe are not a frame."""


def write_frame(stream: BinaryIO, message: JsonObject, blob: bytes = b"") -> None:
    """Write one frame and flush it. ``message`` must have a ``type``."""
    data = orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    if max(len(data), len(blob)) > MAX_FRAME_BYTES:
        raise WireError(f"frame of {max(len(data), len(blob))} bytes is over {MAX_FRAME_BYTES}")
    stream.write(_HEADER.pack(len(data), len(blob)) + data + blob)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[JsonObject, bytes] | None:
    """Read one frame; None at a clean end of the stream, :class:`WireError` at a torn or foreign one."""
    header = _read_exactly(stream, _HEADER.size, allow_eof=True)
    if header is None:
        return None
    json_bytes, blob_bytes = _HEADER.unpack(header)
    if max(json_bytes, blob_bytes) > MAX_FRAME_BYTES:
        raise WireError("frame length out of range: something else wrote to the pipe")
    data = _read_exactly(stream, json_bytes)
    blob = _read_exactly(stream, blob_bytes)
    assert data is not None and blob is not None
    message = orjson.loads(data)
    if not isinstance(message, dict) or "type" not in message:
        raise WireError("frame has no type")
    return message, blob


def _read_exactly(stream: BinaryIO, size: int, *, allow_eof: bool = False) -> bytes | None:
    chunks: list[bytes] = []
    missing = size
    while missing:
        chunk = stream.read(missing)
        if not chunk:
            if allow_eof and missing == size:
                return None
            raise WireError("stream ended inside a frame")
        chunks.append(chunk)
        missing -= len(chunk)
    return b"".join(chunks)


# --- parent to child -------------------------------------------------------------------------------------------------


def load_message(request: EngineRequest) -> JsonObject:
    return {"type": "load", **asdict(request)}


def parse_load(message: JsonObject) -> EngineRequest:
    return EngineRequest(**_without_type(message))


def run_message(items: Sequence[WorkItem], options: JsonObject, done: frozenset[int]) -> JsonObject:
    rows = [[item.index, item.custom_id, item.body, item.seed] for item in items]
    return {"type": "run", "items": rows, "options": options, "done": sorted(done)}


def parse_run(message: JsonObject) -> tuple[list[WorkItem], JsonObject, frozenset[int]]:
    items = [WorkItem(index, custom_id, body, seed) for index, custom_id, body, seed in message["items"]]
    return items, message["options"], frozenset(message["done"])


# --- child to parent -------------------------------------------------------------------------------------------------


def loaded_message(info: EngineInfo) -> JsonObject:
    return {"type": "loaded", **asdict(info)}


def parse_loaded(message: JsonObject) -> EngineInfo:
    return EngineInfo(**_without_type(message))


def event_message(event: EngineEvent) -> tuple[JsonObject, bytes]:
    """The frame of one engine event, as (message, blob)."""
    match event:
        case Answer():
            fields: dict[str, Any] = {
                "index": event.index,
                "body": event.body,
                "error": event.error,
                "usage": event.usage,
                "measures": event.measures,
                "rows": [
                    [r.item, r.ordinal, r.norm, r.tokens, r.truncated, r.start, r.end, r.text_hash] for r in event.rows
                ],
                "dimension": event.dimension,
            }
            return {"type": "answer", **fields}, event.vectors
        case Progress():
            return {"type": "progress", "tokens": event.tokens, "items": event.items, "phase": event.phase}, b""
        case Boundary():
            return {"type": "boundary"}, b""
        case Started():
            return {"type": "started", "items": list(event.items)}, b""


def parse_event(message: JsonObject, blob: bytes) -> EngineEvent:
    """The inverse of :func:`event_message`; raises :class:`WireError` for a type that is no event."""
    match message["type"]:
        case "answer":
            fields = _without_type(message)
            rows = tuple(VectorRow(*row) for row in fields.pop("rows"))
            return Answer(**fields, rows=rows, vectors=blob)
        case "progress":
            return Progress(**_without_type(message))
        case "boundary":
            return Boundary()
        case "started":
            return Started(tuple(map(int, message["items"])))
        case other:
            raise WireError(f"not an event: {other!r}")


def done_message(stats: RunStats) -> JsonObject:
    return {"type": "done", **asdict(stats)}


def parse_done(message: JsonObject) -> RunStats:
    fields = _without_type(message)
    fields["busy"] = tuple((start, end) for start, end in fields["busy"])
    fields["verdicts"] = tuple(Verdict(**verdict) for verdict in fields.get("verdicts", ()))
    return RunStats(**fields)


def _without_type(message: JsonObject) -> JsonObject:
    return {key: value for key, value in message.items() if key != "type"}
