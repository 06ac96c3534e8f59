"""Taking back what a part had registered, when its file is not what its row says: row, counts and all."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select, update

from pipeline.db.models import IndexVersion, ItemErrorRow, Job, Part, Shard, Vector, VectorFile
from pipeline.db.repository.attempts import AttemptRepository
from pipeline.db.repository.base import Repository, clip
from pipeline.db.repository.shards import error_row, failed_attempt, settled
from pipeline.db.states import JobStatus, ShardStatus
from pipeline.db.values import ItemFailure, JobLease, PartView, VectorFileView
from pipeline.errors import ArtifactCorrupt, LeaseLost

#: Ids of one IN list.
LOOKUP_IDS = 500


class RepairRepository(Repository):
    """Writes of a finalizer that found damage; each matches its job-level lease."""

    def files_of(self, part_id: int) -> Sequence[VectorFileView]:
        """The vector files that were registered with a part, without their rows' ids."""
        query = select(VectorFile).where(VectorFile.part_id == part_id).order_by(VectorFile.id)
        return [
            VectorFileView(row.id, row.space_digest, row.uri, row.sha256, row.count, ())
            for row in self._session.scalars(query)
        ]

    def unregister(
        self, lease: JobLease, part: PartView, failures: Sequence[ItemFailure] | None, reason: str, *, limit: int
    ) -> bool:
        """Undo a part of a job that is being finalized; True when its items are to run again.

        ``failures`` name the part's items: they err where their shard has failed, or lost parts ``limit`` times before.
        None where a job that has failed cannot name them. Where the job was asked to end early, they end as it does.
        Otherwise the job is ``in_progress`` again: the one step back there is.

        Raises:
            LeaseLost: the job is another finalizer's by now.
        """
        shard = self._session.get(Shard, part.shard_id, with_for_update={"key_share": True})
        job = self._session.get(Job, lease.job_id, with_for_update={"key_share": True})
        if job is None or shard is None or job.status is not JobStatus.FINALIZING or job.lease_token != lease.token:
            raise LeaseLost(f"{lease.job_id} was finalized by another process")
        if failures is not None:
            self._delete_errors(part, [failure.custom_id for failure in failures])
        self._delete_rows(part)
        number = part.succeeded + part.errored
        shard.succeeded -= part.succeeded
        shard.errored -= part.errored
        job.succeeded -= part.succeeded
        job.errored -= part.errored
        job.processing += number
        job.lease_owner, job.lease_token = None, job.lease_token + 1
        self._session.add(failed_attempt(job.id, shard.id, part.token, lease.owner, ArtifactCorrupt.code, reason))
        shard.last_error = clip(reason)
        lost = AttemptRepository(self._session).number_of(shard.id, ArtifactCorrupt.code)
        again = job.outcome is None and shard.status is ShardStatus.DONE and lost <= limit
        if again:
            shard.status, shard.finished_at, shard.attempts = ShardStatus.PENDING, None, 0
            job.status, job.shards_open, job.control_tries = JobStatus.IN_PROGRESS, job.shards_open + 1, 0
            job.error_code = job.error_message = None
        elif failures is not None and (job.outcome is None or shard.status is ShardStatus.FAILED):
            shard.status = ShardStatus.FAILED
            self._fail_items(job, shard, failures)
        else:
            shard.status = ShardStatus.CANCELLED if shard.status is ShardStatus.DONE else shard.status
            self._session.flush()
            self._changed(update(Job).where(Job.id == job.id).values(settled(number)))
        self._session.flush()
        return again

    def _delete_errors(self, part: PartView, custom_ids: Sequence[str]) -> None:
        """Those of the part's items; how many that was must be what it says."""
        erred = 0
        for first in range(0, len(custom_ids), LOOKUP_IDS):
            some = ItemErrorRow.custom_id.in_(custom_ids[first : first + LOOKUP_IDS])
            erred += self._changed(delete(ItemErrorRow).where(ItemErrorRow.shard_id == part.shard_id, some))
        if erred != part.errored:
            raise AssertionError(f"part {part.id} has {part.errored} errors by its row and {erred} in item_errors")

    def _delete_rows(self, part: PartView) -> None:
        """Everything else that came with the part."""
        files = select(VectorFile.id).where(VectorFile.part_id == part.id)
        self._changed(delete(Vector).where(Vector.file_id.in_(files)))
        self._changed(delete(VectorFile).where(VectorFile.part_id == part.id))
        jobs = select(Shard.job_id).where(Shard.id == part.shard_id)
        self._changed(delete(IndexVersion).where(IndexVersion.job_id.in_(jobs)))
        if self._changed(delete(Part).where(Part.id == part.id)) != 1:
            raise LeaseLost(f"part {part.id} is gone already")

    def _fail_items(self, job: Job, shard: Shard, failures: Sequence[ItemFailure]) -> None:
        job.processing -= len(failures)
        job.errored += len(failures)
        self._session.add_all(error_row(job.id, shard.id, failure) for failure in failures)
