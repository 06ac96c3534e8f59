"""nothing lost

Before you commit this:
- It runs against live databases: on PostgreSQL a lock it takes is held until the whole upgrade ends. Add columns as
  nullable or with a server default; build what is large in a revision of its own.
- Workers of the version before run on while this one is rolled out: what they read must stay until the next release.
- SQLite changes a table only by copying it: keep ``batch_alter_table``.
- Down must work: tests go up, down and up again on both databases.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "20261129_nothing_lost"
down_revision = "20261129_main_job"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "paused_queues",
        sa.Column("name", sa.String(length=16), nullable=False),
        sa.Column("paused_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_paused_queues")),
    )
    op.create_table(
        "failed_attempts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("shard_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False, comment="lease token of the attempt"),
        sa.Column("worker_id", sa.String(length=40), nullable=True),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_failed_attempts_job_id_jobs")),
        sa.ForeignKeyConstraint(["shard_id"], ["shards.id"], name=op.f("fk_failed_attempts_shard_id_shards")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_failed_attempts")),
    )
    with op.batch_alter_table("failed_attempts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_failed_attempts_job_id_id"), ["job_id", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_failed_attempts_shard_id"), ["shard_id"], unique=False)

    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "content_digest",
                sa.String(length=64),
                nullable=True,
                comment="of item file and spec; what --dedupe compares",
            )
        )
        batch_op.add_column(
            sa.Column(
                "control_tries",
                sa.Integer(),
                nullable=False,
                server_default="0",
                comment="plannings and finalizings that a missing file stopped",
            )
        )
        batch_op.add_column(
            sa.Column(
                "pruned_at",
                sa.DateTime(timezone=True),
                nullable=True,
                comment="prune began to remove it; what is left goes next time",
            )
        )
        batch_op.create_index(batch_op.f("ix_jobs_content_digest"), ["content_digest"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_parent_job_id"), ["parent_job_id"], unique=False)

    with op.batch_alter_table("shards", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "sha256",
                sa.String(length=64),
                nullable=True,
                comment="of the shard's bytes, as they were when it was cut",
            )
        )
        batch_op.add_column(
            sa.Column(
                "waits",
                sa.Integer(),
                nullable=False,
                server_default="0",
                comment="attempts ended by the surroundings; they do not count",
            )
        )
        batch_op.add_column(
            sa.Column(
                "suspects", sa.Text(), nullable=True, comment="items that may have ended a child; tried one at a time"
            )
        )
        batch_op.add_column(
            sa.Column(
                "cleared", sa.Text(), nullable=True, comment="suspects that were alone in a child and did it no harm"
            )
        )
        batch_op.add_column(
            sa.Column(
                "alone_deaths",
                sa.Integer(),
                nullable=False,
                server_default="0",
                comment="engines that ended with the first suspect alone in them",
            )
        )
        batch_op.add_column(
            sa.Column(
                "alone_losses",
                sa.Integer(),
                nullable=False,
                server_default="0",
                comment="leases lost with the first suspect alone in flight",
            )
        )

    # What a claim and a deadline read, however many jobs and shards there are.
    op.drop_index(op.f("ix_jobs_status_kind_priority_created_at"), table_name="jobs")
    op.create_index(op.f("ix_jobs_status_id"), "jobs", ["status", "id"], unique=False)
    best = [sa.text("priority DESC"), "created_at", "id"]
    _create_partial_index("ix_jobs_running_best", "jobs", best, "status IN ('queued', 'in_progress')")
    _create_partial_index("ix_jobs_running_oldest", "jobs", ["created_at", "id"], "status IN ('queued', 'in_progress')")
    _create_partial_index(
        "ix_jobs_open_expires_at", "jobs", ["expires_at"], "status IN ('in_progress', 'queued', 'validating')"
    )
    _create_partial_index("ix_shards_pending", "shards", ["job_id", "ordinal"], "status = 'pending'")

    with op.batch_alter_table("workers", schema=None) as batch_op:
        batch_op.add_column(sa.Column("paused", sa.Boolean(), nullable=False, server_default=sa.false()))

    # Without these, taking one row away reads whole tables for rows that still point at it.
    op.create_index(op.f("ix_metrics_shard_id"), "metrics", ["shard_id"], unique=False)
    op.create_index(op.f("ix_vector_files_part_id"), "vector_files", ["part_id"], unique=False)
    op.create_index(op.f("ix_vectors_shard_id"), "vectors", ["shard_id"], unique=False)


def _create_partial_index(name: str, table: str, columns: list[Any], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def downgrade() -> None:
    op.drop_index("ix_shards_pending", table_name="shards")
    for name in ("open_expires_at", "running_oldest", "running_best", "status_id"):
        op.drop_index(f"ix_jobs_{name}", table_name="jobs")
    columns = ["status", "kind", "priority", "created_at"]
    op.create_index(op.f("ix_jobs_status_kind_priority_created_at"), "jobs", columns, unique=False)
    op.drop_index(op.f("ix_vectors_shard_id"), table_name="vectors")
    op.drop_index(op.f("ix_vector_files_part_id"), table_name="vector_files")
    op.drop_index(op.f("ix_metrics_shard_id"), table_name="metrics")
    # Not in batches: on SQLite a batch that drops a column copies the table, and leaves its CHECK constraints behind.
    op.drop_column("workers", "paused")
    for name in ("alone_losses", "alone_deaths", "cleared", "suspects", "waits", "sha256"):
        op.drop_column("shards", name)
    for name in ("parent_job_id", "content_digest"):
        op.drop_index(op.f(f"ix_jobs_{name}"), table_name="jobs")
    for name in ("pruned_at", "control_tries", "content_digest"):
        op.drop_column("jobs", name)
    op.drop_table("failed_attempts")
    op.drop_table("paused_queues")
