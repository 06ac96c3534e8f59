"""Every path in the store, made of ids this project gave. A user's custom_id, file name or alias never enters one."""

from __future__ import annotations

import re

_SAFE = re.compile(r"[A-Za-z0-9_-]+")


def _safe(part: str | int) -> str:
    text = str(part)
    if not _SAFE.fullmatch(text):
        raise ValueError(f"not a path segment of ours: {text!r}")
    return text


def store_marker() -> str:
    """Holds the store's uuid; a worker whose database names another one refuses to start."""
    return "store.json"


def input_file(sha256: str) -> str:
    """Content-addressed item file of one or more jobs."""
    return f"inputs/{_safe(sha256[:2])}/{_safe(sha256)}.jsonl"


def part_file(job_id: str, shard: int, token: int, ordinal: int) -> str:
    return f"jobs/{_safe(job_id)}/parts/{_safe(shard)}/{_safe(token)}-{_safe(ordinal)}.jsonl"


def vector_file(job_id: str, shard: int, token: int, ordinal: int) -> str:
    return f"jobs/{_safe(job_id)}/vectors/{_safe(shard)}/{_safe(token)}-{_safe(ordinal)}.safetensors"


def output_file(job_id: str, token: int) -> str:
    return f"jobs/{_safe(job_id)}/output.{_safe(token)}.jsonl"


def errors_file(job_id: str, token: int) -> str:
    return f"jobs/{_safe(job_id)}/errors.{_safe(token)}.jsonl"


def index_file(index_id: str, token: int) -> str:
    return f"indexes/{_safe(index_id)}/{_safe(token)}.faiss"


def index_manifest(index_id: str, token: int) -> str:
    return f"indexes/{_safe(index_id)}/{_safe(token)}.json"
