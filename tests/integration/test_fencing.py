"""Law 2, write by write: who lost a lease changes nothing, in no table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select

from pipeline.db.base import Base
from pipeline.db.session import UnitOfWork
from pipeline.db.states import JobStatus
from pipeline.db.suspicion import Suspicion
from pipeline.db.values import (
    AttemptFailure,
    ItemFailure,
    JobLease,
    NewPart,
    NewVector,
    NewVectors,
    ShardCut,
    ShardLease,
)
from pipeline.errors import LeaseLost
from pipeline.jobs.planner import plan
from pipeline.ports import Verdict
from tests.fixtures.house import House
from tests.fixtures.in_process import claim, renew, requests

pytestmark = pytest.mark.each_database

FAILURE = AttemptFailure("engine_crashed", "said the loser", child_died=True)

FAILURES = [ItemFailure(f"r{index}", index + 1, "shard_failed", "said the loser") for index in range(2)]

PART = NewPart(0, "jobs/x/parts/0/1-0.jsonl", "0" * 64, "0-1", 1, 1)

VECTORS = NewVectors(
    "d" * 64, {}, 2, True, "jobs/x/vectors/0/1-0.st", "0" * 64, (NewVector(0, "r0", 0, "h" * 64, 1.0, 1, False, 0, 1),)
)

VERDICT = Verdict("draft", "violated", "tokens_differ", "said the loser")


def complete_with_verdicts(uow: UnitOfWork, lease: ShardLease) -> None:
    """As the end of an attempt writes them: the lease is matched last, and takes what came before it along."""
    uow.verdicts.add(lease, [VERDICT])
    uow.shards.complete(lease)


SHARD_WRITES: dict[str, Callable[[UnitOfWork, ShardLease], None]] = {
    "renew": lambda uow, lease: uow.shards.renew(lease),
    "suspect": lambda uow, lease: uow.shards.suspect(lease, Suspicion(frozenset({0, 1}))),
    "register": lambda uow, lease: uow.parts.register(lease, PART, FAILURES[:1], VECTORS),
    "complete": lambda uow, lease: uow.shards.complete(lease),
    "complete_with_verdicts": complete_with_verdicts,
    "cancel": lambda uow, lease: uow.shards.cancel(lease),
    "fail": lambda uow, lease: uow.shards.fail(lease, "said the loser", FAILURES, code="shard_failed"),
    "give_back": lambda uow, lease: uow.shards.give_back(lease, FAILURE, delay_s=60.0),
    "give_back_unblamed": lambda uow, lease: uow.shards.give_back(lease),
}

JOB_WRITES: dict[str, Callable[[UnitOfWork, JobLease], None]] = {
    "renew": lambda uow, lease: uow.jobs.renew(lease),
    "plan": lambda uow, lease: uow.jobs.plan(lease, [ShardCut(0, 0, 10, 0, 2, 5)]),
    "fail_unplanned": lambda uow, lease: uow.jobs.fail_unplanned(lease, code="x", message="said the loser"),
    "finish": lambda uow, lease: uow.jobs.finish(lease, JobStatus.COMPLETED, output=("o", "0" * 64), errors=None),
}

#: Writes of a job's loser that are no error, since nothing rests on them.
SILENT_JOB_WRITES: dict[str, Callable[[UnitOfWork, JobLease], None]] = {
    "release": lambda uow, lease: uow.jobs.release(lease),
    "note_trouble": lambda uow, lease: uow.jobs.note_trouble(lease, code="x", message="said the loser"),
}


def everything(house: House) -> dict[str, list[Any]]:
    """All rows of all tables."""
    with house.deployment.database.engine.connect() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(select(table)))) for table in Base.metadata.sorted_tables
        }


@pytest.mark.parametrize("again", [False, True], ids=["free", "leased_again"])
def test_writes_for_a_shard_under_an_old_token_are_refused_and_change_nothing(house: House, again: bool) -> None:
    job_id = house.submit(requests(2))
    plan(house.deployment, job_id, owner="planner")
    lost = claim(house, job_id, "one")
    (shard,) = house.shards(job_id)
    with house.deployment.database.write() as uow:
        assert uow.shards.take_back(shard, "stale")
    if again:
        claim(house, job_id, "one")  # the same owner: only the token tells them apart
    before = everything(house)
    for name, write in SHARD_WRITES.items():
        with pytest.raises(LeaseLost), house.deployment.database.write() as uow:
            write(uow, lost)
        assert everything(house) == before, name


def lose(house: House, job_id: str, status: JobStatus) -> JobLease:
    """A job-level lease that another owner holds by now."""
    with house.deployment.database.write() as uow:
        lost = uow.jobs.lease(job_id, status, "one")
    assert lost is not None
    with house.deployment.database.write() as uow:
        assert uow.jobs.free_lease(house.job(job_id))
    with house.deployment.database.write() as uow:
        assert uow.jobs.lease(job_id, status, "one")
    return lost


def refuse(house: House, lost: JobLease) -> None:
    """Every write of a job's loser."""
    before = everything(house)
    for name, write in JOB_WRITES.items():
        with pytest.raises(LeaseLost), house.deployment.database.write() as uow:
            write(uow, lost)
        assert everything(house) == before, name
    for name, write in SILENT_JOB_WRITES.items():
        with house.deployment.database.write() as uow:
            write(uow, lost)
        assert everything(house) == before, name


def test_writes_of_a_planner_under_an_old_token_change_nothing(house: House) -> None:
    job_id = house.submit(requests(2))
    refuse(house, lose(house, job_id, JobStatus.VALIDATING))


def test_writes_of_a_finalizer_under_an_old_token_change_nothing(house: House) -> None:
    job_id = house.submit(requests(2))
    plan(house.deployment, job_id, owner="planner")
    lease = claim(house, job_id, "worker")
    with house.deployment.database.write() as uow:
        uow.parts.register(lease, PART, FAILURES[:1])
        uow.shards.complete(lease)
        assert uow.jobs.close_if_drained(job_id)
    refuse(house, lose(house, job_id, JobStatus.FINALIZING))


def test_lease_that_moved_is_neither_taken_back_nor_freed(house: House) -> None:
    job_id = house.submit(requests(2))
    with house.deployment.database.write() as uow:
        planner = uow.jobs.lease(job_id, JobStatus.VALIDATING, "one")
    assert planner is not None
    job = house.job(job_id)
    with house.deployment.database.write() as uow:
        uow.jobs.renew(planner)
    with house.deployment.database.write() as uow:
        assert not uow.jobs.free_lease(job)
        uow.jobs.release(planner)
    plan(house.deployment, job_id, owner="planner")
    lease = claim(house, job_id, "one")
    (seen,) = house.shards(job_id)
    renew(house, lease)
    with house.deployment.database.write() as uow:
        assert not uow.shards.take_back(seen, "stale")
    renew(house, lease)
