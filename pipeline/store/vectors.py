"""Files of vectors: safetensors with one float32 matrix ``vectors`` of shape [count, dimension], little-endian.

The header's metadata says what the numbers are: ``format`` (of this file), ``space_digest`` and what the writer adds.
The header is written here rather than by the library because the library's order of metadata keys changes from run to
run, and the same vectors must give the same bytes. Reading goes through the library. Knows nothing about databases,
jobs or faiss.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from pipeline.errors import ArtifactCorrupt, ArtifactMissing, NonFiniteVector
from pipeline.store.artifacts import CHUNK_BYTES, Artifact, ArtifactStore

#: Name and version of this layout; a reader refuses any other.
FORMAT = "pipeline-vectors/1"

#: Name of the one tensor in the file.
TENSOR = "vectors"

#: Rows read at a time by :meth:`VectorReader.blocks`; 6 MiB at dimension 384.
BLOCK_ROWS = 4096

Matrix = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VectorHeader:
    """What a vector file says of itself; ``metadata`` is all of the header's text."""

    count: int
    dimension: int
    space_digest: str
    metadata: Mapping[str, str]


class VectorReader:
    """An open vector file; the matrix stays on disk until rows are asked for."""

    def __init__(self, header: VectorHeader, tensor: Any) -> None:
        self.header = header
        self._tensor = tensor

    def rows(self, start: int, end: int) -> Matrix:
        """Rows ``start`` to ``end`` as float32 [end - start, dimension]; raises IndexError outside the file."""
        if not 0 <= start <= end <= self.header.count:
            raise IndexError(f"rows {start}:{end} of a file of {self.header.count}")
        if start == end:
            return np.empty((0, self.header.dimension), dtype=np.float32)
        rows: Matrix = self._tensor[start:end]
        return rows

    def blocks(self, size: int = BLOCK_ROWS) -> Iterator[tuple[int, Matrix]]:
        """Yield (first row, float32 [at most size, dimension]) until the end."""
        for start in range(0, self.header.count, size):
            yield start, self.rows(start, min(start + size, self.header.count))


def write_vectors(
    store: ArtifactStore, name: str, matrix: bytes, dimension: int, count: int, metadata: Mapping[str, str]
) -> Artifact:
    """Write ``count`` vectors, given as little-endian float32 row after row, to a new file of the store.

    Args:
        store: where the file goes.
        name: its path there, from :mod:`pipeline.store.layout`.
        matrix: ``count * dimension * 4`` bytes.
        dimension: components of one vector.
        count: rows; 0 is allowed.
        metadata: text for the header; ``space_digest`` must be in it, ``format`` must not.

    Raises:
        ValueError: the sizes do not agree, or the metadata lacks the space.
        NonFiniteVector: a row holds NaN or infinity, or is zero; nothing is written.
    """
    if dimension < 1 or count < 0 or len(matrix) != count * dimension * 4:
        raise ValueError(f"{len(matrix)} bytes are not {count} float32 vectors of {dimension} components")
    if not metadata.get("space_digest") or "format" in metadata:
        raise ValueError("metadata must hold space_digest, and format is set here")
    _refuse_bad_rows(np.frombuffer(matrix, dtype="<f4").reshape(count, dimension), name)
    header = {
        "__metadata__": {"format": FORMAT, **metadata},
        TENSOR: {"dtype": "F32", "shape": [count, dimension], "data_offsets": [0, len(matrix)]},
    }
    text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the data starts at a multiple of 8, as the format asks
    with store.create(name) as pending:
        pending.stream.write(struct.pack("<Q", len(text)) + text)
        pending.stream.write(matrix)
    return pending.artifact


@contextmanager
def open_vectors(path: Path, *, sha256: str | None = None) -> Iterator[VectorReader]:
    """Open a local vector file for as long as the block lasts, after its checksum was found right.

    Args:
        path: a local file; for a store's file see ``ArtifactStore.local_path``.
        sha256: what the file's row says; None only for a caller that has just verified it.

    Raises:
        ArtifactMissing: there is no such file.
        ArtifactCorrupt: the checksum differs, or the file is no vector file of this format.
    """
    if sha256 is not None:
        verify_file(path, sha256)
    try:
        with safe_open(path, framework="numpy") as file:
            yield VectorReader(_read_header(file, path), file.get_slice(TENSOR))
    except FileNotFoundError:
        raise ArtifactMissing(f"{path.name} is not there") from None
    except SafetensorError as error:
        raise ArtifactCorrupt(f"{path.name} is no vector file: {error}") from error


def verify_file(path: Path, sha256: str) -> None:
    """Hash a local file; raises ArtifactMissing, ArtifactCorrupt."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
    except FileNotFoundError:
        raise ArtifactMissing(f"{path.name} is not there") from None
    if digest.hexdigest() != sha256:
        raise ArtifactCorrupt(f"{path.name} does not have the checksum its row says")


def _read_header(file: Any, path: Path) -> VectorHeader:
    metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("format") != FORMAT or list(file.keys()) != [TENSOR] or "space_digest" not in metadata:
        raise ArtifactCorrupt(f"{path.name} is no vector file of format {FORMAT}")
    tensor = file.get_slice(TENSOR)
    shape = tensor.get_shape()
    if tensor.get_dtype() != "F32" or len(shape) != 2:
        raise ArtifactCorrupt(f"{path.name} holds {tensor.get_dtype()} {shape}, not a float32 matrix")
    return VectorHeader(shape[0], shape[1], metadata["space_digest"], metadata)


def _refuse_bad_rows(matrix: Matrix, name: str) -> None:
    for start in range(0, len(matrix), BLOCK_ROWS):
        block = matrix[start : start + BLOCK_ROWS]
        bad = ~np.isfinite(block).all(axis=1) | ~block.any(axis=1)
        if bad.any():
            raise NonFiniteVector(f"row {start + int(np.argmax(bad))} of {name} is not finite, or zero")
