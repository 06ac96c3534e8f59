"""What lies in a store, page by page: for `prune` alone. Whatever counts is read from rows, never from a listing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: Under which of these names a file system of fsspec says when a file was last written.
_TIMES = ("LastModified", "mtime", "last_modified", "created")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the store: its name there, its bytes, and when it was written by the store's own clock."""

    uri: str
    size: int
    modified: datetime


def walk_folder(root: Path, prefix: str) -> Iterator[StoredFile]:
    """Files below ``root`` whose names start with ``prefix`` (a folder, or a whole name), a folder at a time."""
    top = root / prefix.rstrip("/")
    if top.is_dir():
        yield from _walk(root, top)
    elif not prefix.endswith("/"):
        yield from _stat(root, top)


def _walk(root: Path, folder: Path) -> Iterator[StoredFile]:
    """Symbolic links are none of ours; what goes while we look has gone."""
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except FileNotFoundError:
        return
    for name, is_folder in found:
        if is_folder:
            yield from _walk(root, folder / name)
        else:
            yield from _stat(root, folder / name)


def _stat(root: Path, path: Path) -> Iterator[StoredFile]:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if path.is_symlink():
        return
    modified = datetime.fromtimestamp(status.st_mtime, UTC)
    yield StoredFile(path.relative_to(root).as_posix(), status.st_size, modified)


def walk_remote(files: Any, base: str, prefix: str) -> Iterator[StoredFile]:
    """The same on a file system of fsspec; S3 is asked for a page of keys at a time."""
    if hasattr(files, "call_s3"):
        yield from _walk_s3(files, base, prefix)
        return
    for path, details in sorted(files.find(f"{base}/{prefix}", detail=True).items()):
        modified = next((details[name] for name in _TIMES if isinstance(details.get(name), datetime)), None)
        if modified is not None:  # of a file without a time nobody can say that it is old
            yield StoredFile(path.removeprefix(f"{base}/"), int(details["size"]), _aware(modified))


def _walk_s3(files: Any, base: str, prefix: str) -> Iterator[StoredFile]:
    bucket, key, _ = files.split_path(base)
    head = f"{key}/" if key else ""
    more: dict[str, str] = {}
    while True:
        page = files.call_s3("list_objects_v2", Bucket=bucket, Prefix=head + prefix, **more)
        for found in page.get("Contents", ()):
            yield StoredFile(found["Key"].removeprefix(head), int(found["Size"]), _aware(found["LastModified"]))
        if not page.get("IsTruncated"):
            return
        more = {"ContinuationToken": page["NextContinuationToken"]}


def _aware(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def remove_empty_folders(root: Path, prefix: str) -> None:
    """Take away the folder ``prefix`` and those below it, as far as nothing is in them."""
    for folder, _, _ in os.walk(root / prefix, topdown=False):
        try:
            Path(folder).rmdir()
        except OSError:
            pass  # something is in it
