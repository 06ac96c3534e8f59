"""The tables of the main job: jobs, shards, parts, vectors, indexes and who works on them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261129_main_job"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "embedding_spaces",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("dimension", sa.Integer(), nullable=False),
        sa.Column("normalized", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_embedding_spaces")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False, comment="also the name of its queue"),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=True, comment="intended end, when not the ordinary one"),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("endpoint", sa.String(length=64), nullable=True),
        sa.Column("model", sa.String(length=512), nullable=True, comment="as the user wrote it"),
        sa.Column("model_digest", sa.String(length=64), nullable=True),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column(
            "passed_over", sa.Integer(), nullable=False, comment="claims that went to a younger job; bounds starvation"
        ),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("parent_job_id", sa.String(length=40), nullable=True),
        sa.Column("input_uri", sa.String(length=512), nullable=True),
        sa.Column("input_sha256", sa.String(length=64), nullable=True),
        sa.Column("input_bytes", sa.BigInteger(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("processing", sa.Integer(), nullable=False),
        sa.Column("succeeded", sa.Integer(), nullable=False),
        sa.Column("errored", sa.Integer(), nullable=False),
        sa.Column("cancelled", sa.Integer(), nullable=False),
        sa.Column("expired", sa.Integer(), nullable=False),
        sa.Column("shards_total", sa.Integer(), nullable=False),
        sa.Column("shards_open", sa.Integer(), nullable=False, comment="pending or leased; 0 makes the job finalizing"),
        sa.Column("lease_owner", sa.String(length=40), nullable=True, comment="who plans or finalizes"),
        sa.Column("lease_token", sa.Integer(), nullable=False),
        sa.Column("lease_renewals", sa.BigInteger(), nullable=False),
        sa.Column("output_uri", sa.String(length=512), nullable=True),
        sa.Column("output_sha256", sa.String(length=64), nullable=True),
        sa.Column("errors_uri", sa.String(length=512), nullable=True),
        sa.Column("errors_sha256", sa.String(length=64), nullable=True),
        sa.Column("error_code", sa.String(length=64), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("engine", sa.JSON(), nullable=True, comment="numeric platform and probe, as the engine said them"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("queued_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("in_progress_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finalizing_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancelling_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancelled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True, comment="deadline"),
        sa.CheckConstraint(
            "processing + succeeded + errored + cancelled + expired = total", name=op.f("ck_jobs_counts_sum")
        ),
        sa.CheckConstraint("processing >= 0 AND shards_open >= 0", name=op.f("ck_jobs_counts_positive")),
        sa.ForeignKeyConstraint(["parent_job_id"], ["jobs.id"], name=op.f("fk_jobs_parent_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_jobs_idempotency_key")),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_created_at"), ["created_at"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_jobs_status_kind_priority_created_at"),
            ["status", "kind", "priority", "created_at"],
            unique=False,
        )

    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=40), nullable=True),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("renewals", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "models",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=512), nullable=False),
        sa.Column("model_type", sa.String(length=64), nullable=True),
        sa.Column("dtype", sa.String(length=16), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False, comment="numeric platform, probe results"),
        sa.Column("first_loaded_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_models")),
    )
    op.create_table(
        "store_identity",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("store_uuid", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_store_identity")),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=40), nullable=False, comment="uuid of the process start"),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("queues", sa.String(length=255), nullable=False, comment="comma-separated"),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("device", sa.String(length=64), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("loaded_models", sa.Text(), nullable=False, comment="comma-separated digests"),
        sa.Column("status", sa.String(length=16), nullable=False, comment="live, draining, stopped or dead"),
        sa.Column("heartbeats", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False, comment="for people; no decision rests on it"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_workers_status"), ["status"], unique=False)

    op.create_table(
        "indexes",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("space_digest", sa.String(length=64), nullable=False),
        sa.Column("factory", sa.String(length=255), nullable=False),
        sa.Column("metric", sa.String(length=8), nullable=False),
        sa.Column("parameters", sa.JSON(), nullable=False),
        sa.Column("dimension", sa.Integer(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("uri", sa.String(length=512), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("manifest_uri", sa.String(length=512), nullable=False),
        sa.Column("recall", sa.Double(), nullable=True, comment="recall@k against exact search, after reloading"),
        sa.Column("recall_k", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_indexes_job_id_jobs")),
        sa.ForeignKeyConstraint(
            ["space_digest"], ["embedding_spaces.digest"], name=op.f("fk_indexes_space_digest_embedding_spaces")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_indexes")),
    )
    op.create_table(
        "shards",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("start_byte", sa.BigInteger(), nullable=False),
        sa.Column("end_byte", sa.BigInteger(), nullable=False),
        sa.Column("first_item", sa.BigInteger(), nullable=False, comment="ordinal in the job of the shard's item 0"),
        sa.Column("item_count", sa.Integer(), nullable=False),
        sa.Column("token_count", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("succeeded", sa.Integer(), nullable=False),
        sa.Column("errored", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("child_deaths", sa.Integer(), nullable=False),
        sa.Column("lost_leases", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("in_flight", sa.Text(), nullable=True, comment="items fed and not registered, as ranges"),
        sa.Column("lease_owner", sa.String(length=40), nullable=True),
        sa.Column("lease_token", sa.Integer(), nullable=False),
        sa.Column("lease_renewals", sa.BigInteger(), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True, comment="first claim"),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("succeeded + errored <= item_count", name=op.f("ck_shards_counts_within")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_shards_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shards")),
        sa.UniqueConstraint("job_id", "ordinal", name=op.f("uq_shards_job_id_ordinal")),
    )
    with op.batch_alter_table("shards", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_shards_job_id_status_ordinal"), ["job_id", "status", "ordinal"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_shards_status_id"), ["status", "id"], unique=False)

    op.create_table(
        "index_aliases",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("index_id", sa.String(length=40), nullable=False),
        sa.Column("previous_index_id", sa.String(length=40), nullable=True),
        sa.Column("moved_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["index_id"], ["indexes.id"], name=op.f("fk_index_aliases_index_id_indexes")),
        sa.ForeignKeyConstraint(
            ["previous_index_id"], ["indexes.id"], name=op.f("fk_index_aliases_previous_index_id_indexes")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_index_aliases")),
    )
    op.create_table(
        "item_errors",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("shard_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("line", sa.BigInteger(), nullable=False),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_item_errors_job_id_jobs")),
        sa.ForeignKeyConstraint(["shard_id"], ["shards.id"], name=op.f("fk_item_errors_shard_id_shards")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_item_errors")),
    )
    with op.batch_alter_table("item_errors", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_item_errors_job_id_code"), ["job_id", "code"], unique=False)
        batch_op.create_index(batch_op.f("ix_item_errors_shard_id"), ["shard_id"], unique=False)

    op.create_table(
        "metrics",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("shard_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("worker_id", sa.String(length=40), nullable=True),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("unit", sa.String(length=16), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_metrics_job_id_jobs")),
        sa.ForeignKeyConstraint(["shard_id"], ["shards.id"], name=op.f("fk_metrics_shard_id_shards")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metrics")),
    )
    with op.batch_alter_table("metrics", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_metrics_job_id_name"), ["job_id", "name"], unique=False)

    op.create_table(
        "parts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("shard_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False, comment="lease token it was written under"),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("uri", sa.String(length=512), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("items", sa.Text(), nullable=False, comment="places in the shard, as ranges"),
        sa.Column("succeeded", sa.Integer(), nullable=False),
        sa.Column("errored", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["shard_id"], ["shards.id"], name=op.f("fk_parts_shard_id_shards")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_parts")),
        sa.UniqueConstraint("shard_id", "token", "ordinal", name=op.f("uq_parts_shard_id_token_ordinal")),
    )
    op.create_table(
        "vector_files",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("part_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("space_digest", sa.String(length=64), nullable=False),
        sa.Column("uri", sa.String(length=512), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_vector_files_job_id_jobs")),
        sa.ForeignKeyConstraint(["part_id"], ["parts.id"], name=op.f("fk_vector_files_part_id_parts")),
        sa.ForeignKeyConstraint(
            ["space_digest"], ["embedding_spaces.digest"], name=op.f("fk_vector_files_space_digest_embedding_spaces")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vector_files")),
    )
    with op.batch_alter_table("vector_files", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_vector_files_job_id"), ["job_id"], unique=False)

    op.create_table(
        "vectors",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("file_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("row", sa.Integer(), nullable=False),
        sa.Column("shard_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("item", sa.Integer(), nullable=False, comment="place in the shard"),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False, comment="counts the vectors of one item"),
        sa.Column("text_hash", sa.String(length=64), nullable=False),
        sa.Column("norm", sa.Double(), nullable=False, comment="before normalisation"),
        sa.Column("token_count", sa.Integer(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.Column("start_char", sa.Integer(), nullable=False),
        sa.Column("end_char", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["file_id"], ["vector_files.id"], name=op.f("fk_vectors_file_id_vector_files")),
        sa.ForeignKeyConstraint(["shard_id"], ["shards.id"], name=op.f("fk_vectors_shard_id_shards")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vectors")),
        sa.UniqueConstraint("file_id", "row", name=op.f("uq_vectors_file_id_row")),
    )


def downgrade() -> None:
    op.drop_table("vectors")
    with op.batch_alter_table("vector_files", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_vector_files_job_id"))

    op.drop_table("vector_files")
    op.drop_table("parts")
    with op.batch_alter_table("metrics", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_metrics_job_id_name"))

    op.drop_table("metrics")
    with op.batch_alter_table("item_errors", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_item_errors_shard_id"))
        batch_op.drop_index(batch_op.f("ix_item_errors_job_id_code"))

    op.drop_table("item_errors")
    op.drop_table("index_aliases")
    with op.batch_alter_table("shards", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_shards_status_id"))
        batch_op.drop_index(batch_op.f("ix_shards_job_id_status_ordinal"))

    op.drop_table("shards")
    op.drop_table("indexes")
    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_workers_status"))

    op.drop_table("workers")
    op.drop_table("store_identity")
    op.drop_table("models")
    op.drop_table("leases")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_jobs_status_kind_priority_created_at"))
        batch_op.drop_index(batch_op.f("ix_jobs_created_at"))

    op.drop_table("jobs")
    op.drop_table("embedding_spaces")
