"""Every named place where a process may die: it is killed there, and the job ends as if nothing had been.

Victims are real processes, and so is the survivor's engine. Each test starts from a copy of one installation, so that
undisturbed and disturbed run are the same job and their files can be compared byte by byte.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import ENV_FAIL_POINT
from pipeline.db.states import JobStatus, ShardStatus
from pipeline.failpoints import FAIL_POINTS
from pipeline.jobs.submit import submit_index
from pipeline.specs import IndexSpec
from tests.chaos.bytes import mask, read
from tests.chaos.processes import processes_of
from tests.fixtures.house import PATIENCE_S, House, build_house
from tests.fixtures.in_process import SHORT_LEASES, running_service, work_until_end
from workers.supervisor import Supervisor

ROOT = Path(__file__).parents[2]

ITEMS, SHARD_ITEMS, PART_ITEMS = 12, 4, 2

#: The pass at which each place kills: where it can be, one in the middle of the job.
SUBMITTING = {name: 1 for name in FAIL_POINTS if name.startswith("submit.")}
WORKING = {
    "plan.after_lease": 1,
    "plan.in_commit": 1,
    "plan.after_commit": 1,
    "claim.in_commit": 2,
    "claim.after_commit": 2,
    "part.before_file": 2,
    "part.after_file": 2,
    "part.in_commit": 2,
    "part.after_row": 3,
    "shard.before_commit": 2,
    "shard.in_commit": 3,  # the last of the job: it would be finalizing
    "shard.after_commit": 3,
    "finalize.after_lease": 1,
    "finalize.after_outputs": 1,
    "finalize.in_commit": 1,
    "finalize.after_update": 1,
}
PUBLISHING = {name: 1 for name in FAIL_POINTS if name.startswith("publish.")}

#: Reached in tests/integration/test_prune.py.
PRUNING = {name for name in FAIL_POINTS if name.startswith("prune.")}


@dataclass(frozen=True)
class Start:
    """An installation to copy: nothing runs in it. ``output`` and ``errors`` are what its job makes undisturbed."""

    home: Path
    job_id: str
    output: bytes = b""
    errors: bytes = b""


def lay_out(home: Path) -> House:
    house = build_house(home, part_items=PART_ITEMS, **SHORT_LEASES)
    house.add_fake_model(batch_size=PART_ITEMS, errors={"r1": "scripted", "r10": "scripted"})
    return house


def requests() -> list[dict[str, Any]]:
    return [{"custom_id": f"r{index}", "prompt": f"say {index}"} for index in range(ITEMS)]


def copy(start: Start, home: Path) -> House:
    shutil.copytree(start.home, home)
    return build_house(home, part_items=PART_ITEMS, **SHORT_LEASES)


def work_off(house: House, job_id: str) -> None:
    """The survivor: a worker's service with a real engine's process, on this thread; starting it costs no imports."""
    host = Supervisor(house.settings, environ=house.environ)
    with running_service(house, host) as service:
        assert work_until_end(house, service, job_id).status is JobStatus.COMPLETED, house.logs()


def undisturbed(start: Start, home: Path) -> Start:
    house = copy(start, home)
    work_off(house, start.job_id)
    output, errors = read(house, start.job_id, "output"), read(house, start.job_id, "errors")
    house.stop()
    return Start(start.home, start.job_id, output, errors)


@pytest.fixture(scope="module")
def generating(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """A job that was submitted and that nobody has looked at."""
    folder = tmp_path_factory.mktemp("generating")
    house = lay_out(folder / "start")
    job_id = house.submit(requests(), shard_items=SHARD_ITEMS)
    house.stop()
    start = undisturbed(Start(folder / "start", job_id), folder / "undisturbed")
    assert len(start.output.splitlines()) == ITEMS - 2
    assert len(start.errors.splitlines()) == 2
    return start


@pytest.fixture(scope="module")
def indexing(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """The same for an index over a finished embed job."""
    folder = tmp_path_factory.mktemp("indexing")
    house = lay_out(folder / "start")
    source = house.submit([{"custom_id": f"d{n}", "text": f"text {n}"} for n in range(ITEMS)], kind="embed")
    work_off(house, source)
    job_id = submit_index(house.deployment, IndexSpec(name="docs", sources=(source,), recall_queries=4)).job.id
    house.stop()
    return undisturbed(Start(folder / "start", job_id), folder / "undisturbed")


Open = Callable[[Start], House]


@pytest.fixture
def open_copy(tmp_path: Path) -> Iterator[Open]:
    houses: list[House] = []

    def open_one(start: Start) -> House:
        houses.append(copy(start, tmp_path / f"house-{len(houses)}"))
        return houses[-1]

    yield open_one
    for house in houses:
        house.stop()


def kill_worker(house: House, job_id: str, point: str, passes: int) -> None:
    """A worker that dies at ``point``."""
    command = [sys.executable, "-m", "workers", "serve", "--until", job_id]
    environ = house.environ | {ENV_FAIL_POINT: f"{point}:{passes}"}
    with (house.log_folder / "victim.log").open("wb") as log:
        done = subprocess.run(command, env=environ, stdout=log, stderr=log, timeout=PATIENCE_S, start_new_session=True)
    assert done.returncode == -signal.SIGKILL, house.logs()


def check_end(house: House, job_id: str) -> None:
    """Counts, leases and processes of a job that has ended, whatever it was about."""
    job, shards = house.job(job_id), house.shards(job_id)
    assert job.status is JobStatus.COMPLETED, house.logs()
    assert (job.processing, job.cancelled, job.expired, job.shards_open) == (0, 0, 0, 0)
    assert job.lease_owner is None
    assert {shard.status for shard in shards} == {ShardStatus.DONE}
    assert {shard.lease_owner for shard in shards} == {None}
    assert sum(shard.succeeded for shard in shards) == job.succeeded == len(house.results(job_id))
    assert sum(shard.errored for shard in shards) == job.errored == len(house.results(job_id, "errors"))
    registered = [(ordinal, item) for ordinal, _, items in house.parts(job_id) for item in items]
    assert len(registered) == len(set(registered)) == job.total
    house.wait_for(lambda: not processes_of(house), "the children of the dead to end")


@pytest.mark.parametrize("point", WORKING)
def test_worker_killed_at(point: str, generating: Start, open_copy: Open) -> None:
    house, job_id = open_copy(generating), generating.job_id
    kill_worker(house, job_id, point, WORKING[point])
    work_off(house, job_id)
    check_end(house, job_id)
    assert read(house, job_id, "output") == generating.output
    assert read(house, job_id, "errors") == generating.errors


@pytest.mark.parametrize("point", PUBLISHING)
def test_index_builder_killed_at(point: str, indexing: Start, open_copy: Open) -> None:
    house, job_id = open_copy(indexing), indexing.job_id
    kill_worker(house, job_id, point, PUBLISHING[point])
    with house.deployment.database.read() as uow:
        assert uow.indexes.live("docs") is None
    work_off(house, job_id)
    check_end(house, job_id)
    assert read(house, job_id, "output") == indexing.output
    with house.deployment.database.read() as uow:
        found, registered = uow.indexes.live("docs"), uow.indexes.of_job(job_id)
    assert found == registered is not None
    house.deployment.store.verify(registered.uri, registered.sha256)


@pytest.mark.parametrize("point", SUBMITTING)
def test_submitter_killed_at(point: str, generating: Start, open_copy: Open, tmp_path: Path) -> None:
    """No job, or one that completes; asked again with the same key there is one job."""
    house = open_copy(generating)
    before = set(jobs(house))
    file = tmp_path / "again.jsonl"
    file.write_text("".join(json.dumps(request) + "\n" for request in requests()))
    words = ("submit", "generate", str(file), "--model", "fake", "--shard-tokens", "40", "--idempotency-key", "once")
    command = [sys.executable, "-m", "pipeline.cli", *words]
    environ = house.environ | {ENV_FAIL_POINT: point}
    done = subprocess.run(command, env=environ, cwd=house.log_folder, capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    made = set(jobs(house)) - before
    assert len(made) == (point in ("submit.after_row", "submit.after_ring"))
    for job_id in made:
        work_off(house, job_id)
    again = house.pipeline(*words).stdout.decode().strip()
    assert set(jobs(house)) - before == {again}
    assert made <= {again}
    work_off(house, again)
    check_end(house, again)
    assert mask(read(house, again, "output")) == mask(generating.output)
    assert mask(read(house, again, "errors")) == mask(generating.errors)


def jobs(house: House) -> list[str]:
    with house.deployment.database.read() as uow:
        return [job.id for job in uow.jobs.list(limit=100)]


def test_every_fail_point_is_in_the_source_once_and_has_a_test() -> None:
    sources = [path.read_text() for room in ("pipeline", "workers", "tasks") for path in (ROOT / room).rglob("*.py")]
    placed = [name for text in sources for name in re.findall(r'\bfail_point\("([^"]+)"\)', text)]
    assert sorted(placed) == sorted(FAIL_POINTS)
    assert SUBMITTING.keys() | WORKING.keys() | PUBLISHING.keys() | PRUNING == FAIL_POINTS.keys()
