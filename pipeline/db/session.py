"""Connections and the unit of work: one short transaction, committed when its block ends well.

SQLite runs in WAL mode and takes its write lock at BEGIN, so that a transaction never has to be upgraded in the
middle (the one case no busy timeout helps). PostgreSQL runs READ COMMITTED and relies on guarded UPDATEs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.orm import Session

from pipeline.config import mask_secrets
from pipeline.db.repository.indexes import IndexRepository
from pipeline.db.repository.jobs import JobRepository
from pipeline.db.repository.metrics import MetricRepository
from pipeline.db.repository.parts import PartRepository
from pipeline.db.repository.shards import ShardRepository
from pipeline.db.repository.vectors import VectorRepository
from pipeline.db.repository.workers import WorkerRepository
from pipeline.errors import AlreadyExists, ConfigError, DatabaseUnavailable

#: How long a SQLite connection waits for another process's short transaction, in milliseconds.
BUSY_TIMEOUT_MS = 60_000


class UnitOfWork:
    """The repositories of one transaction."""

    def __init__(self, session: Session) -> None:
        self.jobs = JobRepository(session)
        self.shards = ShardRepository(session)
        self.parts = PartRepository(session)
        self.vectors = VectorRepository(session)
        self.indexes = IndexRepository(session)
        self.workers = WorkerRepository(session)
        self.metrics = MetricRepository(session)


class Database:
    """One database; safe to share between threads, never between processes."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            parsed = make_url(url)
            if parsed.get_backend_name() == "sqlite" and parsed.database:
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.engine = _make_engine(url)
        except (ArgumentError, NoSuchModuleError) as error:
            raise ConfigError(f"database_url {mask_secrets(url)!r} cannot be used: {error}") from error
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"database_url {mask_secrets(url)!r} needs the package {error.name}", hint="pip install '.[postgres]'"
            ) from error
        self._writing = self.engine.execution_options(pipeline_write=True)

    @contextmanager
    def write(self) -> Iterator[UnitOfWork]:
        """A writing transaction: commits at the end, rolls back on any exception. Raises DatabaseUnavailable."""
        with _mapped(self.url), Session(self._writing, expire_on_commit=False) as session, session.begin():
            yield UnitOfWork(session)

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        """A reading transaction: one snapshot on SQLite."""
        with _mapped(self.url), Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield UnitOfWork(session)

    def close(self) -> None:
        self.engine.dispose()


def _make_engine(url: str) -> Engine:
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True, pool_size=4, max_overflow=28)
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000}, pool_size=4, max_overflow=28)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, below
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", f"busy_timeout={BUSY_TIMEOUT_MS}"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("pipeline_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


@contextmanager
def _mapped(url: str) -> Iterator[None]:
    """Turn the driver's errors into ours; what a query got wrong itself stays what it is."""
    try:
        yield
    except IntegrityError as error:
        if "UNIQUE" in str(error.orig).upper():
            raise AlreadyExists(str(error.orig)) from error
        raise
    except DBAPIError as error:
        if error.connection_invalidated or type(error).__name__ in ("OperationalError", "InterfaceError"):
            raise DatabaseUnavailable(f"{mask_secrets(url)}: {error.orig}") from error
        raise
