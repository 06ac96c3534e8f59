"""The tables. Names are plural, times end in ``_at``, every state is a word from :mod:`pipeline.db.states`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from pipeline.db.base import Base, BigKey
from pipeline.db.states import JobStatus, Outcome, ShardStatus

_ID = String(40)
_SHA256 = String(64)
_URI = String(512)

#: Conditions of partial indexes; a statement that wants one spells them in the same way, with no parameter in them.
_RUNNING = "status IN ('queued', 'in_progress')"
_OPEN = "status IN ('in_progress', 'queued', 'validating')"


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class Job(Base):
    """One batch job. The five item counts always sum to ``total``."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    kind: Mapped[str] = mapped_column(String(16), comment="also the name of its queue")
    status: Mapped[JobStatus]
    outcome: Mapped[Outcome | None] = mapped_column(comment="intended end, when not the ordinary one")
    spec: Mapped[dict[str, Any]]
    endpoint: Mapped[str | None] = mapped_column(String(64))
    model: Mapped[str | None] = mapped_column(String(512), comment="as the user wrote it")
    model_digest: Mapped[str | None] = mapped_column(_SHA256)
    draft_model: Mapped[str | None] = mapped_column(String(512), comment="guesses tokens for the model; as written")
    draft_digest: Mapped[str | None] = mapped_column(_SHA256)
    idempotency_key: Mapped[str | None] = mapped_column(String(255), unique=True)
    priority: Mapped[int] = mapped_column(default=0)
    passed_over: Mapped[int] = mapped_column(default=0, comment="claims that went to a younger job; bounds starvation")
    paused: Mapped[bool] = mapped_column(default=False)
    parent_job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"))
    content_digest: Mapped[str | None] = mapped_column(_SHA256, comment="of item file and spec; what --dedupe compares")

    input_uri: Mapped[str | None] = mapped_column(_URI)
    input_sha256: Mapped[str | None] = mapped_column(_SHA256)
    input_bytes: Mapped[int] = mapped_column(BigInteger, default=0)

    total: Mapped[int] = mapped_column(default=0)
    processing: Mapped[int] = mapped_column(default=0)
    succeeded: Mapped[int] = mapped_column(default=0)
    errored: Mapped[int] = mapped_column(default=0)
    cancelled: Mapped[int] = mapped_column(default=0)
    expired: Mapped[int] = mapped_column(default=0)
    shards_total: Mapped[int] = mapped_column(default=0)
    shards_open: Mapped[int] = mapped_column(default=0, comment="pending or leased; 0 makes the job finalizing")

    lease_owner: Mapped[str | None] = mapped_column(_ID, comment="who plans or finalizes")
    lease_token: Mapped[int] = mapped_column(default=0)
    lease_renewals: Mapped[int] = mapped_column(BigInteger, default=0)
    control_tries: Mapped[int] = mapped_column(
        default=0, comment="plannings and finalizings that a missing file stopped"
    )

    output_uri: Mapped[str | None] = mapped_column(_URI)
    output_sha256: Mapped[str | None] = mapped_column(_SHA256)
    errors_uri: Mapped[str | None] = mapped_column(_URI)
    errors_sha256: Mapped[str | None] = mapped_column(_SHA256)
    error_code: Mapped[str | None] = mapped_column(String(64))
    error_message: Mapped[str | None] = mapped_column(Text)
    engine: Mapped[dict[str, Any] | None] = mapped_column(comment="numeric platform and probe, as the engine said them")

    created_at: Mapped[datetime]
    queued_at: Mapped[datetime | None]
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    expired_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None] = mapped_column(comment="deadline")
    pruned_at: Mapped[datetime | None] = mapped_column(comment="prune began to remove it; what is left goes next time")

    __table_args__ = (
        CheckConstraint("processing + succeeded + errored + cancelled + expired = total", name="counts_sum"),
        CheckConstraint("processing >= 0 AND shards_open >= 0", name="counts_positive"),
        Index(None, "status", "id"),
        Index(None, "created_at"),
        # The two orders in which a claim looks at running jobs, and the one in which deadlines come.
        Index("ix_jobs_running_best", priority.desc(), "created_at", "id", **_where(_RUNNING)),
        Index("ix_jobs_running_oldest", "created_at", "id", **_where(_RUNNING)),
        Index("ix_jobs_open_expires_at", "expires_at", **_where(_OPEN)),
        Index(None, "content_digest"),
        Index(None, "parent_job_id"),
    )


