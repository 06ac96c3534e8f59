"""What checks of accelerations find reaches the job's record: a real child finds it, SQL and `status` show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from pipeline.db.states import JobStatus
from pipeline.errors import ModelUnsupported
from pipeline.jobs.retry import retry
from pipeline.jobs.service import WorkerService
from pipeline.jobs.status import report_job
from pipeline.specs.contract import NOT_SEED_STABLE
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, requests, running_service, work_until_end
from workers.supervisor import Supervisor

pytestmark = pytest.mark.each_database

MISMATCH = ("draft", "tokens_differ", "token 3 of a row is 7; the plain path has 9")


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    """Its model finds the same mismatch in each run, as long as nobody has turned the mechanism off."""
    house = make_house(database_url=database_url, **SHORT_LEASES)
    house.add_fake_model("lying", mismatches=[MISMATCH], levels={"kv_bytes": 3 << 20})
    return house


@pytest.fixture
def service(house: House) -> Iterator[WorkerService]:
    with running_service(house, Supervisor(house.settings, environ=house.environ)) as running:
        yield running


def work_off(house: House, service: WorkerService, **contract: Any) -> str:
    """A job of two shards over the model that lies."""
    job_id = house.submit(requests(4), model="lying", shard_items=2, contract=contract)
    work_until_end(house, service, job_id)
    return job_id


def verdicts(house: House, job_id: str) -> list[tuple[Any, ...]]:
    query = "SELECT mechanism, outcome, code, count, shards FROM job_verdicts WHERE job_id = :job ORDER BY 1, 2, 3"
    with house.deployment.database.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text(query), {"job": job_id})]


def test_a_violated_contract_is_on_record_and_each_fallback_is_taken(house: House, service: WorkerService) -> None:
    declining = work_off(house, service, fallback="decline", ceilings={"kv_bytes": "4MiB"}, measure=["items_per_s"])
    assert house.job(declining).status is JobStatus.COMPLETED
    assert verdicts(house, declining) == [
        ("ceiling", "held", "kv_bytes", 2, 2),
        ("draft", "declined", "violated_before", 1, 1),
        ("draft", "violated", "tokens_differ", 1, 1),
    ]
    plain = work_off(house, service, fallback="baseline")
    assert house.job(plain).status is JobStatus.COMPLETED
    assert verdicts(house, plain) == [
        ("all", "declined", "baseline", 2, 2),
        ("draft", "declined", "violated_before", 1, 1),
        ("draft", "violated", "tokens_differ", 1, 1),
    ]
    failed = house.job(work_off(house, service, fallback="fail"))
    assert (failed.status, failed.error_code) == (JobStatus.FAILED, "contract_violated")
    assert MISMATCH[2] in (failed.error_message or "")
    assert verdicts(house, failed.id) == [("draft", "violated", "tokens_differ", 1, 1)]
    too_small = house.job(work_off(house, service, ceilings={"kv_bytes": "1MiB"}))
    assert (too_small.status, too_small.error_code) == (JobStatus.FAILED, "ceiling_exceeded")
    assert verdicts(house, too_small.id) == [("ceiling", "violated", "kv_bytes", 1, 1)]

    document = json.loads(house.pipeline("status", declining, "--json").stdout)
    assert [(one["outcome"], one["count"]) for one in document["verdicts"]] == [
        ("violated", 1),
        ("declined", 1),
        ("held", 2),
    ]
    assert document["verdicts"][0]["reason"] == MISMATCH[2]
    rate, level = document["contract"]["lines"]
    assert rate["name"] == "items_per_s" and rate["measured"] > 0 and rate["ceiling"] is None
    assert level == {"name": "kv_bytes", "measured": 3 << 20, "ceiling": 4 << 20}
    shown = house.pipeline("status", declining).stdout.decode()
    assert "3.0 MiB" in shown and "4.0 MiB" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("draft") and "violated  " in line]
    assert line.split() == ["draft", "violated", "tokens_differ", "1", *MISMATCH[2].split()]


def test_a_job_that_is_not_seed_stable_says_so_and_keeps_its_drafter_in_a_retry(
    house: House, service: WorkerService
) -> None:
    house.add_fake_model("picky", errors={"r1": "content_filter"})
    job_id = house.submit(requests(2), model="picky", draft={"model": {"name": "fake"}, "acceptance": "stochastic"})
    job = work_until_end(house, service, job_id)
    assert job.engine is not None and job.engine["promise"] == NOT_SEED_STABLE
    assert report_job(house.deployment, job_id).promise == NOT_SEED_STABLE
    child = retry(house.deployment, job_id).job
    assert (child.draft_model, child.draft_digest) == ("fake", job.draft_digest)
    ordinary = house.submit(requests(2))
    assert work_until_end(house, service, ordinary).engine is not None
    assert "promise" not in (house.job(ordinary).engine or {})
    assert report_job(house.deployment, ordinary).promise is None


def test_a_drafter_that_is_no_generator_is_refused_before_there_is_a_job(house: House, tiny_bert_path: Path) -> None:
    house.add_model("encoder", tiny_bert_path)
    with pytest.raises(ModelUnsupported, match="encoder is of kind embedder"):
        house.submit(requests(1), draft={"model": {"name": "encoder"}})
    with house.deployment.database.read() as uow:
        assert list(uow.jobs.list()) == []
