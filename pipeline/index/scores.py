"""Scores as this room means them: computed in float64, given as float32, with known bounds and one order.

faiss finds the candidates; the scores that leave the room are computed here, pair by pair, so that they do not depend
on how many queries were searched together. Knows numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.index.manifest import Metric

Vectors = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]

#: A vector of a normalised space has a norm this close to 1.
NORM_TOLERANCE = 1e-3

#: What float32 arithmetic may move a score by, as a share of :func:`score_scale`. Closer scores are a tie.
FLOAT32_SLACK = 1e-5


def compute_norms(vectors: Vectors) -> Doubles:
    """L2 norms, float64 [n]; not finite where the vector is not."""
    wide = vectors.astype(np.float64)
    norms: Doubles = np.sqrt(np.einsum("nd,nd->n", wide, wide))
    return norms


@dataclass(frozen=True, slots=True)
class BadVector:
    """A vector that no index may hold and no query may be: its row, a stable code and the reason in words."""

    row: int
    code: str
    reason: str


def find_bad_vector(norms: Doubles, *, normalized: bool) -> BadVector | None:
    """The first of these vectors, by their norms, that is not sound; None when all are."""
    finite = np.isfinite(norms)
    bad = ~finite | (norms == 0)
    if normalized:
        bad |= ~(np.abs(norms - 1) <= NORM_TOLERANCE)
    if not bad.any():
        return None
    row = int(np.argmax(bad))
    if not finite[row]:
        return BadVector(row, "non_finite_vector", "is not finite")
    if norms[row] == 0:
        return BadVector(row, "non_finite_vector", "is zero")
    reason = f"has norm {norms[row]:.6g} in a normalised space (allowed: 1 within {NORM_TOLERANCE:g})"
    return BadVector(row, "vector_not_normalized", reason)


def score_scale(query_norms: Doubles, norm_max: float, metric: Metric) -> Doubles:
    """Largest size a score can have for each query, float64 [q] (Cauchy-Schwarz; for L2 the triangle inequality)."""
    return query_norms * norm_max if metric == "ip" else (query_norms + norm_max) ** 2


def score_pairs(queries: Vectors, vectors: Vectors, metric: Metric) -> Doubles:
    """Score each query against its own candidates: [q, d] and [q, c, d] give float64 [q, c].

    For ``ip`` the inner product, for ``l2`` the squared distance, as faiss has it.
    """
    wide = vectors.astype(np.float64)
    scores: Doubles
    if metric == "ip":
        scores = np.einsum("qd,qcd->qc", queries.astype(np.float64), wide)
    else:
        wide -= queries.astype(np.float64)[:, None, :]
        scores = np.einsum("qcd,qcd->qc", wide, wide)
    return scores


def score_all(queries: Vectors, vectors: Vectors, metric: Metric) -> Doubles:
    """Score each query against every vector: [q, d] and [n, d] give float64 [q, n]."""
    wide_queries, wide = queries.astype(np.float64), vectors.astype(np.float64)
    products: Doubles = wide_queries @ wide.T
    if metric == "ip":
        return products
    squares = np.einsum("qd,qd->q", wide_queries, wide_queries)[:, None] + np.einsum("nd,nd->n", wide, wide)
    distances: Doubles = np.maximum(squares - 2 * products, 0)
    return distances


def to_merit(scores: Doubles, metric: Metric) -> Doubles:
    """Scores turned so that larger is better whatever the metric; its own inverse."""
    return scores if metric == "ip" else -scores
