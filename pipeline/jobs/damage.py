"""Registered files that are not what their rows say: found by checksum, unregistered with their counts, run again."""

from __future__ import annotations

import logging

from pipeline.db.states import Outcome
from pipeline.db.values import ItemFailure, JobLease, JobView, PartView, ShardView
from pipeline.errors import ArtifactCorrupt, ArtifactMissing
from pipeline.formats.items import parse_items
from pipeline.formats.ranges import parse_ranges
from pipeline.jobs.deployment import Deployment
from pipeline.store import layout

log = logging.getLogger(__name__)

#: Plannings or finalizings that must have missed a file before it is taken for lost.
MISSING_TRIES = 3


class DamagedPart(Exception):
    """A registered part whose file, or whose vectors' file, is missing or has another checksum."""

    def __init__(self, shard: ShardView, part: PartView, cause: ArtifactCorrupt | ArtifactMissing) -> None:
        super().__init__(str(cause))
        self.shard = shard
        self.part = part
        self.cause = cause


def read_part(deployment: Deployment, shard: ShardView, part: PartView) -> bytes:
    """A part's lines, after its vectors' files were found whole; raises DamagedPart."""
    with deployment.database.read() as uow:
        files = uow.repairs.files_of(part.id)
    try:
        for file in files:
            deployment.store.verify(file.uri, file.sha256)
        return deployment.store.read_bytes(part.uri, sha256=part.sha256)
    except (ArtifactCorrupt, ArtifactMissing) as error:
        raise DamagedPart(shard, part, error) from error


def check_index(deployment: Deployment, job: JobView, shard: ShardView, part: PartView) -> None:
    """The index that this part registered, before its alias moves; raises DamagedPart."""
    with deployment.database.read() as uow:
        index = uow.indexes.of_job(job.id)
    if index is None:
        return
    try:
        deployment.store.verify(index.uri, index.sha256)
    except (ArtifactCorrupt, ArtifactMissing) as error:
        raise DamagedPart(shard, part, error) from error


def mend(deployment: Deployment, lease: JobLease, job: JobView, damaged: DamagedPart) -> bool:
    """Unregister the part, unless it may be there again in a moment; False then.

    A file that is missing may lie on a share that is away: only when finalizers missed it ``MISSING_TRIES`` times while
    the store's own marker could be read is it lost. Raises LeaseLost, and ArtifactMissing or ArtifactCorrupt when the
    item file cannot be read either.
    """
    if isinstance(damaged.cause, ArtifactMissing) and not _is_lost(deployment, job):
        return False
    shard, part = damaged.shard, damaged.part
    reason = f"{damaged.cause.code}: {damaged.cause}; its {part.succeeded + part.errored} items lost their answers"
    failures = _name_items(deployment, job, shard, part, reason)
    with deployment.database.write() as uow:
        limit = deployment.settings.max_attempts
        again = uow.repairs.unregister(lease, part, failures, reason, limit=limit)
    log.warning("part_unregistered", extra={"job": job.id, "shard": shard.ordinal, "reason": reason, "again": again})
    if again:
        deployment.doorbell.run(job.kind)
    return True


def _name_items(
    deployment: Deployment, job: JobView, shard: ShardView, part: PartView, reason: str
) -> list[ItemFailure] | None:
    """The part's items, as they err if they have to; None when a job that has failed cannot name them."""
    assert job.input_uri is not None
    try:
        items = parse_items(
            deployment.store.read_bytes(job.input_uri, start=shard.start_byte, end=shard.end_byte, sha256=shard.sha256)
        )
    except (ArtifactMissing, ArtifactCorrupt):
        if job.outcome is not Outcome.FAILED:
            raise
        return None
    return [
        ItemFailure(items[index].custom_id, items[index].line, "shard_failed", reason)
        for index in sorted(parse_ranges(part.items))
    ]


def _is_lost(deployment: Deployment, job: JobView) -> bool:
    return job.control_tries + 1 >= MISSING_TRIES and deployment.store.exists(layout.store_marker())
