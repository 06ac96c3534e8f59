"""Jobs: their life as guarded UPDATEs, their job-level lease, what reconcile looks for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, bindparam, case, func, insert, select, update

from pipeline.db.models import IndexAlias, ItemErrorRow, Job, Shard
from pipeline.db.repository.base import Repository, clip, to_value, utc_now
from pipeline.db.states import SOURCES, TERMINAL, JobStatus, Outcome
from pipeline.db.values import JobLease, JobView, ShardCut
from pipeline.errors import ArtifactCorrupt, ArtifactMissing, LeaseLost

#: Rows of one INSERT when a plan is written.
INSERT_ROWS = 1_000


class JobRepository(Repository):
    """The ``jobs`` table."""

    # --- reading ---

    def get(self, job_id: str) -> JobView | None:
        row = self._session.get(Job, job_id)
        return None if row is None else to_value(row, JobView)

    def by_idempotency_key(self, key: str) -> JobView | None:
        row = self._session.scalar(select(Job).where(Job.idempotency_key == key))
        return None if row is None else to_value(row, JobView)

    def newest_of_content(self, digest: str) -> JobView | None:
        """The newest job over this file and spec that was not asked to end early and has its files; None without."""
        kept = Job.outcome.is_(None), Job.pruned_at.is_(None)
        query = select(Job).where(Job.content_digest == digest, *kept)
        row = self._session.scalar(query.order_by(Job.created_at.desc(), Job.id.desc()).limit(1))
        return None if row is None else to_value(row, JobView)

    def hold_content(self, digest: str) -> None:
        """Until this transaction ends, no other that calls this for the digest goes on.

        SQLite's write lock does it by itself; on PostgreSQL it is a lock on the digest, since there may be no row yet.
        """
        if self._session.get_bind().dialect.name == "postgresql":
            number = int.from_bytes(bytes.fromhex(digest)[:8], signed=True)
            self._session.execute(select(func.pg_advisory_xact_lock(number)))

    def ids_starting(self, prefix: str, limit: int = 2) -> list[str]:
        """Ids that start with ``prefix``: a command may name a job by an unambiguous beginning."""
        # The range is what an index can answer; ids go on in hexadecimal digits, which come before "z" in any collation.
        near = Job.id >= prefix, Job.id < f"{prefix}z"
        named = Job.id.startswith(prefix, autoescape=True), Job.pruned_at.is_(None)
        query = select(Job.id).where(*near, *named).order_by(Job.id).limit(limit)
        return list(self._session.scalars(query))

    def list(self, *, statuses: Collection[JobStatus] = (), limit: int = 50) -> Sequence[JobView]:
        """Newest first."""
        query = select(Job).where(Job.pruned_at.is_(None)).order_by(Job.created_at.desc(), Job.id).limit(limit)
        if statuses:
            query = query.where(Job.status.in_(statuses))
        return [to_value(row, JobView) for row in self._session.scalars(query)]

    def error_counts(self, job_id: str, limit: int = 5) -> Sequence[tuple[str, int]]:
        """The most frequent error codes of a job's items."""
        number = func.count()
        query = (
            select(ItemErrorRow.code, number)
            .where(ItemErrorRow.job_id == job_id)
            .group_by(ItemErrorRow.code)
            .order_by(number.desc(), ItemErrorRow.code)
            .limit(limit)
        )
        return [(code, count) for code, count in self._session.execute(query)]

    def children(self, job_id: str, limit: int = 100) -> Sequence[JobView]:
        """The jobs that retry items of this one, oldest first."""
        query = select(Job).where(Job.parent_job_id == job_id).order_by(Job.created_at, Job.id).limit(limit)
        return [to_value(row, JobView) for row in self._session.scalars(query)]

    # --- making and planning ---

    def add(
        self,
        *,
        job_id: str,
        kind: str,
        spec: dict[str, Any],
        total: int,
        endpoint: str | None = None,
        model: str | None = None,
        model_digest: str | None = None,
        draft_model: str | None = None,
        draft_digest: str | None = None,
        priority: int = 0,
        idempotency_key: str | None = None,
        input_uri: str | None = None,
        input_sha256: str | None = None,
        input_bytes: int = 0,
        parent_job_id: str | None = None,
        content_digest: str | None = None,
        expires_in_s: float | None = None,
    ) -> None:
        """Insert a job in ``validating``; raises AlreadyExists when the idempotency key is taken.

        The deadline is by the database's clock, as everything that looks for it is.
        """
        self._session.add(
            Job(
                id=job_id,
                kind=kind,
                status=JobStatus.VALIDATING,
                spec=spec,
                endpoint=endpoint,
                model=model,
                model_digest=model_digest,
                draft_model=draft_model,
                draft_digest=draft_digest,
                priority=priority,
                idempotency_key=idempotency_key,
                input_uri=input_uri,
                input_sha256=input_sha256,
                input_bytes=input_bytes,
                parent_job_id=parent_job_id,
                content_digest=content_digest,
                expires_at=None if expires_in_s is None else self._now() + timedelta(seconds=expires_in_s),
                total=total,
                processing=total,
                created_at=utc_now(),
            )
        )
        self._session.flush()

    def plan(self, lease: JobLease, cuts: Sequence[ShardCut]) -> None:
        """Write the frozen cut and queue the job, in one transaction; raises LeaseLost."""
        values = {
            "status": JobStatus.QUEUED,
            "queued_at": utc_now(),
            "shards_total": len(cuts),
            "shards_open": len(cuts),
            "lease_owner": None,
            "control_tries": 0,
            "error_code": None,
            "error_message": None,
        }
        if not self._guarded(lease, {JobStatus.VALIDATING}, values):
            raise LeaseLost(f"the plan of {lease.job_id} was made by another process")
        for first in range(0, len(cuts), INSERT_ROWS):
            rows = [
                {
                    "job_id": lease.job_id,
                    "ordinal": cut.ordinal,
                    "start_byte": cut.start_byte,
                    "end_byte": cut.end_byte,
                    "first_item": cut.first_item,
                    "item_count": cut.item_count,
                    "token_count": cut.token_count,
                    "sha256": cut.sha256,
                }
                for cut in cuts[first : first + INSERT_ROWS]
            ]
            self._session.execute(insert(Shard), rows)

    # --- the job-level lease: planning and finalizing ---

    def lease(self, job_id: str, status: JobStatus, owner: str) -> JobLease | None:
        """Take the free job-level lease of a job in ``status``; None when it is held, or the job is elsewhere."""
        statement = (
            update(Job)
            .where(Job.id == job_id, Job.status == status, Job.lease_owner.is_(None))
            .values(lease_owner=owner, lease_token=Job.lease_token + 1)
            .returning(Job.lease_token)
        )
        token = self._session.scalar(statement)
        return None if token is None else JobLease(job_id, token, owner)

    def free_lease(self, seen: JobView) -> bool:
        """Free a lease that was seen to stand still, for whoever can do the work; False when it moved after all."""
        statement = update(Job).where(
            Job.id == seen.id,
            Job.status == seen.status,
            Job.lease_token == seen.lease_token,
            Job.lease_renewals == seen.lease_renewals,
        )
        return self._changed(statement.values(lease_owner=None, lease_token=Job.lease_token + 1)) == 1

    def renew(self, lease: JobLease) -> None:
        """Move the counter; raises LeaseLost."""
        if not self._guarded(lease, None, {"lease_renewals": Job.lease_renewals + 1}):
            raise LeaseLost(f"the lease on {lease.job_id} was taken by another process")

    def release(self, lease: JobLease, trouble: tuple[str, str] | None = None) -> None:
        """Give the lease back, with the code and text of what was in the way; one that is lost already is no error."""
        said = {} if trouble is None else {"error_code": trouble[0], "error_message": clip(trouble[1])}
        self._guarded(lease, None, {"lease_owner": None, **said})

    def _guarded(self, lease: JobLease, statuses: Collection[JobStatus] | None, values: dict[str, Any]) -> bool:
        statement = update(Job).where(
            Job.id == lease.job_id, Job.lease_token == lease.token, Job.lease_owner == lease.owner
        )
        statement = statement.where(Job.status.not_in(TERMINAL) if statuses is None else Job.status.in_(statuses))
        return self._changed(statement.values(values)) == 1

    # --- changes of status ---

    def start(self, job_id: str) -> None:
        """The first shard was claimed."""
        self._move(job_id, JobStatus.IN_PROGRESS)

    def request_outcome(
        self, job_id: str, outcome: Outcome, *, code: str | None = None, message: str | None = None
    ) -> bool:
        """Say how the job shall end. False when it is finalizing or ended already: then nothing changes."""
        return self._move(job_id, JobStatus.CANCELLING, _outcome(outcome, code, message) | {"paused": False})

    def fail_unplanned(self, lease: JobLease, *, code: str, message: str) -> None:
        """The same for a job that cannot be planned, by who holds its lease; raises LeaseLost."""
        values = _outcome(Outcome.FAILED, code, message) | {"lease_owner": None, "cancelling_at": utc_now()}
        if not self._guarded(lease, {JobStatus.VALIDATING}, values | {"status": JobStatus.CANCELLING}):
            raise LeaseLost(f"{lease.job_id} was planned by another process")

    def note_engine(self, job_id: str, engine: dict[str, Any]) -> None:
        """What the job's answers may depend on, as the engine that gives them says it."""
        running = update(Job).where(Job.id == job_id, Job.status.not_in(TERMINAL))
        self._changed(running.values(engine=engine))

    def note_trouble(self, lease: JobLease, *, code: str, message: str) -> None:
        """Say in the job's row why it does not get on, for whoever looks; a lost lease is no error.

        A job that failed says why it failed, whatever else befalls it.
        """
        trouble = {"error_code": code, "error_message": clip(message)}
        said = {
            name: case((Job.outcome == Outcome.FAILED, getattr(Job, name)), else_=text)
            for name, text in trouble.items()
        }
        missed = 1 if code in (ArtifactMissing.code, ArtifactCorrupt.code) else 0
        self._guarded(lease, None, {"control_tries": Job.control_tries + missed, **said})

    def fail_finalizing(self, lease: JobLease, *, code: str, message: str) -> None:
        """Let a job that cannot be finalized as it was meant to end as failed; frees the lease for who does that."""
        values = _outcome(Outcome.FAILED, code, message) | {"lease_owner": None}
        self._guarded(lease, {JobStatus.FINALIZING}, values)

    def close_if_drained(self, job_id: str) -> bool:
        """Make a job whose shards have all ended ``finalizing``; False if it is not so far, or was already."""
        planned = Job.shards_open == 0, Job.processing == 0, Job.status != JobStatus.VALIDATING
        return self._move(job_id, JobStatus.FINALIZING, {"lease_owner": None, "paused": False}, *planned)

    def finish(
        self,
        lease: JobLease,
        status: JobStatus,
        *,
        output: tuple[str, str] | None,
        errors: tuple[str, str] | None,
    ) -> None:
        """The one guarded UPDATE that makes outputs the job's: ``(uri, sha256)`` each. Raises LeaseLost."""
        values: dict[str, Any] = {"status": status, f"{status.value}_at": utc_now(), "lease_owner": None}
        if status is not JobStatus.FAILED:
            values |= {"error_code": None, "error_message": None}  # trouble on the way is over
        if output is not None:
            values |= {"output_uri": output[0], "output_sha256": output[1]}
        if errors is not None:
            values |= {"errors_uri": errors[0], "errors_sha256": errors[1]}
        if not self._guarded(lease, SOURCES[status], values):
            raise LeaseLost(f"{lease.job_id} was finalized by another process")

    def publish_alias(self, name: str, index_id: str) -> None:
        """Move an index alias, keeping the version before for going back."""
        row = self._session.get(IndexAlias, name, with_for_update=True)
        if row is None:
            self._session.add(IndexAlias(name=name, index_id=index_id, previous_index_id=None, moved_at=utc_now()))
        elif row.index_id != index_id:
            row.index_id, row.previous_index_id, row.moved_at = index_id, row.index_id, utc_now()
        self._session.flush()

    def _move(
        self, job_id: str, target: JobStatus, values: dict[str, Any] | None = None, *conditions: ColumnElement[bool]
    ) -> bool:
        statement = update(Job).where(Job.id == job_id, Job.status.in_(SOURCES[target]), *conditions)
        moved: dict[str, Any] = {"status": target, f"{target.value}_at": utc_now()}
        return self._changed(statement.values(moved | (values or {}))) == 1

    # --- what reconcile looks for ---

    def in_status(self, status: JobStatus, *, after: str = "", limit: int = 100) -> Sequence[JobView]:
        """A page of the jobs in a status, by id."""
        query = select(Job).where(Job.status == status, Job.id > after).order_by(Job.id).limit(limit)
        return [to_value(row, JobView) for row in self._session.scalars(query)]

    def overdue(self, *, after: str = "", limit: int = 100) -> Sequence[JobView]:
        """A page of the jobs whose deadline has passed while they were at work, by id."""
        query = select(Job).where(*self._overdue(), Job.id > after).order_by(Job.id).limit(limit)
        return [to_value(row, JobView) for row in self._session.scalars(query)]

    def is_overdue(self, job_id: str) -> bool:
        return self._session.scalar(select(Job.id).where(*self._overdue(), Job.id == job_id)) is not None

    def _overdue(self) -> tuple[ColumnElement[bool], ...]:
        # Spelled out in the statement: the index over deadlines holds these statuses only.
        statuses: Any = bindparam("open", sorted(SOURCES[JobStatus.CANCELLING]), expanding=True, literal_execute=True)
        return Job.status.in_(statuses), Job.expires_at <= self._now()


def _outcome(outcome: Outcome, code: str | None, message: str | None) -> dict[str, Any]:
    return {"outcome": outcome, "error_code": code, "error_message": None if message is None else clip(message)}
