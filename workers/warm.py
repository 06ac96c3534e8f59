"""The children of a worker, kept warm as long as they fit into its budget of memory.

One :class:`WarmPool` per process; each slot's :class:`WarmHost` takes a child from it. A model that is asked for again
is there already; one that is new makes room for itself, and the child that nobody has used for longest goes first.
Knows children and bytes, and nothing about shards.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil

from pipeline.config import Settings
from pipeline.errors import MemoryBusy, TransientError
from pipeline.ports import EngineInfo, EngineRequest, JsonObject, WorkItem
from workers.run import ChildRun
from workers.supervisor import Supervisor

#: What a child is expected to hold before it has shown what it does: its weights and a quarter of them for caches, and
#: an interpreter with MLX and a tokenizer.
WEIGHTS_FACTOR, BASE_BYTES = 1.25, 256 << 20

#: Seconds to wait for those at work before a shard is given back: one that is pending would be the next to be claimed.
BUSY_WAIT_S = 5.0

#: Seconds between two looks meanwhile.
BUSY_LOOK_S = 0.25

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Child:
    """A supervisor and what is known of its child. All fields are changed under the pool's lock only."""

    supervisor: Supervisor
    request: EngineRequest
    expected_bytes: int
    holder: WarmHost | None
    used: int
    run: ChildRun | None = None
    shown_bytes: int = 0
    is_loading: bool = True
    is_leaving: bool = False

    @property
    def is_idle(self) -> bool:
        has_ended = self.run is not None and self.run.is_ended
        return not self.is_loading and not self.is_leaving and (self.holder is None or has_ended)

    @property
    def is_on_trial(self) -> bool:
        """Made for one suspect, under a ceiling of its own; of no use for anything else."""
        return self.request.memory_bytes is not None

    @property
    def held_bytes(self) -> int:
        """Resident memory, where it has been seen; while it loads or works no less than was expected."""
        return self.shown_bytes if self.is_idle and self.shown_bytes else max(self.shown_bytes, self.expected_bytes)


