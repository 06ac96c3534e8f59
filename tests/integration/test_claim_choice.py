"""Who serves what: no job hides another, a worker of one job leaves the others, and each shard has one winner."""

from __future__ import annotations

import logging
import shutil
import threading

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.jobs.planner import plan
from pipeline.jobs.submit import SubmitOptions
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, make_service, requests, running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost

pytestmark = pytest.mark.each_database

JOBS, SHARDS, THREADS = 5, 40, 4


def test_jobs_for_a_model_that_is_not_here_do_not_hide_another(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look sees so many candidates; those that this host cannot serve take no place among them."""
    monkeypatch.setattr("pipeline.jobs.claiming.LOOK_JOBS", 2)
    elsewhere = house.add_fake_model("elsewhere", delay_s=0.001)
    absent = [
        house.submit(requests(1), model="elsewhere", options=SubmitOptions(priority=9, idempotency_key=str(number)))
        for number in range(3)
    ]
    here = house.submit(requests(2))
    for job_id in (*absent, here):
        plan(house.deployment, job_id, owner="planner")
    shutil.rmtree(elsewhere)
    with running_service(house, ScriptedHost()) as service:
        assert service.serve() == 1
    assert house.job(here).status is JobStatus.FINALIZING
    assert {house.job(job_id).status for job_id in absent} == {JobStatus.QUEUED}
    assert {shard.attempts for job_id in absent for shard in house.shards(job_id)} == {0}


def test_a_job_waits_for_a_host_that_holds_its_drafter_too(house: House) -> None:
    """Gone, another, and as it was pinned: only then is the job claimed."""
    drafter = house.add_fake_model("drafter", delay_s=0.001)
    job_id = house.submit(requests(1), draft={"model": {"name": "drafter"}})
    job = house.job(job_id)
    assert job.draft_model == "drafter" and job.draft_digest == job.spec["draft"]["model"]["digest"] is not None
    plan(house.deployment, job_id, owner="planner")
    shutil.rmtree(drafter)
    host = ScriptedHost()
    with running_service(house, host) as service:
        assert service.serve() == 0
        house.add_fake_model("drafter", delay_s=0.002)
        assert service.serve() == 0
        assert [shard.attempts for shard in house.shards(job_id)] == [0]
        house.add_fake_model("drafter", delay_s=0.001)
        assert service.serve() == 1
        (request,) = host.loaded
    assert (request.options["draft_path"], request.options["draft_digest"]) == (str(drafter), job.draft_digest)


def test_worker_of_one_job_serves_it_and_leaves_the_others(make_house: MakeHouse, database_url: str) -> None:
    house = make_house(database_url=database_url, **SHORT_LEASES)
    planned, unplanned = house.submit(requests(2), options=SubmitOptions(priority=9)), house.submit(requests(2))
    mine = house.submit(requests(4), shard_items=2)
    plan(house.deployment, planned, owner="planner")
    host = ScriptedHost()
    with running_service(house, host, only_job=mine) as service:
        job = work_until_end(house, service, mine)
        service.tick()
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 4)
    assert host.fed == [["r0", "r1"], ["r2", "r3"]]
    assert house.job(planned).status is JobStatus.QUEUED
    assert house.job(unplanned).status is JobStatus.VALIDATING


def test_claims_counted_at_once_in_the_same_rows_do_not_deadlock(house: House) -> None:
    """Each has another favourite, and all others in its set: locked in any order but one they would wait in a ring."""
    job_ids = [house.submit(requests(1)) for _ in range(JOBS)]
    start = threading.Barrier(THREADS)
    trouble: list[Exception] = []

    def count_claims(first: int) -> None:
        start.wait()
        try:
            for number in range(first, first + 50):
                chosen = job_ids[number % JOBS]
                with house.deployment.database.write() as uow:
                    uow.claims.count(chosen, job_ids[(number + 1) % JOBS], 1)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells
            trouble.append(error)

    threads = [threading.Thread(target=count_claims, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble


def test_many_claims_over_several_jobs_have_one_winner_each_and_no_deadlock(
    postgres_url: str, make_house: MakeHouse, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The youngest job comes first and starving begins soon: claims for all jobs count themselves in all others' rows."""
    for module in ("pipeline.jobs.claiming", "pipeline.db.repository.claims"):
        monkeypatch.setattr(f"{module}.STARVATION_BOUND", 2)
    house = make_house(database_url=postgres_url)
    job_ids = [
        house.submit(requests(SHARDS), shard_items=1, options=SubmitOptions(priority=number)) for number in range(JOBS)
    ]
    for job_id in job_ids:
        plan(house.deployment, job_id, owner="planner")
    start = threading.Barrier(THREADS)
    won: list[tuple[int, str]] = []
    trouble: list[Exception] = []

    def claim_all() -> None:
        host = ScriptedHost()
        service = make_service(house, host)
        start.wait()
        try:
            while (lease := service._claim(host)) is not None:  # without the work: it is the claims that are to collide
                won.append((lease.shard_id, service.worker_id))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells
            trouble.append(error)
        finally:
            service.close()

    caplog.set_level(logging.WARNING)
    threads = [threading.Thread(target=claim_all) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble
    assert not caplog.messages
    assert len(won) == len({shard for shard, _ in won}) == JOBS * SHARDS
    shards = [shard for job_id in job_ids for shard in house.shards(job_id)]
    assert {shard.status for shard in shards} == {ShardStatus.LEASED}
    assert {(shard.id, shard.lease_owner) for shard in shards} == set(won)
    assert {(shard.attempts, shard.lease_token) for shard in shards} == {(1, 1)}
