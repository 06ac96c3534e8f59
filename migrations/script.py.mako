"""${message}

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
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
