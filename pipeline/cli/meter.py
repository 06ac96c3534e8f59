"""How fast a job moves: snapshots of its row become rates and the time that is left. Shows nothing itself."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.cli.output import show_seconds

if TYPE_CHECKING:
    from pipeline.db.values import JobView

#: Seconds that a rate looks back.
_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job at one moment; rates are None until something has moved."""

    status: str
    done: int
    total: int
    items_per_s: float | None
    tokens_per_s: float | None

    @property
    def eta_s(self) -> float | None:
        return (self.total - self.done) / self.items_per_s if self.items_per_s else None

    def __str__(self) -> str:
        return f"{self.status} {self.done:,}/{self.total:,}{''.join(f', {word}' for word in self.words())}"

    def words(self) -> list[str]:
        """Rates and the time left, as far as they are known."""
        items = [f"{self.items_per_s:,.1f} items/s"] if self.items_per_s else []
        tokens = [f"{self.tokens_per_s:,.0f} tokens/s"] if self.tokens_per_s else []
        left = [f"{show_seconds(self.eta_s)} left"] if self.eta_s else []
        return items + tokens + left


class Meter:
    """Turns job rows into snapshots; the rate is over the last minute of this process's own clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def read(self, job: JobView, tokens_per_s: float | None, now: float | None = None) -> Snapshot:
        now = time.monotonic() if now is None else now
        done = job.total - job.processing
        self._samples.append((now, done))
        while now - self._samples[0][0] > _WINDOW_S:
            self._samples.popleft()
        first_at, first_done = self._samples[0]
        moved = done > first_done and now > first_at
        rate = (done - first_done) / (now - first_at) if moved else None
        return Snapshot(job.status.value, done, job.total, rate, tokens_per_s)
