"""What a store needs of the place where its files lie; a folder and a bucket are two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from pipeline.store.pending import Pending

#: A file's name, or what gives it once the sha256 (hex) is known.
Name = str | Callable[[str], str]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file as a listing shows it; ``age_s`` is how long ago it was written, by the place's own clock."""

    uri: str
    size: int
    age_s: float


class Place(Protocol):
    """Files by name. Every method raises StoreUnavailable when the place does not answer."""

    url: str

    def ensure(self) -> None:
        """Make the place, if that is ours to do."""
        ...

    def create(self, name: Name) -> AbstractContextManager[Pending]:
        """Write a file that is there, whole, when the block has ended without an exception, and not before."""
        ...

    def open(self, uri: str) -> BinaryIO:
        """Read from the start; raises ArtifactMissing."""
        ...

    def read(self, uri: str, start: int, end: int | None) -> bytes:
        """The bytes from ``start`` to ``end``, fewer where the file ends before; raises ArtifactMissing."""
        ...

    def exists(self, uri: str) -> bool: ...

    def local_path(self, uri: str) -> AbstractContextManager[Path]:
        """A path that another process can open while the block lasts; raises ArtifactMissing."""
        ...

    def delete(self, uri: str) -> None:
        """Remove; a file that is gone already is no error."""
        ...

    def files(self, prefix: str) -> Iterator[StoredFile]:
        """What lies under names that begin with ``prefix``, in no order that means anything."""
        ...

    def remove_empty_folders(self, prefix: str) -> None:
        """Take away the folder ``prefix`` and those below it, as far as nothing is in them; a bucket has none."""
        ...

    def locate(self, uri: str) -> str:
        """Where a file is, in words for a user."""
        ...
