"""The database restarts, drops its sessions, is locked or away: work waits for it and goes on by itself."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.errors import ExitCode
from tests.fixtures.house import House, MakeHouse, masked
from tests.fixtures.in_process import requests
from tests.fixtures.restartable import OwnPostgres

pytestmark = pytest.mark.timeout(240)

QUICK = {"lease_s": 3, "renew_s": 0.5, "reconcile_s": 0.2, "poll_s": 0.2, "backoff_s": 0.1, "part_items": 1}

ITEMS = 16


@pytest.fixture
def house(own_postgres: OwnPostgres, make_house: MakeHouse) -> House:
    house = make_house(database_url=own_postgres.url, **QUICK)
    house.add_fake_model(delay_s=0.15)
    return house


def submit(house: House) -> str:
    return house.submit(requests(ITEMS), shard_items=4, seed=7)


def start(house: House) -> str:
    """A job in mid-work."""
    job_id = submit(house)
    house.start_worker()
    house.wait_for(lambda: house.job(job_id).succeeded >= 2, "some answers")
    return job_id


def check_end(house: House, job_id: str) -> None:
    """All answered, in order, each once; no attempt counted but those whose lease ran out meanwhile."""
    job = house.wait_end(job_id)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, ITEMS), house.logs()
    answers: list[Any] = masked(house.results(job_id))
    assert [line["custom_id"] for line in answers] == [f"r{index}" for index in range(ITEMS)]
    shards = house.shards(job_id)
    assert {shard.status for shard in shards} == {ShardStatus.DONE}
    assert all(1 <= shard.attempts <= 1 + shard.lost_leases for shard in shards)
    assert "Traceback" not in house.logs()


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_restart_in_mid_job(own_postgres: OwnPostgres, house: House, how: str) -> None:
    job_id = start(house)
    own_postgres.stop(fast=how == "fast")
    house.wait_for(lambda: "127.0.0.1" in house.logs() and "refused" in house.logs(), "the worker to notice")
    own_postgres.start()
    check_end(house, job_id)
    assert house.workers[0].poll() is None
    assert own_postgres.server.password not in house.logs()


def test_lost_connections_in_mid_job(own_postgres: OwnPostgres, house: House) -> None:
    job_id = start(house)
    for number in range(3):
        own_postgres.cut_connections()
        house.wait_for(lambda: house.job(job_id).succeeded > 2 + number, "work to go on")  # noqa: B023
    check_end(house, job_id)


def test_idle_worker_takes_up_work_when_the_database_is_back(own_postgres: OwnPostgres, house: House) -> None:
    worker = house.start_worker()
    house.wait_for(lambda: "worker_started" in house.logs(), "the worker to start")
    own_postgres.stop()
    house.wait_for(lambda: "tick_failed" in house.logs(), "the worker to notice")
    own_postgres.start()
    check_end(house, submit(house))
    worker.terminate()
    assert worker.wait(timeout=60) == 0, house.logs()


def test_worker_leaves_when_asked_with_the_database_away(own_postgres: OwnPostgres, house: House) -> None:
    job_id = start(house)
    own_postgres.stop()
    house.workers[0].terminate()
    assert house.workers[0].wait(timeout=60) == 0, house.logs()
    own_postgres.start()
    house.start_worker()
    check_end(house, job_id)


def test_commands_and_a_starting_worker_say_that_the_database_is_away(own_postgres: OwnPostgres, house: House) -> None:
    job_id = submit(house)
    own_postgres.stop()
    commands = (
        ["submit", "generate", "-", "--model", "fake"],
        ["status", job_id],
        ["worker"],
    )
    for command in commands:
        done = house.pipeline(*command, stdin=b'{"prompt": "x"}\n', check=False)
        said = done.stderr.decode()
        assert done.returncode == ExitCode.UNAVAILABLE, said
        assert "error: postgresql+psycopg://pipeline:***@127.0.0.1" in said
        assert "refused" in said
        assert "Traceback" not in said
        assert own_postgres.server.password not in said
        assert not done.stdout
    own_postgres.start()
    house.start_worker()
    check_end(house, job_id)


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA busy_timeout=20000")
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


@pytest.mark.parametrize("seconds", [1.5, 5.0])
def test_write_lock_held_by_another_process(make_house: MakeHouse, seconds: float) -> None:
    """For less than a lease, and for longer than one."""
    house = make_house(**QUICK)
    house.add_fake_model(delay_s=0.15)
    job_id = start(house)
    file = house.settings.home_path / "pipeline.db"
    command = [sys.executable, "-c", HOLD, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        done = house.job(job_id).succeeded
        time.sleep(seconds)
        assert house.job(job_id).succeeded == done < ITEMS, "nobody writes while the lock is held"
        holder.communicate(b"\n", timeout=60)
    check_end(house, job_id)
    assert "locked" not in house.logs()
