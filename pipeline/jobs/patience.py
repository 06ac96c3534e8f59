"""How long a worker leaves all shards alone after the surroundings kept it from working on one.

Without this a store that is away for an hour would be asked by every pending shard in turn, each with a row to tell.
"""

from __future__ import annotations

import threading
import time

#: Longest wait, in seconds: how late a worker may notice that the fault is gone.
CAP_S = 15.0


class Patience:
    """Thread-safe; all slots of a worker share one, since they share the surroundings."""

    def __init__(self, base_s: float) -> None:
        self._base_s = base_s
        self._times = 0
        self._until = 0.0
        self._lock = threading.Lock()

    @property
    def is_waiting(self) -> bool:
        return time.monotonic() < self._until

    def hindered(self) -> None:
        """Wait, and longer with each time in a row."""
        with self._lock:
            self._until = time.monotonic() + min(CAP_S, self._base_s * 2 ** min(self._times, 16))
            self._times += 1

    def went_on(self) -> None:
        """An attempt was not hindered."""
        with self._lock:
            self._times, self._until = 0, 0.0
