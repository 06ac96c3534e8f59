"""Who asks a job to end, who commits its last shard and who pauses it, all at the same moment: the table decides."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from pipeline.db.states import JobStatus, Outcome, ShardStatus
from pipeline.db.values import JobView, NewPart, ShardLease
from pipeline.formats.ranges import dump_ranges
from pipeline.jobs.cancel import settle
from pipeline.jobs.finalize import finalize
from pipeline.jobs.planner import plan
from pipeline.store import layout
from tests.fixtures.house import House
from tests.fixtures.in_process import claim, requests

pytestmark = pytest.mark.each_database

ROUNDS = 8

FINAL = {
    None: JobStatus.COMPLETED,
    Outcome.CANCELLED: JobStatus.CANCELLED,
    Outcome.EXPIRED: JobStatus.EXPIRED,
}


def answer(house: House, lease: ShardLease) -> None:
    """Register a part with all answers of a shard."""
    shard = lease.shard
    lines = b"".join(
        b'{"i":%d,"id":"r%d","body":{}}\n' % (item, shard.first_item + item) for item in range(shard.item_count)
    )
    artifact = house.deployment.store.put_bytes(layout.part_file(shard.job_id, shard.ordinal, lease.token, 0), lines)
    items = dump_ranges(range(shard.item_count))
    with house.deployment.database.write() as uow:
        uow.parts.register(lease, NewPart(0, artifact.uri, artifact.sha256, items, shard.item_count, 0))


def complete(house: House, lease: ShardLease) -> None:
    """What an attempt's end commits."""
    with house.deployment.database.write() as uow:
        uow.shards.complete(lease)
        uow.jobs.close_if_drained(lease.shard.job_id)


def ask(house: House, job_id: str, outcome: Outcome) -> bool:
    with house.deployment.database.write() as uow:
        asked = uow.jobs.request_outcome(job_id, outcome)
    settle(house.deployment, job_id)
    return asked


def at_once(*steps: Callable[[], object]) -> list[object]:
    """What each step returned, all started together; a step that raises fails the test."""
    start, results, trouble = threading.Barrier(len(steps)), [None] * len(steps), []

    def take(place: int) -> None:
        start.wait()
        try:
            results[place] = steps[place]()  # type: ignore[call-overload]
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells
            trouble.append(error)

    threads = [threading.Thread(target=take, args=(place,)) for place in range(len(steps))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble, trouble
    return results


def check_sums(house: House, job_id: str) -> JobView:
    job = house.job(job_id)
    counts = job.counts
    assert counts.processing + counts.succeeded + counts.errored + counts.cancelled + counts.expired == counts.total
    open_shards = [one for one in house.shards(job_id) if one.status in (ShardStatus.PENDING, ShardStatus.LEASED)]
    assert job.shards_open == len(open_shards)
    return job


def test_last_commit_against_cancel_and_expiry(house: House) -> None:
    """Whoever comes first decides the outcome; the answers are the job's either way, and nobody's is counted twice."""
    for _ in range(ROUNDS):
        job_id = house.submit(requests(2))
        plan(house.deployment, job_id, owner="planner")
        lease = claim(house, job_id, "worker")
        answer(house, lease)
        _, cancelled, expired = at_once(
            lambda lease=lease: complete(house, lease),
            lambda job_id=job_id: ask(house, job_id, Outcome.CANCELLED),
            lambda job_id=job_id: ask(house, job_id, Outcome.EXPIRED),
        )
        job = check_sums(house, job_id)
        assert (job.status, job.succeeded, job.shards_open) == (JobStatus.FINALIZING, 2, 0)
        assert (cancelled, expired) == (job.outcome is Outcome.CANCELLED, job.outcome is Outcome.EXPIRED)
        assert house.shards(job_id)[0].status is ShardStatus.DONE
        assert finalize(house.deployment, job_id, owner="finalizer")
        assert house.job(job_id).status is FINAL[job.outcome]
        assert len(house.results(job_id)) == 2


def test_claims_and_commits_and_pauses_against_cancel_and_expiry(house: House) -> None:
    """Of three shards one is about to be done, one may be claimed, one waits: each item ends once, by one name."""
    for _ in range(ROUNDS):
        job_id = house.submit(requests(6), shard_items=2)
        plan(house.deployment, job_id, owner="planner")
        lease = claim(house, job_id, "worker")
        answer(house, lease)

        def claim_next(job_id: str = job_id) -> ShardLease | None:
            with house.deployment.database.write() as uow:
                return uow.shards.claim(job_id, "another")

        def pause(job_id: str = job_id) -> bool:
            with house.deployment.database.write() as uow:
                return uow.pauses.set_job(job_id, True)

        _, claimed, _, cancelled, expired = at_once(
            lambda lease=lease: complete(house, lease),
            claim_next,
            pause,
            lambda job_id=job_id: ask(house, job_id, Outcome.CANCELLED),
            lambda job_id=job_id: ask(house, job_id, Outcome.EXPIRED),
        )
        job = check_sums(house, job_id)
        assert {cancelled, expired} == {True, False}, "one of them, for not all was done"
        assert job.outcome is (Outcome.CANCELLED if cancelled else Outcome.EXPIRED)
        assert not job.paused, "a job that ends holds nothing back"
        if isinstance(claimed, ShardLease):
            assert job.status is JobStatus.CANCELLING
            with house.deployment.database.write() as uow:
                uow.shards.cancel(claimed)
        settle(house.deployment, job_id)
        job = check_sums(house, job_id)
        assert (job.status, job.succeeded, job.processing) == (JobStatus.FINALIZING, 2, 0)
        assert (job.cancelled, job.expired) == ((4, 0) if cancelled else (0, 4))
        assert finalize(house.deployment, job_id, owner="finalizer")
        assert house.job(job_id).status is FINAL[job.outcome]
        assert len(house.results(job_id)) + len(house.results(job_id, "errors")) == 6
