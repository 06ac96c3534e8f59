"""How this room reaches the engines: by starting ``python -m workers`` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import click

from pipeline.cli.context import Context
from pipeline.errors import PipelineError


class WorkerFailed(PipelineError):
    """The worker process ended before its work was done."""

    code = "worker_failed"


def worker_command(context: Context, action: str, *arguments: str) -> list[str]:
    """The command line of one of the workers' actions, with this command's settings file."""
    config = ["--config", str(context.config)] if context.config is not None else []
    debug = ["--debug"] if context.debug else []
    return [sys.executable, "-m", "workers", *config, *debug, action, *arguments]


def worker_environment() -> dict[str, str]:
    """This process's environment, and no import from the current folder: a ``workers.py`` there is not ours."""
    return {**os.environ, "PYTHONSAFEPATH": "1"}


def run_worker(context: Context, action: str, *arguments: str, stdin: str = "") -> str:
    """Run an action to its end and give its stdout; what it says on stderr passes through.

    Exits with the action's own code when it fails: it has said itself what went wrong. Raises WorkerFailed when a
    signal ended it.
    """
    quiet = {} if context.debug else {"PIPELINE_LOG_LEVEL": "warning"}
    done = subprocess.run(
        worker_command(context, action, *arguments),
        env=worker_environment() | quiet,
        input=stdin,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode < 0:
        raise WorkerFailed(f"`python -m workers {action}` was ended by signal {-done.returncode}")
    if done.returncode:
        raise click.exceptions.Exit(done.returncode)
    return done.stdout