class Shard(Base):
    """A run of items of a job, cut once. ``lease_token`` rises with every claim and every taking back."""

    __tablename__ = "shards"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    ordinal: Mapped[int]
    start_byte: Mapped[int] = mapped_column(BigInteger)
    end_byte: Mapped[int] = mapped_column(BigInteger)
    first_item: Mapped[int] = mapped_column(BigInteger, comment="ordinal in the job of the shard's item 0")
    item_count: Mapped[int]
    token_count: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str | None] = mapped_column(_SHA256, comment="of the shard's bytes, as they were when it was cut")
    status: Mapped[ShardStatus] = mapped_column(default=ShardStatus.PENDING)
    succeeded: Mapped[int] = mapped_column(default=0)
    errored: Mapped[int] = mapped_column(default=0)

    attempts: Mapped[int] = mapped_column(default=0)
    waits: Mapped[int] = mapped_column(default=0, comment="attempts ended by the surroundings; they do not count")
    child_deaths: Mapped[int] = mapped_column(default=0)
    lost_leases: Mapped[int] = mapped_column(default=0)
    not_before: Mapped[datetime | None]
    last_error: Mapped[str | None] = mapped_column(Text)
    in_flight: Mapped[str | None] = mapped_column(Text, comment="items fed and not registered, as ranges")
    suspects: Mapped[str | None] = mapped_column(Text, comment="items that may have ended a child; tried one at a time")
    cleared: Mapped[str | None] = mapped_column(Text, comment="suspects that were alone in a child and did it no harm")
    alone_deaths: Mapped[int] = mapped_column(
        default=0, comment="engines that ended with the first suspect alone in them"
    )
    alone_losses: Mapped[int] = mapped_column(default=0, comment="leases lost with the first suspect alone in flight")

    lease_owner: Mapped[str | None] = mapped_column(_ID)
    lease_token: Mapped[int] = mapped_column(default=0)
    lease_renewals: Mapped[int] = mapped_column(BigInteger, default=0)

    claimed_at: Mapped[datetime | None] = mapped_column(comment="first claim")
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        UniqueConstraint("job_id", "ordinal"),
        CheckConstraint("succeeded + errored <= item_count", name="counts_within"),
        Index(None, "job_id", "status", "ordinal"),
        Index(None, "status", "id"),
        # Of a long job the first shards are done: who looks for a pending one must not read past them.
        Index("ix_shards_pending", "job_id", "ordinal", **_where("status = 'pending'")),
    )


class Part(Base):
    """Durable answers of a shard. The row is what makes the file real."""

    __tablename__ = "parts"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    shard_id: Mapped[int] = mapped_column(ForeignKey("shards.id"))
    token: Mapped[int] = mapped_column(comment="lease token it was written under")
    ordinal: Mapped[int]
    uri: Mapped[str] = mapped_column(_URI)
    sha256: Mapped[str] = mapped_column(_SHA256)
    items: Mapped[str] = mapped_column(Text, comment="places in the shard, as ranges")
    succeeded: Mapped[int]
    errored: Mapped[int]
    created_at: Mapped[datetime]

    __table_args__ = (UniqueConstraint("shard_id", "token", "ordinal"),)


