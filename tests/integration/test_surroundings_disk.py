"""A disk that fills up or turns read-only in mid-job: the job waits and says why, and goes on when there is space."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.db.states import JobStatus, ShardStatus
from pipeline.db.values import HeldUp, JobView
from pipeline.errors import ExitCode, StoreUnavailable
from pipeline.jobs.planner import plan
from pipeline.jobs.status import report_job
from pipeline.jobs.submit import submit_index
from pipeline.specs import IndexSpec
from tests.fixtures.house import House, MakeHouse, masked
from tests.fixtures.in_process import requests
from tests.fixtures.small_disk import SmallDisk

pytestmark = pytest.mark.timeout(240)

QUICK = {"lease_s": 3, "renew_s": 0.5, "reconcile_s": 0.2, "poll_s": 0.2, "backoff_s": 0.1, "part_items": 2}

ITEMS = 12


@pytest.fixture
def house(small_disk: SmallDisk, make_house: MakeHouse) -> House:
    """The store is on the small disk, all else is not."""
    return make_house(store_url=(small_disk.path / "store").as_uri(), **QUICK)


@pytest.fixture
def small_home(tmp_path: Path, small_disk: SmallDisk) -> SmallDisk:
    """The first house lies on the small disk with all it has: database, broker, store, logs."""
    (tmp_path / "house-0").symlink_to(small_disk.path, target_is_directory=True)
    return small_disk


def submit(house: House) -> str:
    return house.submit(requests(ITEMS), shard_items=4, seed=7)


def undisturbed(house: House) -> list[dict[str, Any]]:
    """What the same requests answer where nothing goes wrong. The model is slow enough to be met at work later."""
    house.add_fake_model(delay_s=0.1)
    job = house.work_off(submit(house))
    assert job.status is JobStatus.COMPLETED
    return masked(house.results(job.id))


def wait_held_up(house: House, job_id: str, code: str) -> HeldUp:
    """Until the job says that it waits, and for what."""

    def look() -> HeldUp | None:
        return next((one for one in report_job(house.deployment, job_id).waiting if one.code == code), None)

    found = house.wait_for(look, f"{job_id} to say {code}")
    assert isinstance(found, HeldUp)
    return found


def check_status_says(house: House, job_id: str, code: str) -> None:
    """In the words of the command, for people and for scripts."""

    def text() -> bool:
        lines = house.pipeline("status", job_id).stdout.decode().splitlines()
        waiting = [line for line in lines if line.startswith("waiting")]
        return bool(waiting) and code in waiting[0]

    def document() -> bool:
        found = json.loads(house.pipeline("status", job_id, "--json").stdout)["waiting"]
        return any(one["code"] == code and one["reason"].startswith(code) for one in found)

    house.wait_for(text, f"`status` to say {code}")
    house.wait_for(document, f"`status --json` to say {code}")


def check_end(house: House, job_id: str, expected: list[dict[str, Any]]) -> JobView:
    """The same outputs as undisturbed, no attempt counted, nothing that is said to wait."""
    job = house.wait_end(job_id)
    assert (job.status, job.succeeded, job.error_code) == (JobStatus.COMPLETED, ITEMS, None), house.logs()
    assert masked(house.results(job_id)) == expected
    shards = house.shards(job_id)
    assert {shard.status for shard in shards} == {ShardStatus.DONE}
    assert all(1 <= shard.attempts <= 1 + shard.lost_leases for shard in shards)
    assert report_job(house.deployment, job_id).waiting == ()
    return job


def waits(house: House, job_id: str) -> int:
    return sum(shard.waits for shard in house.shards(job_id))


def work_until_some(house: House, job_id: str) -> None:
    house.start_worker()
    house.wait_for(lambda: house.job(job_id).succeeded >= 2, "some answers")


def test_disk_that_fills_up_under_parts(small_disk: SmallDisk, house: House) -> None:
    expected = undisturbed(house)
    job_id = submit(house)
    work_until_some(house, job_id)
    small_disk.fill()
    wait_held_up(house, job_id, "store_full")
    check_status_says(house, job_id, "store_full")
    assert not house.job(job_id).status.is_terminal
    small_disk.free()
    check_end(house, job_id, expected)
    assert waits(house, job_id) >= 1
    failed = dict(report_job(house.deployment, job_id).failed_attempts)
    assert failed["store_full"] == waits(house, job_id)


def test_store_that_turns_read_only_under_parts(small_disk: SmallDisk, house: House) -> None:
    expected = undisturbed(house)
    job_id = submit(house)
    work_until_some(house, job_id)
    small_disk.make_read_only()
    waiting = wait_held_up(house, job_id, "store_unavailable")
    assert "Read-only file system" in waiting.reason
    check_status_says(house, job_id, "store_unavailable")
    small_disk.make_writable()
    check_end(house, job_id, expected)
    assert waits(house, job_id) >= 1


def test_share_that_goes_away_under_parts(make_house: MakeHouse, tmp_path: Path) -> None:
    """The folder of a share that is not mounted is empty, or not there: no file in it is lost, and none is put there."""
    mount, away = tmp_path / "mount", tmp_path / "away"
    mount.mkdir()
    house = make_house(store_url=(mount / "store").as_uri(), **QUICK)
    expected = undisturbed(house)
    job_id = submit(house)
    work_until_some(house, job_id)
    mount.rename(away)
    mount.mkdir()
    waiting = wait_held_up(house, job_id, "store_unavailable")
    assert "not there any more" in waiting.reason
    house.wait_for(lambda: waits(house, job_id) >= 3, "more tries than a job has attempts for a missing file")
    assert list(mount.iterdir()) == []
    mount.rmdir()
    away.rename(mount)
    check_end(house, job_id, expected)


def test_store_that_cannot_be_read_at_planning(house: House) -> None:
    """Even root is refused here: where the item file was there is a folder."""
    job_id = submit(house)
    uri = house.job(job_id).input_uri
    assert uri is not None
    file = Path(house.deployment.store.locate(uri))
    aside = file.rename(file.with_name("aside"))
    file.mkdir()
    with pytest.raises(StoreUnavailable):
        plan(house.deployment, job_id, owner="planner")
    assert wait_held_up(house, job_id, "store_unavailable").shards == 0
    file.rmdir()
    aside.rename(file)
    assert plan(house.deployment, job_id, owner="planner")
    assert report_job(house.deployment, job_id).waiting == ()
    assert house.job(job_id).status is JobStatus.QUEUED


@pytest.mark.parametrize("how", ["full", "read_only"])
def test_disk_that_fails_under_outputs(small_disk: SmallDisk, house: House, how: str) -> None:
    expected = undisturbed(house)
    job_id = submit(house)
    plan(house.deployment, job_id, owner="planner")
    house.start_worker("--queues", "generate")  # no control: nobody finalizes yet
    house.wait_for(lambda: house.job(job_id).status is JobStatus.FINALIZING, "the last part")
    code = "store_full" if how == "full" else "store_unavailable"
    small_disk.fill() if how == "full" else small_disk.make_read_only()
    house.start_worker("--queues", "control")
    waiting = wait_held_up(house, job_id, code)
    assert waiting.shards == 0
    check_status_says(house, job_id, code)
    assert house.job(job_id).output_uri is None
    small_disk.free() if how == "full" else small_disk.make_writable()
    check_end(house, job_id, expected)
    assert waits(house, job_id) == 0


@pytest.mark.parametrize("where", ["store", "scratch"])
def test_disk_that_fills_up_under_an_index(small_disk: SmallDisk, house: House, where: str) -> None:
    """In the store the file cannot be published; in the scratch folder of the home it cannot be built."""
    source = house.submit([{"custom_id": f"d{n}", "text": f"text {n}"} for n in range(200)], kind="embed")
    assert house.work_off(source).status is JobStatus.COMPLETED, house.logs()

    def build() -> str:
        return submit_index(house.deployment, IndexSpec(name="docs", sources=(source,), recall_queries=4)).job.id

    first = build()
    assert house.work_off(first).status is JobStatus.COMPLETED, house.logs()
    if where == "scratch":
        scratch = house.settings.home_path / "scratch"
        for path in scratch.iterdir():
            path.unlink()
        scratch.rmdir()
        (small_disk.path / "scratch").mkdir()
        scratch.symlink_to(small_disk.path / "scratch", target_is_directory=True)
    second = build()
    small_disk.fill()
    house.start_worker()
    wait_held_up(house, second, "store_full")
    small_disk.free()
    job = house.wait_end(second)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 1), house.logs()
    (shard,) = house.shards(second)
    assert 1 <= shard.attempts <= 1 + shard.lost_leases
    assert shard.waits >= 1
    with house.deployment.database.read() as uow:
        indexes = [uow.indexes.of_job(job_id) for job_id in (first, second)]
    assert [index.sha256 for index in indexes if index] == [indexes[0].sha256] * 2 if indexes[0] else False


def test_whole_home_on_a_disk_that_fills_up(small_home: SmallDisk, make_house: MakeHouse) -> None:
    """Database, broker, store and logs at once: nothing can be said in a row while it lasts, and nothing is lost."""
    house = make_house(**QUICK)
    expected = undisturbed(house)
    job_id = submit(house)
    work_until_some(house, job_id)
    small_home.fill()
    done = house.pipeline("submit", "generate", "-", "--model", "fake", stdin=b'{"prompt": "x"}\n' * 100, check=False)
    assert done.returncode == ExitCode.UNAVAILABLE, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"full" in done.stderr or b"no space" in done.stderr.lower()
    assert house.workers[0].poll() is None
    assert not house.job(job_id).status.is_terminal
    small_home.free()
    check_end(house, job_id, expected)
    with house.deployment.database.read() as uow:
        assert len(uow.jobs.list()) == 2


def test_full_disk_of_the_database_alone(small_disk: SmallDisk, make_house: MakeHouse, sqlite_template: Path) -> None:
    folder = small_disk.path / "database"
    folder.mkdir()
    (folder / "pipeline.db").write_bytes(sqlite_template.read_bytes())
    house = make_house(database_url=f"sqlite:///{folder / 'pipeline.db'}", **QUICK)
    expected = undisturbed(house)
    job_id = submit(house)
    work_until_some(house, job_id)
    small_disk.fill()
    house.wait_for(lambda: "database or disk is full" in house.logs(), "the worker to say so")
    done = house.pipeline("submit", "generate", "-", "--model", "fake", stdin=b'{"prompt": "x"}\n' * 100, check=False)
    assert done.returncode == ExitCode.UNAVAILABLE, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"database or disk is full" in done.stderr
    small_disk.free()
    check_end(house, job_id, expected)


def test_home_that_is_read_only_is_refused(small_home: SmallDisk, make_house: MakeHouse) -> None:
    house = make_house(**QUICK)
    house.deployment.close()
    small_home.make_read_only()
    for command in (["list"], ["worker"]):
        done = house.pipeline(*command, check=False)
        assert done.returncode in (ExitCode.USAGE, ExitCode.UNAVAILABLE), done.stderr
        assert b"Traceback" not in done.stderr
        assert b"cannot be written" in done.stderr or b"readonly" in done.stderr or b"Read-only" in done.stderr
    small_home.make_writable()
    house.pipeline("list")


def test_database_file_on_a_read_only_disk_is_refused(
    small_disk: SmallDisk, make_house: MakeHouse, sqlite_template: Path
) -> None:
    file = small_disk.path / "pipeline.db"
    file.write_bytes(sqlite_template.read_bytes())
    house = make_house(database_url=f"sqlite:///{file}", **QUICK)
    house.deployment.close()
    small_disk.make_read_only()
    for command in (["worker"], ["submit", "generate", "-", "--model", "fake"]):
        done = house.pipeline(*command, stdin=b'{"prompt": "x"}\n', check=False)
        assert done.returncode == ExitCode.UNAVAILABLE, done.stderr
        assert b"Traceback" not in done.stderr
        assert str(file).encode() in done.stderr
        assert b"readonly" in done.stderr or b"unable to open" in done.stderr
    small_disk.make_writable()
