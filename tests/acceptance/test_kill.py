"""Real workers killed at real moments: the job ends by itself, each item answered once, only what was missing fed again.

The engine is the fake one (this is about the plumbing); workers, children, signals, broker and databases are real.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.db.values import ShardView
from tests.fixtures.house import House, MakeHouse, masked

#: Leases short enough for a test; the rules are those of the defaults.
SHORT = {"lease_s": 3.0, "renew_s": 0.5, "reconcile_s": 0.3, "poll_s": 0.3, "part_items": 4, "backoff_s": 0.1}

ITEMS, SHARD_ITEMS = 48, 16


def requests() -> list[dict[str, Any]]:
    return [{"custom_id": f"r{index}", "prompt": f"say {index}"} for index in range(ITEMS)]


def start_job(house: House, delay_s: float = 0.15) -> tuple[str, Path]:
    """A job of several shards for a slow fake engine that keeps a journal of what it was fed."""
    journal = house.log_folder / "journal"
    house.add_fake_model(delay_s=delay_s, journal=str(journal))
    return house.submit(requests(), shard_items=SHARD_ITEMS), journal


def fed(journal: Path) -> list[tuple[int, str]]:
    """(pid of the child, custom_id) of each item that an engine began."""
    rows = [line.split(" ", 1) for line in journal.read_text().splitlines()] if journal.exists() else []
    return [(int(pid), custom_id) for pid, custom_id in rows]


def half_done(house: House, job_id: str) -> Any:
    """A leased shard with a first registered part and work left, its worker's pid, and the items registered so far."""
    with house.deployment.database.read() as uow:
        workers = {worker.id: worker for worker in uow.workers.live()}
    for shard in house.shards(job_id):
        if shard.status is ShardStatus.LEASED and 0 < shard.succeeded <= SHARD_ITEMS // 2:
            worker = workers.get(shard.lease_owner or "")
            if worker is not None:
                return shard, worker.pid, registered_items(house, job_id, shard)
    return None


def registered_items(house: House, job_id: str, shard: ShardView) -> set[str]:
    """Ids of the items that parts under this very lease hold."""
    return {
        f"r{shard.ordinal * SHARD_ITEMS + item}"
        for ordinal, token, items in house.parts(job_id)
        if (ordinal, token) == (shard.ordinal, shard.lease_token)
        for item in items
    }


def check_outcome(house: House, job_id: str, victim: int, journal: Path, survivors: set[str]) -> None:
    """What must be true however the worker died; ``survivors`` were registered before it did."""
    job = house.wait_end(job_id)
    assert job.status is JobStatus.COMPLETED, house.logs()
    assert (job.succeeded, job.processing, job.errored) == (ITEMS, 0, 0)
    lines = house.results(job_id)
    assert [line["custom_id"] for line in lines] == [f"r{index}" for index in range(ITEMS)]
    again = {shard.ordinal: shard for shard in house.shards(job_id)}[victim]
    assert (again.attempts, again.lost_leases + again.child_deaths) == (1, 1)
    by_token: dict[int, set[int]] = {}
    for ordinal, token, items in house.parts(job_id):
        if ordinal == victim:
            assert not by_token.get(token, set()) & items
            by_token.setdefault(token, set()).update(items)
    first, second = (by_token[token] for token in sorted(by_token))
    assert not first & second
    assert first | second == set(range(SHARD_ITEMS))
    base = victim * SHARD_ITEMS
    registered = {f"r{base + item}" for item in first}
    assert survivors
    assert survivors <= registered
    counts: dict[str, int] = {}
    for _, custom_id in fed(journal):
        counts[custom_id] = counts.get(custom_id, 0) + 1
    assert {custom_id: counts[custom_id] for custom_id in registered} == dict.fromkeys(registered, 1)
    undisturbed = [{"custom_id": f"r{index}", "prompt": f"say {index}"} for index in range(ITEMS)]
    house.add_fake_model("calm")
    calm = house.submit(undisturbed, model="calm", shard_items=SHARD_ITEMS)
    house.wait_end(calm)
    assert [line | {"response": None} for line in masked(lines)] == [
        line | {"response": None} for line in masked(house.results(calm))
    ]
    assert _answers(lines) == _answers(house.results(calm))


