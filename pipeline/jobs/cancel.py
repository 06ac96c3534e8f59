"""Ending a job before its items are all done, keeping what was finished."""

from __future__ import annotations

import uuid

from pipeline.db.states import JobStatus, Outcome
from pipeline.db.values import JobView
from pipeline.errors import Conflict
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.finalize import finalize
from pipeline.jobs.status import find_job, live_workers


def cancel(deployment: Deployment, name: str) -> JobView:
    """Ask for the outcome ``cancelled``; raises NotFound, Conflict when the job has ended or is about to.

    Open shards without a lease end here; a worker ends those it holds. With no worker alive this finalizes too.
    """
    job = find_job(deployment, name)
    end_early(deployment, job.id, Outcome.CANCELLED)
    if not live_workers(deployment):
        finalize(deployment, job.id, owner=uuid.uuid4().hex)
    return find_job(deployment, job.id)


def end_early(
    deployment: Deployment, job_id: str, outcome: Outcome, *, code: str | None = None, message: str | None = None
) -> None:
    """Request an outcome and settle all that nobody holds; raises Conflict when it is too late."""
    with deployment.database.write() as uow:
        if not uow.jobs.request_outcome(job_id, outcome, code=code, message=message):
            job = uow.jobs.get(job_id)
            status = job.status if job else "gone"
            raise Conflict(f"{job_id} is {status} already")
    settle(deployment, job_id)


def settle(deployment: Deployment, job_id: str) -> None:
    """End what a job with an outcome still has pending; finalizing follows when nothing is leased. Idempotent."""
    with deployment.database.write() as uow:
        uow.shards.cancel_pending(job_id)
        uow.shards.settle_unplanned(job_id)
        closed = uow.jobs.close_if_drained(job_id)
        job = uow.jobs.get(job_id)
    if closed or (job is not None and job.status is JobStatus.FINALIZING):
        deployment.doorbell.finalize(job_id)
