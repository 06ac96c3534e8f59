"""Putting right what a crash, a lost message or a lost race left behind. Needs no broker (law 1).

Runs in every worker; one at a time acts, by the named lease. Whatever it does is guarded by what it saw, so that
doing it twice, or late, changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from pipeline.config import RECONCILE_LEASE_S
from pipeline.db.session import UnitOfWork
from pipeline.db.states import JobStatus, Outcome
from pipeline.db.values import JobView, ShardView, WorkerView
from pipeline.errors import TransientError
from pipeline.jobs.cancel import settle
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.leases import NamedHolder, Observer

log = logging.getLogger(__name__)

#: The named lease.
LEASE_NAME = "reconcile"

K = TypeVar("K", int, str)
Row = TypeVar("Row", ShardView, JobView, WorkerView)


class Control(Protocol):
    """Does the slow work of a job: plans it, or finalizes it, outside the reconcile loop."""

    def __call__(self, work: str, job_id: str) -> None: ...


class Reconciler:
    """One process's share of reconciling; :meth:`tick` is called every ``reconcile_s``."""

    def __init__(self, deployment: Deployment, owner: str, control: Control) -> None:
        self._deployment = deployment
        self._owner = owner
        self._control = control
        self._holder = NamedHolder(deployment, LEASE_NAME, owner, limit_s=RECONCILE_LEASE_S)
        lease_s = deployment.settings.lease_s
        self._shards = Observer(lease_s)
        self._jobs = Observer(lease_s)
        self._workers = Observer(lease_s)

    def tick(self) -> bool:
        """One round, if this process is the one; raises TransientError when the database is out of reach."""
        for observer in (self._shards, self._jobs, self._workers):
            observer.tick()
        self._begin_waiting()
        if not self._holder.hold():
            return False
        self._take_back_shards()
        self._look_after_jobs()
        self._expire_overdue()
        self._forget_dead_workers()
        return True

    def release(self) -> None:
        self._holder.release()

    def _begin_waiting(self) -> None:
        """Every worker looks, and the job's lease decides: only one that holds the model can count its tokens, and the
        one that reconciles may serve no ``control``."""
        for status, work in ((JobStatus.VALIDATING, "plan"), (JobStatus.FINALIZING, "finalize")):
            for job in self._jobs_in(status):
                if job.lease_owner is None:
                    self._control(work, job.id)

    def _take_back_shards(self) -> None:
        present = []
        for shard in self._leased():
            present.append(shard.id)
            if self._shards.is_stale(shard.id, (shard.lease_token, shard.lease_renewals)):
                with _one_of_many("take_back", shard.id):
                    self._take_back(shard)
        self._shards.forget_except(present)

    def _take_back(self, shard: ShardView) -> None:
        with self._deployment.database.write() as uow:
            taken = uow.shards.take_back(shard, f"lease of worker {shard.lease_owner} ran out")
            job = uow.jobs.get(shard.job_id)
        if taken and job is not None:
            log.warning("lease_taken_back", extra={"job": shard.job_id, "shard": shard.ordinal})
            self._deployment.doorbell.run(job.kind)

    def _look_after_jobs(self) -> None:
        present = []
        for status in (JobStatus.VALIDATING, JobStatus.FINALIZING):
            for job in self._jobs_in(status):
                present.append(job.id)
                with _one_of_many("free_lease", job.id):
                    self._free_stale(job)
        for job in self._jobs_in(JobStatus.CANCELLING):
            with _one_of_many("settle", job.id):
                settle(self._deployment, job.id)
        self._jobs.forget_except(present)

    def _free_stale(self, job: JobView) -> None:
        """Free a job-level lease that stands still; whoever can do the work takes it by the ordinary way."""
        if job.lease_owner is None or not self._jobs.is_stale(job.id, (job.lease_token, job.lease_renewals)):
            return
        with self._deployment.database.write() as uow:
            if uow.jobs.free_lease(job):
                log.warning("job_lease_freed", extra={"job": job.id, "owner": job.lease_owner})

    def _expire_overdue(self) -> None:
        """Deadlines are by the database's clock; whoever holds a shard sees the outcome and ends it (ShardKeeper)."""
        for job in self._overdue():
            with _one_of_many("expire", job.id):
                with self._deployment.database.write() as uow:
                    asked = uow.jobs.request_outcome(job.id, Outcome.EXPIRED)
                if asked:  # else its last shard, or somebody's cancel, was quicker
                    log.info("job_expired", extra={"job": job.id})
                    settle(self._deployment, job.id)

    def _forget_dead_workers(self) -> None:
        """Their shards stay leased until they are seen to stand still themselves."""
        present = []
        for worker in self._live_workers():
            present.append(worker.id)
            if worker.id != self._owner and self._workers.is_stale(worker.id, worker.heartbeats):
                with _one_of_many("forget_worker", worker.id), self._deployment.database.write() as uow:
                    uow.workers.set_status(worker.id, "dead", heartbeats=worker.heartbeats)
        self._workers.forget_except(present)

    # --- pages: a thousand healthy rows never hide a stuck one ---

    def _leased(self) -> Iterator[ShardView]:
        return self._rows(lambda uow, after: uow.shards.leased(after=after), lambda shard: shard.id, 0)

    def _live_workers(self) -> Iterator[WorkerView]:
        return self._rows(lambda uow, after: uow.workers.live_page(after=after), lambda worker: worker.id, "")

    def _jobs_in(self, status: JobStatus) -> Iterator[JobView]:
        return self._rows(lambda uow, after: uow.jobs.in_status(status, after=after), lambda job: job.id, "")

    def _overdue(self) -> Iterator[JobView]:
        return self._rows(lambda uow, after: uow.jobs.overdue(after=after), lambda job: job.id, "")

    def _rows(self, read: Callable[[UnitOfWork, K], Sequence[Row]], key: Callable[[Row], K], first: K) -> Iterator[Row]:
        """All rows, a page at a time; no transaction is held while they are looked at."""
        after = first
        while True:
            with self._deployment.database.read() as uow:
                page = read(uow, after)
            yield from page
            if not page:
                return
            after = key(page[-1])


@contextmanager
def _one_of_many(what: str, name: object) -> Iterator[None]:
    """A row that cannot be put right is logged, and keeps nobody from the next; a database that is away ends the round."""
    try:
        yield
    except TransientError:
        raise
    except Exception:
        log.exception("reconcile_failed", extra={"what": what, "of": name})
