"""``pipeline run``: submit, work on it in this terminal until it is done, print the results. Needs no worker and no broker."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from pipeline.cli.context import Context
from pipeline.cli.options import request_options
from pipeline.cli.output import talk
from pipeline.cli.results import write_output
from pipeline.cli.subprocesses import WorkerFailed, worker_command, worker_environment
from pipeline.cli.watch import follow
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.status import exit_code
from pipeline.private import make_private_folder, private_opener
from pipeline.specs import JobKind

#: Seconds that a worker whose job has ended may take to go.
_LEAVE_S = 30.0


@click.group()
def run() -> None:
    """Submit a job, work on it here until it is done, print the results. Options as of `pipeline submit`."""


def _command(kind: JobKind, summary: str, example: str) -> None:
    @click.pass_context
    def command(ctx: click.Context, /, file: BinaryIO, output: Path | None, **given: Any) -> int:
        from pipeline.cli.requests import submit_file

        context = ctx.ensure_object(Context)
        with context.deployment() as deployment:
            job_id = submit_file(deployment, kind, file, given).job.id
            talk(f"{job_id} (stays when this command is interrupted: `pipeline up` goes on with it)")
            with _local_worker(context, deployment, job_id) as check_alive:
                job = follow(deployment, job_id, check_alive=check_alive)
            write_output(deployment, job, "output", output)
            return exit_code(job)

    command.__doc__ = f"{summary}\n\n\b\nExample:\n  {example}\n"
    output_option = click.option(
        "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Results go here."
    )
    decorated: Callable[..., Any] = request_options(kind)(output_option(command))
    run.command(kind.value)(decorated)


_command(
    JobKind.GENERATE,
    "Answer chat or completion requests, here and now.",
    'echo \'{"prompt": "What is a Mac?"}\' | pipeline run generate - --model ./SmolLM2',
)
_command(JobKind.EMBED, "Turn texts into vectors, here and now.", "pipeline run embed corpus.jsonl --model minilm")
_command(JobKind.RERANK, "Score documents, here and now.", "pipeline run rerank pairs.jsonl --model ./SmolLM2")


@contextmanager
def _local_worker(context: Context, deployment: Deployment, job_id: str) -> Iterator[Callable[[], None]]:
    """A worker process for one job, its log in a file. Yields a check that raises WorkerFailed once it died."""
    log = deployment.settings.home_path / "logs" / f"{job_id}.log"
    make_private_folder(log.parent)
    command = worker_command(context, "serve", "--until", job_id)
    with open(log, "wb", opener=private_opener) as stream:
        # A session of its own: Ctrl-C reaches this process, which then ends the worker in order.
        process = subprocess.Popen(
            command,
            env=worker_environment(),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def check_alive() -> None:
        if process.poll() not in (None, 0):
            last = log.read_text(errors="replace").strip().splitlines()[-5:]
            for line in last:
                talk(f"worker: {line}")
            raise WorkerFailed(f"the worker ended with {process.returncode}", hint=f"its log is {log}")

    try:
        yield check_alive
        process.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        talk(f"the worker did not leave by itself and is ended; its log is {log}")
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and make it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
