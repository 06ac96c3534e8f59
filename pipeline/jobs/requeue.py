"""Reviving the failed shards of a job that has not ended, while others of it run."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.db.values import JobView
from pipeline.errors import Conflict, NotFound, NothingToRetry
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.status import find_job

#: While a job is in one of these its failed shards can be revived.
_OPEN = frozenset({JobStatus.QUEUED, JobStatus.IN_PROGRESS})


@dataclass(frozen=True, slots=True)
class Requeue:
    """The job as it is now; the ordinals of the shards that wait again, and how many items with them."""

    job: JobView
    shards: tuple[int, ...]
    items: int


def requeue(deployment: Deployment, name: str, *, shard: int | None = None) -> Requeue:
    """Let failed shards (or the one with ordinal ``shard``) be claimed again, with attempts and suspects forgotten.

    Raises:
        Conflict: the job ends or has ended, or ``shard`` did not fail.
        NothingToRetry: no shard failed.
        NotFound: there is no such job or shard.
    """
    job = find_job(deployment, name)
    with deployment.database.write() as uow:
        revived = uow.shards.requeue(job.id, shard)
    if not revived:
        raise _refusal(deployment, job.id, shard)
    deployment.doorbell.run(job.kind)
    return Requeue(find_job(deployment, job.id), tuple(sorted(revived)), sum(revived.values()))


def _refusal(deployment: Deployment, job_id: str, ordinal: int | None) -> Exception:
    """Why nothing was revived, as things stand now."""
    job = find_job(deployment, job_id)
    if job.status.is_terminal:
        return Conflict(f"{job_id} has ended: {job.status}", hint=f"its failed items: pipeline retry {job_id}")
    if job.status is not JobStatus.VALIDATING and job.status not in _OPEN:
        return Conflict(f"{job_id} is {job.status}", hint=f"when it has ended: pipeline retry {job_id}")
    if ordinal is None:
        return NothingToRetry(
            f"no shard of {job_id} failed", hint=f"single items that erred: when it has ended, pipeline retry {job_id}"
        )
    with deployment.database.read() as uow:
        page = uow.shards.of_job(job_id, after=ordinal - 1, limit=1)
    if not page or page[0].ordinal != ordinal:
        return NotFound(f"{job_id} has no shard {ordinal}", hint=f"it has {job.shards_total:,}, counted from 0")
    if page[0].status is ShardStatus.FAILED:  # it failed between the two looks
        return Conflict(f"shard {ordinal} of {job_id} failed just now", hint="run the command again")
    return Conflict(f"shard {ordinal} of {job_id} is {page[0].status}, not failed")
