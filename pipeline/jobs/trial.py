"""A shard's suspects as its row has them: what is fed is written down before it is, who ends the engine errs (law 5)."""

from __future__ import annotations

import logging

from pipeline.db.suspicion import Suspicion
from pipeline.db.values import ShardLease
from pipeline.errors import ChildDied
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.recording import PartRecorder

log = logging.getLogger(__name__)

Items = frozenset[int]


class Trial:
    """Belongs to one attempt; every change is in the database before it counts. Raises LeaseLost."""

    def __init__(self, deployment: Deployment, lease: ShardLease) -> None:
        self._database = deployment.database
        self._lease = lease
        self.suspicion = Suspicion.of(lease.shard)

    def begin(self, answered: Items) -> None:
        """Nothing is in a child now, and what is answered is no suspect; said in the row if that is news."""
        rested = self.suspicion.at_rest(answered)
        if rested != self.suspicion:
            self._say(rested)

    def feed(self, items: Items) -> None:
        """These are about to be fed."""
        self._say(self.suspicion.feeding(items))

    def clear(self, item: int) -> None:
        """The lowest suspect was alone, and did no harm."""
        self._say(self.suspicion.after_clearing(item))

    def fed(self) -> None:
        """What was fed has come out. Not worth a write: who reads the row takes what is answered out of it."""
        self.suspicion = self.suspicion.feeding(frozenset())

    def condemn(self, recorder: PartRecorder) -> None:
        """The item that was alone in the engine once too often errs, and everybody else goes on."""
        index = self.suspicion.condemned
        if index is None:
            return
        shard, suspicion = self._lease.shard, self.suspicion
        with self._database.read() as uow:
            last = uow.attempts.last_of_engine(shard.id)
            number = uow.attempts.number_of(shard.id)
        code, reason = last or (ChildDied.code, shard.last_error or "its worker was gone")
        ends = f"ended the engine {suspicion.alone_deaths} times"
        if suspicion.alone_losses:
            ends += f" and was there when the worker was lost, {suspicion.alone_losses} times"
        message = f"alone in the engine, this item {ends}; at attempt {number}: {reason}"
        recorder.condemn(index, {"code": code, "message": message})
        recorder.flush()
        self._say(suspicion.at_rest(frozenset({index})))
        log.warning("item_condemned", extra={"job": shard.job_id, "shard": shard.ordinal, "item": index})

    def _say(self, suspicion: Suspicion) -> None:
        with self._database.write() as uow:
            uow.shards.suspect(self._lease, suspicion)
        self.suspicion = suspicion
