"""What checks of accelerations found, as rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import func, insert, select

from pipeline.db.models import VerdictRow
from pipeline.db.repository.base import ERROR_CODE_CHARS, Repository, clip, utc_now
from pipeline.db.values import ShardLease, VerdictView
from pipeline.ports import Verdict

#: Longest name of a mechanism, as the column has it.
MECHANISM_CHARS = 32


class VerdictRepository(Repository):
    """The ``verdicts`` table."""

    def add(self, lease: ShardLease, verdicts: Iterable[Verdict]) -> None:
        """Part of the transaction that ends the attempt, which matches the lease."""
        now = utc_now()
        rows = [
            {
                "job_id": lease.shard.job_id,
                "shard_id": lease.shard_id,
                "token": lease.token,
                "worker_id": lease.owner,
                "mechanism": clip(one.mechanism)[:MECHANISM_CHARS],
                "outcome": one.outcome,
                "code": clip(one.code)[:ERROR_CODE_CHARS],
                "reason": clip(one.reason),
                "count": one.count,
                "at": now,
            }
            for one in verdicts
        ]
        if rows:
            self._session.execute(insert(VerdictRow), rows)

    def of_job(self, job_id: str) -> Sequence[VerdictView]:
        """Summed over a job's shards, as the view ``job_verdicts`` has it; what was violated comes first."""
        kind = VerdictRow.mechanism, VerdictRow.outcome, VerdictRow.code
        query = (
            select(
                *kind,
                func.sum(VerdictRow.count),
                func.count(VerdictRow.shard_id.distinct()),
                func.max(VerdictRow.id),
            )
            .where(VerdictRow.job_id == job_id)
            .group_by(*kind)
        )
        rows = self._session.execute(query).all()
        last = select(VerdictRow.id, VerdictRow.reason).where(VerdictRow.id.in_([row[5] for row in rows]))
        reasons = dict(self._session.execute(last).all())
        found = [VerdictView(*row[:3], reasons[row[5]], int(row[3]), row[4]) for row in rows]
        order = ("violated", "declined", "held")
        return sorted(found, key=lambda one: (order.index(one.outcome), one.mechanism, one.code))
