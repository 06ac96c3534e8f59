"""``pipeline workers``: who is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import json_option, print_json, print_table, show_time, talk

if TYPE_CHECKING:
    from pipeline.db.values import WorkerView

_HEADINGS = ("WORKER", "HOST", "PID", "STATUS", "QUEUES", "SLOTS", "DEVICE", "SEEN")

#: Characters of an id that are shown; `pipeline pause` takes them.
ID_CHARS = 12


@click.command()
@json_option
@pass_context
def workers(context: Context, as_json: bool) -> None:
    """List the workers that have not stopped, and which queues are paused.

    \b
    Examples:
      pipeline workers
      pipeline workers --json | jq '.workers[].host'
    """
    from pipeline.jobs.status import live_workers

    with context.deployment(with_store=False) as deployment:
        live = live_workers(deployment)
        with deployment.database.read() as uow:
            paused = sorted(uow.pauses.queues())
    if as_json:
        print_json({"workers": live, "paused_queues": paused})
        return
    print_table(_HEADINGS, [_row(worker) for worker in live])
    if not live:
        talk("no worker is alive: pipeline up")
    for queue in paused:
        talk(f"the queue {queue} is paused: pipeline resume {queue}")


def show_worker_status(worker: WorkerView) -> str:
    return f"{worker.status}, paused" if worker.paused else worker.status


def _row(worker: WorkerView) -> tuple[str, ...]:
    numbers = (worker.id[:ID_CHARS], worker.host, str(worker.pid), show_worker_status(worker))
    return (*numbers, ",".join(worker.queues), str(worker.slots), worker.device, show_time(worker.seen_at))
