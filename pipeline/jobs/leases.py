"""Leases without clocks (law 2): who holds one renews a counter, who watches one counts its own seconds.

A lease is stale when its counter has not moved for ``lease_s`` of the *observer's* monotonic clock. An observer that
was itself away (a closed lid, SIGSTOP) has seen nothing in that time and counts anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable

from pipeline.db.states import JobStatus
from pipeline.db.values import JobLease, NamedLease, ShardLease
from pipeline.errors import AlreadyExists, LeaseLost, TransientError
from pipeline.jobs.deployment import Deployment

log = logging.getLogger(__name__)

#: How often a keeper looks whether its job was asked to end or is paused, in seconds.
LOOK_S = 1.0

Clock = Callable[[], float]


class Observer:
    """Says which of the counters it is shown have stood still for ``limit_s``."""

    def __init__(self, limit_s: float, *, clock: Clock = time.monotonic) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._seen: dict[Hashable, tuple[Hashable, float]] = {}
        self._last_tick = clock()

    def tick(self) -> None:
        """Begin a round. After a gap of half the limit all counting starts again."""
        now = self._clock()
        if now - self._last_tick > self._limit_s / 2:
            self._seen.clear()
        self._last_tick = now

    def is_stale(self, key: Hashable, mark: Hashable) -> bool:
        """Show the observer a counter: ``mark`` is its token and value."""
        known = self._seen.get(key)
        if known is None or known[0] != mark:
            self._seen[key] = (mark, self._clock())
            return False
        return self._clock() - known[1] >= self._limit_s

    def forget_except(self, keys: Iterable[Hashable]) -> None:
        """Drop what is no longer there."""
        keep = set(keys)
        self._seen = {key: value for key, value in self._seen.items() if key in keep}


class NamedHolder:
    """Holds a named lease (``reconcile``) for one process at a time; others watch."""

    def __init__(self, deployment: Deployment, name: str, owner: str, *, limit_s: float) -> None:
        self._database = deployment.database
        self._name = name
        self._owner = owner
        self._observer = Observer(limit_s)
        self._held: NamedLease | None = None

    def hold(self) -> bool:
        """Renew, or try to take; True while this process is the one."""
        self._observer.tick()
        if self._held is not None:
            try:
                with self._database.write() as uow:
                    self._held = uow.workers.renew_named(self._held)
                return True
            except LeaseLost:
                self._held = None
        with self._database.read() as uow:
            seen = uow.workers.named_lease(self._name)
        if seen is None:
            try:
                with self._database.write() as uow:
                    uow.workers.make_lease(self._name)
            except AlreadyExists:
                pass
            return False
        if seen.owner is not None and not self._observer.is_stale(self._name, (seen.token, seen.renewals)):
            return False
        with self._database.write() as uow:
            self._held = uow.workers.take_named(seen, self._owner)
        return self._held is not None

    def release(self) -> None:
        if self._held is not None:
            with self._database.write() as uow:
                uow.workers.release_named(self._held)
            self._held = None


class JobKeeper:
    """A thread beside a planner or finalizer that renews the job-level lease, however long one step of it takes."""

    def __init__(self, deployment: Deployment, lease: JobLease) -> None:
        self._deployment = deployment
        self._lease = lease
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"keeper-{lease.job_id}", daemon=True)

    def __enter__(self) -> JobKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._stop.wait(self._deployment.settings.renew_s):
            try:
                with self._deployment.database.write() as uow:
                    uow.jobs.renew(self._lease)
            except LeaseLost:
                return  # the guarded write at the end will say so
            except TransientError as error:
                log.warning("job_lease_not_renewed", extra={"job": self._lease.job_id, "reason": str(error)})


class ShardKeeper:
    """A thread beside a running shard: renews its lease while the work moves, and looks whether it shall end.

    ``moves`` says whether the child made progress within its limit; while it does not, the counter stands still and
    another worker may take the shard. ``on_end`` is called once, when the lease is lost, the job was asked to end, or
    something that the shard runs under is paused; renewing goes on, for as long as the last answers take to be kept.
    """

    def __init__(
        self, deployment: Deployment, lease: ShardLease, *, moves: Callable[[], bool], on_end: Callable[[], None]
    ) -> None:
        self._deployment = deployment
        self._lease = lease
        self._moves = moves
        self._on_end = on_end
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"keeper-{lease.shard_id}", daemon=True)
        self.lost = False
        self.ending = False
        self.paused = False

    def __enter__(self) -> ShardKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _keep(self) -> None:
        settings = self._deployment.settings
        renewed = time.monotonic()
        while not self._stop.wait(min(LOOK_S, settings.renew_s)):
            try:
                if time.monotonic() - renewed >= settings.renew_s and self._moves():
                    with self._deployment.database.write() as uow:
                        uow.shards.renew(self._lease)
                    renewed = time.monotonic()
                with self._deployment.database.read() as uow:
                    seen = uow.pauses.look(self._lease.shard.job_id, self._lease.owner)
            except LeaseLost:
                self.lost = True
                self._on_end()
                return
            except TransientError as error:
                log.warning("lease_not_renewed", extra={"shard": self._lease.shard_id, "reason": str(error)})
                continue
            if seen is not None:
                self._obey(*seen)

    def _obey(self, status: JobStatus, paused: bool) -> None:
        """Ask the attempt to stop, the first time there is a reason; a job that ends while it stops is seen too."""
        told = self.ending or self.paused
        self.ending = self.ending or status is JobStatus.CANCELLING
        self.paused = self.paused or paused
        if not told and (self.ending or self.paused):
            self._on_end()
