"""Which version of the schema a database has, and whether it is the one that this code needs.

Asked by every process that opens a database, so alembic is imported only where the answer is no.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, InterfaceError, NoSuchModuleError, OperationalError
from sqlalchemy.pool import NullPool

from pipeline.db.session import URL_HINT
from pipeline.errors import ConfigError, DatabaseUnavailable
from pipeline.secrecy import mask_url

#: The revision this version of the code needs: the newest file in ``migrations/versions``.
HEAD = "20261129_verdicts"

#: Where alembic keeps the revision.
_VERSION_TABLE = "alembic_version"


def ensure(database_url: str) -> None:
    """Make or upgrade a database that is not at :data:`HEAD`; raises what :func:`pipeline.db.migrate.upgrade` raises."""
    if current(database_url) != HEAD:
        from pipeline.db import migrate

        migrate.upgrade(database_url)


def check(database_url: str) -> None:
    """Return if the schema is the one this code needs; raises what :func:`pipeline.db.migrate.check` raises."""
    if current(database_url) != HEAD:
        from pipeline.db import migrate

        migrate.check(database_url)


def current(database_url: str) -> str | None:
    """The revision a database has, None for an empty one. Raises DatabaseUnavailable, ConfigError."""
    path = sqlite_path(database_url)
    if path is not None and not path.exists():
        return None
    with connect(database_url) as connection:
        if not inspect(connection).has_table(_VERSION_TABLE):
            return None
        return connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalar_one_or_none()


@contextmanager
def connect(database_url: str) -> Iterator[Connection]:
    """A connection of its own, outside any pool, with the driver's errors turned into ours."""
    shown = mask_url(database_url)
    try:
        engine = _make_engine(database_url)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(f"database_url {shown!r} cannot be used: {error}") from error
    except ModuleNotFoundError as error:
        raise ConfigError(f"database_url {shown!r} needs {error.name}", hint="pip install '.[postgres]'") from error
    try:
        with engine.connect() as connection:
            yield connection
    except (OperationalError, InterfaceError) as error:
        raise DatabaseUnavailable(f"{shown}: {error.orig}") from error
    finally:
        engine.dispose()


def _make_engine(database_url: str) -> Engine:
    engine = create_engine(database_url, poolclass=NullPool)
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _say_begin_ourselves(connection: object, _record: object) -> None:
            connection.isolation_level = None  # type: ignore[attr-defined]

    return engine


def sqlite_path(database_url: str) -> Path | None:
    """The file of a SQLite URL, None for another database."""
    try:
        url = make_url(database_url)
    except ArgumentError as error:
        raise ConfigError(f"database_url {mask_url(database_url)!r} cannot be used: {error}") from error
    except ValueError:  # its text quotes what stands in a port's place, which may be half of a password
        shown = mask_url(database_url)
        raise ConfigError(f"database_url {shown!r} has no number as its port", hint=URL_HINT) from None
    if url.get_backend_name() != "sqlite":
        return None
    if not url.database or url.database == ":memory:":
        raise ConfigError("a SQLite database must be a file: several processes share it")
    return Path(url.database)
