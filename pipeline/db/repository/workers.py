"""Workers, the models they loaded, named leases, and the identity of the store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Select, select, update

from pipeline.db.models import Lease, ModelRow, StoreIdentity, Worker
from pipeline.db.repository.base import Repository, utc_now
from pipeline.db.values import NamedLease, WorkerView
from pipeline.errors import LeaseLost

#: Of a worker's row: it has not stopped, and is not taken for dead.
_RUNS = Worker.status.in_(("live", "draining"))


class WorkerRepository(Repository):
    """The ``workers``, ``models``, ``leases`` and ``store_identity`` tables."""

    # --- workers ---

    def add(
        self, *, worker_id: str, host: str, pid: int, queues: Collection[str], slots: int, device: str, memory: int
    ) -> None:
        now = utc_now()
        self._session.add(
            Worker(
                id=worker_id,
                host=host,
                pid=pid,
                queues=",".join(queues),
                slots=slots,
                device=device,
                memory_bytes=memory,
                status="live",
                started_at=now,
                seen_at=now,
            )
        )

    def beat(self, worker_id: str, loaded_models: Collection[str], *, status: str = "live") -> None:
        """Show that the process lives, or is ``draining``. One that was taken for dead is live again."""
        statement = update(Worker).where(Worker.id == worker_id)
        self._changed(
            statement.values(
                heartbeats=Worker.heartbeats + 1,
                loaded_models=",".join(sorted(loaded_models)),
                seen_at=utc_now(),
                status=status,
            )
        )

    def bury(self, worker_id: str) -> None:
        """Say that a worker is dead, by who knows it; one that stopped in order has said so itself."""
        statement = update(Worker).where(Worker.id == worker_id, Worker.status.in_(("live", "draining")))
        self._changed(statement.values(status="dead"))

    def set_status(self, worker_id: str, status: str, *, heartbeats: int | None = None) -> bool:
        """``stopped`` by itself, or ``dead`` by an observer that saw ``heartbeats`` stand still."""
        statement = update(Worker).where(Worker.id == worker_id)
        if heartbeats is not None:
            statement = statement.where(Worker.heartbeats == heartbeats)
        return self._changed(statement.values(status=status)) == 1

    def live(self) -> Sequence[WorkerView]:
        """All that have not stopped, oldest first."""
        return self._views(select(Worker).where(_RUNS).order_by(Worker.started_at))

    def live_page(self, *, after: str = "", limit: int = 500) -> Sequence[WorkerView]:
        """A page of those that have not stopped, by id."""
        return self._views(select(Worker).where(_RUNS, Worker.id > after).order_by(Worker.id).limit(limit))

    def _views(self, query: Select[Worker]) -> Sequence[WorkerView]:
        return [
            WorkerView(
                id=row.id,
                host=row.host,
                pid=row.pid,
                queues=tuple(filter(None, row.queues.split(","))),
                slots=row.slots,
                device=row.device,
                memory_bytes=row.memory_bytes,
                loaded_models=tuple(filter(None, row.loaded_models.split(","))),
                status=row.status,
                paused=row.paused,
                heartbeats=row.heartbeats,
                started_at=row.started_at,
                seen_at=row.seen_at,
            )
            for row in self._session.scalars(query)
        ]

    def remember_model(
        self, digest: str, *, name: str, model_type: str | None, dtype: str | None, details: dict[str, Any]
    ) -> None:
        """Keep what a model said of itself when it was last loaded."""
        said = {"name": name, "model_type": model_type, "dtype": dtype, "details": details}
        self._insert_missing(ModelRow, {"digest": digest, **said, "first_loaded_at": utc_now()})
        self._changed(update(ModelRow).where(ModelRow.digest == digest).values(said))

    # --- named leases ---

    def named_lease(self, name: str) -> NamedLease | None:
        row = self._session.get(Lease, name)
        return None if row is None else NamedLease(row.name, row.owner, row.token, row.renewals)

    def make_lease(self, name: str) -> None:
        """Insert a free lease; raises AlreadyExists when another process just did."""
        self._session.add(Lease(name=name))
        self._session.flush()

    def take_named(self, seen: NamedLease, owner: str) -> NamedLease | None:
        """Take a free lease, or one that was seen to stand still; None when it moved."""
        statement = (
            update(Lease)
            .where(Lease.name == seen.name, Lease.token == seen.token, Lease.renewals == seen.renewals)
            .values(owner=owner, token=Lease.token + 1)
            .returning(Lease.token)
        )
        token = self._session.scalar(statement)
        return None if token is None else NamedLease(seen.name, owner, token, seen.renewals)

    def renew_named(self, held: NamedLease) -> NamedLease:
        """Move the counter; raises LeaseLost."""
        statement = (
            update(Lease)
            .where(Lease.name == held.name, Lease.token == held.token, Lease.owner == held.owner)
            .values(renewals=Lease.renewals + 1)
            .returning(Lease.renewals)
        )
        renewals = self._session.scalar(statement)
        if renewals is None:
            raise LeaseLost(f"the lease {held.name} was taken by another worker")
        return NamedLease(held.name, held.owner, held.token, renewals)

    def release_named(self, held: NamedLease) -> None:
        statement = update(Lease).where(Lease.name == held.name, Lease.token == held.token)
        self._changed(statement.values(owner=None))

    def free_leases_of(self, owner: str) -> None:
        """Free what a process held that is known to be gone."""
        statement = update(Lease).where(Lease.owner == owner)
        self._changed(statement.values(owner=None, token=Lease.token + 1))

    # --- the store ---

    def store_uuid(self) -> str | None:
        return self._session.scalar(select(StoreIdentity.store_uuid))

    def set_store_uuid(self, store_uuid: str) -> None:
        """Insert the one row; raises AlreadyExists when another process just did."""
        self._session.add(StoreIdentity(id=1, store_uuid=store_uuid))
        self._session.flush()
