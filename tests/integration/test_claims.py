"""Many processes at one database: each shard has one winner, every write goes through, the counts add up."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.db.values import AttemptFailure
from pipeline.jobs.planner import plan
from tests.fixtures.house import House
from tests.fixtures.in_process import claim, requests

pytestmark = pytest.mark.each_database

#: As many as the report had (jentic-one#529), which was about SQLite; PostgreSQL has as many in the full counts.
PROCESSES = 16
FEW_PROCESSES = 8


@pytest.mark.timeout(300)
def test_many_processes_claim_and_write_without_a_locked_error(house: House, full_counts: bool) -> None:
    """jentic/jentic-one#529: "database is locked" despite WAL and a busy timeout."""
    shards = 2_000 if full_counts else 80
    is_report = full_counts or house.settings.resolved_database_url.startswith("sqlite")
    lines = [{"custom_id": f"r{index}", "prompt": "x"} for index in range(shards * 2)]
    job_id = house.submit(lines, shard_items=2)
    plan(house.deployment, job_id, owner="planner")
    command = [sys.executable, "-m", "tests.fixtures.claimer", house.settings.resolved_database_url, job_id]
    processes = [
        subprocess.Popen(
            [*command, f"claimer-{number}"], env=house.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for number in range(PROCESSES if is_report else FEW_PROCESSES)
    ]
    won: list[int] = []
    for process in processes:
        output, trouble = process.communicate()
        assert process.returncode == 0, trouble.decode()
        won += json.loads(output)
    assert sorted(won) == list(range(shards))
    job = house.job(job_id)
    assert job.status is JobStatus.FINALIZING
    assert (job.succeeded, job.processing, job.shards_open) == (shards * 2, 0, 0)
    assert {shard.status for shard in house.shards(job_id)} == {ShardStatus.DONE}
    assert {shard.attempts for shard in house.shards(job_id)} == {1}


def test_workers_that_load_the_same_model_at_once_agree(house: House) -> None:
    """The first load of a model is a new row; nobody's shard fails because another worker was as quick."""

    def remember(worker: int) -> None:
        for number in range(20):
            with house.deployment.database.write() as uow:
                uow.workers.remember_model(
                    f"digest-{number}", name=f"worker-{worker}", model_type=None, dtype=None, details={}
                )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(remember, range(4)))


@pytest.mark.parametrize(("offset_s", "is_due"), [(-1, True), (80, False), (3600, True), (10 * 365 * 86400, True)])
def test_a_wait_that_no_wait_can_be_was_written_by_another_clock(house: House, offset_s: int, is_due: bool) -> None:
    """A clock that was an hour ahead, and was set right, parks no shard for an hour."""
    job_id = house.submit(requests(1))
    plan(house.deployment, job_id, owner="planner")
    with house.deployment.database.write() as uow:
        uow.shards.give_back(claim(house, job_id, "first"), AttemptFailure("x", "x"), delay_s=offset_s)
    with house.deployment.database.write() as uow:
        assert bool(uow.claims.candidates(["generate"], "second")) is is_due
        assert (uow.shards.claim(job_id, "second") is not None) is is_due
