"""Reading back what a job made, as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pipeline.errors import Conflict
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.status import find_job
from pipeline.store.artifacts import CHUNK_BYTES


def iter_results(deployment: Deployment, job_id: str, which: Literal["output", "errors"] = "output") -> Iterator[bytes]:
    """The bytes of a finished job's output or error file; none when it has no such file.

    Raises NotFound, Conflict when the job has not ended, ArtifactCorrupt when the file is not what its row says.
    """
    job = find_job(deployment, job_id)
    if not job.status.is_terminal:
        raise Conflict(f"{job.id} is {job.status}: its results come when it has ended", hint=f"pipeline watch {job.id}")
    uri, sha256 = (job.output_uri, job.output_sha256) if which == "output" else (job.errors_uri, job.errors_sha256)
    if uri is None or sha256 is None:
        return
    deployment.store.verify(uri, sha256)
    with deployment.store.open(uri) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk
