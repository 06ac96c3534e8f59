"""The broker rings and no more: what it loses, doubles or garbles costs time, never work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.db.states import JobStatus
from tests.fixtures.house import House, MakeHouse

QUICK = {"poll_s": 0.3, "reconcile_s": 0.3}


@pytest.fixture
def belled_house(make_house: MakeHouse, broker_url: str) -> House:
    """SQLite with the embedded broker, then with Redis."""
    broker = None if broker_url.startswith("filesystem") else broker_url
    return make_house(broker_url=broker, **QUICK)


def submit(house: House) -> str:
    return house.submit([{"custom_id": f"r{index}", "prompt": "x"} for index in range(6)], shard_items=2)


def garble(house: House) -> None:
    """Put what no worker can read where a message is expected, on every queue."""
    url = house.settings.broker_url
    if url is None:
        folder = house.settings.home_path / "broker" / "messages"
        folder.mkdir(parents=True, exist_ok=True)
        for queue in ("control", "generate"):
            (folder / f"0000_{queue}.{queue}.msg").write_bytes(b"\x80not json")
        return
    import redis

    client = redis.Redis.from_url(url)
    for queue in ("control", "generate"):
        client.lpush(queue, b"\x80not json")
        client.lpush(
            queue, b'{"body": "gASVCgAAAAAAAACMBnBpY2tsZZQu", "content-type": "application/x-python-serialize"}'
        )
    client.close()


@pytest.mark.timeout(120)
def test_message_that_cannot_be_read_ends_no_worker(belled_house: House) -> None:
    house = belled_house
    garble(house)
    worker = house.start_worker()
    job_id = submit(house)
    assert house.wait_end(job_id).status is JobStatus.COMPLETED, house.logs()
    garble(house)
    second = submit(house)
    assert house.wait_end(second).status is JobStatus.COMPLETED, house.logs()
    assert worker.poll() is None, house.logs()


@pytest.mark.timeout(120)
def test_doubled_and_lost_doorbells_change_nothing(belled_house: House) -> None:
    """celery/celery#5935, with a real broker: every ring doubled for one job, none at all for the next."""
    house = belled_house
    house.start_worker()
    job_id = submit(house)
    bell = house.deployment.doorbell
    for _ in range(3):
        assert bell.plan(job_id)
        assert bell.run("generate")
        assert bell.finalize(job_id)
    assert house.wait_end(job_id).status is JobStatus.COMPLETED
    assert {shard.attempts for shard in house.shards(job_id)} == {1}
    assert [line["custom_id"] for line in house.results(job_id)] == [f"r{index}" for index in range(6)]

    silent: Any = lambda *_: False  # noqa: E731
    house.deployment.doorbell._ring = silent
    unrung = submit(house)
    assert house.wait_end(unrung).status is JobStatus.COMPLETED, house.logs()


@pytest.mark.timeout(120)
def test_worker_listens_on_a_redis_socket(make_house: MakeHouse, redis_socket_url: str) -> None:
    house = make_house(broker_url=redis_socket_url, **QUICK)
    house.start_worker()
    job_id = submit(house)
    assert house.wait_end(job_id).status is JobStatus.COMPLETED, house.logs()
    assert house.deployment.doorbell.run("generate")


@pytest.mark.timeout(120)
def test_sigterm_drains_and_gives_the_lease_back(make_house: MakeHouse) -> None:
    house = make_house(part_items=1, **QUICK)
    house.add_fake_model(delay_s=0.2)
    worker = house.start_worker()
    job_id = house.submit([{"custom_id": f"r{index}", "prompt": "x"} for index in range(50)])
    house.wait_for(lambda: house.job(job_id).succeeded >= 2, "some answers")
    worker.terminate()
    assert worker.wait(timeout=60) == 0, house.logs()
    job = house.job(job_id)
    (shard,) = house.shards(job_id)
    assert shard.status == "pending"
    assert (shard.attempts, shard.lease_owner) == (0, None)
    assert job.succeeded + job.processing == 50
    house.add_fake_model(delay_s=0.2)
    house.start_worker()
    assert house.wait_end(job_id).succeeded == 50


def test_celery_worker_command_is_refused_with_the_reason(tmp_path: Path) -> None:
    """celery/celery#4113: prefork after Metal aborts on a Mac."""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "celery", "-A", "tasks.app:app", "worker"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "thread pool" in done.stderr
    assert "pipeline worker" in done.stderr


FIRST_RINGS = """
import sys, threading
from pathlib import Path
from pipeline.config import Settings
from pipeline.jobs.dispatch import Doorbell

bell, start, rung = Doorbell(Settings(home=Path(sys.argv[1]))), threading.Barrier(6), []

def ring():
    start.wait()
    rung.append(bell.plan("job_x"))

threads = [threading.Thread(target=ring) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert rung == [True] * 6, rung
"""


def test_threads_that_ring_first_at_the_same_moment_all_ring(tmp_path: Path) -> None:
    """Celery is imported by the first ring, and puts another module in its own place while it is."""
    command = [sys.executable, "-c", FIRST_RINGS, str(tmp_path)]
    for _ in range(3):
        subprocess.run(command, cwd=Path(__file__).parents[2], check=True, timeout=60)
