"""A model that loads for minutes keeps nobody from cancelling, pausing, or sending the worker home."""

from __future__ import annotations

import signal

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from tests.fixtures.house import House, MakeHouse

SHORT = {"lease_s": 3.0, "renew_s": 0.5, "reconcile_s": 0.3, "poll_s": 0.2, "backoff_s": 0.1}

#: Longer than any test waits.
FOREVER_S = 3600.0


@pytest.fixture
def loading(make_house: MakeHouse) -> tuple[House, str]:
    """A job whose model is being loaded by a worker."""
    house = make_house(**SHORT)
    house.add_fake_model(load_s=FOREVER_S)
    job_id = house.submit([{"custom_id": f"r{index}", "prompt": "x"} for index in range(4)])
    house.start_worker()
    house.wait_for(lambda: "child_started" in house.logs(), "the child to load")
    return house, job_id


def test_cancel_ends_the_load(loading: tuple[House, str]) -> None:
    house, job_id = loading
    house.pipeline("cancel", job_id)
    job = house.wait_end(job_id)
    assert (job.status, job.cancelled, job.processing) == (JobStatus.CANCELLED, 4, 0)


def test_pause_ends_the_load_and_counts_no_attempt(loading: tuple[House, str]) -> None:
    house, job_id = loading
    house.pipeline("pause", job_id)
    house.wait_for(lambda: house.shards(job_id)[0].status is ShardStatus.PENDING, "the lease to be given back")
    (shard,) = house.shards(job_id)
    assert (shard.attempts, shard.child_deaths, shard.last_error) == (0, 0, None)
    house.pipeline("cancel", job_id)
    assert house.wait_end(job_id).status is JobStatus.CANCELLED


def test_a_drain_ends_the_load(loading: tuple[House, str]) -> None:
    house, job_id = loading
    house.workers[0].send_signal(signal.SIGTERM)
    assert house.workers[0].wait(60) == 0
    (shard,) = house.shards(job_id)
    assert (shard.status, shard.attempts) == (ShardStatus.PENDING, 0)