def _answers(lines: list[dict[str, Any]]) -> list[str]:
    """Answer texts: the fake engine's are a function of the request alone."""
    return [json.dumps(line["response"]["body"]["choices"], sort_keys=True) for line in lines]


def child_of(pid: int) -> int:
    """The engine's process under a worker."""
    output = subprocess.run(["ps", "-o", "pid=,ppid=,args=", "-A"], capture_output=True, text=True, check=True).stdout
    for line in output.splitlines():
        child, parent, command = line.split(None, 2)
        if int(parent) == pid and "workers.child" in command:
            return int(child)
    raise AssertionError(f"no engine process under {pid}")


@pytest.fixture(params=["embedded", "fleet"])
def plumbing(request: pytest.FixtureRequest, make_house: MakeHouse) -> House:
    """SQLite with the embedded broker, then PostgreSQL with Redis."""
    if request.param == "embedded":
        return make_house(**SHORT)
    database, broker = request.getfixturevalue("postgres_url"), request.getfixturevalue("redis_url")
    return make_house(database_url=database, broker_url=broker, **SHORT)


@pytest.mark.timeout(300)
def test_killed_parent_loses_nothing_and_another_worker_goes_on(plumbing: House) -> None:
    """celery/celery#3541: kill -9 of the parent; its child ends by itself, its shard is leased elsewhere."""
    house = plumbing
    job_id, journal = start_job(house)
    house.start_worker()
    house.start_worker()
    shard, pid, survivors = house.wait_for(lambda: half_done(house, job_id), "a first part")
    child = child_of(pid)
    os.kill(pid, signal.SIGKILL)
    check_outcome(house, job_id, shard.ordinal, journal, survivors)
    house.wait_for(lambda: not _runs(child), "the orphaned child to end by itself")


@pytest.mark.timeout(300)
def test_killed_child_is_noticed_and_its_parent_goes_on(plumbing: House) -> None:
    house = plumbing
    job_id, journal = start_job(house)
    house.start_worker()
    house.start_worker()
    shard, pid, survivors = house.wait_for(lambda: half_done(house, job_id), "a first part")
    os.kill(child_of(pid), signal.SIGKILL)
    check_outcome(house, job_id, shard.ordinal, journal, survivors)
    again = {one.ordinal: one for one in house.shards(job_id)}[shard.ordinal]
    assert again.child_deaths == 1


@pytest.mark.timeout(300)
def test_only_worker_killed_and_started_again_finishes_the_job(make_house: MakeHouse) -> None:
    house = make_house(**SHORT)
    job_id, journal = start_job(house)
    house.start_worker()
    shard, pid, survivors = house.wait_for(lambda: half_done(house, job_id), "a first part")
    os.kill(pid, signal.SIGKILL)
    house.start_worker()
    check_outcome(house, job_id, shard.ordinal, journal, survivors)


@pytest.mark.timeout(300)
def test_dead_workers_shard_is_leased_elsewhere_in_under_a_minute_at_default_settings(make_house: MakeHouse) -> None:
    """The promise of law 2, on the clock of the one who waits for it; by the lease alone: the homes are two."""
    import time

    house = make_house(part_items=4)
    shared = {"database_url": house.settings.resolved_database_url, "store_url": house.settings.resolved_store_url}
    other = make_house(part_items=4, **shared)
    job_id, journal = start_job(house, delay_s=1.0)
    other.add_fake_model(delay_s=1.0, journal=str(journal))
    house.start_worker()
    other.start_worker()
    _, pid, _ = house.wait_for(lambda: half_done(house, job_id), "a first part")
    house.wait_for(lambda: len(_live(house)) == 2, "the second worker")
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()

    def leased_again() -> bool:
        return any(shard.lost_leases and shard.lease_owner for shard in house.shards(job_id))

    house.wait_for(leased_again, "the shard's second lease")
    assert time.monotonic() - killed < 60


def _live(house: House) -> list[str]:
    with house.deployment.database.read() as uow:
        return [worker.id for worker in uow.workers.live()]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
