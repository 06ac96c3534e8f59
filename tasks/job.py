"""Tasks of the ``control`` queue."""

from __future__ import annotations

from pipeline.jobs.dispatch import FINALIZE, PLAN
from tasks.app import app, service


@app.task(name=PLAN)  # type: ignore[untyped-decorator]
def plan(job_id: str) -> None:
    """Cut a job into shards, if nobody has."""
    service().plan(job_id)


@app.task(name=FINALIZE)  # type: ignore[untyped-decorator]
def finalize(job_id: str) -> None:
    """Write a job's outputs, if nobody has."""
    service().finalize(job_id)
