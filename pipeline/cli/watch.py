"""``pipeline watch``, and the waiting that `submit --wait` and `run` do: polls the database, needs no broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import json_option, print_json, talk

if TYPE_CHECKING:
    from pipeline.db.values import JobView
    from pipeline.jobs.deployment import Deployment

#: Seconds between two looks at the job, and between two looks at what it measured.
POLL_S = 0.4
_MEASURES_S = 5.0

#: Seconds between two looks at what stands in its way.
_OBSTACLES_S = 5.0


@click.command()
@click.argument("job")
@json_option
@pass_context
def watch(context: Context, job: str, as_json: bool) -> int:
    """Follow a job until it ends, and exit with its code. With --json, one line on stdout at each change.

    \b
    Examples:
      pipeline watch job_0123456789abcdef
      pipeline watch job_0123 --json | jq .succeeded
    """
    from pipeline.jobs.status import as_document, exit_code, find_job

    with context.deployment(with_store=False) as deployment:
        view = find_job(deployment, job)
        on_change = (lambda changed: print_json(as_document(changed), indent=None)) if as_json else None
        return exit_code(follow(deployment, view.id, on_change=on_change))


def follow(
    deployment: Deployment,
    job_id: str,
    *,
    check_alive: Callable[[], None] | None = None,
    on_change: Callable[[JobView], None] | None = None,
) -> JobView:
    """Show a job's progress on stderr until it has ended, and give it as it ended.

    ``check_alive`` looks after the caller's own worker while it has not, and may raise. A database that is away for a
    while is waited for. What stands in the job's way is said once.
    """
    from pipeline.cli.meter import Meter
    from pipeline.cli.progress import make_display
    from pipeline.errors import TransientError
    from pipeline.jobs.status import find_job

    meter, speed, last = Meter(), _Speed(deployment, job_id), None
    obstacles = _Obstacles(deployment, has_worker=check_alive is not None)
    away = False
    with make_display(job_id) as display:
        while True:
            try:
                job = find_job(deployment, job_id)
                display.show(meter.read(job, speed.read(job)))
                away = False
            except TransientError as error:
                if not away:
                    talk(f"waiting: {error}")
                away = True
            else:
                if on_change is not None and job != last:
                    on_change(job)
                last = job
                if job.status.is_terminal:
                    break
                if check_alive is not None:
                    check_alive()
                obstacles.say(job)
            time.sleep(POLL_S)
    _say_end(deployment, job)
    return job


def _say_end(deployment: Deployment, job: JobView) -> None:
    from pipeline.jobs.status import count_errors, describe_result

    counts = {"succeeded": job.succeeded, "erred": job.errored, "cancelled": job.cancelled, "expired": job.expired}
    words = [f"{count:,} {name}" for name, count in counts.items() if count or name in ("succeeded", "erred")]
    talk(f"{job.id} {describe_result(job)}: {', '.join(words)} of {job.total:,}")
    if job.error_message:
        talk(f"{job.error_code}: {job.error_message}")
    if job.errored:
        talk("errors: " + ", ".join(f"{code} {count:,}" for code, count in count_errors(deployment, job.id)))


class _Obstacles:
    """Says why nobody works on a job: at the first look, and later what is new."""

    def __init__(self, deployment: Deployment, *, has_worker: bool) -> None:
        self._deployment = deployment
        self._has_worker = has_worker
        self._said: frozenset[str] = frozenset()
        self._at = -_OBSTACLES_S

    def say(self, job: JobView) -> None:
        from pipeline.errors import TransientError
        from pipeline.jobs.obstacles import obstacles

        if time.monotonic() - self._at < _OBSTACLES_S:
            return
        self._at = time.monotonic()
        try:
            found = [str(one) for one in obstacles(self._deployment, job) if not (one.is_absence and self._has_worker)]
        except TransientError:
            return  # the next look at the job says so
        for text in found:
            if text not in self._said:
                talk(text)
        self._said = frozenset(found)


class _Speed:
    """Tokens per second over the shards that are done; read again now and then, and only when one more is done."""

    def __init__(self, deployment: Deployment, job_id: str) -> None:
        self._deployment = deployment
        self._job_id = job_id
        self._open = -1
        self._at = 0.0
        self._value: float | None = None

    def read(self, job: JobView) -> float | None:
        from pipeline.cli.measures import aggregate

        if job.shards_open != self._open and time.monotonic() - self._at >= _MEASURES_S:
            with self._deployment.database.read() as uow:
                self._value = aggregate(uow.metrics.of_job(self._job_id)).get("tokens_per_s")
            self._open, self._at = job.shards_open, time.monotonic()
        return self._value
