"""What a slot may claim: the few jobs that decide, however many run; and the statement that claims.

Every claim asks this, so nothing here looks at all running jobs: each of the three questions walks an index in the
order of its answer and stops. The statements are made once: building them would cost more than running them.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from functools import cache, reduce
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Integer,
    Subquery,
    Update,
    bindparam,
    case,
    exists,
    func,
    literal_column,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.sql.elements import BindParameter
from sqlalchemy.sql.selectable import CompoundSelect

from pipeline.db.base import UtcDateTime
from pipeline.db.models import Job, PausedQueue, Shard, Worker
from pipeline.db.repository.base import Repository, utc_now
from pipeline.db.states import JobStatus, ShardStatus
from pipeline.db.values import Candidate, ShardView

#: A job that this many claims have passed over is served next, whatever the order says.
STARVATION_BOUND = 32

#: Jobs that one look reads in the order in which they are served.
LOOK_JOBS = 8

#: No shard waits longer than this before it may be claimed again; see :mod:`pipeline.jobs.endings`.
LONGEST_WAIT = timedelta(minutes=5)

#: What a job needs of a host: (name, digest) of its model as the job gives it, and of the model that guesses for it.
ModelKey = tuple[str | None, str | None, str | None, str | None]

_COLUMNS = tuple(getattr(Job, "id" if field.name == "job_id" else field.name) for field in fields(Candidate))

#: Stands for a missing name or digest where several have to be one text.
_SEPARATOR = "\x1f"


class ClaimRepository(Repository):
    """Jobs with a shard to claim, and who was passed over for how long."""

    def candidates(
        self,
        kinds: Collection[str],
        owner: str,
        *,
        loaded: Collection[tuple[str, str | None]] = (),
        without: Collection[ModelKey] = (),
        only: str | None = None,
        limit: int = LOOK_JOBS,
    ) -> Sequence[Candidate]:
        """The first ``limit`` jobs by priority and age, the first for a model that is ``loaded``, and the oldest of all.

        Each has a shard to claim, as far as one look can say. None for an ``owner`` that is paused. ``loaded`` are
        (kind, model digest), ``without`` leaves jobs for these models out, ``only`` narrows the look to one job.
        """
        values = {
            "kinds": list(kinds),
            "owner": owner,
            "without": [_join(*key) for key in without],
            **claim_times(),
        }
        if loaded:
            values["loaded"] = [_join(*engine) for engine in loaded]
        if only is not None:
            values["only"] = only
        connection = self._session.connection()
        look = look_statement(connection.dialect.name, limit, warm=bool(loaded), narrow=only is not None)
        return list({row[0]: Candidate(*row) for row in connection.execute(look, values)}.values())

    def count(self, chosen: str, passed_over: str, number: int) -> None:
        """Remember how often a job was passed over, so that nothing starves; part of the transaction of the claim.

        Never waits: a row that another transaction holds at this moment is left uncounted, and claims of many workers
        do not queue for the one oldest job.
        """
        values = {"chosen": chosen, "jobs": sorted({chosen, passed_over}), "number": number}
        self._session.connection().execute(count_statement(), values)


@cache
def look_statement(dialect: str, limit: int, *, warm: bool, narrow: bool) -> CompoundSelect[Any]:
    """Of :meth:`ClaimRepository.candidates`."""
    columns = (Job.model, Job.model_digest, Job.draft_model, Job.draft_digest)
    model = reduce(operator.add, (func.coalesce(column, _SEPARATOR) for column in columns))
    conditions = [
        *_runs("owner"),
        Job.kind.in_(bindparam("kinds", expanding=True)),
        model.not_in(bindparam("without", expanding=True)),
        exists().where(Shard.job_id == Job.id, *_is_due(dialect)),
    ]
    if narrow:
        conditions.append(Job.id == bindparam("only"))
    best = Job.priority.desc(), Job.created_at, Job.id
    looks = [_first(conditions, best, limit), _first(conditions, best[1:], 1)]
    if warm:
        engine = Job.kind.concat(func.coalesce(Job.model_digest, _SEPARATOR))
        looks.append(_first([*conditions, engine.in_(bindparam("loaded", expanding=True))], best, 1))
    return union_all(*(select(look) for look in looks))


@cache
def claim_statement(dialect: str) -> Update:
    """Leases the first pending shard of ``job`` that is due to ``owner``; returns the columns of a ShardView."""
    first = (
        select(Shard.id)
        .join(Job, Job.id == Shard.job_id)
        .where(Shard.job_id == bindparam("job"), Job.id == bindparam("job"), *_is_due(dialect), *_runs("owner"))
        .order_by(Shard.ordinal)
        .limit(_spelled(1))
        .with_for_update(of=Shard, skip_locked=True)
    )
    return (
        update(Shard)
        .where(Shard.id == first.correlate(None).scalar_subquery(), Shard.status == ShardStatus.PENDING)
        .values(
            status=ShardStatus.LEASED,
            lease_owner=bindparam("owner"),
            lease_token=Shard.lease_token + 1,
            attempts=Shard.attempts + 1,
            claimed_at=func.coalesce(Shard.claimed_at, bindparam("now", type_=UtcDateTime())),
            not_before=None,
        )
        .returning(*(getattr(Shard, field.name) for field in fields(ShardView)))
    )


@cache
def count_statement() -> Update:
    """Of :meth:`ClaimRepository.count`; rows are locked in the order of their ids."""
    jobs = Job.id.in_(bindparam("jobs", expanding=True))
    free = select(Job.id).where(jobs).order_by(Job.id).with_for_update(skip_locked=True, key_share=True)
    passed_over = case((Job.id == bindparam("chosen"), 0), else_=Job.passed_over + bindparam("number"))
    return update(Job).where(Job.id.in_(free.correlate(None))).values(passed_over=passed_over)


def _runs(owner: str) -> list[ColumnElement[bool]]:
    """The job runs, and neither it nor its queue nor the worker in the parameter ``owner`` is paused."""
    # The statuses are spelled out: a partial index is used only where the planner can read its condition.
    running = [JobStatus.QUEUED, JobStatus.IN_PROGRESS]
    statuses: BindParameter[Any] = bindparam("running", running, expanding=True, literal_execute=True)
    return [
        Job.status.in_(statuses),
        Job.paused.is_(False),
        ~exists().where(PausedQueue.name == Job.kind),
        ~exists().where(Worker.id == bindparam(owner), Worker.paused.is_(True)),
    ]


def _is_due(dialect: str) -> list[ColumnElement[bool]]:
    pending: BindParameter[Any] = bindparam("pending", ShardStatus.PENDING, literal_execute=True)
    # The database's clock, where hosts have their own; one that is an hour ahead must not take what waits.
    if dialect == "postgresql":
        now: ColumnElement[Any] = func.statement_timestamp()
        absurd = now + LONGEST_WAIT
    else:
        now, absurd = bindparam("now", type_=UtcDateTime()), bindparam("absurd", type_=UtcDateTime())
    # A wait that lies further off than any wait can was written before the clock was set back.
    due = or_(Shard.not_before.is_(None), Shard.not_before <= now, Shard.not_before > absurd)
    return [Shard.status == pending, due]


def claim_times() -> dict[str, datetime]:
    """The parameters ``now`` and ``absurd`` of this module's statements, for databases that take the host's clock."""
    now = utc_now()
    return {"now": now, "absurd": now + LONGEST_WAIT}


def _first(conditions: Sequence[ColumnElement[bool]], order: Sequence[Any], limit: int) -> Subquery:
    return select(*_COLUMNS).where(*conditions).order_by(*order).limit(_spelled(limit)).subquery()


def _spelled(limit: int) -> ColumnElement[int]:
    """A limit in the statement itself: behind a parameter PostgreSQL would think of a tenth of all rows, and plan anew
    each time."""
    return literal_column(str(limit), Integer)


def _join(*words: str | None) -> str:
    return "".join(_SEPARATOR if word is None else word for word in words)
