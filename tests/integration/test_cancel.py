"""Cancelling: what was finished stays, the rest is named, and the job ends whoever is alive."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from pipeline.db.states import JobStatus, Outcome, ShardStatus
from pipeline.db.values import JobLease, NewPart, ShardLease
from pipeline.errors import Conflict, LeaseLost
from pipeline.formats.ranges import dump_ranges
from pipeline.jobs.cancel import cancel, settle
from pipeline.jobs.finalize import finalize
from pipeline.jobs.owners import command_owner
from pipeline.jobs.planner import plan
from pipeline.ports import WorkItem
from tests.fixtures.house import PATIENCE_S, House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, claim, renew, requests, running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost

pytestmark = pytest.mark.each_database


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


# --- a command that died while it wrote the files, and nobody lives who would free its lease ---


def begin_to_finalize(house: House, owner: str) -> tuple[str, JobLease]:
    """A cancelled job whose finalizer, ``owner``, does not go on."""
    job_id = house.submit(requests(3))
    with house.deployment.database.write() as uow:
        assert uow.jobs.request_outcome(job_id, Outcome.CANCELLED)
    settle(house.deployment, job_id)
    with house.deployment.database.write() as uow:
        lease = uow.jobs.lease(job_id, JobStatus.FINALIZING, owner)
    assert lease is not None
    return job_id, lease


def test_second_cancel_takes_over_from_a_command_that_is_gone_at_once(house: House) -> None:
    script = "from pipeline.jobs.owners import command_owner; print(command_owner(), end='')"
    owner = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    job_id, lease = begin_to_finalize(house, owner)
    said: list[str] = []
    job = cancel(house.deployment, job_id, tell=said.append)
    assert (job.status, job.cancelled) == (JobStatus.CANCELLED, 3)
    assert said == [], "there was nothing to wait for"
    with pytest.raises(LeaseLost), house.deployment.database.write() as uow:
        uow.jobs.renew(lease)


def test_second_cancel_takes_over_what_stands_still_and_says_that_it_waits(house: House) -> None:
    job_id, _ = begin_to_finalize(house, "a command of another host")
    said: list[str] = []
    started = time.monotonic()
    job = cancel(house.deployment, job_id, tell=said.append)
    assert time.monotonic() - started >= house.settings.lease_s
    assert (job.status, job.cancelled) == (JobStatus.CANCELLED, 3)
    assert len(said) == 1
    assert "another process began to write the files" in said[0]


def test_second_cancel_leaves_a_finalizer_that_moves(house: House) -> None:
    job_id, lease = begin_to_finalize(house, command_owner())
    stop = threading.Event()

    def move() -> None:
        while not stop.wait(house.settings.renew_s):
            with house.deployment.database.write() as uow:
                uow.jobs.renew(lease)

    mover = threading.Thread(target=move)
    mover.start()
    try:
        assert cancel(house.deployment, job_id).status is JobStatus.FINALIZING
    finally:
        stop.set()
        mover.join()
    assert house.job(job_id).lease_owner == lease.owner


def test_second_cancel_looks_whether_the_workers_of_other_hosts_are_alive(house: House) -> None:
    """Their rows say so for ever when nobody is left to reconcile."""
    with house.deployment.database.write() as uow:
        uow.workers.add(worker_id="far", host="elsewhere", pid=1, queues=["generate"], slots=1, device="test", memory=0)
    job_id = house.submit(requests(4), shard_items=2)
    plan(house.deployment, job_id, owner="planner")
    lease = claim(house, job_id, "far")
    assert cancel(house.deployment, job_id).status is JobStatus.CANCELLING, "the first leaves it its chance"
    said: list[str] = []
    job = cancel(house.deployment, job_id, tell=said.append)
    assert (job.status, job.cancelled, job.processing) == (JobStatus.CANCELLED, 4, 0)
    assert "other hosts" in said[0]
    with pytest.raises(LeaseLost):
        renew(house, lease)


def test_second_cancel_leaves_shards_of_a_worker_whose_heart_moves(house: House) -> None:
    with house.deployment.database.write() as uow:
        uow.workers.add(worker_id="far", host="elsewhere", pid=1, queues=["generate"], slots=1, device="test", memory=0)
    job_id = house.submit(requests(2))
    plan(house.deployment, job_id, owner="planner")
    lease = claim(house, job_id, "far")
    cancel(house.deployment, job_id)

    def beat(text: str) -> None:
        with house.deployment.database.write() as uow:
            uow.workers.beat("far", [])

    assert cancel(house.deployment, job_id, tell=beat).status is JobStatus.CANCELLING
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
