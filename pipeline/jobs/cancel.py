"""Ending a job before its items are all done, keeping what was finished."""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.db.states import JobStatus, Outcome, ShardStatus
from pipeline.db.values import JobView
from pipeline.errors import Conflict
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.finalize import finalize
from pipeline.jobs.leases import Observer
from pipeline.jobs.owners import command_owner, is_gone, is_here
from pipeline.jobs.status import find_job, live_workers

#: Seconds between two looks at whether what should move does.
LOOK_S = 0.2


def cancel(deployment: Deployment, name: str, *, tell: Callable[[str], None] = lambda text: None) -> JobView:
    """Ask for the outcome ``cancelled``; raises NotFound, Conflict when the job has ended or is about to.

    Open shards without a lease end here; a worker ends those it holds. With no worker alive this command takes their
    leases back and finalizes by itself. Asking again goes on where an earlier command was interrupted; ``tell`` is
    called before a wait of up to ``lease_s``, to see whether somebody is at it still.
    """
    job = find_job(deployment, name)
    with deployment.database.write() as uow:
        asked = uow.jobs.request_outcome(job.id, Outcome.CANCELLED)
        now = uow.jobs.get(job.id)
    if not asked and (now is None or not _is_ending_early(now)):
        raise Conflict(f"{job.id} is {now.status if now else 'gone'} already")
    alone = _is_alone(deployment, job.id, tell, may_wait=not asked)
    if alone:
        _take_back_leases(deployment, job.id)
    settle(deployment, job.id)
    if alone:
        _finalize(deployment, job.id, tell)
    return find_job(deployment, job.id)


def _is_ending_early(job: JobView) -> bool:
    """Whether somebody has asked already, and the job has not ended."""
    return job.outcome is not None and not job.status.is_terminal


def _is_alone(deployment: Deployment, job_id: str, tell: Callable[[str], None], *, may_wait: bool) -> bool:
    """Whether no worker lives. One of another host is known by its heart only, and nobody else may be there to look.

    Who asks for the first time leaves such a worker its chance; who asks again waits and looks.
    """
    hearts = {worker.id: worker.heartbeats for worker in live_workers(deployment)}
    if not hearts:
        return True
    if not may_wait or any(is_here(worker) for worker in live_workers(deployment)):
        return False
    tell(f"looking for up to {deployment.settings.lease_s:g} s whether the workers of other hosts are alive")

    def moves() -> bool:
        now = {worker.id: worker.heartbeats for worker in live_workers(deployment)}
        return any(hearts.get(worker_id) != beats for worker_id, beats in now.items())

    return not _seen_within_lease(deployment, lambda: moves() or find_job(deployment, job_id).status.is_terminal)


def _finalize(deployment: Deployment, job_id: str, tell: Callable[[str], None]) -> None:
    """Write the outputs here. A lease that another process holds is waited for, and taken over if it stands still."""
    owner = command_owner()
    if finalize(deployment, job_id, owner=owner):
        return
    held = find_job(deployment, job_id)
    if held.status is not JobStatus.FINALIZING or held.lease_owner is None:
        return
    if not is_gone(deployment, held.lease_owner):
        wait = f"{deployment.settings.lease_s:g} s"
        tell(f"another process began to write the files of {job_id}: looking for {wait} whether it goes on")
        if _seen_within_lease(deployment, lambda: _has_moved(deployment, held)):
            return
    with deployment.database.write() as uow:
        uow.jobs.free_lease(held)
    finalize(deployment, job_id, owner=owner)


def _has_moved(deployment: Deployment, held: JobView) -> bool:
    job = find_job(deployment, held.id)
    marks = [(one.status, one.lease_token, one.lease_renewals) for one in (job, held)]
    return marks[0] != marks[1]


def _seen_within_lease(deployment: Deployment, seen: Callable[[], bool]) -> bool:
    """Whether ``seen`` becomes true within ``lease_s`` of this process's own time (law 2)."""
    observer = Observer(deployment.settings.lease_s)
    while not seen():
        observer.tick()
        if observer.is_stale("it", None):
            return False
        time.sleep(min(LOOK_S, deployment.settings.lease_s / 8))
    return True


def _take_back_leases(deployment: Deployment, job_id: str) -> None:
    """Nobody lives who could hold them; should one wake after all, its token is old (law 2)."""
    after = -1
    while True:
        with deployment.database.read() as uow:
            page = uow.shards.of_job(job_id, after=after)
        if not page:
            return
        for shard in page:
            if shard.status is ShardStatus.LEASED:
                with deployment.database.write() as uow:
                    uow.shards.take_back(shard, "cancelled while no worker was alive")
        after = page[-1].ordinal


def settle(deployment: Deployment, job_id: str) -> None:
    """End what a job with an outcome still has pending; finalizing follows when nothing is leased. Idempotent."""
    with deployment.database.write() as uow:
        uow.shards.cancel_pending(job_id)
        uow.shards.settle_unplanned(job_id)
        closed = uow.jobs.close_if_drained(job_id)
        job = uow.jobs.get(job_id)
    if closed or (job is not None and job.status is JobStatus.FINALIZING):
        deployment.doorbell.finalize(job_id)
