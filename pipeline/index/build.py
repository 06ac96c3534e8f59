"""Building an index from vector files, and proving it before it gets its name. Imports faiss: for a child only.

Vectors are read block by block, checked, added, written beside, reloaded, compared and measured; only then is the file
renamed. A file under its own name is therefore always a proven one. Knows nothing about jobs or databases.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import faiss
import numpy as np

from pipeline.errors import IndexUnsound, VectorsInvalid
from pipeline.index.manifest import BuildRequest, BuildResult, IdSet, Manifest, VectorSource
from pipeline.index.recall import measure_recall
from pipeline.index.scores import Ids, Vectors, compute_norms, find_bad_vector
from pipeline.index.search import FAISS_METRIC, describe_libraries, open_index
from pipeline.store.vectors import open_vectors

#: Called with the number of vectors handled since the last call; may raise to end the build.
Report = Callable[[int], None]


def build(request: BuildRequest, report: Report | None = None) -> BuildResult:
    """Build, write, reload, prove, name.

    Args:
        request: what to build; ``request.output`` is replaced if it exists.
        report: hears of every block (each vector is handled twice: added, then compared). What it raises ends the
            build and leaves no file.

    Raises:
        ArtifactMissing, ArtifactCorrupt: a vector file is not what its row says.
        VectorsInvalid: a file of another space or shape, doubled ids, or a vector that is not finite, zero, or of
            the wrong norm.
        IndexUnsound: what was reloaded is not what was asked for.
        OSError: the file cannot be written.
    """
    tell = report or (lambda vectors: None)
    started = time.monotonic()
    ids = _expected_ids(request)
    with _beside(request.output) as (temporary, stream):
        index, norms = _fill(request, tell)
        writer = _HashingSink(stream)
        faiss.write_index(index, faiss.PyCallbackIOWriter(writer.write))  # type: ignore[attr-defined]  # not in its stubs
        stream.flush()
        os.fsync(stream.fileno())
        del index  # before the copy that is read back
        manifest = Manifest(
            space_digest=request.space_digest,
            dimension=request.dimension,
            metric=request.metric,
            normalized=request.normalized,
            factory=request.factory,
            parameters={},
            count=request.count,
            ids=describe_ids(ids),
            norm_min=norms[0] if norms else None,
            norm_max=norms[1] if norms else None,
            sha256=writer.digest.hexdigest(),
            size=writer.size,
            recall=None,
            recall_k=request.recall_k,
            recall_queries=0,
            versions=describe_libraries(),
        )
        built = time.monotonic()
        manifest = _prove(request, temporary, manifest, ids, tell)
    return BuildResult(
        output=request.output, manifest=manifest, build_s=built - started, verify_s=time.monotonic() - built
    )


def describe_ids(ids: Ids) -> IdSet:
    """The set's description for a manifest; order does not matter."""
    ordered = np.sort(ids).astype("<i8")
    low, high = (int(ordered[0]), int(ordered[-1])) if len(ordered) else (None, None)
    return IdSet(count=len(ordered), min=low, max=high, sha256=hashlib.sha256(ordered.tobytes()).hexdigest())


class _HashingSink:
    """Takes faiss' writes: a full disk is then an error here, where faiss itself may only print a line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self.digest.update(data)
        self.size += len(data)
        return len(data)


@contextmanager
def _beside(output: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A new file beside ``output`` that takes its name if the block ends well and is gone otherwise."""
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            yield temporary, stream
        temporary.replace(output)
        folder = os.open(output.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


def _fill(request: BuildRequest, tell: Report) -> tuple[faiss.Index, tuple[float, float] | None]:
    """An index with all vectors under their own ids, and the smallest and largest norm seen."""
    index = faiss.IndexIDMap2(faiss.index_factory(request.dimension, request.factory, FAISS_METRIC[request.metric]))
    low, high = np.inf, -np.inf
    for source in request.sources:
        for start, ids, vectors in _read(request, source):
            norms = compute_norms(vectors)
            bad = find_bad_vector(norms, normalized=request.normalized)
            if bad is not None:
                raise VectorsInvalid(f"row {start + bad.row} of {source.path.name} (id {ids[bad.row]}) {bad.reason}")
            index.add_with_ids(vectors, ids)
            low, high = min(low, float(norms.min())), max(high, float(norms.max()))
            tell(len(ids))
    return index, (low, high) if request.count else None


def _prove(request: BuildRequest, path: Path, manifest: Manifest, ids: Ids, tell: Report) -> Manifest:
    """Reload, compare every id, measure recall through the search that users get; the manifest with the figures."""
    loaded = open_index(path, manifest)
    if describe_ids(loaded.ids) != manifest.ids:
        raise IndexUnsound("the ids in the index are not those of the vectors")
    positions = _query_positions(request)
    queries = np.empty((len(positions), request.dimension), dtype=np.float32)
    first = 0
    for source in request.sources:
        chosen = np.flatnonzero((positions >= first) & (positions < first + source.count))
        if len(chosen):
            with open_vectors(source.path) as reader:
                for place in chosen:
                    row = int(positions[place]) - first
                    queries[place] = reader.rows(row, row + 1)[0]
        first += source.count
    recall = measure_recall(
        loaded.search,
        _read_all(request, tell) if len(positions) else (),
        queries,
        request.recall_k,
        metric=request.metric,
        own_ids=ids[positions],
    )
    return manifest.model_copy(update={"recall": recall.value, "recall_queries": recall.queries})


def _query_positions(request: BuildRequest) -> Ids:
    """Vectors that serve as queries: evenly spread over all, so that the same request gives the same figure."""
    # A lone vector has no neighbour to find.
    wanted = min(request.recall_queries, request.count) if request.count > 1 else 0
    return np.arange(wanted, dtype=np.int64) * request.count // max(wanted, 1)


def _expected_ids(request: BuildRequest) -> Ids:
    ids = np.concatenate([np.empty(0, dtype=np.int64), *(_source_ids(source) for source in request.sources)])
    ordered = np.sort(ids)
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise VectorsInvalid(f"id {ordered[twice[0]]} is given to two vectors")
    return ids


def _source_ids(source: VectorSource) -> Ids:
    runs = [np.arange(first, first + length, dtype=np.int64) for first, length in source.id_runs]
    return np.concatenate([np.empty(0, dtype=np.int64), *runs])


def _read(request: BuildRequest, source: VectorSource, *, verified: bool = False) -> Iterator[tuple[int, Ids, Vectors]]:
    """Blocks of one file as (first row, ids, vectors), after its checksum, space and shape were found right."""
    ids = _source_ids(source)
    with open_vectors(source.path, sha256=None if verified else source.sha256) as reader:
        header = reader.header
        facts = (header.space_digest, header.dimension, header.count)
        wanted = (request.space_digest, request.dimension, source.count)
        if facts != wanted:
            raise VectorsInvalid(f"{source.path.name} has (space, dimension, count) {facts}, the build wants {wanted}")
        for start, vectors in reader.blocks():
            yield start, ids[start : start + len(vectors)], vectors


def _read_all(request: BuildRequest, tell: Report) -> Iterator[tuple[Ids, Vectors]]:
    for source in request.sources:
        for _, ids, vectors in _read(request, source, verified=True):
            yield ids, vectors
            tell(len(ids))