class WarmPool:
    """All children of a worker process; safe from any thread.

    Args:
        settings: ``memory_budget_bytes``, and what a :class:`Supervisor` needs.
        host_bytes: the host's memory; None asks it.
        start: makes the supervisor of a new child.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        host_bytes: int | None = None,
        start: Callable[[], Supervisor] | None = None,
        busy_wait_s: float = BUSY_WAIT_S,
    ) -> None:
        host_bytes = psutil.virtual_memory().total if host_bytes is None else host_bytes
        self.budget_bytes = settings.engine_budget_bytes(host_bytes)
        if self.budget_bytes > host_bytes:
            log.warning("budget_exceeds_memory", extra={"budget": self.budget_bytes, "memory": host_bytes})
        self._start = start or (lambda: Supervisor(settings))
        self._busy_wait_s = busy_wait_s
        self._changed = threading.Condition()
        self._children: list[_Child] = []
        self._shown: dict[tuple[str | None, ...], int] = {}
        self._clock = count()

    def loaded(self, host: WarmHost) -> tuple[EngineRequest, ...]:
        """What ``host`` could use without loading, used latest first."""
        with self._changed:
            self._look()
            found = [child for child in self._children if child.is_idle or child.holder is host]
            found.sort(key=lambda child: child.used, reverse=True)
            return tuple(request for child in found for request in child.supervisor.loaded)

    def take(self, host: WarmHost, request: EngineRequest) -> _Child:
        """A child for ``request``, held by ``host``; a new one has not been started yet.

        Raises:
            MemoryBusy: it does not fit beside the children that are at work, and none has ended for a while.
        """
        deadline = time.monotonic() + self._busy_wait_s
        while True:
            with self._changed:
                self._look()
                for child in self._children:
                    if child.is_idle and child.request == request:
                        child.holder, child.run, child.used = host, None, next(self._clock)
                        return child
                try:
                    leavers = self._make_room(request)
                except MemoryBusy:
                    if time.monotonic() >= deadline:
                        raise
                    leavers = None
                if leavers is None:
                    self._changed.wait(BUSY_LOOK_S)
                    continue
                if not leavers:
                    child = _Child(self._start(), request, self._expect(request), host, next(self._clock))
                    self._children.append(child)
                    return child
                for leaver in leavers:
                    leaver.is_leaving = True
            for leaver in leavers:
                log.info("model_evicted", extra={"model": leaver.request.model_path, "bytes": leaver.shown_bytes})
                self.drop(leaver)

    def show(self, child: _Child) -> None:
        """``child`` has loaded."""
        with self._changed:
            child.is_loading = False
            self._look()

    def work(self, child: _Child, run: ChildRun) -> None:
        """``child`` is busy until ``run`` has ended."""
        with self._changed:
            child.run = run

    def give_back(self, host: WarmHost, child: _Child) -> None:
        """``host`` wants no more of ``child``, which another may have taken since."""
        with self._changed:
            if child.holder is host:
                child.holder = child.run = None
            self._changed.notify_all()

    def drop(self, child: _Child) -> None:
        """End it, and forget it."""
        child.supervisor.close()
        with self._changed:
            if child in self._children:
                self._children.remove(child)
            self._changed.notify_all()

    def close(self, host: WarmHost) -> None:
        """End what ``host`` holds and what nobody does."""
        with self._changed:
            mine = [child for child in self._children if child.is_idle or child.holder is host]
            for child in mine:
                child.is_leaving = True
        for child in mine:
            self.drop(child)

    def _look(self) -> None:
        """See what each child holds by now, and forget those that died in their sleep."""
        for child in list(self._children):
            if child.is_idle and not child.supervisor.loaded:
                child.supervisor.settle()  # says how it died
                self._children.remove(child)
            elif not child.is_loading and (pid := child.supervisor.pid) is not None:
                try:
                    child.shown_bytes = max(child.shown_bytes, psutil.Process(pid).memory_info().rss)
                except psutil.Error:
                    continue  # it ended at this moment
                self._shown[_key(child.request)] = child.shown_bytes

    def _make_room(self, request: EngineRequest) -> list[_Child] | None:
        """Who has to go first; None while somebody is on the way out already."""
        if any(child.is_leaving for child in self._children):
            return None
        idle = sorted((child for child in self._children if child.is_idle), key=lambda child: child.used)
        # A suspect has the host to itself: what others hold may be what killed it.
        leavers = [child for child in idle if child.is_on_trial or request.memory_bytes is not None]
        expected = self._expect(request)
        held = sum(child.held_bytes for child in self._children if child not in leavers)
        for child in idle:
            if held + expected <= self.budget_bytes:
                break
            if child not in leavers:
                leavers.append(child)
                held -= child.held_bytes
        if held + expected <= self.budget_bytes:
            return leavers
        said = {"model": request.model_path, "expected": expected, "budget": self.budget_bytes}
        if len(leavers) < len(self._children):
            raise MemoryBusy(
                f"{request.model_path or request.kind} needs about {expected >> 20} MiB; {self.budget_bytes >> 20} MiB are for engines, "
                f"and {held >> 20} of them are in use",
                hint="fewer slots, or a larger memory_budget_bytes",
            )
        if not leavers:  # said once, when it is about to load
            log.warning("model_exceeds_budget", extra=said)
        return leavers

    def _expect(self, request: EngineRequest) -> int:
        """Bytes that a child for ``request`` will hold: what one like it showed, else by its files."""
        shown = self._shown.get(_key(request))
        if shown is not None:
            return shown
        folders = filter(None, (request.model_path, request.options.get("draft_path")))
        files = (file for folder in folders for file in Path(folder).rglob("*.safetensors"))
        return int(sum(file.stat().st_size for file in files) * WEIGHTS_FACTOR) + BASE_BYTES


class WarmHost:
    """One slot's way to the pool; implements :class:`pipeline.ports.EngineHost`.

    ``loaded``, ``close`` and a run's ``cancel`` are safe from any thread, the rest belongs to the slot's.
    """

    def __init__(self, pool: WarmPool) -> None:
        self._pool = pool
        self._child: _Child | None = None

    @property
    def loaded(self) -> tuple[EngineRequest, ...]:
        return self._pool.loaded(self)

    def prepare(self, request: EngineRequest) -> EngineInfo:
        """Have a child that holds ``request``: one that is there and idle, else a new one.

        Raises what :meth:`Supervisor.prepare` does, and MemoryBusy.
        """
        self._let_go()
        self._child = child = self._pool.take(self, request)
        try:
            info = child.supervisor.prepare(request)
        except BaseException:
            self._child = None
            self._pool.drop(child)
            raise
        self._pool.show(child)
        return info

    def run(self, items: Sequence[WorkItem], options: JsonObject, *, done: frozenset[int]) -> ChildRun:
        """See :meth:`Supervisor.run`."""
        child = self._child
        if child is None or child.holder is not self:
            raise TransientError("no engine is loaded: none was prepared, or it ended before it was given work")
        run = child.supervisor.run(items, options, done=done)
        self._pool.work(child, run)
        return run

    def interrupt(self) -> None:
        """End a load that is under way; a child that has loaded stays."""
        child = self._child
        if child is not None and child.is_loading:
            child.supervisor.close()

    def close(self) -> None:
        """End this slot's child, and those that no slot holds."""
        self._pool.close(self)

    def _let_go(self) -> None:
        child, self._child = self._child, None
        if child is None or child.holder is not self:
            return
        if child.run is not None and not child.run.is_ended:
            child.supervisor.settle()
        self._pool.give_back(self, child)


def _key(request: EngineRequest) -> tuple[str | None, ...]:
    """What decides how much a child holds: its models, and in which type they compute."""
    drafter = request.options.get("draft_digest")
    return request.kind, request.model_digest or request.model_path, request.dtype, drafter
