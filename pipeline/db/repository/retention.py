"""What may go, and taking it away: jobs that have ended with all their rows, workers, and which files rows still name.

Rows go in bounded transactions, those that point before those they point at. A job that is being removed says so
(``pruned_at``) from the first of them on: nothing may point at it any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, exists, func, or_, select, update

from pipeline.db.models import (
    FailedAttempt,
    IndexAlias,
    IndexVersion,
    ItemErrorRow,
    Job,
    Metric,
    Part,
    Shard,
    Vector,
    VectorFile,
    VerdictRow,
    Worker,
)
from pipeline.db.repository.base import Repository, to_value
from pipeline.db.states import TERMINAL, JobStatus, ShardStatus
from pipeline.db.values import JobView

#: The kind whose jobs point at others by their spec and not by a foreign key.
_INDEX_KIND = "index"

_ENDED_AT = func.coalesce(Job.completed_at, Job.failed_at, Job.cancelled_at, Job.expired_at)


class RetentionRepository(Repository):
    """Reads and deletes over all tables that belong to jobs, and ``workers``."""

    def clock(self) -> datetime:
        """The database's clock, where it has one of its own."""
        return self._now()

    # --- which jobs ---

    def hold(self, job_id: str) -> bool:
        """Lock a job's row because another is about to point at it; False when it is gone, or prune has begun on it."""
        row = self._session.execute(select(Job.pruned_at).where(Job.id == job_id).with_for_update()).one_or_none()
        return row is not None and row[0] is None

    def ended_before(self, cutoff: datetime, *, indexes: bool, after: str = "", limit: int = 100) -> Sequence[str]:
        """A page of the jobs that ended before ``cutoff``, by id: builds of indexes, or all others."""
        kind = Job.kind == _INDEX_KIND if indexes else Job.kind != _INDEX_KIND
        old = or_(cutoff > _ENDED_AT, Job.pruned_at.is_not(None))
        query = select(Job.id).where(Job.status.in_(TERMINAL), kind, old, Job.id > after)
        return list(self._session.scalars(query.order_by(Job.id).limit(limit)))

    def newest_ended(self, number: int) -> Sequence[str]:
        """The ids of the ``number`` youngest jobs that have ended."""
        query = select(Job.id).where(Job.status.in_(TERMINAL)).order_by(Job.created_at.desc(), Job.id)
        return list(self._session.scalars(query.limit(number)))

    def family(self, job_id: str) -> Sequence[JobView]:
        """The job, what it retries, and what retries them, each behind the job it retries."""
        job = self._session.get(Job, job_id)
        while job is not None and job.parent_job_id is not None:
            job = self._session.get(Job, job.parent_job_id)
        found = [] if job is None else [job]
        for member in found:  # grows while it is walked
            found += self._session.scalars(select(Job).where(Job.parent_job_id == member.id).order_by(Job.id))
        return [to_value(row, JobView) for row in found]

    def index_sources(self, *, running: bool = False) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(index job, jobs whose vectors it is of) for each that runs or, unless ``running``, left a version."""
        runs = Job.status.not_in(TERMINAL)
        needs: ColumnElement[bool] = runs if running else or_(runs, exists().where(IndexVersion.job_id == Job.id))
        query = select(Job.id, Job.spec).where(Job.kind == _INDEX_KIND, needs).order_by(Job.id)
        for job_id, spec in self._session.execute(query.execution_options(yield_per=100)):
            yield job_id, tuple(spec["sources"])

    def aliases_of(self, job_id: str) -> Sequence[tuple[str, bool]]:
        """(alias, whether it is live under it) of the index version that a job built; the other is the one before."""
        query = select(IndexAlias.name, IndexAlias.index_id == IndexVersion.id).join(
            IndexVersion, or_(IndexAlias.index_id == IndexVersion.id, IndexAlias.previous_index_id == IndexVersion.id)
        )
        rows = self._session.execute(query.where(IndexVersion.job_id == job_id).order_by(IndexAlias.name))
        return [(name, bool(live)) for name, live in rows]

    # --- taking jobs away ---

    def mark(self, job_ids: Collection[str]) -> None:
        """Say that these jobs are being removed, and free their keys. Rows are locked in the order of their ids."""
        for job_id in sorted(job_ids):
            ended = update(Job).where(Job.id == job_id, Job.status.in_(TERMINAL), Job.pruned_at.is_(None))
            self._changed(ended.values(pruned_at=self._now(), idempotency_key=None))

    def delete_some(self, job_id: str, limit: int) -> Mapping[str, int]:
        """Take away at most ``limit`` rows of a marked job, and at last its own; by table, nothing when all is gone."""
        removed: Counter[str] = Counter()
        for key, query in _rows_of(job_id):
            left = limit - removed.total()
            if not left:
                break
            ids = list(self._session.scalars(query.limit(left)))
            if ids:
                removed[key.class_.__tablename__] = self._changed(delete(key.class_).where(key.in_(ids)))
        return removed

    def count_rows(self, job_id: str) -> Mapping[str, int]:
        """Rows of a job by table, its own among them."""
        counts = {
            key.class_.__tablename__: self._session.scalar(select(func.count()).select_from(query.subquery())) or 0
            for key, query in _rows_of(job_id)
        }
        return {table: count for table, count in counts.items() if count}

    # --- which files ---

    def open_writers(self, job_ids: Collection[str], shards: Collection[int]) -> Mapping[tuple[str, int | None], int]:
        """The tokens under which somebody may still register files: by (job, shard), and (job, None) for a finalizer."""
        leased = select(Shard.job_id, Shard.ordinal, Shard.lease_token).where(
            Shard.job_id.in_(job_ids), Shard.ordinal.in_(shards), Shard.status == ShardStatus.LEASED
        )
        finalizing = select(Job.id, Job.lease_token).where(Job.id.in_(job_ids), Job.status == JobStatus.FINALIZING)
        tokens: dict[tuple[str, int | None], int] = {
            (job_id, ordinal): token for job_id, ordinal, token in self._session.execute(leased)
        }
        return tokens | {(job_id, None): token for job_id, token in self._session.execute(finalizing)}

    def owners(
        self, uris: Collection[str], job_ids: Collection[str], shards: Collection[int]
    ) -> Mapping[str, set[str]]:
        """The jobs whose rows name these files, by file. ``job_ids`` and ``shards`` are those that the names hold."""
        queries: list[Select[Any, Any]] = [
            select(Part.uri, Shard.job_id)
            .join(Shard, Shard.id == Part.shard_id)
            .where(Shard.job_id.in_(job_ids), Shard.ordinal.in_(shards), Part.uri.in_(uris)),
            select(VectorFile.uri, VectorFile.job_id).where(VectorFile.job_id.in_(job_ids), VectorFile.uri.in_(uris)),
            select(IndexVersion.uri, IndexVersion.job_id).where(IndexVersion.uri.in_(uris)),
            select(IndexVersion.manifest_uri, IndexVersion.job_id).where(IndexVersion.manifest_uri.in_(uris)),
            select(Job.output_uri, Job.id).where(Job.id.in_(job_ids), Job.output_uri.in_(uris)),
            select(Job.errors_uri, Job.id).where(Job.id.in_(job_ids), Job.errors_uri.in_(uris)),
        ]
        found: dict[str, set[str]] = {}
        for query in queries:
            for uri, job_id in self._session.execute(query):
                found.setdefault(str(uri), set()).add(job_id)
        return found

    def users_of_inputs(self, uris: Collection[str]) -> Mapping[str, set[str]]:
        """The jobs that read these item files, by file."""
        found: dict[str, set[str]] = {}
        for uri, job_id in self._session.execute(select(Job.input_uri, Job.id).where(Job.input_uri.in_(uris))):
            found.setdefault(str(uri), set()).add(job_id)
        return found

    def existing(self, job_ids: Collection[str]) -> frozenset[str]:
        """Those of the jobs that are rows."""
        return frozenset(self._session.scalars(select(Job.id).where(Job.id.in_(job_ids))))

    # --- workers ---

    def count_gone_workers(self, cutoff: datetime) -> int:
        return self._session.scalar(select(func.count()).select_from(Worker).where(*_gone(cutoff))) or 0

    def delete_gone_workers(self, cutoff: datetime) -> int:
        """Forget workers that ended before ``cutoff`` and that no measurement, verdict, attempt or lease names."""
        return self._changed(delete(Worker).where(*_gone(cutoff)))


def _rows_of(job_id: str) -> list[tuple[Any, Select[Any]]]:
    """(key column, query for its values) of each table with rows of a job, those that point first."""
    files = select(VectorFile.id).where(VectorFile.job_id == job_id)
    shards = select(Shard.id).where(Shard.job_id == job_id)
    return [
        (Vector.id, select(Vector.id).where(Vector.file_id.in_(files))),
        (VectorFile.id, files),
        (IndexVersion.id, select(IndexVersion.id).where(IndexVersion.job_id == job_id)),
        *(
            (table.id, select(table.id).where(table.job_id == job_id))
            for table in (Metric, VerdictRow, FailedAttempt, ItemErrorRow)
        ),
        (Part.id, select(Part.id).where(Part.shard_id.in_(shards))),
        (Shard.id, shards),
        (Job.id, select(Job.id).where(Job.id == job_id)),
    ]


def _gone(cutoff: datetime) -> tuple[ColumnElement[bool], ...]:
    """Workers that left or died before ``cutoff``, except those that rows which stay tell about."""
    naming = (Metric.worker_id, VerdictRow.worker_id, FailedAttempt.worker_id, Shard.lease_owner)
    named = [select(column).where(column.is_not(None)) for column in naming]
    return Worker.status.in_(("stopped", "dead")), Worker.seen_at < cutoff, *(Worker.id.not_in(one) for one in named)
