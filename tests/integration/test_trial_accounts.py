"""What trials cost: no attempt of the shard, so that harmless items never pay for others' deaths."""

from __future__ import annotations

import os
import signal

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.errors import ChildDied, EngineFailed, StoreUnavailable
from pipeline.jobs.execution import HOPELESS
from pipeline.jobs.planner import plan
from pipeline.ports import WorkItem
from tests.acceptance.test_kill import child_of
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, requests, running_service, work_until_end
from tests.fixtures.scripted_host import Hook, ScriptedHost


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT_LEASES | {"max_attempts": 2})


def ends_the_engine(error: type[EngineFailed], *poison: str) -> Hook:
    def hook(item: WorkItem) -> None:
        if item.custom_id in poison:
            fault = error("the engine fell over")
            fault.inside = frozenset({item.index})
            raise fault

    return hook


@pytest.mark.parametrize("error", [EngineFailed, ChildDied])
def test_many_deaths_and_then_trouble_of_the_surroundings_cost_no_harmless_item(
    house: House, error: type[EngineFailed]
) -> None:
    host = ScriptedHost(ends_the_engine(error, "r1", "r3", "r4"))
    job_id = house.submit(requests(6))
    with running_service(house, host) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        for _ in range(4):
            service.serve()
        away = iter([StoreUnavailable("away"), StoreUnavailable("away")])

        def prepare() -> None:
            for fault in away:
                raise fault

        host.on_prepare = prepare
        job = work_until_end(house, service, job_id)
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, 3, 3)
    assert {line["error"]["code"] for line in house.results(job_id, "errors")} == {error.code}
    assert house.shards(job_id)[0].attempts == 1


def test_a_death_at_load_after_trials_is_a_first_failure(house: House) -> None:
    host = ScriptedHost(ends_the_engine(ChildDied, "r1"))
    job_id = house.submit(requests(4))
    with running_service(house, host) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        deaths = iter([ChildDied("died while it loaded")])

        def prepare() -> None:
            if house.shards(job_id)[0].child_deaths == 2:
                for fault in deaths:
                    raise fault

        host.on_prepare = prepare
        job = work_until_end(house, service, job_id)
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, 3, 1)


def test_an_engine_that_dies_of_every_item_gives_the_shard_up(house: House) -> None:
    """It is not the items' fault; trying hundreds of them one by one would take the night."""
    number = HOPELESS + 12
    host = ScriptedHost(ends_the_engine(ChildDied, *(f"r{index}" for index in range(number))))
    job_id = house.submit(requests(number))
    with running_service(house, host) as service:
        job = work_until_end(house, service, job_id)
    assert (job.status, job.errored) == (JobStatus.COMPLETED, number)
    assert house.shards(job_id)[0].status is ShardStatus.FAILED
    codes = [line["error"]["code"] for line in house.results(job_id, "errors")]
    assert codes.count("engine_crashed") == HOPELESS and codes.count("shard_failed") == 12


def test_a_shutdown_that_reaches_every_process_condemns_nobody(make_house: MakeHouse) -> None:
    """A terminal or a host may send SIGTERM to the child, too: it waits for its parent's word."""
    house = make_house(lease_s=3.0, renew_s=0.5, reconcile_s=0.3, poll_s=0.2)
    house.add_fake_model(delay_s=0.2)
    job_id = house.submit(requests(12))
    worker = house.start_worker()
    house.wait_for(lambda: house.job(job_id).status is JobStatus.IN_PROGRESS, "the job to run")
    child = house.wait_for(lambda: _child_of(worker.pid), "the child")
    os.kill(child, signal.SIGTERM)
    os.kill(child, signal.SIGINT)
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.wait(60) == 0
    (shard,) = house.shards(job_id)
    assert (shard.child_deaths, shard.suspects, shard.attempts) == (0, None, 0)


def _child_of(pid: int) -> int | None:
    try:
        return child_of(pid)
    except AssertionError:
        return None
