"""Folders and files of ours that nobody but their owner can enter or read, whatever the process's umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

#: What group and others must not have.
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_private_folder(folder: Path) -> None:
    """Make a folder and what is missing above it; one that is there keeps its mode. Raises OSError."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)


def make_private_file(path: Path) -> None:
    """Make an empty file unless it is there, for a library that would make it readable. Raises OSError."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def private_opener(path: str, flags: int) -> int:
    """For ``open(..., opener=private_opener)``."""
    return os.open(path, flags, 0o600)


def find_exposed(paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Which of these (those that exist) others may enter, read or change, with the mode that lets them."""
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue
        if mode & _OTHERS:
            yield path, mode
