"""The artifact store: immutable files under one root, on anything fsspec reaches (``file://`` now).

A write is durable and whole or not there at all: on a file system beside, fsync, rename, fsync of the folder; on an
object store one PUT to a name nobody else uses. Names come from :mod:`pipeline.store.layout`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast
from urllib.parse import unquote, urlsplit

import fsspec

from pipeline.errors import ArtifactCorrupt, ArtifactMissing, ConfigError, StoreFull, StoreUnavailable
from pipeline.private import private_opener
from pipeline.store.listing import StoredFile, remove_empty_folders, walk_folder, walk_remote

#: Bytes moved at a time when a file is copied, hashed or read back.
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that is in the store: its name there, its checksum (hex) and its length in bytes."""

    uri: str
    sha256: str
    size: int


class HashingWriter(io.RawIOBase):
    """A binary stream that counts and hashes what passes through it; raises StoreFull, StoreUnavailable."""

    def __init__(self, target: BinaryIO, url: str) -> None:
        self._target = target
        self._url = url
        self._digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        with _mapped(self._url):
            self._target.write(data)
        self._digest.update(data)
        self.size += len(data)
        return len(data)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


@dataclass(slots=True)
class Pending:
    """A file being written; ``artifact`` says what it became once the ``with`` block has ended well."""

    stream: HashingWriter
    artifact: Artifact


