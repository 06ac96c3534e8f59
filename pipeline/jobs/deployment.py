"""One installation as a process sees it: settings, database, store and doorbell, opened together and checked once."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass

from pipeline.config import Settings
from pipeline.db import schema
from pipeline.db.session import Database
from pipeline.errors import AlreadyExists, ArtifactMissing, ConfigError
from pipeline.jobs.dispatch import Doorbell
from pipeline.private import make_private_folder
from pipeline.store import layout
from pipeline.store.artifacts import ArtifactStore

_HOME_HINT = "set `home` (PIPELINE_HOME) to a folder that you can write to"


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a command or a worker needs. Close it when done."""

    settings: Settings
    database: Database
    store: ArtifactStore
    doorbell: Doorbell

    @classmethod
    def open(cls, settings: Settings, *, with_store: bool = True) -> Deployment:
        """Open everything; an embedded database is made or upgraded by itself, another must be at this version.

        Without ``with_store`` nothing is asked of the store: who only reads rows can do so while it is out of reach.

        Raises:
            SchemaOutdated: with the command to run.
            ConfigError: the store at ``store_url`` is not the one this database belongs to.
            DatabaseUnavailable, StoreUnavailable: they do not answer.
        """
        url = settings.resolved_database_url
        if settings.is_embedded_database:
            _make_home(settings)
            schema.ensure(url)
        else:
            schema.check(url)
        database = Database(url)
        try:
            store = ArtifactStore(settings.resolved_store_url, timeout_s=settings.store_timeout_s)
            if with_store:
                store.ensure()
                _check_identity(database, store)
        except BaseException:
            database.close()
            raise
        return cls(settings, database, store, Doorbell(settings))

    def close(self) -> None:
        self.doorbell.close()
        self.database.close()


def _make_home(settings: Settings) -> None:
    """Raises ConfigError for a home that is no folder of ours to write in."""
    home = settings.home_path
    try:
        make_private_folder(home)
    except OSError as error:
        raise ConfigError(f"home {home} cannot be made: {error.strerror}", hint=_HOME_HINT) from error
    if not os.access(home, os.W_OK | os.X_OK):
        raise ConfigError(f"home {home} cannot be written to", hint=_HOME_HINT)


def _check_identity(database: Database, store: ArtifactStore) -> None:
    """Law 9: a store belongs to one database.

    The uuid is the database's first and the store's second, so that whatever a crash leaves between the two is
    completed by the next start; two first starts agree on what the database took.
    """
    with database.read() as uow:
        known = uow.workers.store_uuid()
        has_jobs = bool(uow.jobs.list(limit=1))
    found = _read_marker(store)
    if known is None and found is None:
        known = _claim_identity(database)
    if found is None and known is not None and not has_jobs:
        store.put_bytes(layout.store_marker(), json.dumps({"uuid": known}).encode())
        return
    if found is None or found != known:
        raise ConfigError(
            f"the store at {store.url} is not the store of this database",
            hint="point store_url at the store that this database's jobs were written to, or at an empty folder",
        )


def _read_marker(store: ArtifactStore) -> str | None:
    try:
        return str(json.loads(store.read_bytes(layout.store_marker()))["uuid"])
    except ArtifactMissing:
        return None


def _claim_identity(database: Database) -> str | None:
    try:
        with database.write() as uow:
            uow.workers.set_store_uuid(uuid.uuid4().hex)
    except AlreadyExists:
        pass  # another first start was quicker
    with database.read() as uow:
        return uow.workers.store_uuid()
