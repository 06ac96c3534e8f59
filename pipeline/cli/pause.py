"""``pipeline pause`` and ``pipeline resume``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import json_option, print_json, talk

if TYPE_CHECKING:
    from pipeline.jobs.pause import Target

_HOLDS = {
    "job": "no shard of it is claimed; it can be cancelled, and its deadline holds",
    "queue": "no shard of its jobs is claimed, by any worker, until it is resumed",
    "worker": "it claims no shard until it is resumed; a new start of it is another worker",
}


@click.command()
@click.argument("name")
@json_option
@pass_context
def pause(context: Context, name: str, as_json: bool) -> None:
    """Hold back a job, a queue or a worker. NAME is a queue, or the id of a job or worker, or its beginning.

    Shards that run under it keep their answers and are given back within seconds; no attempt is counted.

    \b
    Examples:
      pipeline pause job_0123456789abcdef
      pipeline pause generate
    """
    from pipeline.jobs.pause import pause as pause_target

    with context.deployment(with_store=False) as deployment:
        target = pause_target(deployment, name)
    _say(target, paused=True, as_json=as_json)


@click.command()
@click.argument("name")
@json_option
@pass_context
def resume(context: Context, name: str, as_json: bool) -> None:
    """Let a job, a queue or a worker go on that was paused. NAME is as of `pipeline pause`.

    \b
    Example:
      pipeline resume generate
    """
    from pipeline.jobs.pause import resume as resume_target

    with context.deployment(with_store=False) as deployment:
        target = resume_target(deployment, name)
    _say(target, paused=False, as_json=as_json)


def _say(target: Target, *, paused: bool, as_json: bool) -> None:
    if as_json:
        print_json({"kind": target.kind, "name": target.name, "paused": paused})
        return
    click.echo(target.name)
    talk(f"{target.kind} {'paused' if paused else 'resumed'}{f': {_HOLDS[target.kind]}' if paused else ''}")
