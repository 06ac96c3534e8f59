"""Pauses: what nobody claims for now. A job, a queue and a worker each have one; any of them holds a shard back."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, delete, exists, or_, select, update

from pipeline.db.models import Job, PausedQueue, Worker
from pipeline.db.repository.base import Repository, utc_now
from pipeline.db.states import JobStatus

#: A job that ends, or has ended, is not held back any more.
PAUSABLE = frozenset({JobStatus.VALIDATING, JobStatus.QUEUED, JobStatus.IN_PROGRESS})


def queue_is_paused() -> ColumnElement[bool]:
    """Of a query over ``jobs``: whether the job's queue is paused."""
    return exists().where(PausedQueue.name == Job.kind)


def worker_is_paused(worker_id: str) -> ColumnElement[bool]:
    """Whether this worker is; one without a row is not."""
    return exists().where(Worker.id == worker_id, Worker.paused.is_(True))


class PauseRepository(Repository):
    """``jobs.paused``, ``paused_queues`` and ``workers.paused``."""

    def look(self, job_id: str, worker_id: str) -> tuple[JobStatus, bool] | None:
        """The job's status, and whether it, its queue or this worker is paused; None without such a job."""
        paused = or_(Job.paused.is_(True), queue_is_paused(), worker_is_paused(worker_id))
        row = self._session.execute(select(Job.status, paused).where(Job.id == job_id)).one_or_none()
        return None if row is None else (row[0], bool(row[1]))

    def set_job(self, job_id: str, paused: bool) -> bool:
        """False when the job ends or has ended: then nothing changes."""
        statement = update(Job).where(Job.id == job_id, Job.status.in_(PAUSABLE))
        return self._changed(statement.values(paused=paused)) == 1

    def set_worker(self, worker_id: str, paused: bool) -> bool:
        """False when the worker has stopped or is taken for dead."""
        statement = update(Worker).where(Worker.id == worker_id, Worker.status.in_(("live", "draining")))
        return self._changed(statement.values(paused=paused)) == 1

    def set_queue(self, name: str, paused: bool) -> None:
        """Also when another command does the same at this moment."""
        if paused:
            self._insert_missing(PausedQueue, {"name": name, "paused_at": utc_now()})
        else:
            self._changed(delete(PausedQueue).where(PausedQueue.name == name))

    def queues(self) -> frozenset[str]:
        """The queues that are paused."""
        return frozenset(self._session.scalars(select(PausedQueue.name)))

    def workers_starting(self, prefix: str, limit: int = 2) -> Sequence[tuple[str, str]]:
        """(id, status) of workers whose id starts with ``prefix``, those that have not stopped first."""
        running = Worker.status.in_(("live", "draining"))
        query = (
            select(Worker.id, Worker.status)
            .where(Worker.id.startswith(prefix, autoescape=True))
            .order_by(running.desc(), Worker.id)
            .limit(limit)
        )
        return [(worker_id, status) for worker_id, status in self._session.execute(query)]
