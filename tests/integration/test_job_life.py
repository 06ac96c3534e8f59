"""A job's life against real databases, with the engine scripted: what is true after each way it can go."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.db.values import JobLease, JobView
from pipeline.errors import ChildDied, ModelNotFound
from pipeline.jobs import finalize as finalizing
from pipeline.jobs.cancel import cancel
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.finalize import finalize
from pipeline.jobs.planner import plan
from pipeline.jobs.service import WorkerService
from pipeline.ports import WorkItem
from tests.fixtures.house import House
from tests.fixtures.in_process import make_service, requests
from tests.fixtures.scripted_host import ScriptedHost

pytestmark = pytest.mark.each_database


def work_off(house: House, service: WorkerService, job_id: str) -> None:
    """Plan, serve and finalize on this thread."""
    plan(house.deployment, job_id, owner=service.worker_id)
    service.serve()
    finalize(house.deployment, job_id, owner=service.worker_id)


def test_job_completes_with_each_item_once_in_input_order(house: House) -> None:
    job_id = house.submit(requests(10), shard_items=4)
    service = make_service(house, ScriptedHost())
    work_off(house, service, job_id)
    job = house.job(job_id)
    assert job.status is JobStatus.COMPLETED
    assert (job.total, job.succeeded, job.processing, job.shards_total) == (10, 10, 0, 3)
    lines = house.results(job_id)
    assert [line["custom_id"] for line in lines] == [f"r{index}" for index in range(10)]
    assert len({line["id"] for line in lines}) == 10
    assert job.errors_uri is None


def test_invalid_lines_end_as_errors_without_reaching_the_engine(house: House) -> None:
    lines = [*requests(3), {"custom_id": "bad", "prompt": 7}]
    host = ScriptedHost()
    job_id = house.submit(lines, skip_invalid=True)
    work_off(house, make_service(house, host), job_id)
    job = house.job(job_id)
    assert (job.succeeded, job.errored) == (3, 1)
    assert host.fed == [["r0", "r1", "r2"]]
    (error,) = house.results(job_id, "errors")
    assert (error["custom_id"], error["error"]["code"]) == ("bad", "invalid_type")


def test_death_of_the_child_keeps_what_arrived_and_feeds_only_the_rest(house: House) -> None:
    deaths = iter([True])

    def die_once(item: WorkItem) -> None:
        if item.custom_id == "r5" and next(deaths, False):
            raise ChildDied("killed by SIGKILL")

    host = ScriptedHost(die_once)
    job_id = house.submit(requests(8))
    service = make_service(house, host)
    plan(house.deployment, job_id, owner=service.worker_id)
    service.serve()
    (shard,) = house.shards(job_id)
    assert shard.status is ShardStatus.PENDING
    assert (shard.child_deaths, shard.succeeded) == (1, 5)
    assert "SIGKILL" in (shard.last_error or "")
    house.wait_for(service.serve, "the backoff to pass")
    finalize(house.deployment, job_id, owner=service.worker_id)
    assert host.fed == [[f"r{index}" for index in range(8)], ["r5", "r6", "r7"]]
    assert house.job(job_id).succeeded == 8
    assert len(house.results(job_id)) == 8


def test_shard_that_always_fails_is_given_up_and_its_items_say_so(make_house: Any, database_url: str) -> None:
    house = make_house(database_url=database_url, max_attempts=2, backoff_s=0)

    def die(item: WorkItem) -> None:
        if item.custom_id == "r2":
            raise ChildDied("killed by SIGABRT")

    job_id = house.submit(requests(4))
    service = make_service(house, ScriptedHost(die))
    plan(house.deployment, job_id, owner=service.worker_id)
    service.serve()
    house.wait_for(lambda: service.serve() or house.job(job_id).status is JobStatus.FINALIZING, "the last attempt")
    finalize(house.deployment, job_id, owner=service.worker_id)
    job = house.job(job_id)
    assert job.status is JobStatus.COMPLETED
    assert (job.succeeded, job.errored, job.processing) == (2, 2, 0)
    assert [line["error"]["code"] for line in house.results(job_id, "errors")] == ["shard_failed"] * 2


def test_job_error_ends_the_job_once_and_clearly(house: House) -> None:
    def refuse() -> None:
        raise ModelNotFound("no model of that name here")

    job_id = house.submit(requests(6), shard_items=2)
    service = make_service(house, ScriptedHost(on_prepare=refuse))
    work_off(house, service, job_id)
    job = house.job(job_id)
    assert job.status is JobStatus.FAILED
    assert job.error_code == "model_not_found"
    assert (job.cancelled, job.processing) == (6, 0)
    errors = house.results(job_id, "errors")
    assert [line["custom_id"] for line in errors] == [f"r{index}" for index in range(6)]
    assert {line["error"]["code"] for line in errors} == {"batch_failed"}


def test_cancel_keeps_finished_items_and_names_the_rest(house: House) -> None:
    job_id = house.submit(requests(6), shard_items=2)
    host = ScriptedHost()
    service = make_service(house, host)

    def cancel_in_second_shard(item: WorkItem) -> None:
        if item.custom_id == "r2":
            with house.deployment.database.write() as uow:
                from pipeline.db.states import Outcome

                uow.jobs.request_outcome(job_id, Outcome.CANCELLED)

    host.hook = cancel_in_second_shard
    work_off(house, service, job_id)
    from pipeline.jobs.cancel import settle

    settle(house.deployment, job_id)
    finalize(house.deployment, job_id, owner=service.worker_id)
    job = house.job(job_id)
    assert job.status is JobStatus.CANCELLED
    assert job.succeeded + job.cancelled == 6
    assert job.succeeded >= 2
    assert job.cancelled >= 2
    output, errors = house.results(job_id), house.results(job_id, "errors")
    assert len(output) == job.succeeded
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert {line["custom_id"] for line in output + errors} == {f"r{index}" for index in range(6)}


def test_cancel_before_planning_finalizes_by_itself_when_no_worker_lives(house: House) -> None:
    job_id = house.submit(requests(3))
    job = cancel(house.deployment, job_id)
    assert job.status is JobStatus.CANCELLED
    assert (job.cancelled, job.total) == (3, 3)
    assert len(house.results(job_id, "errors")) == 3


def test_planning_twice_cuts_once(house: House) -> None:
    job_id = house.submit(requests(9), shard_items=2)
    assert plan(house.deployment, job_id, owner="a")
    assert not plan(house.deployment, job_id, owner="b")
    assert [shard.item_count for shard in house.shards(job_id)] == [2, 2, 2, 2, 1]


def test_finalizing_twice_runs_once_and_gives_the_same_bytes(house: House) -> None:
    """celery/celery#4207: no chord decides; the counters do, and the finalizer runs once."""
    job_id = house.submit(requests(4))
    service = make_service(house, ScriptedHost())
    work_off(house, service, job_id)
    before = house.job(job_id)
    assert not finalize(house.deployment, job_id, owner="another")
    assert house.job(job_id) == before


