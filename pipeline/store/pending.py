"""A file on its way into the store, and what it is once it is there."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import BinaryIO

from pipeline.store.faults import mapped

#: Bytes moved at a time when a file is copied, hashed or read back.
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that is in the store: its name there, its checksum (hex) and its length in bytes."""

    uri: str
    sha256: str
    size: int


class HashingWriter(io.RawIOBase):
    """A binary stream that counts and hashes what passes through it; raises StoreFull, StoreUnavailable.

    ``place`` is what an error names: the store, or the folder where a file waits for its upload.
    """

    def __init__(self, target: BinaryIO, place: str) -> None:
        self._target = target
        self._place = place
        self._digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        with mapped(self._place):
            self._target.write(data)
        self._digest.update(data)
        self.size += len(data)
        return len(data)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@dataclass(slots=True)
class Pending:
    """A file being written; ``artifact`` says what it became once the ``with`` block has ended well."""

    stream: HashingWriter
    artifact: Artifact
