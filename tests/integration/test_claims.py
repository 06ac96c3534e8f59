"""Many processes at one database: each shard has one winner, every write goes through, the counts add up."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.jobs.planner import plan
from tests.fixtures.house import House

#: As many as the report had (jentic-one#529).
PROCESSES = 16


@pytest.mark.timeout(300)
def test_sixteen_processes_claim_and_write_without_a_locked_error(house: House, full_counts: bool) -> None:
    """jentic/jentic-one#529: "database is locked" despite WAL and a busy timeout."""
    shards = 2_000 if full_counts else 160
    lines = [{"custom_id": f"r{index}", "prompt": "x"} for index in range(shards * 2)]
    job_id = house.submit(lines, shard_items=2)
    plan(house.deployment, job_id, owner="planner")
    command = [sys.executable, "-m", "tests.fixtures.claimer", house.settings.resolved_database_url, job_id]
    processes = [
        subprocess.Popen(
            [*command, f"claimer-{number}"], env=house.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for number in range(PROCESSES)
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
