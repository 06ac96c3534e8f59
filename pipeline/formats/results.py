"""Lines of ``output.jsonl`` and ``errors.jsonl``, in OpenAI Batch's shape.

Everything in a line follows from the job's id, its creation time, the custom_id and the answer: finalizing twice
gives the same bytes.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import blake2b
from typing import Protocol

import orjson

from pipeline.ports import JsonObject

#: Prefixes of a body's own id, by its ``object``.
_ID_PREFIX = {"chat.completion": "chatcmpl", "text_completion": "cmpl"}


class JobIdentity(Protocol):
    """What of a job goes into a line."""

    @property
    def id(self) -> str: ...
    @property
    def created_at(self) -> datetime: ...


def output_line(job: JobIdentity, custom_id: str, body: JsonObject) -> bytes:
    """A line for an item that succeeded; completions get their ``id`` and ``created`` here."""
    prefix = _ID_PREFIX.get(str(body.get("object")))
    if prefix is not None:
        head = {"id": f"{prefix}-{_digest(job, custom_id, prefix)}", "object": body["object"]}
        body = head | {"created": int(job.created_at.timestamp())} | {k: v for k, v in body.items() if k not in head}
    response = {"status_code": 200, "request_id": f"req_{_digest(job, custom_id, 'request')}", "body": body}
    return _line(job, custom_id, response, None)


def error_line(job: JobIdentity, custom_id: str, error: JsonObject) -> bytes:
    """A line for an item that erred, or was not answered; ``error`` has ``code`` and ``message``."""
    return _line(job, custom_id, None, error)


def _line(job: JobIdentity, custom_id: str, response: JsonObject | None, error: JsonObject | None) -> bytes:
    line_id = f"batch_req_{_digest(job, custom_id, 'line')}"
    payload = {"id": line_id, "custom_id": custom_id, "response": response, "error": error}
    return orjson.dumps(payload) + b"\n"


def _digest(job: JobIdentity, custom_id: str, purpose: str) -> str:
    return blake2b(f"{purpose}\0{job.id}\0{custom_id}".encode(), digest_size=12).hexdigest()