class FailedAttempt(Base):
    """One attempt at a shard that did not end well, and why."""

    __tablename__ = "failed_attempts"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    shard_id: Mapped[int] = mapped_column(ForeignKey("shards.id"))
    token: Mapped[int] = mapped_column(comment="lease token of the attempt")
    worker_id: Mapped[str | None] = mapped_column(_ID)
    code: Mapped[str] = mapped_column(String(64))
    reason: Mapped[str] = mapped_column(Text)
    at: Mapped[datetime]

    __table_args__ = (Index(None, "job_id", "id"), Index(None, "shard_id"))


class ItemErrorRow(Base):
    """One item that ended in an error."""

    __tablename__ = "item_errors"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    shard_id: Mapped[int] = mapped_column(ForeignKey("shards.id"))
    custom_id: Mapped[str] = mapped_column(Text)
    line: Mapped[int] = mapped_column(BigInteger)
    code: Mapped[str] = mapped_column(String(64))
    message: Mapped[str] = mapped_column(Text)

    __table_args__ = (Index(None, "job_id", "code"), Index(None, "shard_id"))


class Lease(Base):
    """A named lease that one process holds at a time: ``reconcile``, ``scheduler``."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    owner: Mapped[str | None] = mapped_column(_ID)
    token: Mapped[int] = mapped_column(default=0)
    renewals: Mapped[int] = mapped_column(BigInteger, default=0)


class Worker(Base):
    """One worker process. Alive while ``heartbeats`` moves; no clock is compared."""

    __tablename__ = "workers"

    id: Mapped[str] = mapped_column(_ID, primary_key=True, comment="uuid of the process start")
    host: Mapped[str] = mapped_column(String(255))
    pid: Mapped[int]
    queues: Mapped[str] = mapped_column(String(255), comment="comma-separated")
    slots: Mapped[int]
    device: Mapped[str] = mapped_column(String(64))
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    loaded_models: Mapped[str] = mapped_column(Text, default="", comment="comma-separated digests")
    status: Mapped[str] = mapped_column(String(16), comment="live, draining, stopped or dead")
    paused: Mapped[bool] = mapped_column(default=False)
    heartbeats: Mapped[int] = mapped_column(BigInteger, default=0)
    started_at: Mapped[datetime]
    seen_at: Mapped[datetime] = mapped_column(comment="for people; no decision rests on it")

    __table_args__ = (Index(None, "status"),)


class PausedQueue(Base):
    """A queue whose shards nobody claims for now."""

    __tablename__ = "paused_queues"

    name: Mapped[str] = mapped_column(String(16), primary_key=True)
    paused_at: Mapped[datetime]


class ModelRow(Base):
    """A model that a worker has loaded, and what it said of itself."""

    __tablename__ = "models"

    digest: Mapped[str] = mapped_column(_SHA256, primary_key=True)
    name: Mapped[str] = mapped_column(String(512))
    model_type: Mapped[str | None] = mapped_column(String(64))
    dtype: Mapped[str | None] = mapped_column(String(16))
    details: Mapped[dict[str, Any]] = mapped_column(default=dict, comment="numeric platform, probe results")
    first_loaded_at: Mapped[datetime]


class EmbeddingSpace(Base):
    """A recipe and its digest: vectors are comparable exactly within one."""

    __tablename__ = "embedding_spaces"

    digest: Mapped[str] = mapped_column(_SHA256, primary_key=True)
    recipe: Mapped[dict[str, Any]]
    dimension: Mapped[int]
    normalized: Mapped[bool]
    created_at: Mapped[datetime]


class VectorFile(Base):
    """An immutable safetensors file of vectors, registered with the part that made it."""

    __tablename__ = "vector_files"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    part_id: Mapped[int] = mapped_column(ForeignKey("parts.id"))
    space_digest: Mapped[str] = mapped_column(ForeignKey("embedding_spaces.digest"))
    uri: Mapped[str] = mapped_column(_URI)
    sha256: Mapped[str] = mapped_column(_SHA256)
    count: Mapped[int]

    __table_args__ = (Index(None, "job_id"), Index(None, "part_id"))


class Vector(Base):
    """What is known of one vector; its id is its id in every index."""

    __tablename__ = "vectors"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    file_id: Mapped[int] = mapped_column(ForeignKey("vector_files.id"))
    row: Mapped[int]
    shard_id: Mapped[int] = mapped_column(ForeignKey("shards.id"))
    item: Mapped[int] = mapped_column(comment="place in the shard")
    custom_id: Mapped[str] = mapped_column(Text)
    ordinal: Mapped[int] = mapped_column(comment="counts the vectors of one item")
    text_hash: Mapped[str] = mapped_column(_SHA256)
    norm: Mapped[float] = mapped_column(comment="before normalisation")
    token_count: Mapped[int]
    truncated: Mapped[bool]
    start_char: Mapped[int]
    end_char: Mapped[int]

    __table_args__ = (UniqueConstraint("file_id", "row"), Index(None, "shard_id"))


class IndexVersion(Base):
    """A FAISS index that was built, measured and written."""

    __tablename__ = "indexes"

    id: Mapped[str] = mapped_column(_ID, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    name: Mapped[str] = mapped_column(String(100))
    space_digest: Mapped[str] = mapped_column(ForeignKey("embedding_spaces.digest"))
    factory: Mapped[str] = mapped_column(String(255))
    metric: Mapped[str] = mapped_column(String(8))
    parameters: Mapped[dict[str, Any]] = mapped_column(default=dict)
    dimension: Mapped[int]
    count: Mapped[int] = mapped_column(BigInteger)
    uri: Mapped[str] = mapped_column(_URI)
    sha256: Mapped[str] = mapped_column(_SHA256)
    manifest_uri: Mapped[str] = mapped_column(_URI)
    recall: Mapped[float | None] = mapped_column(comment="recall@k against exact search, after reloading")
    recall_k: Mapped[int | None]
    created_at: Mapped[datetime]


class IndexAlias(Base):
    """The name that readers use, and the version before, for going back."""

    __tablename__ = "index_aliases"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    index_id: Mapped[str] = mapped_column(ForeignKey("indexes.id"))
    previous_index_id: Mapped[str | None] = mapped_column(ForeignKey("indexes.id"))
    moved_at: Mapped[datetime]


class Metric(Base):
    """One measurement; ``shard_id`` is empty for those of a whole job."""

    __tablename__ = "metrics"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    shard_id: Mapped[int | None] = mapped_column(ForeignKey("shards.id"))
    worker_id: Mapped[str | None] = mapped_column(_ID)
    name: Mapped[str] = mapped_column(String(64))
    value: Mapped[float]
    unit: Mapped[str] = mapped_column(String(16))
    at: Mapped[datetime]

    __table_args__ = (Index(None, "job_id", "name"), Index(None, "shard_id"))


class VerdictRow(Base):
    """What checks of an acceleration found in one attempt at a shard; what was found often is one row."""

    __tablename__ = "verdicts"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True, autoincrement=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    shard_id: Mapped[int] = mapped_column(ForeignKey("shards.id"))
    token: Mapped[int] = mapped_column(comment="lease token of the attempt")
    worker_id: Mapped[str | None] = mapped_column(_ID)
    mechanism: Mapped[str] = mapped_column(String(32))
    outcome: Mapped[str] = mapped_column(String(16), comment="held, declined or violated")
    code: Mapped[str] = mapped_column(String(64))
    reason: Mapped[str] = mapped_column(Text, comment="of the last time")
    count: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[datetime]

    __table_args__ = (Index(None, "job_id", "id"), Index(None, "shard_id"))


class StoreIdentity(Base):
    """The uuid of the store this database's files lie in; one row."""

    __tablename__ = "store_identity"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, default=1)
    store_uuid: Mapped[str] = mapped_column(_ID)
