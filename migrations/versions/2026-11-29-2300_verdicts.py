"""verdicts

Before you commit this:
- It runs against live databases: on PostgreSQL a lock it takes is held until the whole upgrade ends. Add columns as
  nullable or with a server default; build what is large in a revision of its own.
- Workers of the version before run on while this one is rolled out: what they read must stay until the next release.
- SQLite changes a table only by copying it: keep ``batch_alter_table``.
- Down must work: tests go up, down and up again on both databases.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261129_verdicts"
down_revision = "20261129_nothing_lost"
branch_labels = None
depends_on = None


def upgrade() -> None:
    key = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "verdicts",
        sa.Column("id", key, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("shard_id", key, nullable=False),
        sa.Column("token", sa.Integer(), nullable=False, comment="lease token of the attempt"),
        sa.Column("worker_id", sa.String(length=40), nullable=True),
        sa.Column("mechanism", sa.String(length=32), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False, comment="held, declined or violated"),
        sa.Column("code", sa.String(length=64), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False, comment="of the last time"),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_verdicts_job_id_jobs")),
        sa.ForeignKeyConstraint(["shard_id"], ["shards.id"], name=op.f("fk_verdicts_shard_id_shards")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
    )
    op.create_index(op.f("ix_verdicts_job_id_id"), "verdicts", ["job_id", "id"], unique=False)
    op.create_index(op.f("ix_verdicts_shard_id"), "verdicts", ["shard_id"], unique=False)
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(
            sa.Column(
                "draft_model",
                sa.String(length=512),
                nullable=True,
                comment="guesses tokens for the model; as written",
            )
        )
        batch_op.add_column(sa.Column("draft_digest", sa.String(length=64), nullable=True))


def downgrade() -> None:
    # Not in batches: on SQLite a batch that drops a column copies the table, and leaves its CHECK constraints behind.
    for name in ("draft_digest", "draft_model"):
        op.drop_column("jobs", name)
    op.drop_table("verdicts")
