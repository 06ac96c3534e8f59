"""What stands in the database, looked at all the time from beside: for choosing victims, and for measuring recovery."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from pipeline.db.models import Job, Part, Shard, Worker
from pipeline.db.session import Database
from pipeline.db.states import TERMINAL, JobStatus, ShardStatus

#: Seconds between two looks; what is measured is late by at most this.
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class ShardState:
    status: ShardStatus
    token: int
    owner: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look. ``at`` is the monotonic second at which it began; ``pids`` are those of workers by their id."""

    at: float
    status: JobStatus
    total: int
    ended: int
    last_part: int
    shards: Mapping[int, ShardState]
    pids: Mapping[str, int]

    @property
    def progress(self) -> float:
        """Share of the items that are registered."""
        return self.ended / self.total

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL

    def leased_by(self, pid: int) -> dict[int, int]:
        """Shard to token of what a worker holds."""
        return {
            shard: state.token
            for shard, state in self.shards.items()
            if state.owner is not None and self.pids.get(state.owner) == pid
        }


class Monitor:
    """A thread that looks. It outlives a database that is away: then there is no new snapshot."""

    def __init__(self, database: Database, job_id: str) -> None:
        self._database = database
        self._job_id = job_id
        self._changed = threading.Condition()
        self._latest: Snapshot | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="monitor", daemon=True)

    def __enter__(self) -> Monitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait(self, condition: Callable[[Snapshot], bool], timeout_s: float, *, since: float = 0.0) -> Snapshot | None:
        """The first snapshot begun after ``since`` of which ``condition`` is true; None when there is none in time."""
        found: Snapshot | None = None

        def met() -> bool:
            nonlocal found
            found = self._latest
            return found is not None and found.at > since and condition(found)

        with self._changed:
            return found if self._changed.wait_for(met, timeout_s) else None

    def _look_on(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                snapshot = self._look()
            except DBAPIError:
                continue
            with self._changed:
                self._latest = snapshot
                self._changed.notify_all()

    def _look(self) -> Snapshot:
        at = time.monotonic()
        with Session(self._database.engine) as session, session.begin():
            job = session.get_one(Job, self._job_id)
            shards = {
                row.id: ShardState(row.status, row.lease_token, row.lease_owner)
                for row in session.scalars(select(Shard).where(Shard.job_id == self._job_id))
            }
            last_part = session.scalar(
                select(func.max(Part.id)).join(Shard, Shard.id == Part.shard_id).where(Shard.job_id == self._job_id)
            )
            pids = {row.id: row.pid for row in session.scalars(select(Worker))}
            return Snapshot(at, job.status, job.total, job.total - job.processing, last_part or 0, shards, pids)
