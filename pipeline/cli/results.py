"""``pipeline results`` and ``pipeline errors``: the files a job left, streamed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.output import talk
from pipeline.errors import UsageError

if TYPE_CHECKING:
    from pipeline.db.values import JobView
    from pipeline.jobs.deployment import Deployment

Which = Literal["output", "errors"]

_output_option = click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file instead of stdout."
)


@click.command()
@click.argument("job")
@click.option("--with-retries", is_flag=True, help="The answers of its retries too, all in the order of the input.")
@_output_option
@pass_context
def results(context: Context, job: str, with_retries: bool, output: Path | None) -> int:
    """Print the answers of a job that has ended, as JSON lines, in the order of the input.

    \b
    Examples:
      pipeline results job_0123456789abcdef -o output.jsonl
      pipeline results job_0123 | jq -r .response.body.choices[0].message.content
    """
    return _merged(context, job, output) if with_retries else _command(context, job, "output", output)


@click.command()
@click.argument("job")
@_output_option
@pass_context
def errors(context: Context, job: str, output: Path | None) -> int:
    """Print the item errors of a job that has ended, as JSON lines, in the order of the input.

    \b
    Example:
      pipeline errors job_0123456789abcdef | jq -r .error.code | sort | uniq -c
    """
    return _command(context, job, "errors", output)


def _command(context: Context, name: str, which: Which, output: Path | None) -> int:
    from pipeline.jobs.status import exit_code, find_job

    with context.deployment() as deployment:
        job = find_job(deployment, name)
        write_output(deployment, job, which, output)
        return exit_code(job) if which == "output" else 0


def _merged(context: Context, name: str, output: Path | None) -> int:
    from pipeline.jobs.merged_results import iter_merged, with_retries
    from pipeline.jobs.status import exit_code

    with context.deployment() as deployment:
        jobs = with_retries(deployment, name)
        printed = 0

        def lines() -> Iterator[bytes]:
            nonlocal printed
            for line in iter_merged(deployment, jobs):
                yield line
                printed += 1

        _write(output, lines())
    if missing := jobs[0].total - printed:
        talk(f"{missing:,} of {jobs[0].total:,} items did not succeed in any of {len(jobs):,} jobs")
        return exit_code(jobs[0])
    return 0


def write_output(deployment: Deployment, job: JobView, which: Which, output: Path | None) -> None:
    """Stream one of the job's files to stdout or, whole or not at all, to ``output``; then say what else there is.

    Raises:
        Conflict: the job has not ended.
        UsageError: ``output`` cannot be written.
    """
    from pipeline.jobs.results import iter_results

    chunks = iter_results(deployment, job.id, which)
    _write(output, chunks)
    if which == "output":
        missing = job.errored + job.cancelled + job.expired
        if missing:
            talk(f"{missing:,} of {job.total:,} items did not succeed: pipeline errors {job.id}")


def _write(output: Path | None, chunks: Iterator[bytes]) -> None:
    if output is not None:
        _write_file(output, chunks)
        return
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def _write_file(target: Path, chunks: Iterator[bytes]) -> None:
    beside = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        with beside.open("wb") as stream:
            stream.writelines(chunks)
        beside.replace(target)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", place=str(target)) from error
    finally:
        beside.unlink(missing_ok=True)
