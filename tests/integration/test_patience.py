"""A fault of the surroundings is met by few attempts, however many shards wait."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from pipeline.db.states import JobStatus
from pipeline.errors import StoreUnavailable
from pipeline.jobs.planner import plan
from tests.fixtures.house import MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, requests, running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost


def test_many_shards_do_not_ask_an_absent_store_in_turn(make_house: MakeHouse, database_url: str) -> None:
    house = make_house(database_url=database_url, **SHORT_LEASES | {"backoff_s": 0.5})

    def away() -> None:
        raise StoreUnavailable("the share is not mounted")

    host = ScriptedHost(on_prepare=away)
    job_id = house.submit(requests(40), shard_items=1)
    with running_service(house, host) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        for _ in range(20):
            service.serve()
        with house.deployment.database.engine.connect() as connection:
            asked = connection.scalar(text("SELECT COUNT(*) FROM failed_attempts"))
        assert asked is not None and 1 <= asked <= 6
        host.on_prepare = lambda: None
        job = work_until_end(house, service, job_id)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 40)
    assert max(shard.attempts for shard in house.shards(job_id)) == 1, "no attempt is counted"


@pytest.mark.parametrize("moved", [True, False])
def test_a_slot_that_was_not_hindered_goes_on_at_once(make_house: MakeHouse, moved: bool) -> None:
    """Also one whose shard failed for a reason of its own."""
    house = make_house(**SHORT_LEASES | {"backoff_s": 1000.0, "max_attempts": 1})

    def broken() -> None:
        if not moved:
            raise RuntimeError("this shard only")

    job_id = house.submit(requests(4), shard_items=1)
    with running_service(house, ScriptedHost(on_prepare=broken)) as service:
        plan(house.deployment, job_id, owner=service.worker_id)
        assert service.serve() == 4
