"""One output of a job and its retries: each item's answer once, in the order of the job's input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import BinaryIO

import orjson

from pipeline.db.values import JobView
from pipeline.errors import ArtifactCorrupt, Conflict
from pipeline.formats.items import parse_item
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.status import find_job


class _Answers:
    """The output file of one job, a line at a time."""

    def __init__(self, job: JobView, stream: BinaryIO) -> None:
        self.job = job
        self._stream = stream
        self.advance()

    def advance(self) -> None:
        self.line = self._stream.readline()
        self.custom_id = orjson.loads(self.line)["custom_id"] if self.line else None


def with_retries(deployment: Deployment, name: str) -> tuple[JobView, ...]:
    """A job that has ended and all that retry items of it, in the order they were made; raises Conflict, NotFound."""
    jobs = [find_job(deployment, name)]
    for job in jobs:  # grows while it is walked
        with deployment.database.read() as uow:
            jobs += uow.jobs.children(job.id, limit=10_000)
    for job in jobs:
        if not job.status.is_terminal:
            raise Conflict(
                f"{job.id} is {job.status}: its results come when it has ended", hint=f"pipeline watch {job.id}"
            )
    return (jobs[0], *sorted(jobs[1:], key=lambda job: (job.created_at, job.id)))


def iter_merged(deployment: Deployment, jobs: tuple[JobView, ...]) -> Iterator[bytes]:
    """Output lines of ``jobs``, the first of which is the one that was retried; an item's earliest answer counts.

    Memory is bounded by a line for each job. Raises ArtifactCorrupt, ArtifactMissing.
    """
    store, parent = deployment.store, jobs[0]
    assert parent.input_uri is not None and parent.input_sha256 is not None
    store.verify(parent.input_uri, parent.input_sha256)
    with ExitStack() as stack:
        answers = []
        for job in jobs:
            if job.output_uri is not None and job.output_sha256 is not None:
                store.verify(job.output_uri, job.output_sha256)
                answers.append(_Answers(job, stack.enter_context(store.open(job.output_uri))))
        for line in stack.enter_context(store.open(parent.input_uri)):
            custom_id = parse_item(line).custom_id
            found = [one for one in answers if one.custom_id == custom_id]
            if found:
                yield found[0].line
            for one in found:
                one.advance()
        for one in answers:
            if one.custom_id is not None:
                raise ArtifactCorrupt(
                    f"the output of {one.job.id} has {one.custom_id!r} where {parent.id}'s input has not"
                )
