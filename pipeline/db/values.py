"""What queries return: frozen values, never ORM rows. Needs no database library."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipeline.db.states import JobStatus, Outcome, ShardStatus


@dataclass(frozen=True, slots=True)
class Counts:
    """Item counts of a job; ``processing + succeeded + errored + cancelled + expired == total``, always."""

    total: int
    processing: int
    succeeded: int
    errored: int
    cancelled: int
    expired: int


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as it was when it was read."""

    id: str
    kind: str
    status: JobStatus
    outcome: Outcome | None
    spec: dict[str, Any]
    endpoint: str | None
    model: str | None
    model_digest: str | None
    draft_model: str | None
    draft_digest: str | None
    idempotency_key: str | None
    priority: int
    paused: bool
    parent_job_id: str | None
    content_digest: str | None
    input_uri: str | None
    input_sha256: str | None
    input_bytes: int
    total: int
    processing: int
    succeeded: int
    errored: int
    cancelled: int
    expired: int
    shards_total: int
    shards_open: int
    lease_owner: str | None
    lease_token: int
    lease_renewals: int
    control_tries: int
    output_uri: str | None
    output_sha256: str | None
    errors_uri: str | None
    errors_sha256: str | None
    error_code: str | None
    error_message: str | None
    engine: dict[str, Any] | None
    created_at: datetime
    queued_at: datetime | None
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None
    expired_at: datetime | None
    expires_at: datetime | None
    pruned_at: datetime | None

    @property
    def counts(self) -> Counts:
        return Counts(self.total, self.processing, self.succeeded, self.errored, self.cancelled, self.expired)

    @property
    def ended_at(self) -> datetime | None:
        return self.completed_at or self.failed_at or self.cancelled_at or self.expired_at


@dataclass(frozen=True, slots=True)
class ShardCut:
    """A shard before it is a row: where it starts and ends, in bytes of the item file and in items of the job."""

    ordinal: int
    start_byte: int
    end_byte: int
    first_item: int
    item_count: int
    token_count: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class ShardView:
    """A shard as it was when it was read."""

    id: int
    job_id: str
    ordinal: int
    start_byte: int
    end_byte: int
    first_item: int
    item_count: int
    token_count: int
    sha256: str | None
    status: ShardStatus
    succeeded: int
    errored: int
    attempts: int
    waits: int
    child_deaths: int
    lost_leases: int
    last_error: str | None
    not_before: datetime | None
    in_flight: str | None
    suspects: str | None
    cleared: str | None
    alone_deaths: int
    alone_losses: int
    lease_owner: str | None
    lease_token: int
    lease_renewals: int
    claimed_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class ShardLease:
    """The right to write for a shard: nothing but the token is ever compared."""

    shard: ShardView
    owner: str

    @property
    def shard_id(self) -> int:
        return self.shard.id

    @property
    def token(self) -> int:
        return self.shard.lease_token


@dataclass(frozen=True, slots=True)
class JobLease:
    """The right to plan or finalize a job."""

    job_id: str
    token: int
    owner: str


@dataclass(frozen=True, slots=True)
class PartView:
    """A registered part."""

    id: int
    shard_id: int
    token: int
    ordinal: int
    uri: str
    sha256: str
    items: str
    succeeded: int
    errored: int


@dataclass(frozen=True, slots=True)
class NewPart:
    """A part whose file is durable and whose row is not there yet."""

    ordinal: int
    uri: str
    sha256: str
    items: str
    succeeded: int
    errored: int


@dataclass(frozen=True, slots=True)
class ItemFailure:
    """One item that ended in an error."""

    custom_id: str
    line: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """Why an attempt at a shard did not end well."""

    code: str
    reason: str
    is_environment: bool = False
    child_died: bool = False


@dataclass(frozen=True, slots=True)
class HeldUp:
    """Why a job does not get on: ``shards`` of it (0: the job as a whole) wait for one reason.

    ``next_try_s`` is None where the next try is under way, or comes at no known time.
    """

    code: str
    reason: str
    shards: int
    next_try_s: float | None


@dataclass(frozen=True, slots=True)
class NewVector:
    """Metadata of one vector, in the order of the file's rows."""

    item: int
    custom_id: str
    ordinal: int
    text_hash: str
    norm: float
    token_count: int
    truncated: bool
    start_char: int
    end_char: int


@dataclass(frozen=True, slots=True)
class NewVectors:
    """A vector file that goes with a part, and the space its vectors live in."""

    space_digest: str
    recipe: dict[str, Any]
    dimension: int
    normalized: bool
    uri: str
    sha256: str
    rows: tuple[NewVector, ...]


@dataclass(frozen=True, slots=True)
class VectorFileView:
    """A registered vector file with the ids of its rows: row r has id ``first_id + r``."""

    id: int
    space_digest: str
    uri: str
    sha256: str
    count: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpaceView:
    """An embedding space."""

    digest: str
    recipe: dict[str, Any]
    dimension: int
    normalized: bool


@dataclass(frozen=True, slots=True)
class VectorView:
    """Where a hit of a search comes from."""

    id: int
    job_id: str
    shard_id: int
    item: int
    custom_id: str
    ordinal: int
    start_char: int
    end_char: int


@dataclass(frozen=True, slots=True)
class IndexView:
    """A registered index version."""

    id: str
    job_id: str
    name: str
    space_digest: str
    factory: str
    metric: str
    parameters: dict[str, Any]
    dimension: int
    count: int
    uri: str
    sha256: str
    manifest_uri: str
    recall: float | None
    recall_k: int | None
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that has a shard to claim."""

    job_id: str
    kind: str
    model: str | None
    model_digest: str | None
    draft_model: str | None
    draft_digest: str | None
    priority: int
    passed_over: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker process as its row says."""

    id: str
    host: str
    pid: int
    queues: tuple[str, ...]
    slots: int
    device: str
    memory_bytes: int
    loaded_models: tuple[str, ...]
    status: str
    paused: bool
    heartbeats: int
    started_at: datetime
    seen_at: datetime


@dataclass(frozen=True, slots=True)
class NamedLease:
    """The state of a named lease."""

    name: str
    owner: str | None
    token: int
    renewals: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of ``metrics``."""

    name: str
    value: float
    unit: str
    shard_id: int | None = None
    worker_id: str | None = None


@dataclass(frozen=True, slots=True)
class VerdictView:
    """What checks of an acceleration found in a job: ``count`` times, in ``shards`` shards; ``reason`` is the last."""

    mechanism: str
    outcome: str
    code: str
    reason: str
    count: int
    shards: int
