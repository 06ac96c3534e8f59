"""What dead workers and lost messages leave behind is put right by whoever lives; what moves is left alone (law 2)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import pytest

from pipeline.db.repository.jobs import JobRepository
from pipeline.db.repository.shards import ShardRepository
from pipeline.db.repository.workers import WorkerRepository
from pipeline.db.states import JobStatus, Outcome, ShardStatus
from pipeline.db.values import JobLease, WorkerView
from pipeline.errors import LeaseLost
from pipeline.jobs.leases import NamedHolder
from pipeline.jobs.planner import plan
from pipeline.jobs.reconcile import LEASE_NAME, Reconciler
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import (
    SHORT_LEASES,
    claim,
    make_service,
    renew,
    requests,
    running_service,
    work_until_end,
)
from tests.fixtures.scripted_host import ScriptedHost

pytestmark = pytest.mark.each_database

#: Limit of the named leases of this file, in seconds.
LIMIT_S = 0.6


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT_LEASES)


def watcher(house: House) -> Reconciler:
    """A reconciler that does nothing but reconcile."""
    return Reconciler(house.deployment, "watcher", lambda work, job_id: None)


def lease_job(house: House, job_id: str, status: JobStatus, owner: str) -> JobLease:
    with house.deployment.database.write() as uow:
        lease = uow.jobs.lease(job_id, status, owner)
    assert lease is not None
    return lease


def holds_reconcile(house: House) -> str | None:
    with house.deployment.database.read() as uow:
        lease = uow.workers.named_lease(LEASE_NAME)
    return None if lease is None else lease.owner


def row_of(house: House, worker_id: str) -> WorkerView:
    with house.deployment.database.read() as uow:
        return next(worker for worker in uow.workers.live() if worker.id == worker_id)


def renew_jobs(house: House, *leases: JobLease) -> None:
    for lease in leases:
        with house.deployment.database.write() as uow:
            uow.jobs.renew(lease)


def tick_until(house: House, reconciler: Reconciler, others: Callable[[], None], done: Callable[[], Any]) -> None:
    """Rounds of the others' renewals and one tick, until ``done``."""

    def round_() -> Any:
        others()
        reconciler.tick()
        return done()

    house.wait_for(round_, "reconcile to act")


# --- shards ---


def test_shard_whose_counter_stands_still_is_taken_back_and_one_that_moves_is_not(house: House) -> None:
    job_id = house.submit(requests(4), shard_items=2)
    plan(house.deployment, job_id, owner="planner")
    dead, alive = claim(house, job_id, "dead"), claim(house, job_id, "alive")
    tick_until(
        house,
        watcher(house),
        lambda: renew(house, alive),
        lambda: house.shards(job_id)[0].status is ShardStatus.PENDING,
    )
    still, moving = house.shards(job_id)
    assert (still.lease_owner, still.lease_token, still.lost_leases) == (None, dead.token + 1, 1)
    assert still.last_error == "lease of worker dead ran out"
    assert (moving.status, moving.lease_owner, moving.lost_leases) == (ShardStatus.LEASED, "alive", 0)
    with pytest.raises(LeaseLost):
        renew(house, dead)
    renew(house, alive)


def test_still_shard_behind_pages_of_healthy_ones_is_found(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardRepository, "leased", partialmethod(ShardRepository.leased, limit=2))
    job_id = house.submit(requests(6), shard_items=1)
    plan(house.deployment, job_id, owner="planner")
    *healthy, dead = [claim(house, job_id, f"worker-{number}") for number in range(6)]
    tick_until(
        house,
        watcher(house),
        lambda: renew(house, *healthy),
        lambda: house.shards(job_id)[-1].status is ShardStatus.PENDING,
    )
    assert house.shards(job_id)[-1].id == dead.shard_id
    assert [shard.lost_leases for shard in house.shards(job_id)] == [0, 0, 0, 0, 0, 1]


# --- jobs ---


