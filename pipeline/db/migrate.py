"""The schema's versions: bring a database to the newest one, refuse one that is older, compare it with the models.

Alembic is set up here in code and finds its scripts inside the installed package ``migrations``, so that no ini file
and no source tree is needed. Knows nothing about what the tables mean.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

from pipeline.db import models
from pipeline.db.schema import connect, current, sqlite_path
from pipeline.errors import SchemaOutdated
from pipeline.private import make_private_file, make_private_folder, private_opener

#: Key of PostgreSQL's advisory lock that an upgrade holds: any number, as long as it is always this one.
_ADVISORY_LOCK = 7_268_114

#: How long an upgrade waits for another one, then for a table that somebody uses, then for one statement.
_TURN_TIMEOUT = "5min"
_LOCK_TIMEOUT = "10s"
_STATEMENT_TIMEOUT = "5min"

_HINT = "run `pipeline db upgrade`"


def head() -> str:
    """The newest revision among the scripts; what :data:`pipeline.db.schema.HEAD` says without reading them."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def check(database_url: str) -> None:
    """Return if the schema is the one this code needs; raises SchemaOutdated, with what to run, if it is not."""
    found, needed = current(database_url), head()
    if found == needed:
        return
    if found is None:
        raise SchemaOutdated("The database has no schema yet.", hint=_HINT)
    if not _is_known(found):
        raise SchemaOutdated(
            f"The database has schema {found}, which is newer than this program ({needed}).",
            hint="install the newer version of mac-batch-pipeline on this host",
        )
    raise SchemaOutdated(f"The database has schema {found}; this version needs {needed}.", hint=_HINT)


def upgrade(database_url: str) -> str:
    """Bring a database to the newest schema and give its revision; any number of processes may do so at once.

    A SQLite file and its folder are made. Everything happens in one transaction: an upgrade that fails changes
    nothing. Raises SchemaOutdated for a database that a newer program made, DatabaseUnavailable, ConfigError.
    """
    found = current(database_url)
    if found == head():
        return found
    if found is not None and not _is_known(found):
        check(database_url)
    with _exclusive(database_url) as connection:
        command.upgrade(_config(connection), "head")
    return head()


def downgrade(database_url: str, revision: str = "base") -> None:
    """Take a database back to an older schema; what the newer one held is lost."""
    with _exclusive(database_url) as connection:
        command.downgrade(_config(connection), revision)


def find_differences(database_url: str) -> list[str]:
    """What the tables of a database lack or have too much, compared with the models; [] when they are equal."""
    with connect(database_url) as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return [str(difference) for difference in compare_metadata(context, models.Job.metadata)]


def write_revision(database_url: str, slug: str) -> None:
    """Write a new migration from the difference between a database at head and the models (for developers)."""
    revision = f"{datetime.now(UTC):%Y%m%d}_{slug}"
    with _exclusive(database_url) as connection:
        command.revision(_config(connection), message=slug.replace("_", " "), autogenerate=True, rev_id=revision)


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "migrations:.")
    config.set_main_option("path_separator", "os")
    config.set_main_option("timezone", "UTC")
    config.set_main_option("file_template", "%%(year)d-%%(month).2d-%%(day).2d-%%(hour).2d%%(minute).2d_%%(slug)s")
    config.attributes["connection"] = connection
    return config


def _is_known(revision: str) -> bool:
    try:
        ScriptDirectory.from_config(_config()).get_revision(revision)
    except CommandError:
        return False
    return True


@contextmanager
def _exclusive(database_url: str) -> Iterator[Connection]:
    """A connection in a transaction that no other upgrade is in; commits when the block ends well."""
    path = sqlite_path(database_url)
    if path is None:
        with connect(database_url) as connection, connection.begin():
            connection.execute(text(f"SET LOCAL lock_timeout = '{_TURN_TIMEOUT}'"))
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
            connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'"))
            connection.execute(text(f"SET LOCAL statement_timeout = '{_STATEMENT_TIMEOUT}'"))
            yield connection
        return
    make_private_folder(path.parent)
    # The switch to WAL knows no waiting, so SQLite's own locks do not do for the first moment of a database.
    with open(path.with_name(path.name + ".upgrade-lock"), "w", opener=private_opener) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_private_file(path)  # its journals get the mode that it has
        with connect(database_url) as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            connection.rollback()
            with connection.begin():
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                yield connection
