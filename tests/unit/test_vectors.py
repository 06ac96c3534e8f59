"""Vector files: what is written is read back, and nothing unsound or changed gets through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline.errors import ArtifactCorrupt, ArtifactMissing, NonFiniteVector
from pipeline.store.artifacts import ArtifactStore
from pipeline.store.vectors import FORMAT, open_vectors, write_vectors

METADATA = {"space_digest": "ab" * 32, "model": "größe", "a": "1", "z": "2"}


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path.as_uri())


@pytest.fixture
def matrix() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)


def test_write_vectors_gives_a_file_that_the_library_reads(
    store: ArtifactStore, tmp_path: Path, matrix: np.ndarray
) -> None:
    artifact = write_vectors(store, "v.safetensors", matrix.tobytes(), 5, 9, METADATA)
    np.testing.assert_array_equal(load_file(tmp_path / artifact.uri)["vectors"], matrix)
    with open_vectors(tmp_path / artifact.uri, sha256=artifact.sha256) as reader:
        assert (reader.header.count, reader.header.dimension) == (9, 5)
        assert reader.header.space_digest == METADATA["space_digest"]
        assert dict(reader.header.metadata) == {**METADATA, "format": FORMAT}
        np.testing.assert_array_equal(reader.rows(2, 7), matrix[2:7])
        blocks = list(reader.blocks(4))
    assert [start for start, _ in blocks] == [0, 4, 8]
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), matrix)


def test_write_vectors_gives_the_same_bytes_whatever_the_order_of_metadata(
    store: ArtifactStore, matrix: np.ndarray
) -> None:
    one = write_vectors(store, "1.safetensors", matrix.tobytes(), 5, 9, METADATA)
    other = write_vectors(store, "2.safetensors", matrix.tobytes(), 5, 9, dict(reversed(METADATA.items())))
    assert one.sha256 == other.sha256


def test_write_vectors_of_no_rows_is_a_file(store: ArtifactStore, tmp_path: Path) -> None:
    artifact = write_vectors(store, "v.safetensors", b"", 5, 0, METADATA)
    with open_vectors(tmp_path / artifact.uri, sha256=artifact.sha256) as reader:
        assert reader.rows(0, 0).shape == (0, 5)
        assert list(reader.blocks()) == []


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_write_vectors_refuses_a_row_that_is_not_finite_or_zero(
    store: ArtifactStore, matrix: np.ndarray, value: float
) -> None:
    matrix[6] = 0
    matrix[6, 3] = value
    with pytest.raises(NonFiniteVector, match="row 6 of"):
        write_vectors(store, "v.safetensors", matrix.tobytes(), 5, 9, METADATA)
    assert not store.exists("v.safetensors")


@pytest.mark.parametrize(("dimension", "count", "metadata"), [(5, 8, METADATA), (0, 0, METADATA), (5, 9, {"a": "b"})])
def test_write_vectors_refuses_sizes_or_metadata_that_do_not_agree(
    store: ArtifactStore, matrix: np.ndarray, dimension: int, count: int, metadata: dict[str, str]
) -> None:
    with pytest.raises(ValueError, match=r"are not|metadata"):
        write_vectors(store, "v.safetensors", matrix.tobytes(), dimension, count, metadata)


def test_open_vectors_refuses_a_changed_byte(store: ArtifactStore, tmp_path: Path, matrix: np.ndarray) -> None:
    artifact = write_vectors(store, "v.safetensors", matrix.tobytes(), 5, 9, METADATA)
    path = tmp_path / artifact.uri
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactCorrupt, match="checksum"), open_vectors(path, sha256=artifact.sha256):
        pytest.fail("a corrupt file was opened")


def test_open_vectors_refuses_what_is_no_vector_file(tmp_path: Path) -> None:
    torn, foreign = tmp_path / "torn.safetensors", tmp_path / "foreign.safetensors"
    torn.write_bytes(b"\xff" * 40)
    save_file({"vectors": np.ones((2, 2), np.float32)}, foreign)
    for path in (torn, foreign):
        with pytest.raises(ArtifactCorrupt, match="no vector file"), open_vectors(path):
            pytest.fail("opened")
    with pytest.raises(ArtifactMissing), open_vectors(tmp_path / "absent", sha256="0" * 64):
        pytest.fail("opened")


def test_rows_outside_the_file_are_refused(store: ArtifactStore, tmp_path: Path, matrix: np.ndarray) -> None:
    artifact = write_vectors(store, "v.safetensors", matrix.tobytes(), 5, 9, METADATA)
    with open_vectors(tmp_path / artifact.uri) as reader:
        for start, end in ((0, 10), (-1, 2), (5, 4)):
            with pytest.raises(IndexError):
                reader.rows(start, end)
