"""Attempts that did not end well: how many, why, and what a job waits for now."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import and_, exists, func, or_, select
from sqlalchemy.orm import aliased

from pipeline.db.models import FailedAttempt, Part, Shard
from pipeline.db.repository.base import Repository
from pipeline.db.states import ShardStatus
from pipeline.db.values import HeldUp
from pipeline.errors import ChildDied, ChildStalled, EngineFailed


class AttemptRepository(Repository):
    """The ``failed_attempts`` table, beside the shards it is about."""

    def counts(self, job_id: str, limit: int = 10) -> Sequence[tuple[str, int]]:
        """How many attempts at a job's shards failed, by code, the most frequent first."""
        number = func.count()
        query = (
            select(FailedAttempt.code, number)
            .where(FailedAttempt.job_id == job_id)
            .group_by(FailedAttempt.code)
            .order_by(number.desc(), FailedAttempt.code)
            .limit(limit)
        )
        return [(code, count) for code, count in self._session.execute(query)]

    def last_of_engine(self, shard_id: int) -> tuple[str, str] | None:
        """(code, reason) of the newest attempt at a shard that an engine's end ended."""
        of_engine = FailedAttempt.code.in_((ChildDied.code, ChildStalled.code, EngineFailed.code))
        query = select(FailedAttempt.code, FailedAttempt.reason).where(FailedAttempt.shard_id == shard_id, of_engine)
        row = self._session.execute(query.order_by(FailedAttempt.id.desc()).limit(1)).one_or_none()
        if row is None:
            return None
        return (EngineFailed.code if row.code == EngineFailed.code else ChildDied.code), row.reason

    def number_of(self, shard_id: int, *codes: str) -> int:
        """How many attempts at a shard failed; with ``codes`` only those."""
        query = select(func.count()).select_from(FailedAttempt).where(FailedAttempt.shard_id == shard_id)
        return int(self._session.scalar(query.where(FailedAttempt.code.in_(codes)) if codes else query) or 0)

    def held_up(self, job_id: str) -> Sequence[HeldUp]:
        """What open shards wait for, a row for each code: those whose last attempt failed, until one has a new part."""
        any_attempt = aliased(FailedAttempt)  # the query around it has the table too
        latest = select(func.max(any_attempt.id)).where(any_attempt.shard_id == Shard.id).scalar_subquery()
        has_part = exists().where(Part.shard_id == Shard.id, Part.token == Shard.lease_token).correlate(Shard)
        waits = and_(Shard.status == ShardStatus.PENDING, Shard.not_before.is_not(None))
        # Giving back and claiming have raised the token by one each since the attempt that failed.
        tries_again = and_(Shard.status == ShardStatus.LEASED, FailedAttempt.token == Shard.lease_token - 2, ~has_part)
        query = (
            select(FailedAttempt.code, func.count(), func.min(Shard.not_before), func.max(FailedAttempt.id))
            .select_from(Shard)
            .join(FailedAttempt, FailedAttempt.id == latest)
            .where(Shard.job_id == job_id, or_(waits, tries_again))
            .group_by(FailedAttempt.code)
            .order_by(func.count().desc(), FailedAttempt.code)
        )
        rows = self._session.execute(query).all()
        reasons = dict(
            self._session.execute(
                select(FailedAttempt.id, FailedAttempt.reason).where(FailedAttempt.id.in_([row[3] for row in rows]))
            ).all()
        )
        now = self._now()
        return [
            HeldUp(code, reasons[newest], count, None if due is None else max(0.0, (due - now).total_seconds()))
            for code, count, due, newest in rows
        ]
