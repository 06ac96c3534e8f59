"""Ending a job before its items are all done, keeping what was finished."""

from __future__ import annotations

import uuid

from pipeline.db.states import JobStatus, Outcome, ShardStatus
from pipeline.db.values import JobView
from pipeline.errors import Conflict
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.finalize import finalize
from pipeline.jobs.status import find_job, live_workers


def cancel(deployment: Deployment, name: str) -> JobView:
    """Ask for the outcome ``cancelled``; raises NotFound, Conflict when the job has ended or is about to.

    Open shards without a lease end here; a worker ends those it holds. With no worker alive this command takes their
    leases back and finalizes by itself. Asking again goes on where an earlier command was interrupted.
    """
    job = find_job(deployment, name)
    with deployment.database.write() as uow:
        asked = uow.jobs.request_outcome(job.id, Outcome.CANCELLED)
        now = uow.jobs.get(job.id)
    if not asked and (now is None or not _is_ending_early(now)):
        raise Conflict(f"{job.id} is {now.status if now else 'gone'} already")
    alone = not live_workers(deployment)
    if alone:
        _take_back_leases(deployment, job.id)
    settle(deployment, job.id)
    if alone:
        finalize(deployment, job.id, owner=uuid.uuid4().hex)
    return find_job(deployment, job.id)


def _is_ending_early(job: JobView) -> bool:
    """Whether somebody has asked already, and the job has not ended."""
    return job.outcome is not None and not job.status.is_terminal


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
