"""Cancelling: what was finished stays, the rest is named, and the job ends whoever is alive."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from pipeline.db.states import JobStatus, Outcome, ShardStatus
from pipeline.db.values import NewPart, ShardLease
from pipeline.errors import Conflict, LeaseLost
from pipeline.formats.ranges import dump_ranges
from pipeline.jobs.cancel import cancel, settle
from pipeline.jobs.finalize import finalize
from pipeline.jobs.planner import plan
from pipeline.ports import WorkItem
from tests.fixtures.house import PATIENCE_S, House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, claim, renew, requests, running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT_LEASES)


class Stuck:
    """A hook that stands still before one item until its run is asked to stop."""

    def __init__(self, custom_id: str) -> None:
        self.host = ScriptedHost(self)
        self.reached = threading.Event()
        self._custom_id = custom_id

    def __call__(self, item: WorkItem) -> None:
        if item.custom_id == self._custom_id:
            self.reached.set()
            assert self.host.cancelled.wait(PATIENCE_S), "nobody asked the run to stop"


def add_worker(house: House, worker_id: str, pid: int) -> None:
    import socket

    with house.deployment.database.write() as uow:
        uow.workers.add(
            worker_id=worker_id,
            host=socket.gethostname(),
            pid=pid,
            queues=["generate", "control"],
            slots=1,
            device="test",
            memory=0,
        )


def register(house: House, lease: ShardLease, items: list[int]) -> None:
    """A part with answers for ``items`` of the shard."""
    from pipeline.store import layout

    lines = b"".join(b'{"i":%d,"id":"r%d","body":{}}\n' % (item, item) for item in items)
    name = layout.part_file(lease.shard.job_id, lease.shard.ordinal, lease.token, 0)
    artifact = house.deployment.store.put_bytes(name, lines)
    with house.deployment.database.write() as uow:
        part = NewPart(0, artifact.uri, artifact.sha256, dump_ranges(items), len(items), 0)
        uow.parts.register(lease, part)


def test_cancel_stops_a_running_shard_keeps_its_answers_and_names_the_rest(house: House) -> None:
    """The keeper's own look decides: no message reaches the one that runs the shard."""
    job_id = house.submit(requests(12), shard_items=8)
    stuck = Stuck("r3")
    with running_service(house, stuck.host) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        slot = threading.Thread(target=service.serve)
        slot.start()
        assert stuck.reached.wait(PATIENCE_S)
        assert cancel(house.deployment, job_id).status is JobStatus.CANCELLING
        slot.join()
        job = work_until_end(house, service, job_id)
    assert (job.status, job.succeeded, job.cancelled, job.processing) == (JobStatus.CANCELLED, 4, 8, 0)
    assert stuck.host.fed == [[f"r{index}" for index in range(8)]], "the second shard was never begun"
    assert [shard.status for shard in house.shards(job_id)] == [ShardStatus.CANCELLED] * 2
    assert [line["custom_id"] for line in house.results(job_id)] == ["r0", "r1", "r2", "r3"]
    errors = house.results(job_id, "errors")
    assert [line["custom_id"] for line in errors] == [f"r{index}" for index in range(4, 12)]
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}


def test_asking_twice_changes_nothing(house: House) -> None:
    job_id = house.submit(requests(6), shard_items=2)
    with running_service(house, ScriptedHost()) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        lease = claim(house, job_id, service.worker_id)
        once = cancel(house.deployment, job_id)
        assert (once.status, once.cancelled, once.processing) == (JobStatus.CANCELLING, 4, 2)
        assert cancel(house.deployment, job_id) == once
        with house.deployment.database.write() as uow:
            uow.shards.cancel(lease)
        job = work_until_end(house, service, job_id)
    assert (job.status, job.cancelled) == (JobStatus.CANCELLED, 6)


def test_asking_again_goes_on_where_an_interrupted_command_stood(house: House) -> None:
    """It had asked and settled, and died before it could finalize; no worker lives."""
    job_id = house.submit(requests(3))
    with house.deployment.database.write() as uow:
        assert uow.jobs.request_outcome(job_id, Outcome.CANCELLED)
    settle(house.deployment, job_id)
    assert house.job(job_id).status is JobStatus.FINALIZING
    job = cancel(house.deployment, job_id)
    assert (job.status, job.cancelled) == (JobStatus.CANCELLED, 3)


def test_cancel_ends_a_job_whose_shard_is_leased_to_the_dead(house: House) -> None:
    """With no worker alive the command does all of it, and what the dead had registered stays."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    add_worker(house, "dead", gone.pid)
    job_id = house.submit(requests(6), shard_items=3)
    plan(house.deployment, job_id, owner="planner")
    lease = claim(house, job_id, "dead")
    register(house, lease, [0, 2])
    job = cancel(house.deployment, job_id)
    assert (job.status, job.succeeded, job.cancelled, job.processing) == (JobStatus.CANCELLED, 2, 4, 0)
    assert [line["custom_id"] for line in house.results(job_id)] == ["r0", "r2"]
    assert [line["custom_id"] for line in house.results(job_id, "errors")] == ["r1", "r3", "r4", "r5"]
    with pytest.raises(LeaseLost):
        renew(house, lease)


def test_cancel_leaves_the_lease_of_a_live_worker(house: House) -> None:
    job_id = house.submit(requests(4), shard_items=2)
    with running_service(house, ScriptedHost()) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        lease = claim(house, job_id, service.worker_id)
        assert cancel(house.deployment, job_id).status is JobStatus.CANCELLING
        renew(house, lease)
        assert [shard.status for shard in house.shards(job_id)] == [ShardStatus.LEASED, ShardStatus.CANCELLED]


def test_concurrent_settlers_of_an_unplanned_job_count_its_items_once(house: House) -> None:
    job_ids = [house.submit(requests(3)) for _ in range(6)]
    for job_id in job_ids:
        with house.deployment.database.write() as uow:
            assert uow.jobs.request_outcome(job_id, Outcome.CANCELLED)
    start, trouble = threading.Barrier(4), []

    def settle_all() -> None:
        start.wait()
        try:
            for job_id in job_ids:
                settle(house.deployment, job_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells
            trouble.append(error)

    threads = [threading.Thread(target=settle_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble
    for job_id in job_ids:
        job = house.job(job_id)
        assert (job.status, job.cancelled, job.processing) == (JobStatus.FINALIZING, 3, 0)


def test_cancel_of_an_ended_job_is_a_conflict_and_changes_nothing(house: House) -> None:
    job_id = house.submit(requests(2))
    with running_service(house, ScriptedHost()) as service:
        work_until_end(house, service, job_id)
    before = house.job(job_id)
    with pytest.raises(Conflict, match="completed already"):
        cancel(house.deployment, job_id)
    assert house.job(job_id) == before


def test_cancel_of_a_job_that_is_about_to_complete_is_a_conflict(house: House) -> None:
    job_id = house.submit(requests(2))
    with running_service(house, ScriptedHost()) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        service.serve()
        with pytest.raises(Conflict, match="finalizing already"):
            cancel(house.deployment, job_id)
        assert finalize(house.deployment, job_id, owner=service.worker_id)
    assert house.job(job_id).status is JobStatus.COMPLETED
