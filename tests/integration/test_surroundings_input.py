"""The item file changes after it was checked: what was answered stays, and the job ends with one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.db.states import JobStatus
from pipeline.jobs.planner import plan
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import requests

pytestmark = pytest.mark.timeout(180)

QUICK = {"lease_s": 3, "renew_s": 0.5, "reconcile_s": 0.2, "poll_s": 0.2, "backoff_s": 0.1, "part_items": 2}


@pytest.fixture
def house(make_house: MakeHouse) -> House:
    return make_house(**QUICK)


def alter(house: House, job_id: str, old: bytes, new: bytes) -> None:
    """Say something else in the stored item file: as long as before, JSON as before."""
    assert len(old) == len(new)
    uri = house.job(job_id).input_uri
    assert uri is not None
    file = Path(house.deployment.store.locate(uri))
    data = file.read_bytes()
    assert data.count(old) == 1
    file.write_bytes(data.replace(old, new))


def test_item_altered_before_its_shard_runs_ends_the_job(make_house: MakeHouse, database_url: str) -> None:
    house = make_house(database_url=database_url, **QUICK)
    job_id = house.submit(requests(9), shard_items=3)
    plan(house.deployment, job_id, owner="planner")
    alter(house, job_id, b"say 4", b"say 9")
    house.start_worker()
    job = house.wait_end(job_id)
    assert (job.status, job.error_code) == (JobStatus.FAILED, "artifact_corrupt"), house.logs()
    assert job.input_uri in (job.error_message or "")
    answered = [line["custom_id"] for line in house.results(job_id)]
    assert answered[:3] == ["r0", "r1", "r2"], "what was finished before is kept"
    assert not {"r3", "r4", "r5"} & set(answered)
    assert (job.succeeded, job.processing) == (len(answered), 0)
    named = [line["custom_id"] for line in house.results(job_id, "errors")]
    assert len(set(answered) | set(named)) == len(answered) + len(named), "each item at most once"


def test_id_altered_under_way_ends_the_job(house: House) -> None:
    """An altered name would give one item's answer to another."""
    house.add_fake_model(delay_s=0.1)
    job_id = house.submit(requests(12), shard_items=4)
    house.start_worker()
    house.wait_for(lambda: house.job(job_id).succeeded >= 2, "some answers")
    alter(house, job_id, b'"r11"', b'"r12"')
    job = house.wait_end(job_id)
    assert (job.status, job.error_code) == (JobStatus.FAILED, "artifact_corrupt"), house.logs()
    answered = {line["custom_id"] for line in house.results(job_id)}
    assert {f"r{index}" for index in range(4)} <= answered
    assert not answered & {"r11", "r12"}


def test_item_altered_before_planning_ends_the_job_before_any_work(house: House) -> None:
    job_id = house.submit(requests(6), shard_items=3)
    alter(house, job_id, b"say 4", b"say 9")
    house.start_worker()
    job = house.wait_end(job_id)
    assert (job.status, job.error_code, job.succeeded) == (JobStatus.FAILED, "artifact_corrupt", 0), house.logs()
    assert job.shards_total == 0


def test_model_altered_after_submit_is_not_used(house: House) -> None:
    """The job waits for a host that has what it pinned; status says that nobody can plan it."""
    job_id = house.submit(requests(2))
    config = house.settings.models_path / "fake" / "config.json"
    whole = config.read_bytes()
    house.add_fake_model(delay_s=0.01)
    house.start_worker()
    other = house.submit(requests(2))
    assert house.wait_end(other).status is JobStatus.COMPLETED, house.logs()
    assert house.job(job_id).status is JobStatus.VALIDATING
    config.write_bytes(whole)
    assert house.wait_end(job_id).status is JobStatus.COMPLETED, house.logs()
