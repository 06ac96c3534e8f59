"""Holding back a job, a queue or a worker, and letting it go on. What runs under it gives its shards back soon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.config import ALL_QUEUES
from pipeline.errors import Conflict, NotFound
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.dispatch import CONTROL_QUEUE

#: Characters of an id that a name has to give, at least.
SHORTEST = 3


@dataclass(frozen=True, slots=True)
class Target:
    """What a name stands for; ``queue`` is whom to ring when it goes on."""

    kind: Literal["job", "queue", "worker"]
    name: str
    queue: str | None = None


def pause(deployment: Deployment, name: str) -> Target:
    """Claim nothing under it until :func:`resume`; raises NotFound, Conflict when it ends or has ended."""
    return _set(deployment, find_target(deployment, name), paused=True)


def resume(deployment: Deployment, name: str) -> Target:
    """Raises NotFound, Conflict when it ends or has ended."""
    target = _set(deployment, find_target(deployment, name), paused=False)
    if target.queue is not None:
        deployment.doorbell.run(target.queue)
    return target


def find_target(deployment: Deployment, name: str) -> Target:
    """A queue by its name, a job or a worker by its id or a beginning of it that no other id has.

    Raises:
        NotFound: there is no such thing.
        Conflict: the name says too little, or is ``control``, which has no shards to hold back.
    """
    if name == CONTROL_QUEUE:
        raise Conflict(
            "the queue control cannot be paused: it plans and finalizes",
            hint=f"pause the queues of the work: {', '.join(queue for queue in ALL_QUEUES if queue != CONTROL_QUEUE)}",
        )
    if name in ALL_QUEUES:
        return Target("queue", name, name)
    found = _jobs(deployment, name) + _workers(deployment, name)
    if not found:
        raise NotFound(
            f"no job, queue or worker {name}", hint="`pipeline list` shows the jobs, `pipeline workers` the workers"
        )
    if len(found) > 1:
        raise Conflict(
            f"{name} is the beginning of several ids: {', '.join(f'{one.kind} {one.name}' for one in found)}",
            hint="give more of it",
        )
    return found[0]


def _jobs(deployment: Deployment, name: str) -> list[Target]:
    prefix = name if name.startswith("job_") else f"job_{name}"
    if len(prefix) < len("job_") + SHORTEST:
        return []
    with deployment.database.read() as uow:
        jobs = [uow.jobs.get(job_id) for job_id in uow.jobs.ids_starting(prefix)]
    return [Target("job", job.id, job.kind) for job in jobs if job is not None]


def _workers(deployment: Deployment, name: str) -> list[Target]:
    """One that has stopped is meant only if no other is."""
    if len(name) < SHORTEST:
        return []
    with deployment.database.read() as uow:
        workers = uow.pauses.workers_starting(name)
    running = [worker_id for worker_id, status in workers if status in ("live", "draining")]
    return [Target("worker", worker_id) for worker_id in running or [worker_id for worker_id, _ in workers]]


def _set(deployment: Deployment, target: Target, *, paused: bool) -> Target:
    with deployment.database.write() as uow:
        match target.kind:
            case "queue":
                uow.pauses.set_queue(target.name, paused)
            case "job":
                if not uow.pauses.set_job(target.name, paused):
                    job = uow.jobs.get(target.name)
                    raise Conflict(f"{target.name} is {job.status if job else 'gone'}: it has no work to hold back")
            case "worker":
                if not uow.pauses.set_worker(target.name, paused):
                    raise Conflict(f"worker {target.name} has stopped")
    return target
