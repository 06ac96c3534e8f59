"""One shard in flight in a child, as its parent sees it. Knows items and limits; how a child starts it does not know."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from pipeline.errors import ChildDied, EngineFailed
from pipeline.formats.messages import WireError, parse_done, parse_event
from pipeline.ports import Answer, EngineEvent, JsonObject, Progress, RunStats, Started
from workers.process import ChildProcess, StreamEnd
from workers.verdicts import MALFORMED, failure, kill_confused, kill_stalled

#: A look at the child is due several times a second; one that comes this late says that this process was away.
GAP_S = 5.0


class ChildRun:
    """One shard in flight in a child; implements :class:`pipeline.ports.EngineRun`.

    ``cancel`` is safe from any thread. Leaving ``events`` early cancels; iterating anew yields what comes until the end.
    """

    def __init__(
        self,
        child: ChildProcess,
        open_items: Iterable[int],
        *,
        stall_timeout_s: float,
        cancel_grace_s: float,
        on_death: Callable[[ChildDied], None],
    ) -> None:
        self._child = child
        self._open_items = set(open_items)
        self._started: set[int] = set()
        self._stall_timeout_s = stall_timeout_s
        self._cancel_grace_s = cancel_grace_s
        self._on_death = on_death
        self._lock = threading.Lock()
        self._kill_at: float | None = None
        self._gauge = Gauge()
        self._progress_at = time.monotonic()
        self._stats: RunStats | None = None
        self._is_ended = False

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    @property
    def stats(self) -> RunStats:
        if self._stats is None:
            raise RuntimeError("a run has stats when its events have ended without an error")
        return self._stats

    def seconds_since_progress(self) -> float:
        return time.monotonic() - self._progress_at

    def cancel(self) -> None:
        # Under the lock, so that no cancel can follow the run's end and hit the next run.
        with self._lock:
            if self._is_ended or self._kill_at is not None:
                return
            self._kill_at = time.monotonic() + self._cancel_grace_s
            self._child.send({"type": "cancel"})

    def events(self) -> Iterator[EngineEvent]:
        """Yield what the child says, until it is done.

        A child that goes on after a cancel is killed when its grace is over. The run then ends like any cancelled
        one: what had arrived was yielded, and ``stats.cancelled`` is set.

        Raises:
            ChildDied: the child ended or talked nonsense; :class:`ChildStalled` if it was silent for too long.
            JobError: the child says that no retry can mend it.
            TransientError: the child says that a retry may.
        """
        try:
            while (event := self._next_event()) is not None:
                self._progress_at = time.monotonic()
                yield event
        finally:
            self.cancel()  # who stops reading early wants no more of it

    def _next_event(self) -> EngineEvent | None:
        # Only time spent waiting here counts as silence: a child that waits for a slow parent is not to blame.
        last = time.monotonic()
        stalled_at = last + self._stall_timeout_s
        while not self._is_ended:
            now = time.monotonic()
            if now - last > GAP_S:  # this process was stopped, or the lid closed: the child may have been, too
                stalled_at = now + self._stall_timeout_s
            last = now
            if self._kill_at is not None and now > self._kill_at:
                self._child.kill()
            elif now > stalled_at:
                self._fail(kill_stalled(self._child, self._stall_timeout_s, self._phase))
            try:
                frame = self._child.receive(self._stall_timeout_s)
            except StreamEnd:
                self._end_without_child()
                return None
            event = None if frame is None else self._take(*frame)
            if event is not None:
                return event
        return None

    @property
    def _phase(self) -> str:
        return f"running with {len(self._open_items)} items unanswered"

    def _take(self, message: JsonObject, blob: bytes) -> EngineEvent | None:
        """The event in a frame, if it has one that says anything new."""
        try:
            match message["type"]:
                case "done":
                    stats = parse_done(message)
                    if self._open_items and not stats.cancelled:
                        raise WireError(f"done with {len(self._open_items)} items unanswered")
                    self._end(stats)
                    return None
                case "failed":
                    error = failure(message)
                    if isinstance(error, EngineFailed):
                        error.inside = self._inside
                    self._end(None)
                    raise error
                case "stats":  # the answer to a question that nobody waits for any more
                    return None
            event = parse_event(message, blob)
            if isinstance(event, Answer):
                if event.index not in self._open_items:
                    raise WireError(f"an answer to item {event.index}, which is not open")
                self._open_items.remove(event.index)
            if isinstance(event, Started):
                self._started.update(event.items)
            return event if not isinstance(event, Progress) or self._gauge.has_moved(event) else None
        except MALFORMED as error:
            self._fail(kill_confused(self._child, self._phase, error))

    def _end_without_child(self) -> None:
        if self._child.is_ended_on_purpose:  # after its grace, or by the supervisor's close
            self._end(RunStats(cancelled=True))
        else:
            self._fail(self._child.death(self._phase))

    def _end(self, stats: RunStats | None) -> None:
        with self._lock:
            self._stats, self._is_ended = stats, True

    @property
    def _inside(self) -> frozenset[int]:
        """The open items that may be to blame: those announced, or all while none is (a tokenizer may die too)."""
        return frozenset(self._open_items & self._started or self._open_items)

    def _fail(self, error: ChildDied) -> NoReturn:
        error.inside = self._inside
        self._end(None)
        self._on_death(error)
        raise error


class Gauge:
    """Tells progress from signs of life: a report counts only if it reports more than the last."""

    def __init__(self) -> None:
        self._tokens = 0
        self._items = 0

    def has_moved(self, progress: Progress) -> bool:
        moved = progress.tokens > self._tokens or progress.items > self._items
        self._tokens, self._items = max(self._tokens, progress.tokens), max(self._items, progress.items)
        return moved
