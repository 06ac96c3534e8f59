"""A job's progress on stderr: a moving bar for somebody who looks, a line at each change for a log."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from pipeline.cli.output import is_live_terminal, show_seconds, talk

if TYPE_CHECKING:
    from pipeline.db.values import JobView

#: Seconds that a rate looks back.
_WINDOW_S = 60.0

#: Seconds between two lines of a log, unless the job's status changed.
_LINE_S = 5.0


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


class Display(Protocol):
    """Shows snapshots for as long as its ``with`` block lasts."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *details: Any) -> None: ...
    def show(self, snapshot: Snapshot) -> None: ...


def make_display(label: str) -> Display:
    return LiveDisplay(label) if is_live_terminal() else LineDisplay(label)


class LineDisplay:
    """A line when the status changes, and every few seconds while items get done."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._last: Snapshot | None = None
        self._at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: Any) -> None:
        pass

    def show(self, snapshot: Snapshot) -> None:
        last, now = self._last, time.monotonic()
        changed = last is None or snapshot.status != last.status
        moved = last is not None and snapshot.done != last.done and now - self._at >= _LINE_S
        if changed or moved:
            talk(f"{self._label} {snapshot}")
            self._last, self._at = snapshot, now


class LiveDisplay:
    """One line that moves."""

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

        columns = (
            SpinnerColumn(finished_text=" "),
            TextColumn(label + " {task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rates]}"),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("", total=None, rates="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show(self, snapshot: Snapshot) -> None:
        self._progress.update(
            self._task,
            description=snapshot.status,
            total=snapshot.total,
            completed=snapshot.done,
            rates="  ".join(snapshot.words()),
        )
