"""A step of the device that takes longer than the lease does not lose it, while others watch."""

from __future__ import annotations

import pytest

from pipeline.db.states import JobStatus
from tests.fixtures.house import MakeHouse

#: A lease that each of the steps below outlasts several times.
SHORT = {"lease_s": 1.5, "renew_s": 0.4, "reconcile_s": 0.3, "poll_s": 0.2}

STEP_S = 7.0


@pytest.mark.slow
def test_a_step_longer_than_the_lease_keeps_it(make_house: MakeHouse, database_url: str) -> None:
    """janbjorge/pgqueuer#430; by the lease alone: the one who watches has another home, and sees no lock."""
    house = make_house(database_url=database_url, **SHORT)
    shared = {"database_url": house.settings.resolved_database_url, "store_url": house.settings.resolved_store_url}
    other = make_house(**shared, **SHORT)
    for one in (house, other):
        one.add_fake_model(delay_s=STEP_S)
    job_id = house.submit([{"custom_id": f"r{index}", "prompt": "x"} for index in range(2)])
    house.start_worker()
    house.wait_for(lambda: house.job(job_id).status is JobStatus.IN_PROGRESS, "the first worker to begin")
    other.start_worker()
    job = house.wait_end(job_id)
    (shard,) = house.shards(job_id)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 2)
    assert (shard.attempts, shard.lost_leases) == (1, 0)
