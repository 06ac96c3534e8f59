"""Deadlines: whoever reconciles ends what is overdue, wherever it stands; what was finished stays, the rest is named."""

from __future__ import annotations

import threading
from functools import partialmethod

import pytest

from pipeline.db.repository.jobs import JobRepository
from pipeline.db.states import JobStatus, Outcome, ShardStatus
from pipeline.jobs import reconcile
from pipeline.jobs.cancel import cancel
from pipeline.jobs.obstacles import obstacles
from pipeline.jobs.pause import pause
from pipeline.jobs.planner import plan
from pipeline.jobs.reconcile import Reconciler
from pipeline.jobs.submit import SubmitOptions
from pipeline.ports import WorkItem
from tests.fixtures.house import PATIENCE_S, House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, claim, requests, running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost

#: A deadline that has passed when the next statement runs, and one that never does, in seconds.
AT_ONCE, FAR = 0.001, 86_400.0


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT_LEASES)


def submit(house: House, items: int, expires_in_s: float, *, shard_items: int = 8) -> str:
    return house.submit(requests(items), shard_items=shard_items, options=SubmitOptions(expires_in_s=expires_in_s))


def reconciler(house: House) -> Reconciler:
    """One that does nothing but reconcile, and holds the lease."""
    watcher = Reconciler(house.deployment, "watcher", lambda work, job_id: None)
    house.wait_for(watcher.tick, "the reconcile lease")
    return watcher


def test_running_shard_ends_with_its_answers_and_the_rest_is_expired(house: House) -> None:
    """No message reaches the one that runs it: its keeper sees the outcome."""
    reached, host = threading.Event(), ScriptedHost()

    def stand_still(item: WorkItem) -> None:
        if item.custom_id == "r3":
            reached.set()
            assert host.cancelled.wait(PATIENCE_S), "nobody asked the run to stop"

    host.hook = stand_still
    job_id = submit(house, 12, 1.0)
    with running_service(house, host) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        slot = threading.Thread(target=service.serve)
        slot.start()
        assert reached.wait(PATIENCE_S)
        house.wait_for(lambda: service.tick() or house.job(job_id).outcome, "the deadline")
        slot.join()
        job = work_until_end(house, service, job_id)
    assert (job.status, job.outcome) == (JobStatus.EXPIRED, Outcome.EXPIRED)
    assert (job.succeeded, job.expired, job.cancelled, job.processing) == (4, 8, 0, 0)
    assert host.fed == [[f"r{index}" for index in range(8)]], "the second shard was never begun"
    assert [line["custom_id"] for line in house.results(job_id)] == ["r0", "r1", "r2", "r3"]
    errors = house.results(job_id, "errors")
    assert [line["custom_id"] for line in errors] == [f"r{index}" for index in range(4, 12)]
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}


@pytest.mark.parametrize("state", ["waits", "is being planned", "is planned", "is paused", "is leased to the dead"])
def test_job_expires_wherever_it_stands(house: House, state: str) -> None:
    job_id = submit(house, 5, AT_ONCE, shard_items=2)
    match state:
        case "is being planned":
            with house.deployment.database.write() as uow:
                planner = uow.jobs.lease(job_id, JobStatus.VALIDATING, "slow planner")
        case "is planned":
            plan(house.deployment, job_id, owner="planner")
        case "is paused":
            pause(house.deployment, job_id)
        case "is leased to the dead":
            plan(house.deployment, job_id, owner="planner")
            claim(house, job_id, "dead")
    watcher, host = reconciler(house), ScriptedHost()
    watcher.tick()  # before anybody may begin it
    assert house.job(job_id).outcome is Outcome.EXPIRED
    watcher.release()
    with running_service(house, host) as service:
        job = work_until_end(house, service, job_id)
    assert (job.status, job.expired, job.processing, job.shards_open) == (JobStatus.EXPIRED, 5, 0, 0)
    assert host.fed == []
    assert [line["error"]["code"] for line in house.results(job_id, "errors")] == ["batch_expired"] * 5
    if state == "is being planned":
        assert planner is not None
        with house.deployment.database.write() as uow:
            assert uow.jobs.get(job_id) == job
            with pytest.raises(Exception, match="another process"):
                uow.jobs.plan(planner, [])


def test_overdue_jobs_behind_pages_of_others_all_expire_in_one_round(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobRepository, "overdue", partialmethod(JobRepository.overdue, limit=2))
    watcher = reconciler(house)
    healthy = [submit(house, 1, FAR), house.submit(requests(1))]
    overdue = [submit(house, 1, AT_ONCE) for _ in range(5)]
    watcher.tick()
    assert {house.job(job_id).outcome for job_id in overdue} == {Outcome.EXPIRED}
    assert {house.job(job_id).status for job_id in overdue} == {JobStatus.FINALIZING}
    assert {house.job(job_id).status for job_id in healthy} == {JobStatus.VALIDATING}


def test_job_that_cannot_be_settled_keeps_no_other_from_its_end(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = reconciler(house)
    broken, *others = sorted(submit(house, 1, AT_ONCE) for _ in range(3))
    settle = reconcile.settle

    def settle_most(deployment: object, job_id: str) -> None:
        if job_id == broken:
            raise ValueError("whatever it is")
        settle(house.deployment, job_id)

    monkeypatch.setattr(reconcile, "settle", settle_most)
    watcher.tick()
    assert house.job(broken).status is JobStatus.CANCELLING
    assert {house.job(job_id).status for job_id in others} == {JobStatus.FINALIZING}


def test_job_whose_items_are_all_answered_is_not_late(house: House) -> None:
    """The deadline is the items'; writing the files may take its time."""
    job_id = submit(house, 2, 1.0)
    with running_service(house, ScriptedHost()) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        service.serve()
        assert house.job(job_id).status is JobStatus.FINALIZING

        def is_late() -> bool:
            job = house.job(job_id)
            with house.deployment.database.read() as uow:
                return job.expires_at is not None and job.expires_at <= uow.jobs._now()

        house.wait_for(is_late, "the deadline")
        job = work_until_end(house, service, job_id)
    assert (job.status, job.outcome, job.succeeded) == (JobStatus.COMPLETED, None, 2)


def test_overdue_job_without_a_worker_says_so_and_can_be_cancelled(house: House) -> None:
    job_id = submit(house, 2, AT_ONCE)
    said = [str(one) for one in obstacles(house.deployment, house.job(job_id))]
    assert said[0].startswith("its deadline has passed, and no worker is alive to end it: pipeline up")
    job = cancel(house.deployment, job_id)
    assert (job.status, job.cancelled) == (JobStatus.CANCELLED, 2)
    assert {shard.status for shard in house.shards(job_id)} <= {ShardStatus.CANCELLED}
