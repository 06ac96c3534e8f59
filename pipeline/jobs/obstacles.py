"""Why nobody works on a job, or nobody ends it, and what to do: said by every command that waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.db.values import JobView
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.status import live_workers


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason, and the command that takes it away; ``is_absence`` if all it takes is a worker that starts."""

    text: str
    hint: str
    is_absence: bool = False

    def __str__(self) -> str:
        return f"{self.text}: {self.hint}"


def obstacles(deployment: Deployment, job: JobView) -> Iterator[Obstacle]:
    """What stands in the way of a job that has not ended."""
    if job.status.is_terminal:
        return
    workers = live_workers(deployment)
    with deployment.database.read() as uow:
        is_overdue = job.expires_at is not None and uow.jobs.is_overdue(job.id)
        is_queue_paused = job.kind in uow.pauses.queues()
    if is_overdue and not workers:
        yield Obstacle(
            "its deadline has passed, and no worker is alive to end it",
            f"pipeline up, or pipeline cancel {job.id}",
            is_absence=True,
        )
    serving = [worker for worker in workers if job.kind in worker.queues]
    if not serving:
        yield Obstacle(f"no live worker serves the queue {job.kind}", "pipeline up", is_absence=True)
    elif all(worker.paused for worker in serving):
        ids = " or ".join(worker.id[:12] for worker in serving[:3])
        yield Obstacle(f"all workers of the queue {job.kind} are paused", f"pipeline resume {ids}")
    if job.paused:
        yield Obstacle("the job is paused", f"pipeline resume {job.id}")
    if is_queue_paused:
        yield Obstacle(f"the queue {job.kind} is paused", f"pipeline resume {job.kind}")
