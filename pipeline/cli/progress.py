"""A job's progress on stderr: a moving bar for somebody who looks, a line at each change for a log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Protocol, Self

from pipeline.cli.meter import Snapshot
from pipeline.cli.output import is_live_terminal, talk

#: Seconds between two lines of a log, unless the job's status changed; and until it is said that nothing moved.
_LINE_S, _QUIET_S = 5.0, 15.0


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
        elif now - self._at >= _QUIET_S:
            talk(f"{self._label} {snapshot}; a model that loads, or the first answers, take their time")
            self._at = now


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