class ArtifactStore:
    """Files under one root URL."""

    def __init__(self, url: str) -> None:
        """``url`` is ``file:///absolute/folder`` or another URL of fsspec; raises ConfigError for a strange one."""
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme == "file":
            self._root: Path | None = Path(unquote(parts.path))
            if not self._root.is_absolute():
                raise ConfigError(f"store_url must name an absolute folder, not {url!r}")
        else:
            self._root = None
            try:
                self._fs, self._prefix = fsspec.core.url_to_fs(self.url)
            except (ValueError, ImportError) as error:
                raise ConfigError(f"store_url {url!r} cannot be used: {error}", hint="pip install '.[s3]'") from error

    # --- writing ---

    def ensure(self) -> None:
        """Make the root, private to its owner, if it is a folder and not there yet."""
        if self._root is not None:
            with _mapped(self.url):
                _make_folder(self._root)

    @contextmanager
    def create(self, name: str | Callable[[str], str]) -> Iterator[Pending]:
        """Write a new file. ``name`` may be a function of the sha256, for content-addressed names.

        The file exists under its name only when the block ends without an exception.
        """
        if self._root is None:
            yield from self._create_remote(name)
            return
        self.ensure()
        temporary = self._root / "tmp" / uuid.uuid4().hex
        with _mapped(self.url):
            _make_folder(temporary.parent)
        try:
            with _mapped(self.url):
                raw = open(temporary, "wb", buffering=CHUNK_BYTES, opener=private_opener)  # noqa: SIM115 (closed below)
            try:
                pending = Pending(HashingWriter(raw, self.url), Artifact("", "", 0))
                yield pending
                with _mapped(self.url):
                    raw.flush()
                    _sync(raw.fileno())
            finally:
                # On a full disk closing flushes, and fails, once more; what counts was raised above.
                with suppress(OSError):
                    raw.close()
            uri = name if isinstance(name, str) else name(pending.stream.sha256)
            target = self._root / uri
            with _mapped(self.url):
                _make_folder(target.parent)
                temporary.replace(target)
                _sync_folder(target.parent)
            pending.artifact = Artifact(uri, pending.stream.sha256, pending.stream.size)
        finally:
            temporary.unlink(missing_ok=True)

    def _create_remote(self, name: str | Callable[[str], str]) -> Iterator[Pending]:
        import tempfile

        with tempfile.NamedTemporaryFile() as raw:
            pending = Pending(HashingWriter(cast(BinaryIO, raw), self.url), Artifact("", "", 0))
            yield pending
            raw.flush()
            uri = name if isinstance(name, str) else name(pending.stream.sha256)
            with _mapped(self.url):
                # A whole file in one call: a stream that breaks would be closed, and so published, half written.
                self._fs.put_file(raw.name, f"{self._prefix}/{uri}")
            pending.artifact = Artifact(uri, pending.stream.sha256, pending.stream.size)

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
        """Read a file; raises ArtifactMissing, StoreUnavailable."""
        with _mapped(self.url, uri):
            if self._root is not None:
                stream: BinaryIO = (self._root / uri).open("rb")
            else:
                stream = self._fs.open(f"{self._prefix}/{uri}", "rb")
        with stream:
            yield stream

    def read_bytes(self, uri: str, *, start: int = 0, end: int | None = None, sha256: str | None = None) -> bytes:
        """Read a file or a byte range; with ``sha256`` (whole files only) raises ArtifactCorrupt on a difference."""
        with self.open(uri) as stream, _mapped(self.url, uri):
            stream.seek(start)
            data = stream.read() if end is None else stream.read(end - start)
        if end is not None and len(data) != end - start:
            raise ArtifactCorrupt(f"{uri} ends before byte {end}")
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise ArtifactCorrupt(f"{uri} does not have the checksum its row says")
        return data

    def exists(self, uri: str) -> bool:
        with _mapped(self.url):
            if self._root is not None:
                return (self._root / uri).exists()
            return bool(self._fs.exists(f"{self._prefix}/{uri}"))

    def verify(self, uri: str, sha256: str) -> None:
        """Hash the whole file; raises ArtifactCorrupt or ArtifactMissing."""
        digest = hashlib.sha256()
        with self.open(uri) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
        if digest.hexdigest() != sha256:
            raise ArtifactCorrupt(f"{uri} does not have the checksum its row says")

    @contextmanager
    def local_path(self, uri: str) -> Iterator[Path]:
        """A path that another process can open for as long as the block lasts (a copy, unless the store is a folder)."""
        if self._root is not None:
            path = self._root / uri
            if not path.exists():
                raise ArtifactMissing(f"{uri} is not in {self.url}")
            yield path
            return
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / uri.rsplit("/", 1)[-1]
            with self.open(uri) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target, CHUNK_BYTES)
            yield path

    def delete(self, uri: str) -> None:
        """Remove a file; one that is gone already is no error."""
        with _mapped(self.url):
            if self._root is not None:
                (self._root / uri).unlink(missing_ok=True)
            elif self._fs.exists(f"{self._prefix}/{uri}"):
                self._fs.rm_file(f"{self._prefix}/{uri}")

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        """Files whose names start with ``prefix`` (a folder with its ``/``, or a whole name), never all at once."""
        if self._root is not None:
            found = walk_folder(self._root, prefix)
        else:
            found = walk_remote(self._fs, self._prefix, prefix)
        while True:
            with _mapped(self.url):
                file = next(found, None)
            if file is None:
                return
            yield file

    def remove_empty_folders(self, prefix: str) -> None:
        """Take away a folder that nobody writes to any more, as far as it is empty; object stores have none."""
        if self._root is not None:
            with _mapped(self.url):
                remove_empty_folders(self._root, prefix)

    def locate(self, uri: str) -> str:
        """What to show a user: an absolute path for a folder, a URL otherwise."""
        return str(self._root / uri) if self._root is not None else f"{self.url}/{uri}"


def _make_folder(folder: Path) -> None:
    """Make a private folder and what is missing above it, each name durable in the folder that holds it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        _sync(handle)
    finally:
        os.close(handle)


def _sync(handle: int) -> None:
    """To the platter: macOS' fsync stops at the drive's cache, F_FULLFSYNC does not."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with suppress(OSError):  # not every file system knows it
            fcntl.fcntl(handle, full)
            return
    os.fsync(handle)


@contextmanager
def _mapped(url: str, uri: str = "") -> Iterator[None]:
    """Turn the file system's errors into ours, at the one seam where they come in."""
    try:
        yield
    except FileNotFoundError as error:
        raise ArtifactMissing(f"{uri or error.filename} is not in {url}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFull(f"{url} has no space left", hint="free some space; the work goes on by itself") from error
        raise StoreUnavailable(f"{url}: {error.strerror or error}") from error
