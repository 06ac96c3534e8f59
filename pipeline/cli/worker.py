"""``pipeline worker`` and ``pipeline up``: this process becomes a worker, so that signals reach it directly."""

from __future__ import annotations

import os
from typing import NoReturn

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import talk
from pipeline.cli.subprocesses import worker_command, worker_environment

_slots_option = click.option(
    "--slots", type=click.IntRange(1, 64), help="Shards at the same time; default: the setting."
)


@click.command()
@click.option("--queues", help="Queues to serve, separated by commas; default: the setting.")
@_slots_option
@pass_context
def worker(context: Context, queues: str | None, slots: int | None) -> None:
    """Start a worker as the settings say. Ctrl-C drains it, a second one stops it.

    \b
    Examples:
      pipeline worker
      pipeline worker --queues generate,control --slots 2
    """
    _become_worker(context, queues.split(",") if queues else context.settings.queues, slots)


@click.command()
@_slots_option
@pass_context
def up(context: Context, slots: int | None) -> None:
    """Start a worker for all queues. Ctrl-C drains it, a second one stops it.

    \b
    Example:
      pipeline up
    """
    from pipeline.config import ALL_QUEUES

    _become_worker(context, ALL_QUEUES, slots)


def _become_worker(context: Context, queues: tuple[str, ...] | list[str], slots: int | None) -> NoReturn:
    from pipeline.config import ALL_QUEUES
    from pipeline.errors import UsageError

    names = [name.strip() for name in queues]
    for name in names:
        if name not in ALL_QUEUES:
            raise UsageError(f"no queue {name!r}; they are {', '.join(ALL_QUEUES)}")
    arguments = ["serve", "--queues", ",".join(names), "--slots", str(slots or context.settings.slots)]
    command = worker_command(context, *arguments)
    talk(f"worker for {', '.join(names)}; home {context.settings.home_path}")
    os.execve(command[0], command, worker_environment())
