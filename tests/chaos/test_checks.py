"""The audit sees what it is there to see: a job that ended well, then damaged in one way at a time."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.chaos.bytes import mask, read
from tests.chaos.checks import Audit
from tests.chaos.plan import SHORT, Options, make_plan
from tests.chaos.surroundings import Undisturbed, add_model, item_id, requests
from tests.fixtures.house import HOUSE_MARK, House, build_house
from tests.fixtures.in_process import running_service, work_until_end
from workers.supervisor import Supervisor

OPTIONS = Options(items=20, workers=1, work_s=0.1)
PLAN = dataclasses.replace(make_plan(1, OPTIONS, None), poison=None)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Undisturbed]:
    """A home, the id of a job in it that was worked off with nothing in its way, and the job's files."""
    home = tmp_path_factory.mktemp("ended") / "house"
    house = build_house(home, **SHORT)
    add_model(house, OPTIONS, PLAN)
    job_id = house.submit(requests(OPTIONS), model="model", shard_items=8)
    with running_service(house, Supervisor(house.settings, environ=house.environ)) as service:
        work_until_end(house, service, job_id)
    files = Undisturbed(mask(read(house, job_id, "output")), mask(read(house, job_id, "errors")))
    house.stop()
    return home, job_id, files


@pytest.fixture
def audit(ended: tuple[Path, str, Undisturbed], tmp_path: Path) -> Iterator[Audit]:
    home, job_id, files = ended
    shutil.copytree(home, tmp_path / "house")
    house = build_house(tmp_path / "house", **SHORT)
    yield Audit(house, job_id, OPTIONS, PLAN, files)
    house.stop()


def test_job_that_ended_well_passes(audit: Audit) -> None:
    assert audit.undisturbed.errors
    assert [*audit.of_job(), *audit.of_processes(set), *audit.of_end()] == []
    assert audit.unregistered() == (0, [])


def rewrite(audit: Audit, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Another output file, with a checksum that says it is right."""
    job = audit.house.job(audit.job_id)
    assert job.output_uri is not None
    path = audit.house.settings.home / "store" / job.output_uri
    data = b"".join(change(path.read_bytes().splitlines(keepends=True)))
    path.write_bytes(data)
    execute(audit.house, f"UPDATE jobs SET output_sha256 = '{hashlib.sha256(data).hexdigest()}'")


def execute(house: House, statement: str) -> None:
    with house.deployment.database.engine.begin() as connection:
        connection.execute(text(statement))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda lines: lines[1:], f"lost: ['{item_id(0)}']"),
        (lambda lines: [*lines, lines[-1]], f"doubled: ['{item_id(19)}']"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "order of the input"),
        (lambda lines: [lines[0].replace(b"fake answer", b"fake ANSWER"), *lines[1:]], "differs from the undisturbed"),
    ],
    ids=["lost", "doubled", "disordered", "another answer"],
)
def test_wrong_output_is_seen(audit: Audit, change: Callable[[list[bytes]], list[bytes]], found: str) -> None:
    rewrite(audit, change)
    assert any(found in problem for problem in audit.of_job())


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE jobs SET succeeded = succeeded - 1, errored = errored + 1", "the job counts"),
        ("UPDATE shards SET succeeded = succeeded - 1 WHERE ordinal = 1", "the shards count"),
        ("DELETE FROM item_errors WHERE id = (SELECT min(id) FROM item_errors)", "item_errors has"),
        ("UPDATE shards SET status = 'leased', lease_owner = 'a' WHERE ordinal = 0", "shard 0 is leased"),
        ("UPDATE jobs SET lease_owner = 'a'", "the job is leased"),
        ("UPDATE jobs SET status = 'failed'", "the job is failed"),
        ("UPDATE jobs SET output_sha256 = 'a'", "cannot be read"),
        (
            "UPDATE parts SET token = 0 WHERE id = (SELECT max(id) FROM parts WHERE shard_id = 1)",
            "came after one under",
        ),
        (
            "UPDATE parts SET items = '0-1' WHERE id = (SELECT max(id) FROM parts WHERE shard_id = 1)",
            "are in two parts",
        ),
    ],
)
def test_wrong_rows_are_seen(audit: Audit, statement: str, found: str) -> None:
    execute(audit.house, statement)
    assert any(found in problem for problem in audit.of_job())


def test_process_that_outlives_its_worker_is_seen(audit: Audit) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)", "workers.child"]
    orphan = subprocess.Popen(command, env={HOUSE_MARK: str(audit.house.settings.home)})
    try:
        assert f"engine {orphan.pid}" in audit.orphans(set())[0]
        assert audit.orphans({os.getpid()}) == []
        assert "workers.child" in next(audit.of_end())
    finally:
        orphan.kill()
        orphan.wait()


def test_lease_of_a_dead_worker_is_seen(audit: Audit) -> None:
    execute(audit.house, "UPDATE leases SET owner = (SELECT id FROM workers LIMIT 1)")
    assert audit.named_leases(set()) == ["the lease reconcile is a dead worker's"]
    assert audit.named_leases({os.getpid()}) == []


def test_file_that_no_row_names_is_counted_and_gone(audit: Audit) -> None:
    folder = audit.house.settings.home / "store" / "jobs" / audit.job_id / "parts" / "0"
    (folder / "99-0.jsonl").write_text(json.dumps({}))
    assert audit.unregistered() == (1, [])
    assert not (folder / "99-0.jsonl").exists()
