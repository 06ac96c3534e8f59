"""Recall@k of any index against exact search: the one measure for exact and, later, approximate indexes.

Exact search is brute force in float64 over blocks, so memory is bounded by the block. Knows numpy only; what is
measured is a function from queries to ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pipeline.index.manifest import Metric
from pipeline.index.scores import FLOAT32_SLACK, Doubles, Ids, Vectors, compute_norms, score_all, score_scale, to_merit

#: Queries float32 [q, d] and k to (ids int64 [q, at most k], scores); -1 stands for no hit.
Search = Callable[[Vectors, int], tuple[Ids, Vectors]]


@dataclass(frozen=True, slots=True)
class Recall:
    """``value`` is the mean over ``queries`` of hits / min(k, what can be found); None when nothing can be found."""

    value: float | None
    k: int
    queries: int


def measure_recall(
    search: Search,
    blocks: Iterable[tuple[Ids, Vectors]],
    queries: Vectors,
    k: int,
    *,
    metric: Metric,
    own_ids: Ids | None = None,
) -> Recall:
    """Ask ``search`` and compare with exact search over ``blocks``.

    A returned vector counts when its exact score reaches the k-th best exact score, less what float32 arithmetic may
    move it by: of vectors that tie there, any will do, so an exact index scores 1.0. An id returned twice counts once.

    Args:
        search: what is measured; it is asked once, for all queries together.
        blocks: (ids int64 [n], vectors float32 [n, d]) of everything that can be found; read once.
        queries: float32 [q, d].
        k: depth.
        metric: of the index.
        own_ids: int64 [q], where the queries are themselves in the index: each is then no hit for itself, since a
            vector finds itself even with parameters that find little else.
    """
    if len(queries) == 0:
        return Recall(None, k, 0)
    returned, _ = search(queries, k if own_ids is None else k + 1)
    hits = _clean(returned, k, own_ids)
    hit_merit = np.full(hits.shape, -np.inf)
    best = np.full((len(queries), k), -np.inf)
    findable = np.zeros(len(queries), dtype=np.int64)
    norm_max = 0.0
    for ids, vectors in blocks:
        if len(ids) == 0:
            continue
        merit = to_merit(score_all(queries, vectors, metric), metric)
        findable += len(ids)
        if own_ids is not None:
            own = own_ids[:, None] == ids
            merit[own] = -np.inf
            findable -= own.sum(axis=1)
        _take_hits(hit_merit, hits, ids, merit)
        best = np.partition(np.concatenate([best, merit], axis=1), -k, axis=1)[:, -k:]
        norm_max = max(norm_max, float(compute_norms(vectors).max()))
    wanted = np.minimum(findable, k)
    best.sort(axis=1)
    rows = np.flatnonzero(wanted > 0)
    if len(rows) == 0:
        return Recall(None, k, len(queries))
    floor = best[rows, k - wanted[rows]] - FLOAT32_SLACK * score_scale(compute_norms(queries[rows]), norm_max, metric)
    found = (hit_merit[rows] >= floor[:, None]).sum(axis=1)
    return Recall(float(np.mean(found / wanted[rows])), k, len(queries))


def _clean(returned: Ids, k: int, own_ids: Ids | None) -> Ids:
    """The first k distinct hits of each query, without the query itself; int64 [q, k] filled up with -1."""
    hits = np.full((len(returned), k), -1, dtype=np.int64)
    for row, ids in enumerate(returned.tolist()):
        own = None if own_ids is None else int(own_ids[row])
        distinct = [value for value in dict.fromkeys(ids) if value >= 0 and value != own][:k]
        hits[row, : len(distinct)] = distinct
    return hits


def _take_hits(hit_merit: Doubles, hits: Ids, ids: Ids, merit: Doubles) -> None:
    """Fill in the exact merit of those hits whose vectors are in this block."""
    order = np.argsort(ids)
    place = order[np.minimum(np.searchsorted(ids, hits, sorter=order), len(ids) - 1)]
    here = ids[place] == hits
    rows, columns = np.nonzero(here)
    hit_merit[rows, columns] = merit[rows, place[rows, columns]]
