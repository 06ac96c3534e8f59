"""The artifact store: a file is there whole or not at all, and what is read is what was written."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path

import pytest

from pipeline.errors import ArtifactCorrupt, ArtifactMissing, ConfigError, StoreFull, StoreUnavailable
from pipeline.store.artifacts import ArtifactStore


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    """A folder, then a bucket of a real server."""
    if request.param == "file":
        return ArtifactStore((tmp_path / "my store").as_uri())
    return ArtifactStore(request.getfixturevalue("bucket_url"))


@pytest.fixture
def folder_store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore((tmp_path / "store").as_uri())


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_put_bytes_gives_checksum_and_size_of_what_is_read_back(store: ArtifactStore) -> None:
    data = b"\x00\xffanswer\n" * 1000

    artifact = store.put_bytes("jobs/a/part.jsonl", data)

    assert (artifact.uri, artifact.size) == ("jobs/a/part.jsonl", len(data))
    assert artifact.sha256 == hashlib.sha256(data).hexdigest()
    assert store.read_bytes(artifact.uri, sha256=artifact.sha256) == data
    store.verify(artifact.uri, artifact.sha256)


def test_an_empty_file_is_a_file(store: ArtifactStore) -> None:
    artifact = store.put_bytes("jobs/a/empty", b"")
    assert artifact.size == 0
    assert store.exists("jobs/a/empty")
    assert store.read_bytes("jobs/a/empty", sha256=artifact.sha256) == b""


def test_put_file_copies_across_chunk_boundaries(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.store.artifacts.CHUNK_BYTES", 7)
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)))
    artifact = store.put_file("copy", source)
    assert store.read_bytes("copy", sha256=artifact.sha256) == bytes(range(256))


def test_a_name_may_come_from_the_content(store: ArtifactStore) -> None:
    with store.create(lambda sha256: f"inputs/{sha256[:2]}/{sha256}") as pending:
        pending.stream.write(b"hello")
    assert pending.artifact.uri.endswith(hashlib.sha256(b"hello").hexdigest())
    assert store.read_bytes(pending.artifact.uri) == b"hello"


def write_half(store: ArtifactStore, name: str) -> None:
    with store.create(name) as pending:
        pending.stream.write(b"some of it")
        raise RuntimeError("half way")


def test_a_block_that_fails_leaves_no_file(store: ArtifactStore) -> None:
    with pytest.raises(RuntimeError, match="half way"):
        write_half(store, "half")
    assert not store.exists("half")


def test_a_block_that_fails_leaves_the_old_file_and_nothing_beside_it(
    folder_store: ArtifactStore, tmp_path: Path
) -> None:
    folder_store.put_bytes("kept", b"old")
    with pytest.raises(RuntimeError, match="half way"):
        write_half(folder_store, "kept")
    assert folder_store.read_bytes("kept") == b"old"
    assert files_in(tmp_path / "store") == ["kept"]


def test_a_file_is_not_seen_under_its_name_before_its_block_ends(store: ArtifactStore) -> None:
    with store.create("later") as pending:
        pending.stream.write(b"x")
        assert not store.exists("later")
    assert store.exists("later")


def test_file_and_folder_are_synced_before_create_returns(
    folder_store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        real(handle)

    monkeypatch.setattr("pipeline.store.folder.os.fsync", fsync)
    folder_store.put_bytes("jobs/a/part", b"x")
    # The root, tmp, jobs and a are new: each name is made durable in the folder above it.
    assert synced == ["folder", "folder", "file", "folder", "folder", "folder"]
    synced.clear()
    folder_store.put_bytes("jobs/a/other", b"x")
    assert synced == ["file", "folder"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_store_full_and_leaves_nothing(
    folder_store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(_handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pipeline.store.folder.os.fsync", full)
    with pytest.raises(StoreFull):
        folder_store.put_bytes("jobs/a/part", b"x")
    assert files_in(tmp_path / "store") == []


@pytest.mark.parametrize("size", [10, 4 << 20])
def test_a_disk_that_fills_while_the_block_writes_is_store_full(
    folder_store: ArtifactStore, tmp_path: Path, size: int
) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (tmp_path / "store" / "tmp").mkdir(parents=True)
    name = "0" * 32
    (tmp_path / "store" / "tmp" / name).symlink_to("/dev/full")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.store.folder.uuid.uuid4", lambda: type("U", (), {"hex": name})())
        with pytest.raises(StoreFull), folder_store.create("part") as pending:
            pending.stream.write(b"x" * size)
    assert not folder_store.exists("part")


def test_another_error_of_the_disk_is_unavailable(folder_store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_handle: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("pipeline.store.folder.os.fsync", broken)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        folder_store.put_bytes("part", b"x")


def test_a_missing_file_is_missing_by_every_way_of_reading(store: ArtifactStore) -> None:
    with pytest.raises(ArtifactMissing, match="nowhere"):
        store.read_bytes("nowhere")
    with pytest.raises(ArtifactMissing, match="nowhere"):
        store.verify("nowhere", "0" * 64)
    with pytest.raises(ArtifactMissing, match="nowhere"), store.local_path("nowhere"):
        pass


def test_changed_bytes_are_corrupt(store: ArtifactStore) -> None:
    artifact = store.put_bytes("part", b"truth")
    store.put_bytes("part", b"lies!")
    with pytest.raises(ArtifactCorrupt):
        store.read_bytes("part", sha256=artifact.sha256)
    with pytest.raises(ArtifactCorrupt):
        store.verify("part", artifact.sha256)


def test_a_byte_range_is_exact_and_one_beyond_the_end_is_corrupt(store: ArtifactStore) -> None:
    store.put_bytes("input", b"0123456789")
    assert store.read_bytes("input", start=3, end=6) == b"345"
    assert store.read_bytes("input", start=8) == b"89"
    assert store.read_bytes("input", start=4, end=4) == b""
    with pytest.raises(ArtifactCorrupt):
        store.read_bytes("input", start=8, end=11)


def test_local_path_is_readable_by_path(store: ArtifactStore) -> None:
    store.put_bytes("indexes/a/1.faiss", b"index")
    with store.local_path("indexes/a/1.faiss") as path:
        assert path.name == "1.faiss"
        assert path.read_bytes() == b"index"


def test_delete_is_final_and_may_be_repeated(store: ArtifactStore) -> None:
    store.put_bytes("old", b"x")
    store.delete("old")
    assert not store.exists("old")
    store.delete("old")


def test_the_root_is_private_to_its_owner(folder_store: ArtifactStore, tmp_path: Path) -> None:
    folder_store.put_bytes("jobs/a/part", b"x")
    assert (tmp_path / "store").stat().st_mode & 0o077 == 0


def test_a_listing_shows_what_lies_under_a_prefix(store: ArtifactStore) -> None:
    for name in ("jobs/a/parts/0/1-0.jsonl", "jobs/a/output.1.jsonl", "jobs/ab/output.1.jsonl", "inputs/x.jsonl"):
        store.put_bytes(name, b"four")

    found = list(store.files("jobs/a/"))

    assert sorted(file.uri for file in found) == ["jobs/a/output.1.jsonl", "jobs/a/parts/0/1-0.jsonl"]
    assert {file.size for file in found} == {4}
    assert all(0.0 <= file.age_s < 3600 for file in found)
    assert len(list(store.files())) == 4
    assert list(store.files("nothing/")) == []


def test_a_stream_is_read_line_by_line(store: ArtifactStore) -> None:
    lines = [b"line %d\n" % number for number in range(200_000)]
    store.put_bytes("input", b"".join(lines))
    with store.open("input") as stream:
        assert list(stream) == lines


def test_an_empty_range_of_a_missing_file_is_missing(store: ArtifactStore) -> None:
    with pytest.raises(ArtifactMissing):
        store.read_bytes("nowhere", start=4, end=4)


@pytest.mark.parametrize(
    "url",
    ["file:relative", "file://", "nothing-of-the-kind://x/y", "s3://", "s3://a", "s3://bucket/p?q=1", "memory://x"],
)
def test_a_url_that_cannot_be_a_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        ArtifactStore(url)
