"""What a name in the store says of its file: the inverse of :mod:`pipeline.store.layout`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

#: The folders that hold nothing but files of ours; whatever else lies in a store is never touched.
FOLDERS = ("inputs/", "jobs/", "indexes/", "tmp/")


class FileKind(StrEnum):
    INPUT = "input"
    PART = "part"
    VECTORS = "vectors"
    OUTPUT = "output"
    INDEX = "index"
    TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True)
class Name:
    """What a name says.

    ``token`` is that of the shard's lease (parts, vectors, indexes) or of the job's (outputs); inputs belong to no job.
    """

    kind: FileKind
    job_id: str | None = None
    shard: int | None = None
    token: int | None = None


_WORD = r"[A-Za-z0-9_-]+"
_PATTERNS = {
    FileKind.INPUT: re.compile(r"inputs/[0-9a-f]{2}/[0-9a-f]{64}\.jsonl"),
    FileKind.PART: re.compile(rf"jobs/(?P<job>{_WORD})/parts/(?P<shard>\d+)/(?P<token>\d+)-\d+\.jsonl"),
    FileKind.VECTORS: re.compile(rf"jobs/(?P<job>{_WORD})/vectors/(?P<shard>\d+)/(?P<token>\d+)-\d+\.safetensors"),
    FileKind.OUTPUT: re.compile(rf"jobs/(?P<job>{_WORD})/(?:output|errors)\.(?P<token>\d+)\.jsonl"),
    FileKind.INDEX: re.compile(rf"indexes/(?P<index>idx_{_WORD})/(?P<token>\d+)\.(?:faiss|json)"),
    FileKind.TEMPORARY: re.compile(r"tmp/[0-9a-f]{32}"),
}


def read_name(uri: str) -> Name | None:
    """None for a name that :mod:`pipeline.store.layout` does not make."""
    for kind, pattern in _PATTERNS.items():
        found = pattern.fullmatch(uri)
        if found is None:
            continue
        parts = found.groupdict()
        if kind is FileKind.INDEX:  # an index job has one shard, and its index is named after it
            return Name(kind, parts["index"].replace("idx_", "job_", 1), 0, int(parts["token"]))
        shard = parts.get("shard")
        token = parts.get("token")
        return Name(kind, parts.get("job"), int(shard) if shard else None, int(token) if token else None)
    return None