def test_lease_of_a_dead_planner_is_freed_and_the_job_completes(house: House) -> None:
    job_id = house.submit(requests(4), shard_items=2)
    dead = lease_job(house, job_id, JobStatus.VALIDATING, "dead planner")
    with running_service(house, ScriptedHost()) as service:
        job = work_until_end(house, service, job_id)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 4)
    assert job.lease_token > dead.token
    with pytest.raises(LeaseLost):
        renew_jobs(house, dead)


def test_lease_of_a_dead_finalizer_is_freed_and_the_job_completes(house: House) -> None:
    job_id = house.submit(requests(4), shard_items=2)
    with running_service(house, ScriptedHost()) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        service.serve()
        dead = lease_job(house, job_id, JobStatus.FINALIZING, "dead finalizer")
        job = work_until_end(house, service, job_id)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 4)
    assert job.output_uri is not None
    assert job.lease_token == dead.token + 2, "freed once, taken once"
    assert len(house.results(job_id)) == 4


def test_still_job_behind_pages_of_healthy_ones_is_found(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the leases that move stay with who holds them."""
    monkeypatch.setattr(JobRepository, "in_status", partialmethod(JobRepository.in_status, limit=2))
    job_ids = sorted(house.submit(requests(1)) for _ in range(6))
    *healthy, dead = [lease_job(house, job_id, JobStatus.VALIDATING, "planner") for job_id in job_ids]
    tick_until(
        house,
        watcher(house),
        lambda: renew_jobs(house, *healthy),
        lambda: house.job(dead.job_id).lease_owner is None,
    )
    renew_jobs(house, *healthy)
    with pytest.raises(LeaseLost):
        renew_jobs(house, dead)


def test_validating_job_that_nobody_rang_for_is_planned_by_any_idle_worker(house: House) -> None:
    """Also by one that is not the reconciler: who can count the tokens is not known beforehand."""
    holder = watcher(house)
    house.wait_for(holder.tick, "the reconcile lease")
    job_id = house.submit(requests(4), shard_items=2)
    with running_service(house, ScriptedHost()) as service:

        def planned() -> int:
            service.tick()
            return house.job(job_id).shards_total

        assert house.wait_for(planned, "the plan") == 2
        assert house.job(job_id).status is JobStatus.QUEUED
        assert holder.tick(), "the other one reconciles still"


def test_cancelling_job_with_leases_of_dead_workers_is_settled(house: House) -> None:
    job_id = house.submit(requests(6), shard_items=2)
    plan(house.deployment, job_id, owner="planner")
    claim(house, job_id, "dead one")
    claim(house, job_id, "dead two")
    with house.deployment.database.write() as uow:
        assert uow.jobs.request_outcome(job_id, Outcome.CANCELLED)
    with running_service(house, ScriptedHost()) as service:
        job = work_until_end(house, service, job_id)
    assert (job.status, job.cancelled, job.processing, job.shards_open) == (JobStatus.CANCELLED, 6, 0, 0)
    assert {shard.status for shard in house.shards(job_id)} == {ShardStatus.CANCELLED}
    assert len(house.results(job_id, "errors")) == 6


# --- workers ---


def test_worker_whose_heart_stands_still_is_taken_for_dead_until_it_beats(house: House) -> None:
    def beat(worker_id: str) -> None:
        with house.deployment.database.write() as uow:
            uow.workers.beat(worker_id, [])

    def live() -> set[str]:
        with house.deployment.database.read() as uow:
            return {worker.id for worker in uow.workers.live()}

    with house.deployment.database.write() as uow:
        for name in ("watcher", "alive", "dead"):
            uow.workers.add(worker_id=name, host="h", pid=1, queues=["generate"], slots=1, device="test", memory=0)
    started = time.monotonic()
    tick_until(house, watcher(house), lambda: beat("alive"), lambda: "dead" not in live())
    assert time.monotonic() - started >= house.settings.lease_s
    assert live() == {"watcher", "alive"}
    beat("dead")
    assert live() == {"watcher", "alive", "dead"}


def test_dead_worker_behind_pages_of_healthy_ones_is_found(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerRepository, "live_page", partialmethod(WorkerRepository.live_page, limit=2))
    names = [f"worker-{number}" for number in range(6)]
    with house.deployment.database.write() as uow:
        for name in names:
            uow.workers.add(worker_id=name, host="h", pid=1, queues=["generate"], slots=1, device="test", memory=0)

    def beat() -> None:
        for name in names[:-1]:
            with house.deployment.database.write() as uow:
                uow.workers.beat(name, [])

    def live() -> list[str]:
        with house.deployment.database.read() as uow:
            return sorted(worker.id for worker in uow.workers.live())

    tick_until(house, watcher(house), beat, lambda: names[-1] not in live())
    assert live() == names[:-1]


def test_worker_that_is_forgotten_leaves_its_shards_to_be_taken_back(house: House) -> None:
    """A shard that moves is nobody's to take, whatever is said of its worker."""
    job_id = house.submit(requests(2), shard_items=1)
    plan(house.deployment, job_id, owner="planner")
    with house.deployment.database.write() as uow:
        uow.workers.add(worker_id="dead", host="h", pid=1, queues=["generate"], slots=1, device="test", memory=0)
        assert uow.workers.set_status("dead", "dead")
    moving, still = claim(house, job_id, "dead"), claim(house, job_id, "dead")
    tick_until(
        house,
        watcher(house),
        lambda: renew(house, moving),
        lambda: house.shards(job_id)[1].status is ShardStatus.PENDING,
    )
    assert house.shards(job_id)[1].id == still.shard_id
    assert house.shards(job_id)[0].status is ShardStatus.LEASED


def test_worker_that_drains_beats_and_leaves_reconciling_to_another_at_once(house: House) -> None:
    first, second = make_service(house, ScriptedHost()), watcher(house)
    house.wait_for(lambda: first.tick() or holds_reconcile(house) == first.worker_id, "the lease")
    first.drain()
    before = row_of(house, first.worker_id).heartbeats
    first.tick()
    assert (row_of(house, first.worker_id).status, row_of(house, first.worker_id).heartbeats) == (
        "draining",
        before + 1,
    )
    assert second.tick(), "it was given back, not left to run out"
    first.close()
    first.tick()
    with house.deployment.database.read() as uow:
        assert uow.workers.live() == [], "who has said that it stopped beats no more"


# --- the named lease ---


def test_named_lease_has_one_holder_and_passes_on_when_it_stops(house: House) -> None:
    first, second = (NamedHolder(house.deployment, LEASE_NAME, name, limit_s=LIMIT_S) for name in ("first", "second"))
    house.wait_for(first.hold, "the first to hold")
    deadline = time.monotonic() + 2 * LIMIT_S
    while time.monotonic() < deadline:
        assert first.hold()
        assert not second.hold()
    house.wait_for(second.hold, "the second to take over")
    assert not first.hold(), "it has to notice"
    assert second.hold()
    second.release()
    assert first.hold(), "a lease that was given back is free at once"


def test_many_who_want_a_named_lease_at_once_get_one_holder(house: House) -> None:
    holders = [NamedHolder(house.deployment, LEASE_NAME, f"h{number}", limit_s=60.0) for number in range(8)]
    start = threading.Barrier(len(holders))
    held: list[bool] = []

    def reach(holder: NamedHolder) -> None:
        start.wait()
        for _ in range(3):  # the first look may only make the row
            mine = holder.hold()
        held.append(mine)

    threads = [threading.Thread(target=reach, args=(holder,)) for holder in holders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(held) == [False] * 7 + [True]


def test_second_worker_reconciles_only_after_the_first_has_gone(house: House) -> None:
    first, second = make_service(house, ScriptedHost()), watcher(house)
    first.tick()  # makes the row
    first.tick()
    assert not second.tick()
    first.close()
    assert second.tick()
