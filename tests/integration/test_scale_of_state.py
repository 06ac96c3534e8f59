"""A thousand jobs and a hundred thousand shards: nothing that is done all the time reads a table from end to end.

The statements are those that the real functions send, and the plans those that the database makes for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import text

from pipeline.db.states import JobStatus, Outcome
from pipeline.db.suspicion import Suspicion
from pipeline.db.values import AttemptFailure, ItemFailure, NewPart, ShardLease
from pipeline.jobs.reconcile import Reconciler
from pipeline.jobs.requeue import requeue
from pipeline.jobs.service import WorkerService
from pipeline.jobs.status import list_jobs, report_job
from pipeline.ports import Verdict
from tests.fixtures.crowd import add_history, job_name
from tests.fixtures.house import House
from tests.fixtures.in_process import make_service
from tests.fixtures.plans import full_reads, recorded
from tests.fixtures.scripted_host import ScriptedHost

pytestmark = pytest.mark.each_database

#: A running job of the crowd, one that has ended, and one that is being cancelled.
RUNNING, ENDED, CANCELLING = job_name(40), job_name(90), job_name(2)

VIEWS = ("job_status", "job_errors", "job_attempts", "job_metrics", "job_verdicts")


@pytest.fixture
def crowded(house: House, full_counts: bool) -> House:
    """1,000 jobs; 100 shards each where all is done, 12 elsewhere: the tables are large enough for the same plans."""
    with house.deployment.database.engine.connect() as connection:
        connection = connection.execution_options(pipeline_write=True)
        with connection.begin():
            add_history(connection, 1_000, 100 if full_counts else 12)
    if not house.settings.resolved_database_url.startswith("sqlite"):
        # What the server does by itself within minutes. SQLite has no such thing, and is asked as it is.
        with house.deployment.database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))
    return house


def claim_with(service: WorkerService, host: ScriptedHost) -> ShardLease:
    lease = service._claim(host)
    assert lease is not None
    return lease


def claims_and_writes(house: House) -> None:
    """All that a worker sends about shards, from the claim to each way a lease can end."""
    host = ScriptedHost()
    service = make_service(house, host)
    database = house.deployment.database
    ends: Sequence[Callable[[Any, ShardLease], object]] = (
        lambda uow, lease: uow.shards.complete(lease),
        lambda uow, lease: uow.shards.give_back(lease),
        lambda uow, lease: uow.shards.give_back(lease, AttemptFailure("x", "no", child_died=True), delay_s=60.0),
        lambda uow, lease: uow.shards.cancel(lease),
        lambda uow, lease: uow.shards.fail(lease, "no", [], code="x"),
        lambda uow, lease: uow.shards.take_back(uow.shards.get(lease.shard_id), "stood still"),
    )
    for end in ends:
        lease = claim_with(service, host)
        with database.write() as uow:
            uow.shards.renew(lease)
            uow.shards.suspect(lease, Suspicion())
            uow.jobs.start(lease.shard.job_id)
            uow.verdicts.add(lease, [Verdict("draft", "held", "same_tokens", "alike")])
            uow.pauses.look(lease.shard.job_id, lease.owner)
            assert uow.shards.crashed_ids(lease.shard_id) == frozenset()
            if not uow.parts.answered(lease.shard_id):
                part = NewPart(0, "uri", "0" * 64, "0-3", 3, 1)
                uow.parts.register(lease, part, [ItemFailure("r", 1, "x", "no")])
            end(uow, lease)
            uow.jobs.close_if_drained(lease.shard.job_id)
    service._beat()
    service.close()


def status(house: House) -> None:
    """What ``pipeline status``, ``list`` and ``workers`` ask."""
    for job_id in (RUNNING, ENDED):
        report_job(house.deployment, job_id)
        with house.deployment.database.read() as uow:
            assert len(uow.jobs.ids_starting(job_id[:-1])) == 2
    for statuses in ((), (JobStatus.IN_PROGRESS,), (JobStatus.COMPLETED, JobStatus.FAILED), (JobStatus.FAILED,)):
        list_jobs(house.deployment, statuses=statuses)


def views(house: House) -> None:
    """What any client may poll."""
    with house.deployment.database.read() as uow:
        for view in VIEWS:
            uow.jobs._session.execute(text(f"SELECT * FROM {view} WHERE job_id = :job"), {"job": RUNNING})
        for view in ("worker_status", "index_status"):
            uow.jobs._session.execute(text(f"SELECT * FROM {view}"))


def reconcile(house: House) -> None:
    """Two rounds of the one who puts things right, with a deadline that has passed and a lease that stands still."""
    with house.deployment.database.engine.connect() as connection:
        connection = connection.execution_options(pipeline_write=True)
        with connection.begin():
            connection.execute(
                text("UPDATE jobs SET expires_at = '2026-01-02 00:00:00' WHERE id = :job"), {"job": RUNNING}
            )
    reconciler = Reconciler(house.deployment, "watcher", lambda work, job_id: None)
    house.wait_for(reconciler.tick, "the reconcile lease")
    assert house.job(RUNNING).outcome is Outcome.EXPIRED
    with house.deployment.database.write() as uow:
        shard = uow.shards.leased(limit=1)[0]
        assert uow.shards.take_back(shard, "stood still")
    reconciler.release()


def ends_of_jobs(house: House) -> None:
    """Planning, finalizing and reviving: the job-level lease, pages of shards, their parts and vectors."""
    requeue(house.deployment, job_name(50))
    with house.deployment.database.write() as uow:
        lease = uow.jobs.lease(job_name(1), JobStatus.FINALIZING, "finalizer")
        assert lease is not None
        uow.jobs.renew(lease)
        shards = uow.shards.of_job(job_name(1))
        assert uow.parts.of_shard(shards[0].id)
        assert list(uow.vectors.files_of([job_name(1)]))
        assert uow.vectors.locate([1, 2])
        uow.vectors.spaces_of([job_name(1)])
        uow.vectors.count([job_name(1)])
        uow.indexes.of_job(job_name(1))
        uow.jobs.finish(lease, JobStatus.COMPLETED, output=("o", "0" * 64), errors=None)
        uow.shards.cancel_pending(CANCELLING)
        uow.shards.settle_unplanned(CANCELLING)
        uow.jobs.newest_of_content("0" * 64)
        uow.jobs.by_idempotency_key("key-1")


@pytest.mark.timeout(600)
def test_nothing_that_is_done_all_the_time_reads_a_large_table(crowded: House) -> None:
    engine = crowded.deployment.database.engine
    with recorded(engine) as recorder:
        for work in (status, views, claims_and_writes, ends_of_jobs, reconcile):
            recorder.name = work.__name__
            work(crowded)
    sent = dict(recorder.sent)
    assert {name for name, _ in sent.values()} == {"status", "views", "claims_and_writes", "ends_of_jobs", "reconcile"}
    found = []
    with engine.connect() as connection:
        for statement, (name, parameters) in sent.items():
            found += [f"{name}: {reason}\n{statement}" for reason in full_reads(connection, statement, parameters)]
    assert not found, "\n\n".join(found)


FULL_READS = (
    "SELECT count(*) FROM shards WHERE last_error = 'x'",
    "SELECT id FROM shards ORDER BY job_id, ordinal",
    "UPDATE jobs SET priority = 1 WHERE model = 'x'",
    "DELETE FROM item_errors WHERE code = 'x'",
    "SELECT 1 FROM workers WHERE EXISTS (SELECT 1 FROM parts WHERE parts.uri = workers.host)",
)


def test_a_full_read_is_seen(house: House) -> None:
    with house.deployment.database.engine.connect() as connection:
        for statement in FULL_READS:
            assert full_reads(connection, statement), statement
