"""Building and searching exact indexes, against brute-force numpy; faiss runs in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ArtifactCorrupt, ArtifactMissing, IndexUnsound, ItemError, VectorsInvalid
from pipeline.index.manifest import BuildRequest, BuildResult, Manifest, VectorSource, make_id_runs
from tests.fixtures.faiss_process import FaissProcess
from tests.fixtures.vector_files import SPACE, make_clusters, make_request, shuffled_ids, write_source

BUILD = "pipeline.index.build:build"
SEARCH = "pipeline.index.search:search"

#: Last digits of a float32 score.
ULPS = 1e-6


@pytest.fixture(scope="module")
def faiss() -> Iterator[FaissProcess]:
    with FaissProcess() as process:
        yield process


def brute_force(vectors: np.ndarray, ids: list[int], query: np.ndarray, metric: str) -> list[tuple[float, int]]:
    """Every (score, id), best first, ties by id; scores rounded to float32 as the room rounds them."""
    wide, query = vectors.astype(np.float64), query.astype(np.float64)
    scores = wide @ query if metric == "ip" else ((wide - query) ** 2).sum(axis=1)
    sign = -1 if metric == "ip" else 1
    pairs = zip(scores.astype(np.float32).tolist(), ids, strict=True)
    return sorted(pairs, key=lambda pair: (sign * pair[0], pair[1]))


@pytest.mark.parametrize("metric", ["ip", "l2"])
@pytest.mark.parametrize("count", [0, 1, 2, 39, 1000])
def test_build_finds_what_brute_force_finds(faiss: FaissProcess, tmp_path: Path, count: int, metric: str) -> None:
    vectors, ids = make_clusters(count), shuffled_ids(count)
    result: BuildResult = faiss.call(BUILD, make_request(tmp_path, vectors, ids, metric=metric))
    manifest = result.manifest
    assert (manifest.count, manifest.metric, manifest.dimension) == (count, metric, 16)
    assert manifest.recall == (1.0 if count > 1 else None)
    assert manifest.recall_queries == (min(count, 100) if count > 1 else 0)
    queries = make_clusters(30, seed=7)
    found, scores = faiss.call(SEARCH, result.output, manifest, queries, 10)
    assert found.shape == scores.shape == (30, min(10, count))
    for row, query in enumerate(queries):
        wanted = brute_force(vectors, ids, query, metric)[:10]
        np.testing.assert_allclose(scores[row], [score for score, _ in wanted], atol=ULPS)
        assert found[row].tolist() == [id_ for _, id_ in wanted]


def test_build_of_vectors_that_are_not_normalised_finds_the_largest_product(
    faiss: FaissProcess, tmp_path: Path
) -> None:
    vectors, ids = make_clusters(300, normalized=False) * 20, shuffled_ids(300)
    result = faiss.call(BUILD, make_request(tmp_path, vectors, ids, normalized=False))
    assert result.manifest.recall == 1.0
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1)
    assert result.manifest.norm_min == pytest.approx(norms.min())
    assert result.manifest.norm_max == pytest.approx(norms.max())
    found, _ = faiss.call(SEARCH, result.output, result.manifest, vectors[:5], 3)
    for row in range(5):
        assert found[row].tolist() == [id_ for _, id_ in brute_force(vectors, ids, vectors[row], "ip")[:3]]


def test_search_gives_a_query_the_same_alone_and_among_others(faiss: FaissProcess, tmp_path: Path) -> None:
    vectors = make_clusters(1000, 48)
    result = faiss.call(BUILD, make_request(tmp_path, vectors, shuffled_ids(1000), metric="l2"))
    queries = np.concatenate([vectors[:64], make_clusters(64, 48, seed=3)])
    together = faiss.call(SEARCH, result.output, result.manifest, queries, 20)
    for row in (0, 1, 63, 64, 127):
        alone = faiss.call(SEARCH, result.output, result.manifest, queries[row : row + 1], 20)
        np.testing.assert_array_equal(alone[0][0], together[0][row])
        np.testing.assert_array_equal(alone[1][0], together[1][row])


def test_search_orders_equal_vectors_by_id_and_keeps_within_bounds(faiss: FaissProcess, tmp_path: Path) -> None:
    # More copies than the candidates that are asked for at first, so the search has to widen to settle the tie.
    vectors = np.concatenate([make_clusters(100), np.repeat(make_clusters(1, seed=5), 200, axis=0)])
    ids = shuffled_ids(300)
    result = faiss.call(BUILD, make_request(tmp_path, vectors, ids))
    assert result.manifest.recall == 1.0
    found, scores = faiss.call(SEARCH, result.output, result.manifest, vectors[-1:], 5)
    assert found[0].tolist() == sorted(ids[100:])[:5]
    assert np.abs(scores - 1).max() <= ULPS


def test_build_writes_the_same_manifest_and_bytes_again(faiss: FaissProcess, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_clusters(100), shuffled_ids(100))
    first, second = faiss.call(BUILD, request), faiss.call(BUILD, request)
    assert first.manifest == second.manifest
    assert Manifest.model_validate_json(first.manifest.model_dump_json()) == first.manifest
    assert first.manifest.size == request.output.stat().st_size
    assert first.manifest.ids.min == 100
    assert first.manifest.ids.max == 397


def bad_vectors(fault: str) -> np.ndarray:
    vectors = make_clusters(40)
    vectors[33] = {"long": vectors[33] * 20, "short": vectors[33] * 0.99, "zero": 0, "nan": np.nan}[fault]
    return vectors


@pytest.mark.parametrize("fault", ["long", "short"])
def test_build_refuses_a_norm_that_is_not_one(faiss: FaissProcess, tmp_path: Path, fault: str) -> None:
    request = make_request(tmp_path, bad_vectors(fault), list(range(40)), files=1)
    with pytest.raises(VectorsInvalid, match=r"row 33 .*\(id 33\) has norm"):
        faiss.call(BUILD, request)
    assert [path.name for path in tmp_path.iterdir() if "faiss" in path.name] == []
    assert faiss.call(BUILD, request.model_copy(update={"normalized": False})).manifest.count == 40


@pytest.mark.parametrize(("fault", "reason"), [("zero", "is zero"), ("nan", "is not finite")])
def test_build_refuses_a_vector_that_is_zero_or_not_finite(
    faiss: FaissProcess, tmp_path: Path, fault: str, reason: str
) -> None:
    # The store refuses such rows too, so this file is made by changing a good one.
    source = write_source(tmp_path, "a.safetensors", make_clusters(40), list(range(40)))
    data = source.path.read_bytes()
    source.path.write_bytes(data[: -40 * 64] + bad_vectors(fault).tobytes())
    with pytest.raises(VectorsInvalid, match=f"row 33 .* {reason}"):
        faiss.call(BUILD, plain_request(tmp_path, rehash(source), normalized=False))


def rehash(source: VectorSource) -> VectorSource:
    import hashlib

    return source.model_copy(update={"sha256": hashlib.sha256(source.path.read_bytes()).hexdigest()})


def plain_request(folder: Path, *sources: VectorSource, **changes: Any) -> BuildRequest:
    fields = {"sources": sources, "dimension": 16, "normalized": True, "space_digest": SPACE}
    return BuildRequest.model_validate({**fields, "output": folder / "index.faiss", **changes})


def test_build_refuses_files_of_another_space_or_shape_and_doubled_ids(faiss: FaissProcess, tmp_path: Path) -> None:
    good = write_source(tmp_path, "a.safetensors", make_clusters(9), list(range(9)))
    other = write_source(tmp_path, "b.safetensors", make_clusters(9), list(range(9, 18)), space="other")
    wider = write_source(tmp_path, "c.safetensors", make_clusters(9, 17), list(range(9, 18)))
    double = write_source(tmp_path, "d.safetensors", make_clusters(9), list(range(8, 17)))
    for second in (other, wider):
        with pytest.raises(VectorsInvalid, match="the build wants"):
            faiss.call(BUILD, plain_request(tmp_path, good, second))
    with pytest.raises(VectorsInvalid, match="id 8 is given to two vectors"):
        faiss.call(BUILD, plain_request(tmp_path, good, double))


def test_build_refuses_a_corrupt_or_missing_file(faiss: FaissProcess, tmp_path: Path) -> None:
    source = write_source(tmp_path, "a.safetensors", make_clusters(9), list(range(9)))
    data = bytearray(source.path.read_bytes())
    data[-2] ^= 4
    source.path.write_bytes(data)
    with pytest.raises(ArtifactCorrupt):
        faiss.call(BUILD, plain_request(tmp_path, source))
    source.path.unlink()
    with pytest.raises(ArtifactMissing):
        faiss.call(BUILD, plain_request(tmp_path, source))


def test_build_that_ends_early_leaves_the_file_that_was_there(faiss: FaissProcess, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_clusters(9), list(range(9)))
    request.output.write_bytes(b"an older one")
    faiss.run(_build_and_stop, request)
    assert request.output.read_bytes() == b"an older one"
    assert not list(tmp_path.glob(".index*"))


def _build_and_stop(request: BuildRequest) -> None:
    from pipeline.index.build import build

    calls = 0

    def stop_while_proving(count: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(request, stop_while_proving)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_build_that_finds_no_space_raises(faiss: FaissProcess, tmp_path: Path) -> None:
    request = make_request(tmp_path, make_clusters(2000, 64), list(range(2000)))
    with pytest.raises(OSError, match="No space left"):
        faiss.run(_build_on_a_full_disk, request)
    assert not request.output.exists()


def _build_on_a_full_disk(request: BuildRequest) -> None:
    from pipeline.index import build

    temporary = request.output.with_name(f".{request.output.name}.{os.getpid()}")
    temporary.symlink_to("/dev/full")
    build.build(request)


def test_open_index_refuses_a_file_that_is_not_what_the_manifest_says(faiss: FaissProcess, tmp_path: Path) -> None:
    vectors = make_clusters(20)
    result = faiss.call(BUILD, make_request(tmp_path, vectors, list(range(20))))
    for change in ({"count": 21}, {"dimension": 15}, {"metric": "l2"}):
        wrong = result.manifest.model_copy(update=change)
        with pytest.raises(IndexUnsound, match="its manifest says"):
            faiss.call(SEARCH, result.output, wrong, vectors[:1], 3)
    data = bytearray(result.output.read_bytes())
    data[-5] ^= 16
    result.output.write_bytes(data)
    with pytest.raises(ArtifactCorrupt):
        faiss.call(SEARCH, result.output, result.manifest, vectors[:1], 3)
    result.output.unlink()
    with pytest.raises(ArtifactMissing):
        faiss.call(SEARCH, result.output, result.manifest, vectors[:1], 3)


def test_search_refuses_queries_that_have_no_meaning(faiss: FaissProcess, tmp_path: Path) -> None:
    vectors = make_clusters(20)
    result = faiss.call(BUILD, make_request(tmp_path, vectors, list(range(20))))
    bad_nan, bad_zero = vectors[:2].copy(), vectors[:2].copy()
    bad_nan[1, 4], bad_zero[1] = np.nan, 0
    cases: list[tuple[np.ndarray, int, str, str]] = [
        (vectors[:1] * 1.002, 3, "vector_not_normalized", "query 0 has norm 1.002"),
        (bad_nan, 3, "non_finite_vector", "query 1 is not finite"),
        (bad_zero, 3, "non_finite_vector", "query 1 is zero"),
        (vectors[:1, :15], 3, "invalid_value", "queries must be"),
        (vectors[:1], 0, "invalid_value", "k must be at least 1"),
    ]
    for queries, k, code, message in cases:
        with pytest.raises(ItemError, match=message) as caught:
            faiss.call(SEARCH, result.output, result.manifest, queries, k)
        assert caught.value.item_code == code
    # A norm within the bound is taken as it is, and the score says so rather than being clipped to 1.
    _, scores = faiss.call(SEARCH, result.output, result.manifest, vectors[:1] * np.float32(1.0009), 1)
    assert scores[0, 0] == pytest.approx(1.0009, abs=1e-5)


def test_id_runs_keep_the_order_of_ids() -> None:
    assert make_id_runs([7, 8, 9, 20, 21, 3]) == ((7, 3), (20, 2), (3, 1))
    assert make_id_runs([]) == ()
    with pytest.raises(ValueError, match="do not give 4 ids"):
        VectorSource(path=Path("a"), sha256="0" * 64, count=4, id_runs=((7, 3),))
