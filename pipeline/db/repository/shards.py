"""Shards and their leases. Every write for a shard matches ``status = 'leased' AND lease_token = :mine`` (law 2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import SQLColumnExpression, case, delete, func, literal, select, update

from pipeline.db.models import FailedAttempt, ItemErrorRow, Job, Shard
from pipeline.db.repository.base import ERROR_CODE_CHARS, Repository, clip, to_value, utc_now
from pipeline.db.repository.claims import claim_statement, claim_times
from pipeline.db.states import JobStatus, Outcome, ShardStatus
from pipeline.db.suspicion import Suspicion
from pipeline.db.values import AttemptFailure, ItemFailure, ShardLease, ShardView
from pipeline.errors import ChildDied, EngineFailed, LeaseLost

#: What a shard that has ended says of suspects.
NO_SUSPICION = Suspicion().columns()

#: What the unanswered items of a failed shard end with.
SHARD_FAILED = "shard_failed"


class ShardRepository(Repository):
    """The ``shards`` table, and the counts of ``jobs`` that move with it."""

    def get(self, shard_id: int) -> ShardView | None:
        row = self._session.get(Shard, shard_id)
        return None if row is None else to_value(row, ShardView)

    def of_job(self, job_id: str, *, after: int = -1, limit: int = 100) -> Sequence[ShardView]:
        """A page of a job's shards, in order, behind ordinal ``after``."""
        query = select(Shard).where(Shard.job_id == job_id, Shard.ordinal > after).order_by(Shard.ordinal).limit(limit)
        return [to_value(row, ShardView) for row in self._session.scalars(query)]

    def leased(self, *, after: int = 0, limit: int = 500) -> Sequence[ShardView]:
        """A page of the shards under a lease, by id."""
        query = (
            select(Shard).where(Shard.status == ShardStatus.LEASED, Shard.id > after).order_by(Shard.id).limit(limit)
        )
        return [to_value(row, ShardView) for row in self._session.scalars(query)]

    def attempts_of(self, job_id: str) -> tuple[int, int]:
        """(attempts, child deaths) summed over a job."""
        query = select(func.coalesce(func.sum(Shard.attempts), 0), func.coalesce(func.sum(Shard.child_deaths), 0))
        attempts, deaths = self._session.execute(query.where(Shard.job_id == job_id)).one()
        return int(attempts), int(deaths)

    def last_errors(self, job_id: str, limit: int = 3) -> Sequence[str]:
        """Why attempts at a job's shards failed, of the first shards that have a reason."""
        query = select(Shard.last_error).where(Shard.job_id == job_id, Shard.last_error.is_not(None))
        return [text for text in self._session.scalars(query.order_by(Shard.ordinal).limit(limit)) if text]

    # --- the lease ---

    def claim(self, job_id: str, owner: str) -> ShardLease | None:
        """Lease the job's first pending shard that is due; None when there is none, or the job does not run: it ends,
        or it, its queue or the ``owner`` is paused.

        One winner each: the row is locked (PostgreSQL, skipping what others hold) or the database is (SQLite).
        """
        connection = self._session.connection()
        values = {"job": job_id, "owner": owner, **claim_times()}
        row = connection.execute(claim_statement(connection.dialect.name), values).one_or_none()
        return None if row is None else ShardLease(ShardView(*row), owner)

    def renew(self, lease: ShardLease) -> None:
        """Move the counter; raises LeaseLost."""
        self._guarded(lease, lease_renewals=Shard.lease_renewals + 1)

    def suspect(self, lease: ShardLease, suspicion: Suspicion) -> None:
        """Write down what is about to be fed, before it is, and who is on trial (law 5); moves the counter."""
        self._guarded(lease, lease_renewals=Shard.lease_renewals + 1, **suspicion.columns())

    def crashed_ids(self, shard_id: int) -> frozenset[str]:
        """Items of a shard that ended as ``engine_crashed`` or ``engine_failed``: no child may see them again."""
        condemned = ItemErrorRow.code.in_((ChildDied.code, EngineFailed.code))
        query = select(ItemErrorRow.custom_id).where(ItemErrorRow.shard_id == shard_id, condemned)
        return frozenset(self._session.scalars(query))

    def count_part(self, lease: ShardLease, *, succeeded: int, errored: int) -> None:
        """Move the counts of the shard; part of the transaction that inserts the part's row. Raises LeaseLost."""
        self._guarded(
            lease,
            succeeded=Shard.succeeded + succeeded,
            errored=Shard.errored + errored,
            lease_renewals=Shard.lease_renewals + 1,
        )

    def count_in_job(self, lease: ShardLease, *, succeeded: int, errored: int) -> None:
        """Move the job's counts with those of the shard."""
        statement = update(Job).where(Job.id == lease.shard.job_id)
        self._changed(
            statement.values(
                processing=Job.processing - succeeded - errored,
                succeeded=Job.succeeded + succeeded,
                errored=Job.errored + errored,
            )
        )

    # --- ends of a lease ---

    def complete(self, lease: ShardLease) -> None:
        """All items are registered."""
        remaining = self._end(lease, ShardStatus.DONE)
        if remaining:
            raise AssertionError(f"shard {lease.shard_id} ended with {remaining} items unanswered")

    def cancel(self, lease: ShardLease) -> None:
        """End under the job's outcome: what is not registered counts as cancelled (or expired)."""
        remaining = self._end(lease, ShardStatus.CANCELLED)
        self._settle(lease.shard.job_id, remaining)

    def fail(self, lease: ShardLease, reason: str, unanswered: Sequence[ItemFailure], *, code: str) -> None:
        """Give the shard up: what is not registered errs, each with its row."""
        remaining = self._end(lease, ShardStatus.FAILED, last_error=clip(reason))
        self._add_failure(lease.shard, lease.owner, code, reason)
        if remaining != len(unanswered):
            raise AssertionError(f"shard {lease.shard_id}: {remaining} unanswered items, {len(unanswered)} named")
        self.add_errors(lease, unanswered)
        self._move_counts(lease.shard.job_id, "errored", remaining)

    def give_back(
        self,
        lease: ShardLease,
        failure: AttemptFailure | None = None,
        *,
        delay_s: float = 0.0,
        suspicion: Suspicion | None = None,
    ) -> None:
        """Return the shard to ``pending``; after ``delay_s`` it may be claimed again.

        Without a ``failure`` (a drained worker, a pause) no attempt is counted, none where the surroundings failed, and
        none where items are on trial: ``suspicion`` says which from now on; otherwise that stays as it is.
        """
        values: dict[str, Any] = {"status": ShardStatus.PENDING, "lease_owner": None, "in_flight": None}
        if suspicion is not None:
            values |= suspicion.columns()
        if failure is not None:
            values["last_error"] = clip(failure.reason)
            values["not_before"] = self._now() + timedelta(seconds=delay_s)
            self._add_failure(lease.shard, lease.owner, failure.code, failure.reason)
        if failure is None or failure.is_environment or suspicion is not None:
            values["attempts"] = Shard.attempts - 1
        if failure is not None and failure.is_environment:
            values["waits"] = Shard.waits + 1
        if failure is not None and failure.child_died:
            values["child_deaths"] = Shard.child_deaths + 1
        self._guarded(lease, lease_token=Shard.lease_token + 1, **values)

    def take_back(self, seen: ShardView, reason: str) -> bool:
        """Take a lease that was seen to stand still; False when it moved after all."""
        statement = (
            update(Shard)
            .where(
                Shard.id == seen.id,
                Shard.status == ShardStatus.LEASED,
                Shard.lease_token == seen.lease_token,
                Shard.lease_renewals == seen.lease_renewals,
            )
            .values(
                status=ShardStatus.PENDING,
                lease_owner=None,
                lease_token=Shard.lease_token + 1,
                lost_leases=Shard.lost_leases + 1,
                last_error=clip(reason),
                attempts=Shard.attempts - (1 if seen.in_flight else 0),  # what was fed is tried, and not counted
                **Suspicion.of(seen).after_loss(seen.lost_leases + 1).columns(),
            )
        )
        taken = self._changed(statement) == 1
        if taken:
            self._add_failure(seen, seen.lease_owner, LeaseLost.code, reason)
        return taken

    def requeue(self, job_id: str, ordinal: int | None = None) -> dict[int, int]:
        """Revive failed shards (or the one ``ordinal``) of a job that runs: {ordinal: items that wait again}.

        Nothing changes, and nothing is returned, when none failed or the job ends. Rows are locked in the order shard,
        then job, as everywhere: a job that is closed at the same moment either has no open shard, or has these.
        """
        failed = [Shard.job_id == job_id, Shard.status == ShardStatus.FAILED]
        if ordinal is not None:
            failed.append(Shard.ordinal == ordinal)
        changes = {
            "status": ShardStatus.PENDING,
            "lease_token": Shard.lease_token + 1,
            **dict.fromkeys(("attempts", "waits", "child_deaths", "lost_leases"), 0),
            "not_before": None,
            "finished_at": None,
            **NO_SUSPICION,
        }
        remaining = Shard.item_count - Shard.succeeded - Shard.errored
        with self._session.begin_nested() as savepoint:
            rows = self._session.execute(
                update(Shard).where(*failed).values(changes).returning(Shard.id, Shard.ordinal, remaining)
            ).all()
            items = sum(row[2] for row in rows)
            runs = Job.id == job_id, Job.status.in_((JobStatus.QUEUED, JobStatus.IN_PROGRESS)), Job.outcome.is_(None)
            values = {
                "shards_open": Job.shards_open + len(rows),
                "errored": Job.errored - items,
                "processing": Job.processing + items,
            }
            if not rows or self._changed(update(Job).where(*runs).values(values)) != 1:
                savepoint.rollback()
                return {}
            for shard_id, place, unanswered in rows:
                named = delete(ItemErrorRow).where(ItemErrorRow.shard_id == shard_id, ItemErrorRow.code == SHARD_FAILED)
                if self._changed(named) != unanswered:
                    raise AssertionError(
                        f"shard {place} of {job_id}: not {unanswered} items were named as {SHARD_FAILED}"
                    )
        return {place: unanswered for _, place, unanswered in rows}

    def cancel_pending(self, job_id: str) -> int:
        """End the pending shards of a job that has an outcome; how many there were.

        Rows are locked in the order shard, then job, as everywhere.
        """
        statement = (
            update(Shard)
            .where(Shard.job_id == job_id, Shard.status == ShardStatus.PENDING)
            .values(status=ShardStatus.CANCELLED, finished_at=utc_now(), lease_token=Shard.lease_token + 1)
            .returning(Shard.item_count - Shard.succeeded - Shard.errored)
        )
        remaining = list(self._session.scalars(statement))
        if remaining:
            self._changed(update(Job).where(Job.id == job_id).values(shards_open=Job.shards_open - len(remaining)))
            self._settle(job_id, sum(remaining))
        return len(remaining)

    def settle_unplanned(self, job_id: str) -> None:
        """End the items of a job that never got shards."""
        unplanned = update(Job).where(Job.id == job_id, Job.shards_total == 0, Job.processing > 0)
        self._changed(unplanned.values(settled(Job.processing)))

    def add_errors(self, lease: ShardLease, failures: Sequence[ItemFailure]) -> None:
        """A row for each item that erred; part of the transaction that moves the counts."""
        self._session.add_all(error_row(lease.shard.job_id, lease.shard_id, item) for item in failures)

    # --- inside ---

    def _add_failure(self, shard: ShardView, worker: str | None, code: str, reason: str) -> None:
        """Keep why an attempt did not end well; part of the transaction that ends it."""
        self._session.add(failed_attempt(shard.job_id, shard.id, shard.lease_token, worker, code, reason))

    def _guarded(self, lease: ShardLease, **values: Any) -> None:
        statement = update(Shard).where(
            Shard.id == lease.shard_id, Shard.status == ShardStatus.LEASED, Shard.lease_token == lease.token
        )
        if self._changed(statement.values(values)) != 1:
            raise LeaseLost(f"shard {lease.shard.ordinal} of {lease.shard.job_id} was taken by another worker")

    def _end(self, lease: ShardLease, status: ShardStatus, **values: Any) -> int:
        self._guarded(lease, status=status, finished_at=utc_now(), lease_owner=None, **NO_SUSPICION, **values)
        self._changed(update(Job).where(Job.id == lease.shard.job_id).values(shards_open=Job.shards_open - 1))
        row = self._session.execute(
            select(Shard.item_count - Shard.succeeded - Shard.errored).where(Shard.id == lease.shard_id)
        )
        return int(row.scalar_one())

    def _settle(self, job_id: str, items: int) -> None:
        """Move items from ``processing`` to what the job's outcome calls them."""
        self._changed(update(Job).where(Job.id == job_id).values(settled(literal(items))))

    def _move_counts(self, job_id: str, column: str, items: int) -> None:
        target = getattr(Job, column)
        statement = update(Job).where(Job.id == job_id)
        self._changed(statement.values({"processing": Job.processing - items, column: target + items}))


def error_row(job_id: str, shard_id: int, item: ItemFailure) -> ItemErrorRow:
    """An item that erred, as its row."""
    code = clip(item.code)[:ERROR_CODE_CHARS]
    return ItemErrorRow(
        job_id=job_id,
        shard_id=shard_id,
        custom_id=item.custom_id,
        line=item.line,
        code=code,
        message=clip(item.message),
    )


def failed_attempt(job_id: str, shard_id: int, token: int, worker: str | None, code: str, reason: str) -> FailedAttempt:
    """Why an attempt did not end well, as its row."""
    return FailedAttempt(
        job_id=job_id,
        shard_id=shard_id,
        token=token,
        worker_id=worker,
        code=clip(code)[:ERROR_CODE_CHARS],
        reason=clip(reason),
        at=utc_now(),
    )


def settled(items: SQLColumnExpression[int] | int) -> dict[str, Any]:
    """Columns of a job whose ``items`` are not going to be answered, as its outcome calls them."""
    expired = case((Job.outcome == Outcome.EXPIRED, items), else_=0)
    return {
        "processing": Job.processing - items,
        "expired": Job.expired + expired,
        "cancelled": Job.cancelled + items - expired,
    }
