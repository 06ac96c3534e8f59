"""A small disk of a run's own, to be filled and emptied. Linux, as root: elsewhere the fault is left out, and said to be."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: Room on the disk, in MiB: much for a run's files, little to fill.
DISK_MIB = 8

_BLOCK = 64 * 1024


def reason_against() -> str | None:
    """Why there is no small disk here; None where there is."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        return "a small disk needs Linux and root"
    with tempfile.TemporaryDirectory() as folder:
        disk = SmallDisk(Path(folder))
        if not disk.mount():
            return "mounting a tmpfs is not allowed here"
        disk.unmount()
    return None


class SmallDisk:
    """A tmpfs at a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def mount(self) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=700", "tmpfs", str(self.folder)]
        return subprocess.run(command, capture_output=True).returncode == 0

    def unmount(self) -> None:
        """Lazily, since a process that is ending may have a file open."""
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=True)

    def fill(self) -> None:
        """Until not a byte more goes on it."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (_BLOCK, 1):
                try:
                    while True:
                        ballast.write(b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def empty(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._ballast.unlink()
