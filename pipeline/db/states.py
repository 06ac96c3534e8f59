"""The words for states, and which may follow which. Needs no database library, so the CLI can import it."""

from __future__ import annotations

from enum import StrEnum


class JobStatus(StrEnum):
    VALIDATING = "validating"
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


class Outcome(StrEnum):
    """How a job was asked to end before its items were all done. An ordinary job has none."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"


class ShardStatus(StrEnum):
    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED})

#: Every change of a job's status is a guarded UPDATE from one of these to the key. One step back is not here: a
#: finalizer that finds a part damaged makes the job ``in_progress`` again, under its lease.
SOURCES: dict[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.VALIDATING}),
    JobStatus.IN_PROGRESS: frozenset({JobStatus.QUEUED}),
    JobStatus.CANCELLING: frozenset({JobStatus.VALIDATING, JobStatus.QUEUED, JobStatus.IN_PROGRESS}),
    JobStatus.FINALIZING: frozenset(
        {JobStatus.VALIDATING, JobStatus.QUEUED, JobStatus.IN_PROGRESS, JobStatus.CANCELLING}
    ),
    JobStatus.COMPLETED: frozenset({JobStatus.FINALIZING}),
    JobStatus.FAILED: frozenset({JobStatus.FINALIZING}),
    JobStatus.CANCELLED: frozenset({JobStatus.FINALIZING}),
    JobStatus.EXPIRED: frozenset({JobStatus.FINALIZING}),
}
