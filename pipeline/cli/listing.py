"""``pipeline list``: the job table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import json_option, print_json, print_table, show_seconds, show_time, talk

if TYPE_CHECKING:
    from pipeline.db.values import JobView

_HEADINGS = ("JOB", "KIND", "RESULT", "ITEMS", "DONE", "ERRED", "CREATED", "TOOK", "MODEL")


@click.command("list")
@click.option("--status", "statuses", multiple=True, metavar="STATUS", help="Only jobs in this state; may be repeated.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@json_option
@pass_context
def list_(context: Context, statuses: tuple[str, ...], limit: int, as_json: bool) -> None:
    """List jobs, newest first.

    \b
    Examples:
      pipeline list
      pipeline list --status in_progress --status queued --json
    """
    from pipeline.db.states import JobStatus
    from pipeline.errors import UsageError
    from pipeline.jobs.status import as_document, describe_result, list_jobs

    try:
        wanted = [JobStatus(status) for status in statuses]
    except ValueError as error:
        raise UsageError(f"{error}", hint=f"one of {', '.join(JobStatus)}") from None
    with context.deployment(with_store=False) as deployment:
        jobs = list_jobs(deployment, statuses=wanted, limit=limit)
        with deployment.database.read() as uow:
            paused = sorted(uow.pauses.queues())
    if as_json:
        print_json([as_document(job) for job in jobs])
        return
    print_table(_HEADINGS, [_row(job, describe_result(job)) for job in jobs])
    for queue in paused:
        talk(f"the queue {queue} is paused: pipeline resume {queue}")
    if len(jobs) == limit:
        talk(f"the {limit} newest; --limit shows more")


def _row(job: JobView, result: str) -> tuple[str, ...]:
    took = show_seconds((job.ended_at - job.created_at).total_seconds()) if job.ended_at else "-"
    counts = (str(job.total), str(job.succeeded), str(job.errored))
    return (
        job.id,
        job.kind,
        f"{result}, paused" if job.paused else result,
        *counts,
        show_time(job.created_at),
        took,
        job.model or "-",
    )
