"""Two hosts: homes and models of their own, and one PostgreSQL, one Redis and one bucket between them."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from pipeline.db.states import JobStatus
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.object_store import ObjectStore

LEASES = {"lease_s": 3.0, "renew_s": 0.5, "reconcile_s": 0.5, "poll_s": 0.2, "backoff_s": 0.2}


@pytest.fixture
def hosts(
    make_house: MakeHouse, postgres_url: str, redis_url: str, object_store: ObjectStore, bucket_url: str
) -> tuple[House, House]:
    """Each has a model of its own, and both have a model ``same`` whose files differ; ``fake`` is on both."""
    shared = {"database_url": postgres_url, "broker_url": redis_url, "store_url": bucket_url}
    left, right = make_house(part_items=2, **shared, **LEASES), make_house(part_items=2, **shared, **LEASES)
    for house, name in ((left, "left"), (right, "right")):
        house.add_fake_model(name, delay_s=0.01, batch_size=len(name))
        house.add_fake_model("same", dimension=len(name))
    return left, right


def items(number: int) -> list[dict[str, Any]]:
    return [{"custom_id": f"r{index}", "prompt": f"say {index}"} for index in range(number)]


def workers_of(house: House, job_id: str) -> set[int]:
    """Process ids of the workers that measured a shard of the job."""
    engine = create_engine(house.settings.resolved_database_url)
    query = """
        SELECT DISTINCT worker_status.pid FROM job_metrics
        JOIN worker_status ON worker_status.worker_id = job_metrics.worker_id WHERE job_metrics.job_id = :job
    """
    with engine.connect() as connection:
        pids = {row.pid for row in connection.execute(text(query), {"job": job_id})}
    engine.dispose()
    return pids


def worker_status(house: House) -> dict[int, set[str]]:
    """Digests of the models each live worker holds, by its process id, as any SQL client reads them."""
    engine = create_engine(house.settings.resolved_database_url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT pid, loaded_models FROM worker_status WHERE status = 'live'")).all()
    engine.dispose()
    return {row.pid: set(filter(None, row.loaded_models.split(","))) for row in rows}


def test_each_worker_claims_what_it_holds_and_says_what_it_has_loaded(hosts: tuple[House, House]) -> None:
    left, right = hosts
    jobs = {
        "left": left.submit(items(6), model="left"),
        "right": right.submit(items(6), model="right"),
        "left's same": left.submit(items(2), model="same"),
        "right's same": right.submit(items(2), model="same"),
    }
    digests = {name: left.job(job_id).model_digest for name, job_id in jobs.items()}
    assert len(set(digests.values())) == 4  # the same name, and other files
    on_left, on_right = left.start_worker(), right.start_worker()
    for name, job_id in jobs.items():
        assert left.wait_end(job_id).status is JobStatus.COMPLETED, name
        assert workers_of(left, job_id) == {(on_left if name.startswith("left") else on_right).pid}, name
        # Written by one host, read by the other.
        assert len((right if name.startswith("left") else left).results(job_id)) == left.job(job_id).total

    expected = {
        on_left.pid: {digests["left"], digests["left's same"]},
        on_right.pid: {digests["right"], digests["right's same"]},
    }
    left.wait_for(lambda: worker_status(left) == expected, "both workers to say what they hold")


def test_a_job_for_a_model_of_a_host_without_a_worker_waits_for_it(hosts: tuple[House, House]) -> None:
    left, right = hosts
    waiting = right.submit(items(2), model="right")
    left.start_worker()
    other = left.submit(items(2), model="left")
    assert left.wait_end(other).status is JobStatus.COMPLETED
    assert not left.job(waiting).status.is_terminal
    assert left.shards(waiting) == [] or {shard.attempts for shard in left.shards(waiting)} == {0}
    right.start_worker()
    assert left.wait_end(waiting).status is JobStatus.COMPLETED


def test_what_a_killed_host_had_begun_another_ends(hosts: tuple[House, House]) -> None:
    left, right = hosts
    for house in hosts:
        house.add_fake_model("both", delay_s=0.1, batch_size=1)
    job_id = left.submit(items(20), model="both")
    first = left.start_worker()
    left.wait_for(lambda: len(left.parts(job_id)) >= 2, "two parts")
    os.killpg(first.pid, signal.SIGKILL)
    second = right.start_worker()
    job = left.wait_end(job_id)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 20)
    assert [line["custom_id"] for line in right.results(job_id)] == [f"r{index}" for index in range(20)]
    assert {token for _, token, _ in left.parts(job_id)} > {1}
    assert second.pid in workers_of(left, job_id)


def test_a_host_whose_store_is_another_databases_is_refused(
    hosts: tuple[House, House], make_house: MakeHouse, object_store: ObjectStore
) -> None:
    """Each pair has said who it is; a host with the database of one and the store of the other does no work."""
    _, right = hosts
    foreign = make_house(store_url=f"s3://{object_store.make_bucket()}")
    worker = right.start_worker(PIPELINE_STORE_URL=foreign.settings.resolved_store_url)
    assert worker.wait(timeout=60) == 2
    assert "is not the store of this database" in right.logs()
    assert worker_status(right) == {}
