"""What a job is doing, for people: counts, the commonest errors, what was measured, who serves its queue."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.db.states import JobStatus, Outcome
from pipeline.db.values import HeldUp, JobView, Measurement, VerdictView, WorkerView
from pipeline.errors import Conflict, ExitCode, NotFound
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.owners import is_here, runs
from pipeline.specs import GenerateSpec, parse_spec
from pipeline.specs.contract import NOT_SEED_STABLE


@dataclass(frozen=True, slots=True)
class RetryView:
    """A job that retries items of another."""

    job_id: str
    result: str
    total: int
    succeeded: int


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job with all that belongs to it at one moment.

    ``verdicts`` are what checks of accelerations found; ``promise`` is said where answers depend on more than seeds.
    """

    job: JobView
    result: str
    error_codes: tuple[tuple[str, int], ...]
    metrics: tuple[Measurement, ...]
    verdicts: tuple[VerdictView, ...]
    promise: str | None
    attempts: int
    failed_attempts: tuple[tuple[str, int], ...]
    waiting: tuple[HeldUp, ...]
    child_deaths: int
    last_errors: tuple[str, ...]
    served_by: tuple[WorkerView, ...]
    retries: tuple[RetryView, ...]


def find_job(deployment: Deployment, name: str) -> JobView:
    """A job by its id, or by an unambiguous beginning of it; raises NotFound, Conflict."""
    with deployment.database.read() as uow:
        job = uow.jobs.get(name)
        if job is not None and job.pruned_at is None:
            return job
        prefix = name if name.startswith("job_") else f"job_{name}"
        ids = uow.jobs.ids_starting(prefix)
        if not ids or len(prefix) < len("job_") + 3:
            raise NotFound(f"no job {name}", hint="`pipeline list` shows the jobs")
        if len(ids) > 1:
            raise Conflict(f"{name} is the beginning of several job ids")
        found = uow.jobs.get(ids[0])
    assert found is not None
    return found


def report_job(deployment: Deployment, job_id: str) -> JobReport:
    """Everything `pipeline status` shows; raises NotFound."""
    job = find_job(deployment, job_id)
    with deployment.database.read() as uow:
        codes = tuple(uow.jobs.error_counts(job.id))
        metrics = tuple(uow.metrics.of_job(job.id))
        verdicts = tuple(uow.verdicts.of_job(job.id))
        attempts, deaths = uow.shards.attempts_of(job.id)
        failed = tuple(uow.attempts.counts(job.id))
        waiting = () if job.status.is_terminal else (*_held_up(job), *uow.attempts.held_up(job.id))
        last_errors = tuple(uow.shards.last_errors(job.id))
        children = uow.jobs.children(job.id)
    served = tuple(live_workers(deployment, job.kind))
    retries = tuple(RetryView(one.id, describe_result(one), one.total, one.succeeded) for one in children)
    return JobReport(
        job=job,
        result=describe_result(job),
        error_codes=codes,
        metrics=metrics,
        verdicts=verdicts,
        promise=_promise_of(job),
        attempts=attempts,
        failed_attempts=failed,
        waiting=waiting,
        child_deaths=deaths,
        last_errors=last_errors,
        served_by=served,
        retries=retries,
    )


def _held_up(job: JobView) -> Iterator[HeldUp]:
    """Trouble of the planner or the finalizer; what a failed job says there is why it failed."""
    if job.outcome is not Outcome.FAILED and job.error_code is not None:
        yield HeldUp(job.error_code, f"{job.error_code}: {job.error_message}", 0, None)


def _promise_of(job: JobView) -> str | None:
    """What the job's answers are, where that is less than the ordinary: the same for the same seed."""
    if job.draft_model is None:
        return None
    spec = parse_spec(job.spec)
    return NOT_SEED_STABLE if isinstance(spec, GenerateSpec) and not spec.is_seed_stable else None


def count_errors(deployment: Deployment, job_id: str) -> Sequence[tuple[str, int]]:
    """The most frequent error codes of a job's items."""
    with deployment.database.read() as uow:
        return uow.jobs.error_counts(job_id)


def list_jobs(deployment: Deployment, *, statuses: Collection[JobStatus] = (), limit: int = 50) -> Sequence[JobView]:
    """Newest first."""
    with deployment.database.read() as uow:
        return uow.jobs.list(statuses=statuses, limit=limit)


def live_workers(deployment: Deployment, queue: str | None = None) -> list[WorkerView]:
    """Workers that have not stopped, serving ``queue``; one of this host whose process is gone does not count."""
    with deployment.database.read() as uow:
        workers = uow.workers.live()
    return [
        worker
        for worker in workers
        if (queue is None or queue in worker.queues) and (not is_here(worker) or runs(worker.pid))
    ]


def describe_result(job: JobView) -> str:
    """One word for how a job stands: its status, unless it is completed and something in it erred."""
    if job.status is not JobStatus.COMPLETED or job.errored == 0:
        return job.status.value
    return "all_errored" if job.succeeded == 0 else "some_errored"


def as_document(job: JobView) -> dict[str, Any]:
    """A job as JSON, in the words of the view ``job_status``: ``job_id``, ``outcome``, ``asked_outcome``."""
    document = {"job_id": job.id, **asdict(job), "asked_outcome": job.outcome}
    document["outcome"] = None
    if job.status is JobStatus.COMPLETED:
        result = describe_result(job)
        document["outcome"] = "all_succeeded" if result == JobStatus.COMPLETED else result
    elif job.status.is_terminal:
        document["outcome"] = job.status
    return document


def exit_code(job: JobView) -> ExitCode:
    """What a command that waited for the job exits with."""
    match job.status:
        case JobStatus.FAILED:
            return ExitCode.JOB_FAILED
        case JobStatus.CANCELLED:
            return ExitCode.JOB_CANCELLED
        case JobStatus.EXPIRED:
            return ExitCode.JOB_EXPIRED
        case _:
            return ExitCode.ALL_ERRORED if describe_result(job) == "all_errored" else ExitCode.OK
