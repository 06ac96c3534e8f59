"""Pausing: nothing under it is claimed, what runs is given back with its answers, and nothing of it counts as a failure."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import create_engine, text

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.errors import Conflict, NotFound
from pipeline.jobs.cancel import cancel
from pipeline.jobs.obstacles import obstacles
from pipeline.jobs.pause import Target, find_target, pause, resume
from pipeline.jobs.planner import plan
from pipeline.jobs.service import WorkerService
from pipeline.jobs.status import list_jobs
from pipeline.ports import WorkItem
from tests.fixtures.house import PATIENCE_S, House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, claim, requests, running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost

#: What to pause, of a job and of the worker that runs it.
Choose = Callable[[str, WorkerService], str]

TARGETS: dict[str, Choose] = {
    "job": lambda job_id, service: job_id,
    "queue": lambda job_id, service: "generate",
    "worker": lambda job_id, service: service.worker_id[:12],
}


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT_LEASES)


class StuckOnce:
    """A hook that stands still before one item, the first time, until its run is asked to stop."""

    def __init__(self, custom_id: str) -> None:
        self.host = ScriptedHost(self)
        self.reached = threading.Event()
        self._custom_id = custom_id

    def __call__(self, item: WorkItem) -> None:
        if item.custom_id == self._custom_id and not self.reached.is_set():
            self.reached.set()
            assert self.host.cancelled.wait(PATIENCE_S), "nobody asked the run to stop"


@pytest.mark.parametrize("kind", TARGETS)
def test_running_shard_is_given_back_with_its_answers_and_goes_on_when_resumed(house: House, kind: str) -> None:
    job_id = house.submit(requests(8), shard_items=6)
    stuck = StuckOnce("r3")
    with running_service(house, stuck.host) as service:
        name = TARGETS[kind](job_id, service)
        plan(house.deployment, job_id, owner=service.worker_id)
        slot = threading.Thread(target=service.serve)
        slot.start()
        assert stuck.reached.wait(PATIENCE_S)
        assert pause(house.deployment, name).kind == kind
        slot.join()
        first = house.shards(job_id)[0]
        assert (first.status, first.succeeded) == (ShardStatus.PENDING, 4), "r3 was answered when it was let go"
        assert (first.attempts, first.waits, first.child_deaths, first.last_error) == (0, 0, 0, None)
        service.tick()
        assert service.serve() == 0, "nothing is claimed"
        assert house.job(job_id).status is JobStatus.IN_PROGRESS
        resume(house.deployment, name)
        job = work_until_end(house, service, job_id)
    assert (job.status, job.succeeded, job.paused) == (JobStatus.COMPLETED, 8, False)
    assert stuck.host.fed == [[f"r{index}" for index in range(6)], ["r4", "r5"], ["r6", "r7"]]
    assert [shard.attempts for shard in house.shards(job_id)] == [1, 1]


def test_what_is_paused_holds_nobody_else_up(house: House) -> None:
    """A paused worker leaves its work to another; a paused job leaves the slot to another."""
    paused, other = house.submit(requests(2)), house.submit(requests(2))
    for job_id in (paused, other):
        plan(house.deployment, job_id, owner="planner")
    with running_service(house, ScriptedHost()) as idle, running_service(house, ScriptedHost()) as busy:
        pause(house.deployment, idle.worker_id)
        pause(house.deployment, paused)
        assert idle.serve() == 0
        assert busy.serve() == 1
        assert (house.job(other).status, house.job(paused).status) == (JobStatus.FINALIZING, JobStatus.QUEUED)
        resume(house.deployment, paused)
        assert busy.serve() == 1


def test_paused_queue_is_claimed_by_nobody_and_others_are(house: House) -> None:
    generate, embed = house.submit(requests(1)), house.submit([{"custom_id": "t", "text": "a text"}], kind="embed")
    for job_id in (generate, embed):
        plan(house.deployment, job_id, owner="planner")
    pause(house.deployment, "generate")
    pause(house.deployment, "generate")  # twice is once
    with house.deployment.database.write() as uow:
        assert uow.shards.claim(generate, "anybody") is None
    claim(house, embed, "anybody")
    resume(house.deployment, "generate")
    claim(house, generate, "anybody")


def test_job_paused_while_it_waits_is_planned_and_not_begun(house: House) -> None:
    job_id = house.submit(requests(4), shard_items=2)
    pause(house.deployment, job_id)
    with running_service(house, ScriptedHost()) as service:

        def planned() -> int:
            service.tick()
            service.serve()
            return house.job(job_id).shards_total

        assert house.wait_for(planned, "the plan") == 2
        assert service.serve() == 0
        assert house.job(job_id).status is JobStatus.QUEUED


def test_paused_job_can_be_cancelled(house: House) -> None:
    job_id = house.submit(requests(4), shard_items=2)
    plan(house.deployment, job_id, owner="planner")
    pause(house.deployment, job_id)
    job = cancel(house.deployment, job_id)
    assert (job.status, job.cancelled, job.paused) == (JobStatus.CANCELLED, 4, False)


def test_job_that_is_finalizing_or_ended_cannot_be_paused(house: House) -> None:
    job_id = house.submit(requests(2))
    with running_service(house, ScriptedHost()) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        service.serve()
        with pytest.raises(Conflict, match="is finalizing"):
            pause(house.deployment, job_id)
        work_until_end(house, service, job_id)
    with pytest.raises(Conflict, match="is completed"):
        pause(house.deployment, job_id)
    with pytest.raises(Conflict, match="has stopped"):
        pause(house.deployment, service.worker_id)
    assert not house.job(job_id).paused


def test_name_that_stands_for_nothing_or_for_several_things_is_refused(house: House) -> None:
    with house.deployment.database.write() as uow:
        for worker_id in ("abcdef01", "abcdef02", "0123aaaa"):
            uow.workers.add(worker_id=worker_id, host="h", pid=1, queues=["embed"], slots=1, device="test", memory=0)
        uow.jobs.add(job_id="job_0123ffff", kind="generate", spec={}, total=0)
    for name in ("nothing", "ab", "job_", "", "%"):
        with pytest.raises(NotFound):
            find_target(house.deployment, name)
    for name in ("abcdef", "0123"):
        with pytest.raises(Conflict, match="several"):
            find_target(house.deployment, name)
    with pytest.raises(Conflict, match="plans and finalizes"):
        find_target(house.deployment, "control")
    assert find_target(house.deployment, "abcdef01") == Target("worker", "abcdef01")
    assert find_target(house.deployment, "0123a") == Target("worker", "0123aaaa")
    assert find_target(house.deployment, "0123f") == Target("job", "job_0123ffff", "generate")
    assert find_target(house.deployment, "job_0123") == Target("job", "job_0123ffff", "generate")


def shown(house: House) -> tuple[bool, ...]:
    """What the views say of the one job and the one worker."""
    engine = create_engine(house.settings.resolved_database_url)
    with engine.connect() as connection:
        job = connection.execute(text("SELECT paused, queue_paused FROM job_status")).one()
        worker = connection.execute(text("SELECT paused FROM worker_status")).one()
    engine.dispose()
    return tuple(bool(value) for value in (*job, *worker))


def test_all_that_holds_a_job_back_is_said_with_the_way_out(house: House) -> None:
    job_id = house.submit(requests(2))
    with running_service(house, ScriptedHost()) as service:

        def said() -> list[str]:
            return [str(one) for one in obstacles(house.deployment, house.job(job_id))]

        assert said() == []
        for name in (job_id, "generate", service.worker_id):
            pause(house.deployment, name)
        assert said() == [
            f"all workers of the queue generate are paused: pipeline resume {service.worker_id[:12]}",
            f"the job is paused: pipeline resume {job_id}",
            "the queue generate is paused: pipeline resume generate",
        ]
        assert list_jobs(house.deployment)[0].paused
        assert shown(house) == (True, True, True)
        for name in (job_id, "generate", service.worker_id):
            resume(house.deployment, name)
        assert said() == []
        assert shown(house) == (False, False, False)
        work_until_end(house, service, job_id)
    assert said() == [], "it has ended"
