"""Law 5: an item that ends its child, or its whole worker, is found, errs alone, and harms nobody else."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from pipeline.db.states import JobStatus
from tests.fixtures.house import House, MakeHouse, masked
from tests.fixtures.in_process import requests

#: Leases short enough for a test; the rules are those of the defaults.
SHORT = {"lease_s": 3.0, "renew_s": 0.5, "reconcile_s": 0.3, "poll_s": 0.2, "part_items": 4, "backoff_s": 0.05}

ITEMS = 16


def journal_of(house: House, **script: Any) -> Path:
    journal = house.log_folder / "journal"
    house.add_fake_model(journal=str(journal), **script)
    return journal


def runs_of(journal: Path) -> dict[str, int]:
    """How often each item was begun."""
    counts: dict[str, int] = {}
    for line in journal.read_text().splitlines():
        custom_id = line.split(" ", 1)[1]
        counts[custom_id] = counts.get(custom_id, 0) + 1
    return counts


@pytest.fixture
def short_house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT)


def undisturbed(house: House, kind: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """What each item answers where nobody dies."""
    house.add_fake_model("calm")
    job = house.work_off(house.submit(requests, kind=kind, model="calm", seed=3))
    assert job.status is JobStatus.COMPLETED
    return {line["custom_id"]: line for line in masked(house.results(job.id))}


def without_model(line: dict[str, Any]) -> Any:
    body = dict(line["response"]["body"])
    body.pop("model")
    return body


@pytest.mark.parametrize(("kind", "how"), [("generate", "abort"), ("embed", "kill")])
def test_poison_items_err_and_all_others_are_answered(short_house: House, kind: str, how: str) -> None:
    house = short_house
    poison = {"r5": how, "r6": how, "r13": how}
    texts = [
        {"custom_id": f"r{index}", "prompt" if kind == "generate" else "text": f"say {index}"} for index in range(ITEMS)
    ]
    wanted = undisturbed(house, kind, texts)
    journal = journal_of(house, crashes=poison)
    job = house.work_off(house.submit(texts, kind=kind, seed=3))
    assert job.status is JobStatus.COMPLETED
    assert (job.succeeded, job.errored, job.processing) == (ITEMS - 3, 3, 0)
    errors = {line["custom_id"]: line["error"] for line in house.results(job.id, "errors")}
    assert set(errors) == set(poison)
    for error in errors.values():
        assert error["code"] == "engine_crashed"
        assert ("SIGABRT" if how == "abort" else "SIGKILL") in error["message"]
        assert "at attempt" in error["message"]
    lines = masked(house.results(job.id))
    assert [line["custom_id"] for line in lines] == [f"r{i}" for i in range(ITEMS) if f"r{i}" not in poison]
    for line in lines:
        assert without_model(line) == without_model(wanted[line["custom_id"]])
    shard = house.shards(job.id)[0]
    assert shard.suspects is None and shard.in_flight is None
    # Twice alone, and once in company where nobody was quicker: nobody is condemned by less, or dies more often.
    assert {custom_id: runs_of(journal)[custom_id] for custom_id in poison} == {"r5": 3, "r6": 2, "r13": 3}


def test_a_child_that_is_killed_from_outside_condemns_nobody(short_house: House) -> None:
    house = short_house
    journal = journal_of(house, delay_s=0.1)
    job_id = house.submit(requests(ITEMS))
    house.start_worker()

    def child() -> int | None:
        lines = journal.read_text().splitlines() if journal.exists() else []
        return int(lines[-1].split()[0]) if len(lines) > 5 else None

    os.kill(house.wait_for(child, "the child to work"), signal.SIGKILL)
    job = house.wait_end(job_id)
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, ITEMS, 0)
    shard = house.shards(job_id)[0]
    assert shard.child_deaths == 1
    with house.deployment.database.engine.connect() as connection:
        rows = connection.execute(text("SELECT code, reason FROM job_attempts WHERE job_id = :job"), {"job": job_id})
        ((code, reason),) = rows.all()
    assert code == "engine_crashed" and "SIGKILL" in reason


def test_an_item_that_raises_for_the_whole_run_is_found_like_one_that_kills(short_house: House) -> None:
    house = short_house
    house.add_fake_model(raises=["r7"])
    job = house.work_off(house.submit(requests(ITEMS)))
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, ITEMS - 1, 1)
    (line,) = house.results(job.id, "errors")
    assert (line["custom_id"], line["error"]["code"]) == ("r7", "engine_failed")


@pytest.mark.slow
def test_an_item_that_takes_the_whole_worker_down_is_found(short_house: House) -> None:
    """The fake engine kills its parent, too, as a host that runs out of memory would."""
    house = short_house
    house.add_fake_model(crashes={"r9": "parent"})
    job_id = house.submit(requests(12))

    def step() -> Any:
        if not house.workers or house.workers[-1].poll() is not None:
            assert len(house.workers) < 12, "workers die for ever"
            house.start_worker()
        job = house.job(job_id)
        return job if job.status.is_terminal else None

    job = house.wait_for(step, "the job to end")
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, 11, 1)
    (line,) = house.results(job_id, "errors")
    assert (line["custom_id"], line["error"]["code"]) == ("r9", "engine_crashed")
    shard = house.shards(job_id)[0]
    assert shard.lost_leases >= 3


def test_a_stalled_item_is_found(make_house: MakeHouse, database_url: str) -> None:
    house = make_house(database_url=database_url, stall_timeout_s=0.7, **SHORT)
    house.add_fake_model(stalls=["r3"])
    job = house.work_off(house.submit(requests(8)))
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, 7, 1)
    (line,) = house.results(job.id, "errors")
    assert line["custom_id"] == "r3" and "no progress" in line["error"]["message"]


@pytest.mark.parametrize("kind", ["generate", "embed"])
def test_a_death_in_a_batch_whose_items_do_no_harm_alone_ends_after_one_more(short_house: House, kind: str) -> None:
    """A batch that is too much together: each item alone is not. The trial comes to an end."""
    house = short_house
    house.add_fake_model(crashes_together=["r2", "r3"])
    texts = [
        {"custom_id": f"r{index}", "prompt" if kind == "generate" else "text": f"say {index}"} for index in range(8)
    ]
    job = house.work_off(house.submit(texts, kind=kind))
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, 8, 0)
