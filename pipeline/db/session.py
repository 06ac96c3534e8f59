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
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from pipeline.db.repository.attempts import AttemptRepository
from pipeline.db.repository.claims import ClaimRepository
from pipeline.db.repository.indexes import IndexRepository
from pipeline.db.repository.jobs import JobRepository
from pipeline.db.repository.metrics import MetricRepository
from pipeline.db.repository.parts import PartRepository
from pipeline.db.repository.pauses import PauseRepository
from pipeline.db.repository.repairs import RepairRepository
from pipeline.db.repository.retention import RetentionRepository
from pipeline.db.repository.shards import ShardRepository
from pipeline.db.repository.vectors import VectorRepository
from pipeline.db.repository.verdicts import VerdictRepository
from pipeline.db.repository.workers import WorkerRepository
from pipeline.errors import AlreadyExists, ConfigError, DatabaseUnavailable
from pipeline.private import make_private_folder
from pipeline.secrecy import mask_secrets, mask_url

#: How long a SQLite connection waits for another process's short transaction, in milliseconds.
BUSY_TIMEOUT_MS = 60_000

#: A host that vanishes between UPDATE and COMMIT must not keep its row locks: the server ends an idle transaction and
#: gives up waiting for a lock after ten seconds, and either side notices a dead connection in twenty.
POSTGRESQL_ARGS = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
    "options": "-c idle_in_transaction_session_timeout=10000 -c lock_timeout=10000",
}


#: What is wrong with most URLs that cannot be read.
URL_HINT = "in a user name or password write @ as %40, : as %3A, / as %2F"


class UnitOfWork:
    """The repositories of one transaction."""

    def __init__(self, session: Session) -> None:
        self.jobs = JobRepository(session)
        self.claims = ClaimRepository(session)
        self.shards = ShardRepository(session)
        self.attempts = AttemptRepository(session)
        self.parts = PartRepository(session)
        self.pauses = PauseRepository(session)
        self.vectors = VectorRepository(session)
        self.indexes = IndexRepository(session)
        self.workers = WorkerRepository(session)
        self.metrics = MetricRepository(session)
        self.verdicts = VerdictRepository(session)
        self.repairs = RepairRepository(session)
        self.retention = RetentionRepository(session)


class Database:
    """One database; safe to share between threads, never between processes."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            parsed = make_url(url)
            if parsed.get_backend_name() == "sqlite" and parsed.database:
                make_private_folder(Path(parsed.database).parent)
            self.engine = _make_engine(url)
        except (ArgumentError, NoSuchModuleError) as error:
            raise ConfigError(f"database_url {mask_url(url)!r} cannot be used: {error}") from error
        except ValueError:  # its text quotes what stands in a port's place, which may be half of a password
            raise ConfigError(f"database_url {mask_url(url)!r} has no number as its port", hint=URL_HINT) from None
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"database_url {mask_url(url)!r} needs the package {error.name}", hint="pip install '.[postgres]'"
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
    # Every slot has a thread of its own, and a keeper beside it; how many there are is the settings' to say.
    pool = {"pool_size": 4, "max_overflow": -1}
    if make_url(url).get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True, connect_args=POSTGRESQL_ARGS, **pool)
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000}, **pool)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # we say BEGIN ourselves, below
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "fullfsync=ON",
            f"busy_timeout={BUSY_TIMEOUT_MS}",
        ):
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
        if _is_doubled_key(error.orig):
            raise AlreadyExists(str(error.orig)) from error
        raise
    except PoolTimeout as error:
        raise DatabaseUnavailable(f"{mask_secrets(url)}: no connection became free") from error
    except DBAPIError as error:
        if error.connection_invalidated or type(error).__name__ in ("OperationalError", "InterfaceError"):
            raise DatabaseUnavailable(f"{mask_secrets(url)}: {error.orig}") from error
        raise


def _is_doubled_key(error: BaseException | None) -> bool:
    """By the drivers' own codes: the text of a message may quote what a user wrote."""
    if getattr(error, "sqlstate", None) == "23505":
        return True
    return getattr(error, "sqlite_errorname", "") in ("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY")
