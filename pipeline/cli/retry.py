"""``pipeline retry`` and ``pipeline requeue``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import count_of, json_option, print_json, talk

if TYPE_CHECKING:
    from pipeline.jobs.retry import Retry


@click.command()
@click.argument("job")
@click.option("--errors", "codes", multiple=True, metavar="CODE", help="Only items that ended so; may be repeated.")
@click.option("--idempotency-key", help="Retry once: the same key again gives the job that is there.")
@click.option("--again", is_flag=True, help="Make another job although the same retry was made before.")
@click.option(
    "--repin", is_flag=True, help="Take the model as it is here now; answers may differ from the first job's."
)
@json_option
@pass_context
def retry(
    context: Context,
    job: str,
    codes: tuple[str, ...],
    idempotency_key: str | None,
    again: bool,
    repin: bool,
    as_json: bool,
) -> None:
    """Try the failed items of an ended job again. They are a job of their own, and its id is printed.

    Spec, seeds, ids and the model's digest are those of JOB. Asked again, the same retry gives the job that is there.

    \b
    Examples:
      pipeline retry job_0123456789abcdef
      pipeline retry job_0123 --errors engine_crashed --errors shard_failed
      pipeline results job_0123 --with-retries
    """
    from pipeline.jobs.retry import RetryOptions
    from pipeline.jobs.retry import retry as retry_job

    with context.deployment() as deployment:
        made = retry_job(deployment, job, RetryOptions(frozenset(codes), idempotency_key, again, repin))
    if as_json:
        _print(made)
        return
    click.echo(made.job.id)
    _say(made)


def _print(made: Retry) -> None:
    from pipeline.jobs.status import as_document

    print_json(
        {
            "job": as_document(made.job),
            "existing": made.existing,
            "selection": made.selection,
            "other_retries": [sibling.id for sibling in made.siblings],
        }
    )


def _say(made: Retry) -> None:
    job, parent = made.job, made.parent
    if made.selection is None:
        talk(f"this retry of {parent.id} was made before, and is {job.status}; --again makes another")
        if job.status.is_terminal:
            talk(f"what failed in it: pipeline retry {job.id}")
    else:
        talk(f"{count_of(job.total, 'item')} of {parent.id}, once more")
        if made.selection.invalid:
            left = count_of(made.selection.invalid, "item")
            talk(f"left out: {left} that were invalid lines of the input, and would err again")
    for sibling in made.siblings:
        talk(f"another retry of {parent.id}: {sibling.id} ({sibling.status}, {count_of(sibling.total, 'item')})")
    if not job.status.is_terminal:
        talk(f"both in one: pipeline results {parent.id} --with-retries")


@click.command()
@click.argument("job")
@click.option("--shard", type=click.IntRange(0), help="Only the shard with this number, counted from 0.")
@json_option
@pass_context
def requeue(context: Context, job: str, shard: int | None, as_json: bool) -> None:
    """Revive failed shards of a job that runs. One that has ended is for `pipeline retry`.

    Attempts and suspects are forgotten; answers that are durable stay, and the open items are tried again.

    \b
    Examples:
      pipeline requeue job_0123456789abcdef
      pipeline requeue job_0123 --shard 7
    """
    from pipeline.jobs.requeue import requeue as requeue_job
    from pipeline.jobs.status import as_document

    with context.deployment(with_store=False) as deployment:
        done = requeue_job(deployment, job, shard=shard)
    if as_json:
        print_json({"job": as_document(done.job), "shards": done.shards, "items": done.items})
        return
    click.echo(done.job.id)
    talk(f"{count_of(len(done.shards), 'shard')} with {count_of(done.items, 'open item')} wait to be claimed again")
