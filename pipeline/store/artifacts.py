"""The artifact store: immutable files under one root, in a folder (``file://``) or in a bucket (``s3://``).

A write is durable and whole or not there at all: on a file system beside, fsync, rename, fsync of the folder; on an
object store one PUT to a name nobody else uses. Names come from :mod:`pipeline.store.layout`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from pipeline.errors import ArtifactCorrupt, ConfigError
from pipeline.secrecy import mask_secrets
from pipeline.store.folder import Folder
from pipeline.store.pending import CHUNK_BYTES, Artifact, HashingWriter, Pending
from pipeline.store.place import Name, Place, StoredFile

__all__ = ["CHUNK_BYTES", "Artifact", "ArtifactStore", "HashingWriter", "Pending", "StoredFile"]

#: Seconds that an object store may be silent within a request, unless the settings say otherwise.
TIMEOUT_S = 20.0


class ArtifactStore:
    """Files under one root URL. Safe from any thread.

    Every method raises StoreUnavailable when the store does not answer, in bounded time; writing also StoreFull. A
    bucket that has not answered yet raises ConfigError for what only a change of the settings can mend.
    """

    def __init__(self, url: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """``url`` is ``file:///absolute/folder`` or ``s3://bucket/prefix``; raises ConfigError for another."""
        self.url = url.rstrip("/")
        self._place = _place_at(self.url, timeout_s)

    # --- writing ---

    def ensure(self) -> None:
        """Make the root, private to its owner, if it is a folder and not there yet."""
        self._place.ensure()

    def create(self, name: Name) -> AbstractContextManager[Pending]:
        """Write a new file. ``name`` may be a function of the sha256, for content-addressed names.

        The file exists under its name only when the block ends without an exception.
        """
        return self._place.create(name)

    def put_bytes(self, name: str, data: bytes) -> Artifact:
        with self.create(name) as pending:
            pending.stream.write(data)
        return pending.artifact

    def put_file(self, name: str, path: Path) -> Artifact:
        """Copy a local file in."""
        with self.create(name) as pending, path.open("rb") as source:
            while chunk := source.read(CHUNK_BYTES):
                pending.stream.write(chunk)
        return pending.artifact

    # --- reading ---

    @contextmanager
    def open(self, uri: str) -> Iterator[BinaryIO]:
        """Read a file, front to back; raises ArtifactMissing."""
        with self._place.open(uri) as stream:
            yield stream

    def read_bytes(self, uri: str, *, start: int = 0, end: int | None = None, sha256: str | None = None) -> bytes:
        """Read a file or a byte range, and no more than that; with ``sha256`` (of what is read) checked.

        Raises:
            ArtifactMissing: there is no such file.
            ArtifactCorrupt: it ends before ``end``, or does not have the checksum.
        """
        data = self._place.read(uri, start, end)
        if end is not None and len(data) != end - start:
            raise ArtifactCorrupt(f"{uri} ends before byte {end}")
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise ArtifactCorrupt(f"{uri} does not have the checksum its row says")
        return data

    def exists(self, uri: str) -> bool:
        return self._place.exists(uri)

    def verify(self, uri: str, sha256: str) -> None:
        """Hash the whole file; raises ArtifactCorrupt or ArtifactMissing."""
        digest = hashlib.sha256()
        with self.open(uri) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != sha256:
            raise ArtifactCorrupt(f"{uri} does not have the checksum its row says")

    def local_path(self, uri: str) -> AbstractContextManager[Path]:
        """A path that another process can open for as long as the block lasts (a copy, unless the store is a folder)."""
        return self._place.local_path(uri)

    def files(self, prefix: str = "") -> Iterator[StoredFile]:
        """What lies under names that begin with ``prefix``; for ``prune``, never to find out what is registered."""
        return self._place.files(prefix)

    def delete(self, uri: str) -> None:
        """Remove a file; one that is gone already is no error."""
        self._place.delete(uri)

    def remove_empty_folders(self, prefix: str) -> None:
        """Take away a folder that nobody writes to any more, as far as it is empty."""
        self._place.remove_empty_folders(prefix)

    def locate(self, uri: str) -> str:
        """What to show a user: an absolute path for a folder, a URL otherwise."""
        return self._place.locate(uri)


def _place_at(url: str, timeout_s: float) -> Place:
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return Folder(url)
    if scheme != "s3":
        raise ConfigError(f"store_url must begin with file:// or s3://, not {mask_secrets(url)!r}")
    try:
        from pipeline.store.bucket import Bucket  # with its client, a third of a second that a folder does not need
    except ImportError as error:
        raise ConfigError(
            "store_url names a bucket, and the package for S3 is not installed", hint="pip install '.[s3]'"
        ) from error
    return Bucket(url, timeout_s=timeout_s)
