"""Tasks of the engines' queues."""

from __future__ import annotations

from pipeline.jobs.dispatch import RUN
from tasks.app import app, service


@app.task(name=RUN)  # type: ignore[untyped-decorator]
def run(queue: str) -> None:
    """Look in the database for shards of ``queue``; with no free slot the message is dropped."""
    service().serve_safely(queue)
