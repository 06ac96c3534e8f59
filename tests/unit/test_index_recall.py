"""The measure of recall: exact search scores 1.0, what misses scores less, by hand-computed and real cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pipeline.index.manifest import Metric
from pipeline.index.recall import Search, measure_recall
from tests.fixtures.faiss_process import FaissProcess
from tests.fixtures.vector_files import Vectors, shuffled_ids


@pytest.fixture(scope="module")
def faiss() -> Iterator[FaissProcess]:
    with FaissProcess() as process:
        yield process


def answer(*rows: list[int]) -> Search:
    """A search that gives these ids whatever is asked."""
    ids = np.array(rows, dtype=np.int64)
    return lambda queries, k: (ids, np.zeros(ids.shape, dtype=np.float32))


LINE = np.array([[1.0, 0.0], [0.9, 0.1], [0.5, 0.5], [0.5, 0.5], [-1.0, 0.0]], dtype=np.float32)
IDS = np.array([10, 40, 20, 30, 50])
QUERY = np.array([[1.0, 0.0]], dtype=np.float32)


@pytest.mark.parametrize(
    ("hits", "recall"),
    [
        ([10, 40, 20], 1.0),
        ([10, 40, 30], 1.0),  # 20 and 30 tie at the third place
        ([30, 10, 40], 1.0),
        ([10, 40, 50], 2 / 3),
        ([10, 10, 10], 1 / 3),  # twice the same counts once
        ([10, -1, -1], 1 / 3),
        ([10, 99, 98], 1 / 3),  # ids that are not there
        ([50, -1, -1], 0.0),
    ],
)
@pytest.mark.parametrize("block", [1, 2, 5])
def test_measure_recall_counts_hits_that_reach_the_kth_score(hits: list[int], recall: float, block: int) -> None:
    blocks = [(IDS[start : start + block], LINE[start : start + block]) for start in range(0, 5, block)]
    for metric in ("ip", "l2"):
        figure = measure_recall(answer(hits), blocks, QUERY, 3, metric=metric)
        assert figure.value == pytest.approx(recall)


def test_measure_recall_does_not_take_a_query_for_its_own_neighbour() -> None:
    own = np.array([10])
    assert measure_recall(answer([10, 40, 20]), [(IDS, LINE)], QUERY, 2, metric="ip", own_ids=own).value == 1.0
    assert measure_recall(answer([10, 40, 50]), [(IDS, LINE)], QUERY, 2, metric="ip", own_ids=own).value == 0.5
    assert measure_recall(answer([10, 10, 10]), [(IDS, LINE)], QUERY, 2, metric="ip", own_ids=own).value == 0.0


def test_measure_recall_expects_no_more_than_there_is() -> None:
    few = [(IDS[:2], LINE[:2])]
    assert measure_recall(answer([40, 10, -1]), few, QUERY, 3, metric="ip").value == 1.0
    assert measure_recall(answer([10]), [(IDS[:1], LINE[:1])], QUERY, 3, metric="ip", own_ids=IDS[:1]).value is None
    assert measure_recall(answer(), few, QUERY[:0], 3, metric="ip").value is None


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_measure_recall_sees_an_index_that_probes_too_little(faiss: FaissProcess, metric: Metric) -> None:
    narrow, wide = faiss.run(_recall_of_ivf, metric, 1), faiss.run(_recall_of_ivf, metric, 32)
    assert 0.1 < narrow < 0.8
    assert wide == 1.0


def make_spread(count: int) -> Vectors:
    """Unit vectors without any clusters, whose neighbours lie in many cells."""
    vectors = np.random.default_rng(0).standard_normal((count, 16))
    unit: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def _recall_of_ivf(metric: Metric, probes: int) -> Any:
    import faiss

    from pipeline.index.search import FAISS_METRIC

    vectors, ids = make_spread(2000), np.array(shuffled_ids(2000))
    index: Any = faiss.index_factory(16, "IVF32,Flat", FAISS_METRIC[metric])
    index.train(vectors)
    index.add_with_ids(vectors, ids)
    index.nprobe = probes

    def search(queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        scores, found = index.search(queries, k)
        return found, scores

    blocks = [(ids[start : start + 300], vectors[start : start + 300]) for start in range(0, 2000, 300)]
    return measure_recall(search, blocks, vectors[::20], 10, metric=metric, own_ids=ids[::20]).value
