"""The command line: options in, one service call, its answer out. Data goes to stdout, talk to stderr.

Knows nothing about MLX, FAISS, Celery or SQL: it asks the services of :mod:`pipeline.jobs`, and reaches the engines
only by starting ``python -m workers``. A subcommand's module is imported when the subcommand is named, never before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from pipeline import collector
from pipeline.cli.context import Context
from pipeline.cli.failures import run_guarded
from pipeline.cli.root import root


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code. The entry point ``pipeline``."""
    collector.hold()
    context = Context()
    words = list(sys.argv[1:] if arguments is None else arguments)

    def invoke() -> object:
        # Not click's own main(), which would turn a reader that went away into exit code 1.
        with root.make_context("pipeline", words, obj=context) as click_context:
            return root.invoke(click_context)

    sys.exit(run_guarded(invoke, context))