def test_late_finalizer_cannot_touch_good_outputs(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is freed while it writes; another finalizes; then it wakes."""
    job_id = house.submit(requests(4))
    service = make_service(house, ScriptedHost())
    plan(house.deployment, job_id, owner=service.worker_id)
    service.serve()
    ended = []
    write_outputs = finalizing._write_outputs

    def write_slowly(deployment: Deployment, job: JobView, lease: JobLease) -> Any:
        outputs = write_outputs(deployment, job, lease)
        if lease.owner == "slow":
            with deployment.database.write() as uow:
                seen = uow.jobs.get(job_id)
                assert seen is not None
                assert uow.jobs.free_lease(seen)
            assert finalize(deployment, job_id, owner="quick")
            ended.append(house.job(job_id))
        return outputs

    monkeypatch.setattr(finalizing, "_write_outputs", write_slowly)
    assert not finalize(house.deployment, job_id, owner="slow")
    assert [house.job(job_id)] == ended
    assert len(house.results(job_id)) == 4


def test_doubled_part_of_a_lost_lease_changes_nothing(house: House) -> None:
    """celery/celery#4207: what a loser of a lease writes is discarded, counts and rows alike."""
    job_id = house.submit(requests(4))
    taken: list[str] = []

    def lose_lease(item: WorkItem) -> None:
        if item.custom_id == "r3" and not taken:
            (shard,) = house.shards(job_id)
            with house.deployment.database.write() as uow:
                assert uow.shards.take_back(shard, "taken by the test")
            taken.append(item.custom_id)

    host = ScriptedHost(lose_lease)
    service = make_service(house, host)
    work_off(house, service, job_id)
    job = house.job(job_id)
    assert job.status is JobStatus.COMPLETED
    assert (job.succeeded, job.errored) == (4, 0)
    assert len(house.results(job_id)) == 4
    assert {token for _, token, _ in house.parts(job_id)} == {3}


def test_doubled_doorbell_finds_nothing_left_to_claim(house: House) -> None:
    """celery/celery#5935: a message delivered again does not run a task twice."""
    job_id = house.submit(requests(4))
    host = ScriptedHost()
    service = make_service(house, host)
    plan(house.deployment, job_id, owner=service.worker_id)
    assert service.serve("generate") == 1
    assert service.serve("generate") == 0
    assert len(host.fed) == 1


def test_priority_decides_and_age_breaks_ties_but_nothing_starves(house: House) -> None:
    from pipeline.db.repository.claims import STARVATION_BOUND
    from pipeline.jobs.submit import SubmitOptions

    low = house.submit(requests(2), options=SubmitOptions(priority=0))
    high = house.submit(
        [{"custom_id": f"h{index}", "prompt": "x"} for index in range(STARVATION_BOUND + 8)],
        options=SubmitOptions(priority=5),
        shard_items=1,
    )
    host = ScriptedHost()
    service = make_service(house, host)
    for job_id in (low, high):
        plan(house.deployment, job_id, owner=service.worker_id)
    service.serve()
    order = ["low" if fed[0].startswith("r") else "high" for fed in host.fed]
    assert order.index("low") == STARVATION_BOUND
