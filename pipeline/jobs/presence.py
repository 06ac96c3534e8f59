"""Which workers of this home are gone, known at once and for certain: each holds a lock on a file while it lives.

The kernel lets go of a lock when its holder dies, however that dies, and not while it is merely stopped. So a dead
neighbour's leases need not be watched until they are stale (law 2); those of other hosts are.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pipeline.private import make_private_folder

log = logging.getLogger(__name__)

_SUFFIX = ".lock"


class Presence:
    """A worker's own lock, and the sight of its neighbours'. Where locks do not work it says nothing of anybody."""

    def __init__(self, home: Path, worker_id: str) -> None:
        self._folder = home / "run"
        self._worker_id = worker_id
        self._handle: int | None = None
        try:
            make_private_folder(self._folder)
            self._handle = self._show()
        except OSError as error:
            log.warning("presence_not_shown", extra={"folder": str(self._folder), "reason": str(error)})

    def gone(self) -> Iterator[str]:
        """Ids of workers of this host whose process is gone and that nobody has forgotten yet."""
        if self._handle is None:
            return
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            if path.stem != self._worker_id and _is_left(path):
                yield path.stem

    def forget(self, worker_id: str) -> None:
        """What the dead one held is taken back."""
        self._path(worker_id).unlink(missing_ok=True)

    def close(self) -> None:
        """This worker holds nothing any more."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self.forget(self._worker_id)
            os.close(handle)

    def _show(self) -> int:
        """Lock first, then appear under the name: a neighbour never sees an unlocked file of a living process."""
        path = self._path(self._worker_id)
        hidden = path.with_suffix(".new")
        handle = os.open(hidden, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(handle, socket.gethostname().encode())
            hidden.rename(path)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _path(self, worker_id: str) -> Path:
        return self._folder / f"{worker_id}{_SUFFIX}"


def _is_left(path: Path) -> bool:
    """Whether a process of this host made the file, and lives no more: a shared folder's locks may not reach hosts."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.read(handle, 1024).decode("utf-8", "replace") == socket.gethostname():
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return True
        finally:
            os.close(handle)
    return False
