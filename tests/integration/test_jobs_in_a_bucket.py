"""Whole jobs whose files lie in a bucket of a real S3 server: killed workers, a server that goes away, one that is slow."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from typing import Any

import pytest

from pipeline.db.states import JobStatus
from pipeline.jobs.submit import submit_index
from pipeline.specs import IndexSpec
from pipeline.store.artifacts import ArtifactStore
from tests.fixtures.house import House, MakeHouse, masked
from tests.fixtures.object_store import KEYS, ObjectStore

#: Leases that a machine busy with other things can keep.
LEASES = {"lease_s": 3.0, "renew_s": 0.5, "reconcile_s": 0.5, "poll_s": 0.2, "backoff_s": 0.2}

ITEMS = 24


def items(kind: str) -> list[dict[str, Any]]:
    word = "prompt" if kind == "generate" else "text"
    return [{"custom_id": f"r{number}", word: f"say {number}"} for number in range(ITEMS)]


@pytest.fixture(scope="module")
def kept() -> dict[str, list[dict[str, Any]]]:
    """What one test has found out for the others."""
    return {}


@pytest.fixture
def expected(kept: dict[str, list[dict[str, Any]]], make_house: MakeHouse) -> list[dict[str, Any]]:
    """What the same requests give on a folder, with nothing in the way."""
    if "output" not in kept:
        house = make_house()
        job_id = house.submit(items("generate"))
        assert house.work_off(job_id).status is JobStatus.COMPLETED
        kept["output"] = masked(house.results(job_id))
    return kept["output"]


def check_exact(house: House, job_id: str, expected: list[dict[str, Any]]) -> None:
    """Every item once, with the bytes of the undisturbed run."""
    job = house.wait_end(job_id)
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, ITEMS, 0), house.logs()[-4000:]
    assert masked(house.results(job_id)) == expected
    recorded = Counter(item for shard, _, part in house.parts(job_id) for item in ((shard, index) for index in part))
    assert len(recorded) == ITEMS
    assert set(recorded.values()) == {1}


def test_a_worker_killed_in_the_middle_leaves_its_parts_to_the_next(
    object_store: ObjectStore, bucket_url: str, make_house: MakeHouse, expected: list[dict[str, Any]]
) -> None:
    house = make_house(store_url=bucket_url, part_items=2, log_level="debug", **LEASES)
    house.add_fake_model(delay_s=0.05)
    job_id = house.submit(items("generate"))
    first = house.start_worker()
    house.wait_for(lambda: len(house.parts(job_id)) >= 2, "two parts")
    os.killpg(first.pid, signal.SIGKILL)
    kept = len(house.parts(job_id))
    assert not house.job(job_id).status.is_terminal
    house.start_worker()
    check_exact(house, job_id, expected)
    tokens = [token for _, token, _ in house.parts(job_id)]
    assert len([token for token in tokens if token == 1]) >= kept
    assert max(tokens) > 1
    assert not list((house.settings.home_path / "store").glob("**/*"))
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in house.logs()


def test_embed_index_and_search_in_a_bucket(object_store: ObjectStore, bucket_url: str, make_house: MakeHouse) -> None:
    house = make_house(store_url=bucket_url, part_items=8, **LEASES)
    embedded = house.submit(items("embed"), kind="embed")
    assert house.work_off(embedded).succeeded == ITEMS
    build = submit_index(house.deployment, IndexSpec(name="texts", sources=(embedded,))).job.id
    assert house.work_off(build).status is JobStatus.COMPLETED

    lines = house.pipeline("search", "texts", "say 7", "--json", "-k", "1").stdout.splitlines()
    (hit,) = json.loads(lines[0])["hits"]
    assert (hit["custom_id"], hit["text"]) == ("r7", "say 7")
    folders = {file.uri.split("/")[0] for file in house.deployment.store.files()}
    assert folders == {"store.json", "inputs", "jobs", "indexes"}


def test_a_server_that_dies_in_mid_job_costs_no_work(
    own_object_store: ObjectStore, make_house: MakeHouse, expected: list[dict[str, Any]]
) -> None:
    bucket = own_object_store.make_bucket()
    house = make_house(store_url=f"s3://{bucket}", part_items=2, max_attempts=2, store_timeout_s=5.0, **LEASES)
    house.add_fake_model(delay_s=0.1)
    job_id = house.submit(items("generate"))
    house.start_worker()
    house.wait_for(lambda: len(house.parts(job_id)) >= 2, "two parts")

    own_object_store.gate.shut()  # nobody writes while we look
    objects = own_object_store.objects(bucket)
    own_object_store.stop()
    house.wait_for(lambda: sum(shard.waits for shard in house.shards(job_id)) > 2, "more tries than attempts")

    def status_says() -> bool:
        return b"store_unavailable" in house.pipeline("status", job_id).stdout

    house.wait_for(status_says, "`status` to say why it waits")
    refused = house.pipeline("results", job_id, check=False)
    assert refused.returncode == 4
    assert b"cannot be reached" in refused.stderr
    assert not house.job(job_id).status.is_terminal

    own_object_store.give_back(bucket, objects)
    check_exact(house, job_id, expected)
    assert all(1 <= shard.attempts <= 1 + shard.lost_leases for shard in house.shards(job_id))


def test_a_slow_server_loses_no_lease(
    object_store: ObjectStore, bucket_url: str, make_house: MakeHouse, expected: list[dict[str, Any]]
) -> None:
    """One part takes longer to write than a lease may stand still, and the lease does not: it is renewed beside."""
    house = make_house(store_url=bucket_url, part_items=2, **LEASES)
    house.add_fake_model(delay_s=0.05)
    job_id = house.submit(items("generate"))
    house.start_worker()
    house.start_worker()
    house.wait_for(lambda: house.parts(job_id), "a part")
    object_store.gate.delay_s = LEASES["lease_s"] * 1.5
    slow_from = len(house.parts(job_id))
    house.wait_for(lambda: len(house.parts(job_id)) > slow_from + 1, "a part that was slow")
    object_store.gate.delay_s = 0.0
    check_exact(house, job_id, expected)
    assert {token for _, token, _ in house.parts(job_id)} == {1}
    assert {shard.lost_leases for shard in house.shards(job_id)} == {0}


def test_a_store_of_another_database_is_refused(
    object_store: ObjectStore, bucket_url: str, make_house: MakeHouse
) -> None:
    house = make_house(store_url=bucket_url)
    other = f"{bucket_url}-other"
    ArtifactStore(other).put_bytes("store.json", b'{"uuid": "somebody else\'s"}')
    worker = house.start_worker(PIPELINE_STORE_URL=other)
    assert worker.wait(timeout=60) == 2
    assert "is not the store of this database" in house.logs()
