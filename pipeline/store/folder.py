"""A folder as a store's place: a file is written beside, synced, renamed, and its folder synced."""

from __future__ import annotations

import fcntl
import io
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit

from pipeline.errors import ArtifactMissing, ConfigError, StoreUnavailable
from pipeline.private import private_opener
from pipeline.store import layout
from pipeline.store.faults import mapped
from pipeline.store.pending import CHUNK_BYTES, Artifact, HashingWriter, Pending
from pipeline.store.place import Name, StoredFile

#: Where files are written before they have their names; a writer that was killed leaves one here.
TEMPORARY = "tmp"


class Folder:
    """Implements :class:`pipeline.store.place.Place` for ``file:///absolute/folder``."""

    def __init__(self, url: str) -> None:
        """Raises ConfigError for a folder that is not absolute."""
        self.url = url
        self._root = Path(unquote(urlsplit(url).path))
        if not self._root.is_absolute():
            raise ConfigError(f"store_url must name an absolute folder, not {url!r}")
        self._has_mark = False

    def ensure(self) -> None:
        """Make the root, private to its owner, if it is not there yet."""
        with mapped(self.url):
            _make_folder(self._root)

    def _path(self, uri: str) -> Path:
        """Where a file lies. A name that leads out of the store is in no row of ours, and nothing is there."""
        if uri.startswith("/") or ".." in uri.split("/") or "\0" in uri:
            raise ArtifactMissing(f"{uri!r} is no name in {self.url}")
        return self._root / uri

    def _check_there(self) -> None:
        """Raises StoreUnavailable where the store's mark was once and is no more: its share went away.

        What lies under the mount point then is another disk; nothing may be written there, or be called missing.
        """
        with mapped(self.url):
            found = (self._root / layout.store_marker()).exists()
        if self._has_mark and not found:
            raise StoreUnavailable(f"{self.url} is not there any more", hint="is its share mounted?")
        self._has_mark = found

    @contextmanager
    def create(self, name: Name) -> Iterator[Pending]:
        self._check_there()
        self.ensure()
        temporary = self._root / TEMPORARY / uuid.uuid4().hex
        with mapped(self.url):
            _make_folder(temporary.parent)
        try:
            with mapped(self.url):
                raw = open(temporary, "wb", buffering=CHUNK_BYTES, opener=private_opener)  # noqa: SIM115 - closed below
            try:
                pending = Pending(HashingWriter(raw, self.url), Artifact("", "", 0))
                yield pending
                with mapped(self.url):
                    raw.flush()
                    _sync(raw.fileno())
            finally:
                # On a full disk closing flushes, and fails, once more; what counts was raised above.
                with suppress(OSError):
                    raw.close()
            uri = name if isinstance(name, str) else name(pending.stream.sha256)
            target = self._path(uri)
            with mapped(self.url):
                _make_folder(target.parent)
                temporary.replace(target)
                _sync_folder(target.parent)
            pending.artifact = Artifact(uri, pending.stream.sha256, pending.stream.size)
        finally:
            with suppress(OSError):  # a folder that went away took it along
                temporary.unlink(missing_ok=True)

    def open(self, uri: str) -> BinaryIO:
        try:
            with mapped(self.url, uri):
                stream = cast(BinaryIO, io.BufferedReader(_MappedFile(self._path(uri), self.url), CHUNK_BYTES))
        except ArtifactMissing:
            self._check_there()
            raise
        self._has_mark = self._has_mark or uri == layout.store_marker()
        return stream

    def read(self, uri: str, start: int, end: int | None) -> bytes:
        with self.open(uri) as stream:
            stream.seek(start)
            return stream.read() if end is None else stream.read(end - start)

    def exists(self, uri: str) -> bool:
        with mapped(self.url):
            return self._path(uri).exists()

    @contextmanager
    def local_path(self, uri: str) -> Iterator[Path]:
        path = self._path(uri)
        if not self.exists(uri):
            self._check_there()
            raise ArtifactMissing(f"{uri} is not in {self.url}")
        yield path

    def delete(self, uri: str) -> None:
        with mapped(self.url):
            self._path(uri).unlink(missing_ok=True)

    def files(self, prefix: str) -> Iterator[StoredFile]:
        with mapped(self.url):
            for path in _walk(self._root / prefix.rpartition("/")[0]):
                uri = path.relative_to(self._root).as_posix()
                if uri.startswith(prefix):
                    with suppress(FileNotFoundError):  # deleted, or renamed, while we looked
                        found = path.lstat()
                        yield StoredFile(uri, found.st_size, max(0.0, time.time() - found.st_mtime))

    def remove_empty_folders(self, prefix: str) -> None:
        for folder, _, _ in os.walk(self._root / prefix, topdown=False):
            with suppress(OSError):  # something is in it
                Path(folder).rmdir()

    def locate(self, uri: str) -> str:
        return str(self._path(uri))


class _MappedFile(io.FileIO):
    """A file whose reads fail in this project's words, as a file on a network's disk may at any of them."""

    def __init__(self, path: Path, url: str) -> None:
        self._url = url
        super().__init__(path)

    def readinto(self, buffer: Any) -> int:
        with mapped(self._url):
            return super().readinto(buffer) or 0

    def readall(self) -> bytes:
        with mapped(self._url):
            return super().readall()


def _walk(folder: Path) -> Iterator[Path]:
    """Files below a folder, a folder at a time. Symbolic links are none of ours; what goes while we look has gone."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if not entry.is_symlink()]
    except FileNotFoundError:
        return
    for name, is_folder in found:
        if is_folder:
            yield from _walk(folder / name)
        else:
            yield folder / name


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
