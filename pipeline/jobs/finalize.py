"""From parts to a job's two files, in input order, each item once; then the one UPDATE that makes them real.

Memory is bounded by a shard. Runs under the job-level lease: a finalizer that wakes late finds its token gone, and
what it wrote lies under names that hold that token, so it touches nothing that counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import orjson

from pipeline.db.states import JobStatus, Outcome, ShardStatus
from pipeline.db.values import JobLease, JobView, ShardView
from pipeline.errors import ArtifactCorrupt, ArtifactMissing, LeaseLost, PipelineError, TransientError
from pipeline.failpoints import fail_point
from pipeline.formats.items import Item, parse_item, parse_items
from pipeline.formats.results import error_line, output_line
from pipeline.jobs.damage import DamagedPart, check_index, mend, read_part
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.leases import JobKeeper
from pipeline.store import layout
from pipeline.store.artifacts import Artifact

log = logging.getLogger(__name__)

#: Finalizers in a row that met a file they cannot do without, after which the job ends as failed.
HOPELESS_TRIES = 6

#: What an item that was not answered says, by how the job or its shard ended.
UNANSWERED = {
    Outcome.CANCELLED: ("batch_cancelled", "the job was cancelled before this item was answered"),
    Outcome.EXPIRED: ("batch_expired", "the job's deadline came before this item was answered"),
    Outcome.FAILED: ("batch_failed", "the job failed before this item was answered"),
}

_FINAL_STATUS = {
    None: JobStatus.COMPLETED,
    Outcome.CANCELLED: JobStatus.CANCELLED,
    Outcome.EXPIRED: JobStatus.EXPIRED,
    Outcome.FAILED: JobStatus.FAILED,
}


def finalize(deployment: Deployment, job_id: str, *, owner: str) -> bool:
    """Write the outputs of a job that is ``finalizing`` and end it; False when another process does, or did.

    Raises:
        ArtifactMissing, ArtifactCorrupt: what is needed cannot be read; nothing is finalized, the job's row says why,
            and the lease is left to run out before the next try. A damaged part is unregistered and run again.
        TransientError: database or store out of reach; likewise.
    """
    with deployment.database.write() as uow:
        lease = uow.jobs.lease(job_id, JobStatus.FINALIZING, owner)
        job = uow.jobs.get(job_id)
    if lease is None or job is None:
        return False
    try:
        with JobKeeper(deployment, lease):
            fail_point("finalize.after_lease")
            output, errors = _write_outputs(deployment, job, lease)
            fail_point("finalize.after_outputs")
            status = _FINAL_STATUS[job.outcome]
            with deployment.database.write() as uow:
                uow.jobs.finish(lease, status, output=output, errors=errors)
                index = uow.indexes.of_job(job_id)
                if status is JobStatus.COMPLETED and index is not None:
                    fail_point("publish.before_alias")
                    uow.jobs.publish_alias(index.name, index.id)
                    fail_point("publish.in_alias")
                fail_point("finalize.in_commit")
            fail_point("finalize.after_update")
    except LeaseLost as error:
        log.warning("finalizer_lost", extra={"job": job_id, "reason": str(error)})
        return False
    except DamagedPart as damaged:
        return _mend(deployment, lease, job, damaged)
    except Exception as error:
        _note(deployment, lease, job, error)
        raise
    log.info("job_ended", extra={"job": job_id, "status": status.value})
    return True


def _mend(deployment: Deployment, lease: JobLease, job: JobView, damaged: DamagedPart) -> bool:
    """False: the job is not ended by this finalizer. Raises what stopped it from mending."""
    try:
        if mend(deployment, lease, job, damaged):
            return False
        raise damaged.cause from None
    except LeaseLost as error:
        log.warning("finalizer_lost", extra={"job": job.id, "reason": str(error)})
        return False
    except PipelineError as error:
        _note(deployment, lease, job, error)
        raise


def _write_outputs(
    deployment: Deployment, job: JobView, lease: JobLease
) -> tuple[tuple[str, str], tuple[str, str] | None]:
    """Stream all shards into ``output`` and ``errors``; the second is None when no item erred."""
    with ExitStack() as stack:
        output = stack.enter_context(deployment.store.create(layout.output_file(job.id, lease.token)))
        errors = stack.enter_context(deployment.store.create(layout.errors_file(job.id, lease.token)))
        for shard in _shards(deployment, job):
            for line, succeeded in _shard_lines(deployment, job, shard):
                (output if succeeded else errors).stream.write(line)
        if not job.shards_total:
            for item in _all_items(deployment, job):
                errors.stream.write(error_line(job, item.custom_id, _unanswered_error(job, item, None)))
    return _named(output.artifact), _keep(deployment, errors.artifact)


def _named(artifact: Artifact) -> tuple[str, str]:
    return artifact.uri, artifact.sha256


def _keep(deployment: Deployment, artifact: Artifact) -> tuple[str, str] | None:
    if artifact.size:
        return _named(artifact)
    deployment.store.delete(artifact.uri)
    return None


def _shards(deployment: Deployment, job: JobView) -> Iterator[ShardView]:
    """All shards in order, a page at a time, no transaction held between pages."""
    after = -1
    while True:
        with deployment.database.read() as uow:
            page = uow.shards.of_job(job.id, after=after)
        yield from page
        if not page:
            return
        after = page[-1].ordinal


def _shard_lines(deployment: Deployment, job: JobView, shard: ShardView) -> Iterator[tuple[bytes, bool]]:
    """(line, succeeded) of each item of a shard, in input order, each exactly once."""
    with deployment.database.read() as uow:
        parts = uow.parts.of_shard(shard.id)
    answers: dict[int, dict[str, Any]] = {}
    for part in parts:
        if job.kind == "index":
            check_index(deployment, job, shard, part)
        for line in read_part(deployment, shard, part).splitlines():
            answer = orjson.loads(line)
            if answer["i"] in answers:
                raise ArtifactCorrupt(f"item {answer['i']} of shard {shard.ordinal} is in two registered parts")
            answers[answer["i"]] = answer
    if len(answers) != shard.succeeded + shard.errored:
        raise ArtifactCorrupt(f"shard {shard.ordinal} has {len(answers)} answers in its parts, its row says otherwise")
    missing: list[Item] = []
    if len(answers) < shard.item_count:
        missing = _unanswered_items(deployment, job, shard)
    for index in range(shard.item_count):
        found = answers.get(index)
        if found is None:
            if not missing:
                continue
            item = missing[index]
            yield error_line(job, item.custom_id, _unanswered_error(job, item, shard)), False
        elif "error" in found:
            yield error_line(job, found["id"], found["error"]), False
        else:
            yield output_line(job, found["id"], found["body"]), True


def _unanswered_error(job: JobView, item: Item, shard: ShardView | None) -> dict[str, Any]:
    if shard is not None and shard.status is ShardStatus.FAILED:
        return {"code": "shard_failed", "message": shard.last_error or "", "line": item.line}
    assert job.outcome is not None, f"item {item.custom_id} of {job.id} was never answered"
    code, message = UNANSWERED[job.outcome]
    if job.error_message:
        message = f"{message}: {job.error_message}"
    return {"code": code, "message": message, "line": item.line}


def _unanswered_items(deployment: Deployment, job: JobView, shard: ShardView) -> list[Item]:
    """The shard's items, for their names; none when the job failed for want of its item file."""
    assert job.input_uri is not None
    try:
        return parse_items(
            deployment.store.read_bytes(job.input_uri, start=shard.start_byte, end=shard.end_byte, sha256=shard.sha256)
        )
    except (ArtifactMissing, ArtifactCorrupt, ValueError):
        if job.outcome is not Outcome.FAILED:
            raise
        log.warning("items_cannot_be_named", extra={"job": job.id, "shard": shard.ordinal})
        return []


