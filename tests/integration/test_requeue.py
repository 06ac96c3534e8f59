"""Reviving failed shards: counts go back, what is answered stays, and a job that is being closed is not reopened."""

from __future__ import annotations

import json
import threading

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.db.values import ItemFailure, NewPart, ShardLease
from pipeline.errors import Conflict, NotFound, NothingToRetry
from pipeline.formats.ranges import dump_ranges
from pipeline.jobs.planner import plan
from pipeline.jobs.requeue import requeue
from pipeline.store import layout
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, claim, requests, running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost

pytestmark = pytest.mark.each_database


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT_LEASES)


def planned(house: House, items: int = 6, shard_items: int = 3) -> str:
    job_id = house.submit(requests(items), shard_items=shard_items)
    plan(house.deployment, job_id, owner="planner")
    return job_id


def answer(house: House, lease: ShardLease, places: list[int]) -> None:
    """A part with answers for these places of the shard."""
    first = lease.shard.first_item
    lines = b"".join(b'{"i":%d,"id":"r%d","body":{"object":"x"}}\n' % (place, first + place) for place in places)
    name = layout.part_file(lease.shard.job_id, lease.shard.ordinal, lease.token, 0)
    artifact = house.deployment.store.put_bytes(name, lines)
    with house.deployment.database.write() as uow:
        uow.parts.register(lease, NewPart(0, artifact.uri, artifact.sha256, dump_ranges(places), len(places), 0))


def fail(house: House, lease: ShardLease, answered: int = 0) -> None:
    """Give the shard up, as after too many attempts."""
    first = lease.shard.first_item
    places = range(answered, lease.shard.item_count)
    unanswered = [ItemFailure(f"r{first + place}", first + place + 1, "shard_failed", "scripted") for place in places]
    with house.deployment.database.write() as uow:
        uow.shards.fail(lease, "scripted", unanswered, code="scripted")


def test_a_revived_shard_goes_on_behind_its_answers_and_the_job_ends_as_if_it_never_failed(house: House) -> None:
    job_id = planned(house)
    lease = claim(house, job_id, "one")
    answer(house, lease, [0])
    fail(house, lease, answered=1)
    assert (house.job(job_id).processing, house.job(job_id).errored) == (3, 2)
    with house.deployment.database.read() as uow:
        assert uow.jobs.error_counts(job_id) == [("shard_failed", 2)]

    done = requeue(house.deployment, job_id)

    assert (done.shards, done.items) == ((0,), 2)
    job = house.job(job_id)
    assert (job.processing, job.succeeded, job.errored, job.shards_open) == (5, 1, 0, 2)
    shard = house.shards(job_id)[0]
    assert (shard.status, shard.attempts, shard.alone_deaths) == (ShardStatus.PENDING, 0, 0)
    assert (shard.suspects, shard.not_before, shard.finished_at) == (None, None, None)
    assert shard.lease_token > lease.token
    with house.deployment.database.read() as uow:
        assert uow.jobs.error_counts(job_id) == []
    host = ScriptedHost()
    with running_service(house, host) as service:
        job = work_until_end(house, service, job_id)
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, 6, 0)
    assert host.fed == [["r1", "r2"], ["r3", "r4", "r5"]]
    assert [line["custom_id"] for line in house.results(job_id)] == [f"r{index}" for index in range(6)]
    assert job.errors_uri is None


def test_one_shard_is_revived_and_the_other_stays_failed(house: House) -> None:
    job_id = planned(house, items=9)
    for _ in range(2):
        fail(house, claim(house, job_id, "one"))
    assert requeue(house.deployment, job_id, shard=1).shards == (1,)
    assert [shard.status for shard in house.shards(job_id)] == [
        ShardStatus.FAILED,
        ShardStatus.PENDING,
        ShardStatus.PENDING,
    ]
    assert house.job(job_id).errored == 3
    with pytest.raises(Conflict, match=r"shard 2 of .* is pending, not failed"):
        requeue(house.deployment, job_id, shard=2)
    with pytest.raises(NotFound, match="no shard 3"):
        requeue(house.deployment, job_id, shard=3)


def test_a_job_without_failed_shards_and_one_that_ended_point_to_retry(house: House) -> None:
    job_id = planned(house)
    with pytest.raises(NothingToRetry) as nothing:
        requeue(house.deployment, job_id)
    assert f"pipeline retry {job_id}" in str(nothing.value.hint)
    fail(house, claim(house, job_id, "one"))
    lease = claim(house, job_id, "one")
    fail(house, lease)
    with house.deployment.database.write() as uow:
        assert uow.jobs.close_if_drained(job_id)
    before = house.job(job_id), house.shards(job_id)
    with pytest.raises(Conflict, match="is finalizing") as closing:
        requeue(house.deployment, job_id)
    assert f"pipeline retry {job_id}" in str(closing.value.hint)
    assert (house.job(job_id), house.shards(job_id)) == before
    with running_service(house, ScriptedHost()) as service:
        work_until_end(house, service, job_id)
    with pytest.raises(Conflict, match="has ended: completed") as ended:
        requeue(house.deployment, job_id)
    assert f"pipeline retry {job_id}" in str(ended.value.hint)


def test_a_requeue_against_the_commit_that_closes_the_job_reopens_nothing(house: House) -> None:
    """The last open shard ends at the moment of the requeue: either the job closes, or the revived shard is open."""
    outcomes = set()
    for round_ in range(12):
        job_id = planned(house, items=2, shard_items=1)
        fail(house, claim(house, job_id, "one"))
        last = claim(house, job_id, "two")
        answer(house, last, [0])
        barrier = threading.Barrier(2)
        revived: dict[int, int] = {}

        def revive(
            job_id: str = job_id, barrier: threading.Barrier = barrier, revived: dict[int, int] = revived
        ) -> None:
            barrier.wait()
            with house.deployment.database.write() as uow:
                revived.update(uow.shards.requeue(job_id))

        thread = threading.Thread(target=revive)
        thread.start()
        barrier.wait()
        with house.deployment.database.write() as uow:
            uow.shards.complete(last)
            closed = uow.jobs.close_if_drained(job_id)
        thread.join()
        job, shard = house.job(job_id), house.shards(job_id)[0]
        assert closed != bool(revived), f"round {round_}"
        if closed:
            assert (job.status, job.shards_open, job.errored) == (JobStatus.FINALIZING, 0, 1)
            assert shard.status is ShardStatus.FAILED
        else:
            assert (job.shards_open, job.errored, job.processing) == (1, 0, 1)
            assert shard.status is ShardStatus.PENDING
        outcomes.add(closed)
    assert outcomes


def test_the_command_names_shards_and_items(make_house: MakeHouse) -> None:
    house = make_house()
    job_id = planned(house)
    fail(house, claim(house, job_id, "one"))
    document = json.loads(house.pipeline("requeue", job_id, "--json").stdout)
    assert (document["shards"], document["items"], document["job"]["processing"]) == ([0], 3, 6)
    refused = house.pipeline("requeue", job_id, check=False)
    assert refused.returncode == 5
    assert "no shard of" in refused.stderr.decode()
