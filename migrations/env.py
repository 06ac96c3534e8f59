"""What alembic runs: migrations over the connection that :mod:`pipeline.db.migrate` hands in, in its transaction."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Enum

from pipeline.db import models
from pipeline.db.base import UtcDateTime
from pipeline.db.views import create_views, drop_views


def render_item(kind: str, item: Any, _context: AutogenContext) -> str | Literal[False]:
    """Write our own types as plain ones: a migration must go on meaning what it meant when it was written."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    if kind == "type" and isinstance(item, Enum):
        return f"sa.String(length={item.length})"
    return False


def run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=models.Job.metadata,
        compare_type=True,
        render_as_batch=connection.dialect.name == "sqlite",
        render_item=render_item,
        transaction_per_migration=False,
    )
    drop_views(connection)
    context.run_migrations()
    newest = ScriptDirectory.from_config(context.config).get_current_head()
    if newest is not None and context.get_context().get_current_revision() == newest:
        create_views(connection)


run(context.config.attributes["connection"])
