"""``pipeline cancel``."""

from __future__ import annotations

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import json_option, print_json, talk


@click.command()
@click.argument("job")
@json_option
@pass_context
def cancel(context: Context, job: str, as_json: bool) -> None:
    """End a job early. Items that are finished stay finished.

    \b
    Example:
      pipeline cancel job_0123456789abcdef
    """
    from pipeline.jobs.cancel import cancel as cancel_job

    with context.deployment(with_store=False) as deployment:
        view = cancel_job(deployment, job, tell=talk)
    if as_json:
        from pipeline.jobs.status import as_document

        print_json(as_document(view))
        return
    click.echo(view.id)
    talk(f"{view.status}: {view.succeeded:,} of {view.total:,} items succeeded, {view.cancelled:,} cancelled")
    if not view.status.is_terminal:
        talk(f"a worker ends what it holds: pipeline watch {view.id}")
