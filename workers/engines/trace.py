"""Where a run's time went: spans inside engine calls, and the waits a reader of the answers would feel."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

#: Two engine calls this close (seconds) count as one span; what lies between is then too small to report.
_NEIGHBOURS_S = 1e-4


class BusyTrace:
    """(start, end) pairs of engine calls, seconds of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    @contextmanager
    def call(self) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            end = time.monotonic()
            if self._spans and start - self._spans[-1][1] <= _NEIGHBOURS_S:
                self._spans[-1] = (self._spans[-1][0], end)
            else:
                self._spans.append((start, end))

    @property
    def spans(self) -> tuple[tuple[float, float], ...]:
        return tuple(self._spans)


class Waits:
    """All waits of one kind in a run, seconds; eight bytes each, and a shard bounds how many there are."""

    def __init__(self) -> None:
        self._values = array("d")

    def add(self, seconds: float) -> None:
        self._values.append(seconds)

    def percentiles(self, name: str) -> dict[str, float]:
        """``{name}_p50`` and ``{name}_p95`` by nearest rank; nothing for an empty run."""
        if not self._values:
            return {}
        ranked = sorted(self._values)
        return {f"{name}_p{share}": ranked[-(-share * len(ranked) // 100) - 1] for share in (50, 95)}
