"""Putting right what a crash, a lost message or a lost race left behind. Needs no broker (law 1).

Runs in every worker; one at a time acts, by the named lease. Whatever it does is guarded by what it saw, so that
doing it twice, or late, changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from pipeline.config import RECONCILE_LEASE_S
from pipeline.db.states import JobStatus
from pipeline.db.values import JobView, ShardView
from pipeline.jobs.cancel import settle
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.leases import NamedHolder, Observer

log = logging.getLogger(__name__)

#: The named lease.
LEASE_NAME = "reconcile"


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
        self._plan_waiting()
        if not self._holder.hold():
            return False
        self._take_back_shards()
        self._look_after_jobs()
        self._forget_dead_workers()
        return True

    def release(self) -> None:
        self._holder.release()

    def _plan_waiting(self) -> None:
        """Every worker looks, since only one that holds the model can count its tokens; the job's lease decides."""
        for job in self._jobs_in(JobStatus.VALIDATING):
            if job.lease_owner is None:
                self._control("plan", job.id)

    def _take_back_shards(self) -> None:
        present = []
        for shard in self._pages(lambda after: self._leased(after)):
            present.append(shard.id)
            if not self._shards.is_stale(shard.id, (shard.lease_token, shard.lease_renewals)):
                continue
            with self._deployment.database.write() as uow:
                taken = uow.shards.take_back(shard, f"lease of worker {shard.lease_owner} ran out")
                job = uow.jobs.get(shard.job_id)
            if taken and job is not None:
                log.warning("lease_taken_back", extra={"job": shard.job_id, "shard": shard.ordinal})
                self._deployment.doorbell.run(job.kind)
        self._shards.forget_except(present)

    def _look_after_jobs(self) -> None:
        present = []
        for status in (JobStatus.VALIDATING, JobStatus.FINALIZING):
            for job in self._jobs_in(status):
                present.append(job.id)
                self._free_stale(job)
                if job.lease_owner is None and status is JobStatus.FINALIZING:
                    self._control("finalize", job.id)
        for job in self._jobs_in(JobStatus.CANCELLING):
            settle(self._deployment, job.id)
        self._jobs.forget_except(present)

    def _free_stale(self, job: JobView) -> None:
        """Free a job-level lease that stands still; whoever can do the work takes it by the ordinary way."""
        if job.lease_owner is None or not self._jobs.is_stale(job.id, (job.lease_token, job.lease_renewals)):
            return
        with self._deployment.database.write() as uow:
            if uow.jobs.free_lease(job):
                log.warning("job_lease_freed", extra={"job": job.id, "owner": job.lease_owner})

    def _forget_dead_workers(self) -> None:
        with self._deployment.database.read() as uow:
            workers = uow.workers.live()
        for worker in workers:
            if worker.id != self._owner and self._workers.is_stale(worker.id, worker.heartbeats):
                with self._deployment.database.write() as uow:
                    uow.workers.set_status(worker.id, "dead", heartbeats=worker.heartbeats)
        self._workers.forget_except(worker.id for worker in workers)

    # --- pages: a thousand healthy rows never hide a stuck one ---

    def _leased(self, after: int) -> list[ShardView]:
        with self._deployment.database.read() as uow:
            return list(uow.shards.leased(after=after))

    @staticmethod
    def _pages(read: Callable[[int], list[ShardView]]) -> Iterator[ShardView]:
        after = 0
        while page := read(after):
            yield from page
            after = page[-1].id

    def _jobs_in(self, status: JobStatus) -> Iterator[JobView]:
        after = ""
        while True:
            with self._deployment.database.read() as uow:
                page = uow.jobs.in_status(status, after=after)
            yield from page
            if not page:
                return
            after = page[-1].id
