"""A worker that was stopped (SIGSTOP, a closed lid) and wakes when its lease is another's: it discards, and says so."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from pipeline.db.states import JobStatus
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.sleepers import put_to_sleep

SHORT = {"lease_s": 2.4, "renew_s": 0.5, "reconcile_s": 0.3, "poll_s": 0.2, "part_items": 2, "backoff_s": 0.1}


@pytest.mark.slow
def test_a_worker_that_wakes_too_late_discards_its_work_and_goes_on(make_house: MakeHouse, database_url: str) -> None:
    house = make_house(database_url=database_url, **SHORT)
    shared = {"database_url": house.settings.resolved_database_url, "store_url": house.settings.resolved_store_url}
    other = make_house(**shared, **SHORT)
    for one in (house, other):
        one.add_fake_model(delay_s=0.2)
    job_id = house.submit([{"custom_id": f"r{index}", "prompt": f"say {index}"} for index in range(12)])
    sleeper = house.start_worker()
    house.wait_for(lambda: house.parts(job_id), "a first part")
    put_to_sleep(house, sleeper.pid)
    first = house.shards(job_id)[0]
    other.start_worker()
    job = house.wait_end(job_id)
    outputs = house.results(job_id)
    os.killpg(sleeper.pid, signal.SIGCONT)
    house.wait_for(lambda: "shard_lost" in house.logs(), "the sleeper to say that it lost its shard")
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, 12, 0)
    assert sorted(line["custom_id"] for line in outputs) == sorted(f"r{index}" for index in range(12))
    assert house.job(job_id) == job, "nothing in an ended job changes"
    assert house.results(job_id) == outputs
    late = [part for part in house.parts(job_id) if part[1] == first.lease_token]
    assert sum(len(items) for _, _, items in late) == first.succeeded, "no part of the sleeper's came after the loss"
    _still_works(house, other)


def _still_works(house: House, other: House) -> None:
    """The sleeper serves again: it is the only worker left."""
    other.stop()
    again: Any = house.submit([{"custom_id": "later", "prompt": "say it"}])
    assert house.wait_end(again).status is JobStatus.COMPLETED
