"""Opening an index file and searching it. Imports faiss: for a child process only.

faiss proposes candidates in float32; their scores are then computed anew pair by pair (:mod:`pipeline.index.scores`)
and ordered by score and id. So a query's hits are the same whether it is searched alone or among a thousand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from pipeline.errors import IndexUnsound, InvalidValue, ItemError
from pipeline.index.manifest import Manifest, Metric
from pipeline.index.scores import (
    FLOAT32_SLACK,
    Doubles,
    Ids,
    Vectors,
    compute_norms,
    find_bad_vector,
    score_pairs,
    score_scale,
    to_merit,
)
from pipeline.store.vectors import verify_file

#: faiss' name of each metric.
FAISS_METRIC: dict[Metric, int] = {"ip": faiss.METRIC_INNER_PRODUCT, "l2": faiss.METRIC_L2}

#: Candidates asked for beyond k, so that near ties at the end are settled by exact scores.
CANDIDATE_MARGIN = 16

#: Most candidates of one query; where more than this tie at the k-th place, which of them are given is faiss' choice.
MAX_CANDIDATES = 4096

#: Bytes of candidate vectors (as float64) held at a time; sets how many queries go together.
RESCORE_BYTES = 64 << 20


def describe_libraries() -> dict[str, str]:
    """What an index and its scores may depend on: versions, and the instruction sets faiss was compiled for."""
    compiled_for = faiss.get_compile_options().strip()
    return {"faiss": faiss.__version__, "faiss_compiled_for": compiled_for, "numpy": np.__version__}


class LoadedIndex:
    """An index in memory that was found to be what its manifest says."""

    def __init__(self, index: Any, manifest: Manifest) -> None:
        self.manifest = manifest
        self._index = index

    @property
    def ids(self) -> Ids:
        """The ids in the index, in the order they were added."""
        ids: Ids = faiss.vector_to_array(self._index.id_map)
        return ids

    def search(self, queries: Vectors, k: int) -> tuple[Ids, Vectors]:
        """Find the k nearest of each query.

        Args:
            queries: float32 [q, dimension]; norms within 1e-3 of 1 where the space is normalised.
            k: hits wanted; with fewer vectors in the index than that, all of them are given.

        Returns:
            ids int64 [q, min(k, count)] and scores float32 of the same shape, best first: inner products descending,
            or squared L2 distances ascending; equal scores by ascending id. Scores are not clipped: an inner product
            is at most query norm times ``norm_max``, so in a normalised space at most 1.001 squared.

        Raises:
            ItemError: ``invalid_value`` for k below 1 or queries of another shape; ``non_finite_vector`` (zero too) or
                ``vector_not_normalized`` for what a query is.
            IndexUnsound: faiss' score of a hit is not the score of that vector.
        """
        manifest = self.manifest
        if k < 1:
            raise InvalidValue(f"k must be at least 1, not {k}", param="k")
        if queries.ndim != 2 or queries.shape[1] != manifest.dimension:
            raise InvalidValue(f"queries must be [n, {manifest.dimension}], not {list(queries.shape)}", param="vectors")
        norms = compute_norms(queries)
        bad = find_bad_vector(norms, normalized=manifest.normalized)
        if bad is not None:
            raise ItemError(f"query {bad.row} {bad.reason}", code=bad.code, param="vectors")
        width = min(k, manifest.count)
        ids = np.empty((len(queries), width), dtype=np.int64)
        scores = np.empty((len(queries), width), dtype=np.float32)
        if width == 0 or len(queries) == 0:
            return ids, scores
        assert manifest.norm_max is not None
        slack = FLOAT32_SLACK * score_scale(norms, manifest.norm_max, manifest.metric)
        limit = min(manifest.count, max(MAX_CANDIDATES, width + CANDIDATE_MARGIN))
        candidates = min(width + CANDIDATE_MARGIN, limit)
        rows = np.arange(len(queries))
        while len(rows):
            unsettled = []
            step = max(1, RESCORE_BYTES // (candidates * manifest.dimension * 8))
            for some in np.split(rows, range(step, len(rows), step)):
                ids[some], scores[some], settled = self._search_block(queries[some], width, candidates, slack[some])
                unsettled.append(some[~settled])
            if candidates == limit:
                break
            rows = np.concatenate(unsettled)
            candidates = min(candidates * 4, limit)
        return ids, scores

    def _search_block(
        self, queries: Vectors, width: int, candidates: int, slack: Doubles
    ) -> tuple[Ids, Vectors, NDArray[np.bool_]]:
        """Best ``width`` of the candidates, and for which queries nothing outside the candidates can be among them."""
        metric = self.manifest.metric
        rough, found = self._index.search(queries, candidates)
        if (found < 0).any():
            raise IndexUnsound(f"the index gave fewer than {candidates} of its {self.manifest.count} vectors")
        vectors = self._index.reconstruct_batch(found.ravel()).reshape(*found.shape, -1)
        exact = score_pairs(queries, vectors, metric)
        if (np.abs(exact - rough) > slack[:, None]).any():
            raise IndexUnsound("a score that faiss gave is not the score of the vector it gave")
        given = exact.astype(np.float32)
        order = np.lexsort((found, -to_merit(given.astype(np.float64), metric)), axis=1)[:, :width]
        worst_rough = to_merit(rough.astype(np.float64), metric).min(axis=1)
        kth = to_merit(np.take_along_axis(exact, order[:, -1:], axis=1), metric)[:, 0]
        return (
            np.take_along_axis(found, order, axis=1),
            np.take_along_axis(given, order, axis=1),
            kth > worst_rough + slack,
        )


def open_index(path: Path, manifest: Manifest) -> LoadedIndex:
    """Read an index file into memory, after its checksum was found right.

    Raises:
        ArtifactMissing: there is no such file.
        ArtifactCorrupt: the checksum is not the manifest's.
        IndexUnsound: the file is not the index that the manifest describes.
    """
    verify_file(path, manifest.sha256)
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise IndexUnsound(f"faiss cannot read {path.name}: {error}") from error
    facts = (index.ntotal, index.d, index.metric_type)
    wanted = (manifest.count, manifest.dimension, FAISS_METRIC[manifest.metric])
    if facts != wanted:
        raise IndexUnsound(f"{path.name} has (count, dimension, metric) {facts}, its manifest says {wanted}")
    return LoadedIndex(index, manifest)


def search(path: Path, manifest: Manifest, queries: Vectors, k: int) -> tuple[Ids, Vectors]:
    """Open, search once, and forget; see :func:`open_index` and :meth:`LoadedIndex.search`."""
    return open_index(path, manifest).search(queries, k)
