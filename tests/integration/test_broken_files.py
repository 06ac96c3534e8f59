"""Files that are gone or not what their rows say, and texts that a database refuses: an end with a reason, no cycle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.db.values import JobView
from pipeline.errors import ChildDied, ItemError
from pipeline.ports import WorkItem
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, requests, running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT_LEASES)


def item_file(house: House, job_id: str) -> Path:
    uri = house.job(job_id).input_uri
    assert uri is not None
    return Path(house.deployment.store.locate(uri))


def halve(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def lose_last_line(file: Path) -> None:
    """Each line that is left can be read; only the checksum tells."""
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


def overwrite(file: Path) -> None:
    """What a bad disk gives: as long as before, and nothing that can be read."""
    file.write_bytes(b"\x00" * file.stat().st_size)


def forget_ids(file: Path) -> None:
    """JSON, as long as before, and no items."""
    file.write_bytes(file.read_bytes().replace(b'"id"', b'"xx"'))


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (Path.unlink, "artifact_missing"),
    "halved": (halve, "artifact_corrupt"),
    "short": (lose_last_line, "artifact_corrupt"),
    "overwritten": (overwrite, "artifact_corrupt"),
    "no_items": (forget_ids, "artifact_corrupt"),
}


def check_failed(house: House, job: JobView, code: str) -> None:
    assert (job.status, job.error_code) == (JobStatus.FAILED, code)
    assert job.processing == 0
    assert job.total == job.succeeded + job.cancelled
    assert job.output_uri is not None


@pytest.mark.parametrize("how", BROKEN)
def test_job_whose_item_file_breaks_before_it_is_planned_fails(house: House, how: str) -> None:
    break_file, code = BROKEN[how]
    job_id = house.submit(requests(4))
    break_file(item_file(house, job_id))
    with running_service(house, ScriptedHost()) as service:
        check_failed(house, work_until_end(house, service, job_id), code)
    assert house.job(job_id).cancelled == 4


@pytest.mark.parametrize("how", [name for name in BROKEN if name != "short"])
def test_job_whose_item_file_breaks_under_way_fails_and_keeps_what_it_had(house: House, how: str) -> None:
    break_file, code = BROKEN[how]
    job_id = house.submit(requests(6), shard_items=2)
    with running_service(house, ScriptedHost()) as service:

        def break_after_first(item: WorkItem) -> None:
            if item.custom_id == "r1":
                break_file(item_file(house, job_id))

        for host in service._hosts:
            assert isinstance(host, ScriptedHost)
            host.hook = break_after_first
        check_failed(house, work_until_end(house, service, job_id), code)
    assert house.job(job_id).succeeded == 2
    assert [line["custom_id"] for line in house.results(job_id)] == ["r0", "r1"]
    tries = house.settings.max_attempts if how == "missing" else 2  # a share comes back, another host may see it whole
    assert max(shard.attempts for shard in house.shards(job_id)) == tries


def test_nul_in_what_an_engine_says_reaches_the_database(make_house: MakeHouse, database_url: str) -> None:
    """PostgreSQL holds no NUL: in the last words of a child, in an item's error, in a job's."""
    house = make_house(database_url=database_url, **SHORT_LEASES | {"max_attempts": 2})

    def speak(item: WorkItem) -> None:
        if item.custom_id == "r1":
            raise ItemError("tensor\x00name", code="bad\x00code" + "x" * 80)
        if item.custom_id == "r2":
            raise ChildDied("its last lines:\n\x00\x00garbage")

    job_id = house.submit(requests(4))
    with running_service(house, ScriptedHost(speak)) as service:
        job = work_until_end(house, service, job_id)
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, 1, 3)
    (shard,) = house.shards(job_id)
    assert (shard.status, shard.child_deaths) == (ShardStatus.FAILED, 1)
    assert "garbage" in (shard.last_error or "")
    assert "\x00" not in (shard.last_error or "")
    with house.deployment.database.read() as uow:
        assert sum(number for _, number in uow.jobs.error_counts(job_id)) == 3
    assert [line["custom_id"] for line in house.results(job_id, "errors")] == ["r1", "r2", "r3"]
