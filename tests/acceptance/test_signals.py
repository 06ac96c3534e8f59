"""SIGTERM asks a worker to leave, a second one makes it: either way nothing is lost, and no process stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.db.values import WorkerView
from pipeline.errors import ExitCode
from tests.acceptance.test_kill import child_of, fed
from tests.fixtures.house import PATIENCE_S, House, MakeHouse

SHORT = {"lease_s": 3.0, "renew_s": 0.5, "reconcile_s": 0.3, "poll_s": 0.3, "part_items": 4, "backoff_s": 0.1}

ITEMS = 12


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT)


def submit(house: House, **script: Any) -> tuple[str, Path]:
    journal = house.log_folder / "journal"
    house.add_fake_model(journal=str(journal), **script)
    return house.submit([{"custom_id": f"r{index}", "prompt": f"say {index}"} for index in range(ITEMS)]), journal


def worker_row(house: House, process: subprocess.Popen[bytes]) -> WorkerView | None:
    with house.deployment.database.read() as uow:
        return next((worker for worker in uow.workers.live() if worker.pid == process.pid), None)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def check_answers(house: House, job_id: str) -> None:
    job = house.wait_end(job_id)
    assert (job.status, job.succeeded, job.processing) == (JobStatus.COMPLETED, ITEMS, 0), house.logs()
    assert [line["custom_id"] for line in house.results(job_id)] == [f"r{index}" for index in range(ITEMS)]


def begun(journal: Path, custom_id: str) -> bool:
    return custom_id in {one for _, one in fed(journal)}


@pytest.mark.timeout(300)
def test_sigterm_keeps_the_answers_gives_the_shard_back_and_leaves(house: House) -> None:
    job_id, journal = submit(house, delay_s=0.3)
    leaving = house.start_worker()
    house.wait_for(lambda: begun(journal, "r2"), "the third item")
    child = child_of(leaving.pid)
    os.kill(leaving.pid, signal.SIGTERM)
    assert leaving.wait(PATIENCE_S) == ExitCode.OK
    assert is_gone(child)
    assert worker_row(house, leaving) is None, "it said that it stopped"
    (shard,) = house.shards(job_id)
    assert shard.status is ShardStatus.PENDING
    assert shard.succeeded >= 2, "what was finished is kept, though no part was full"
    assert (shard.attempts, shard.lost_leases, shard.last_error) == (0, 0, None)
    house.start_worker()
    check_answers(house, job_id)
    (shard,) = house.shards(job_id)
    assert (shard.attempts, shard.lost_leases) == (1, 0)
    assert len(fed(journal)) == ITEMS, "nothing was begun twice"


@pytest.mark.timeout(300)
def test_second_sigterm_kills_the_engine_and_leaves_now_and_another_goes_on(house: House) -> None:
    """The engine sleeps through the first; in the meantime the worker is seen to be alive and to drain."""
    once = house.log_folder / "once"
    once.mkdir()
    job_id, journal = submit(house, stalls=["r6"], once_folder=str(once))
    leaving = house.start_worker()
    house.wait_for(lambda: begun(journal, "r6"), "the item that takes long")
    house.wait_for(lambda: house.shards(job_id)[0].succeeded >= 4, "a first part")
    child = child_of(leaving.pid)
    os.kill(child, signal.SIGSTOP)  # it cannot end by itself: who is gone afterwards was killed
    os.kill(leaving.pid, signal.SIGTERM)

    def draining() -> WorkerView | None:
        row = worker_row(house, leaving)
        return row if row is not None and row.status == "draining" else None

    first = house.wait_for(draining, "the drain")
    house.wait_for(lambda: (row := draining()) and row.heartbeats >= first.heartbeats + 2, "its heart to go on")
    assert leaving.poll() is None
    os.kill(leaving.pid, signal.SIGTERM)
    assert leaving.wait(PATIENCE_S) == 128 + signal.SIGTERM
    house.wait_for(lambda: is_gone(child), "the engine to be gone")
    left = house.shards(job_id)[0]
    assert (left.status, left.child_deaths) == (ShardStatus.LEASED, 0), "it left without a word"
    house.start_worker()
    check_answers(house, job_id)
    (shard,) = house.shards(job_id)
    assert shard.lost_leases == 1
    counts = [custom_id for _, custom_id in fed(journal)]
    assert all(counts.count(f"r{index}") == 1 for index in range(4)), "what was registered is not fed again"
