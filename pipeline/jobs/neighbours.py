"""Taking back at once what a worker of this host held when its process ended."""

from __future__ import annotations

import logging

from pipeline.db.states import JobStatus
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.presence import Presence

log = logging.getLogger(__name__)

#: Statuses in which a job-level lease is held.
_LEASED = (JobStatus.VALIDATING, JobStatus.FINALIZING)


def bury(deployment: Deployment, presence: Presence) -> None:
    """Free every lease of neighbours that are gone; what moved meanwhile is somebody else's. Raises TransientError."""
    for worker_id in presence.gone():
        _take_back_shards(deployment, worker_id)
        _free_jobs(deployment, worker_id)
        with deployment.database.write() as uow:
            uow.workers.free_leases_of(worker_id)
            uow.workers.bury(worker_id)
        presence.forget(worker_id)
        log.warning("dead_neighbour", extra={"worker": worker_id})


def _take_back_shards(deployment: Deployment, worker_id: str) -> None:
    after = 0
    while True:
        with deployment.database.read() as uow:
            page = uow.shards.leased(after=after)
        if not page:
            return
        for shard in page:
            if shard.lease_owner == worker_id:
                with deployment.database.write() as uow:
                    taken = uow.shards.take_back(shard, f"worker {worker_id} ended while it held the lease")
                    job = uow.jobs.get(shard.job_id)
                if taken and job is not None:
                    log.warning("lease_taken_back", extra={"job": job.id, "shard": shard.ordinal})
                    deployment.doorbell.run(job.kind)
        after = page[-1].id


def _free_jobs(deployment: Deployment, worker_id: str) -> None:
    for status in _LEASED:
        after = ""
        while True:
            with deployment.database.read() as uow:
                page = uow.jobs.in_status(status, after=after)
            if not page:
                break
            for job in page:
                if job.lease_owner == worker_id:
                    with deployment.database.write() as uow:
                        uow.jobs.free_lease(job)
            after = page[-1].id