def _all_items(deployment: Deployment, job: JobView) -> Iterator[Item]:
    """The items of a job that never got shards, as a stream; as far as they can be read when that is why it failed."""
    assert job.input_uri is not None
    try:
        with deployment.store.open(job.input_uri) as stream:
            for line in stream:
                yield parse_item(line)
    except (ArtifactMissing, ArtifactCorrupt, ValueError):
        if job.outcome is not Outcome.FAILED:
            raise
        log.warning("items_cannot_be_named", extra={"job": job.id})


def _note(deployment: Deployment, lease: JobLease, job: JobView, error: Exception) -> None:
    """Say in the job's row what is in the way. What stays unreadable with the store in reach ends the job as failed:
    its files then hold what can be read, and leave out what cannot even be named."""
    code = error.code if isinstance(error, PipelineError) else "internal_error"
    try:
        unreadable = isinstance(error, (ArtifactMissing, ArtifactCorrupt))
        hopeless = (
            unreadable and job.control_tries + 1 >= HOPELESS_TRIES and deployment.store.exists(layout.store_marker())
        )
        with deployment.database.write() as uow:
            if hopeless:
                uow.jobs.fail_finalizing(lease, code=code, message=str(error))
            else:
                uow.jobs.note_trouble(lease, code=code, message=str(error))
    except TransientError:
        log.warning("trouble_not_noted", extra={"job": lease.job_id, "reason": str(error)})
