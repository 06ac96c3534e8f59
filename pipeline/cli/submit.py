"""``pipeline submit``: a job that workers will do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

import click

from pipeline.cli.context import Context, pass_context
from pipeline.cli.options import job_option_group, request_options, submit_options
from pipeline.cli.output import json_option, print_json, talk
from pipeline.cli.watch import follow
from pipeline.errors import NoWorker
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.obstacles import obstacles
from pipeline.jobs.status import as_document, exit_code, live_workers
from pipeline.jobs.submit import Submission, submit_index
from pipeline.specs import IndexSpec, JobKind

_wait_option = click.option("--wait", is_flag=True, help="Follow the job until it ends, and exit with its code.")


@click.group()
def submit() -> None:
    """Submit a job and print its id. Every line of the file is checked first; `-` reads standard input."""


def _file_command(kind: JobKind, summary: str, example: str) -> click.Command:
    @click.pass_context
    def command(ctx: click.Context, /, file: BinaryIO, wait: bool, as_json: bool, **given: Any) -> int:
        from pipeline.cli.requests import submit_file

        with ctx.ensure_object(Context).deployment() as deployment:
            return _finish(deployment, submit_file(deployment, kind, file, given), wait=wait, as_json=as_json)

    command.__doc__ = f"{summary}\n\n\b\nExample:\n  {example}\n"
    decorated: Callable[..., Any] = request_options(kind)(_wait_option(json_option(command)))
    return submit.command(kind.value)(decorated)


_file_command(
    JobKind.GENERATE,
    "Answer chat or completion requests.",
    "pipeline submit generate requests.jsonl --model ./SmolLM2 --max-tokens 64",
)
_file_command(
    JobKind.EMBED,
    "Turn texts into vectors.",
    "pipeline submit embed corpus.jsonl --model minilm --id-field _id --overflow chunk",
)
_file_command(
    JobKind.RERANK,
    "Score documents against a query, by asking the model yes or no.",
    "pipeline submit rerank pairs.jsonl --model ./SmolLM2",
)


@submit.command()
@click.argument("name")
@click.option("--from", "sources", multiple=True, required=True, metavar="JOB", help="Embed job; may be repeated.")
@click.option("--metric", type=click.Choice(["ip", "l2"]), default="ip", show_default=True)
@job_option_group
@_wait_option
@json_option
@pass_context
def index(
    context: Context, /, name: str, sources: tuple[str, ...], metric: str, wait: bool, as_json: bool, **given: Any
) -> int:
    """Build a FAISS index from embed jobs. NAME moves to it when its recall has been measured.

    \b
    Example:
      pipeline submit index docs --from job_0123456789abcdef --wait
    """
    from pipeline.cli.requests import talk_of_existing
    from pipeline.jobs.status import find_job
    from pipeline.jobs.submit import build_spec

    with context.deployment() as deployment:
        ids = [find_job(deployment, source).id for source in sources]
        spec = build_spec({"kind": "index", "name": name, "sources": ids, "metric": metric})
        assert isinstance(spec, IndexSpec)
        submission = submit_index(deployment, spec, submit_options(given))
        if submission.existing:
            talk_of_existing(submission)
        return _finish(deployment, submission, wait=wait, as_json=as_json)


def _finish(deployment: Deployment, submission: Submission, *, wait: bool, as_json: bool) -> int:
    """Print the id, then wait where asked to; with JSON the one document comes last."""
    job = submission.job
    if not as_json:
        click.echo(job.id)
    served = job.status.is_terminal or bool(live_workers(deployment, job.kind))
    if wait and served:
        job = follow(deployment, job.id)
    if as_json:
        print_json(
            {
                "job": as_document(job),
                "existing": submission.existing,
                "same": submission.same,
                "input": submission.report,
            }
        )
    if not served:
        message, hint = f"no live worker serves the queue {job.kind}", "start one with: pipeline up"
        if wait:
            raise NoWorker(f"{message}; {job.id} is kept and waits for one", hint=hint)
        talk(f"{message}; {hint}")
    if not wait:
        for obstacle in obstacles(deployment, job):
            if not obstacle.is_absence:
                talk(str(obstacle))
    return exit_code(job) if wait else 0
