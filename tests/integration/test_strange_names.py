"""Names that users give are data: none becomes a path, whatever stands in it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.db.states import JobStatus
from pipeline.errors import ArtifactMissing, ExitCode, PipelineError, SpecError
from pipeline.jobs.submit import SubmitOptions, build_spec
from pipeline.store.artifacts import ArtifactStore
from tests.fixtures.house import House, MakeHouse

MARK = "mark7f3a"

STRANGE = [
    f"../../../{MARK}",
    f"/tmp/{MARK}",
    f"..\\..\\{MARK}",
    f"{MARK}/../../x",
    f"~/{MARK}",
    f"file:///tmp/{MARK}",
    f"{MARK}\u2028\n\t; rm -rf {MARK}",
    f"$(touch {MARK})`touch {MARK}`",
    f"{MARK}%2e%2e%2f",
    f"-o{MARK}",
    f"CON.{MARK}:",
    f"{MARK}é\u202e",
]


@pytest.fixture
def house(make_house: MakeHouse) -> House:
    return make_house()


def files_outside(house: House, top: Path) -> dict[str, str]:
    """All files under ``top`` that are not in the house, with their contents' digest."""
    home = house.settings.home_path
    found = [path for path in top.rglob("*") if path.is_file() and not path.is_relative_to(home)]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.mark.timeout(180)
def test_no_name_of_a_users_becomes_a_path(house: House, tmp_path: Path) -> None:
    (tmp_path / "neighbour").write_text("mine")
    before = files_outside(house, tmp_path)
    requests = [{"custom_id": name, "text": f"text {number}"} for number, name in enumerate(STRANGE)]
    job_id = house.submit(requests, kind="embed", options=SubmitOptions(idempotency_key=STRANGE[0]))
    assert house.work_off(job_id).status is JobStatus.COMPLETED, house.logs()
    assert [line["custom_id"] for line in house.results(job_id)] == STRANGE
    for name in STRANGE:
        with pytest.raises(SpecError, match="name"):
            build_spec({"kind": "index", "name": name, "sources": (job_id,)})
    done = house.pipeline("submit", "index", STRANGE[0], "--from", job_id, check=False)
    assert done.returncode == ExitCode.USAGE, done.stderr
    for command in (
        ["status", STRANGE[0]],
        ["results", STRANGE[1]],
        ["cancel", STRANGE[3]],
        ["search", STRANGE[4], "x"],
    ):
        assert house.pipeline(*command, check=False).returncode == ExitCode.NOT_FOUND
    assert files_outside(house, tmp_path) == before
    paths = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")]
    assert len(paths) > 20
    assert not [path for path in paths if MARK in path]
    assert not list(Path("/tmp").glob(f"*{MARK}*"))
    assert not list(Path.cwd().glob(f"*{MARK}*"))


@pytest.mark.parametrize("uri", ["../neighbour", "/{top}/neighbour", "jobs/../../neighbour", "inputs/../..", "a\0b"])
def test_a_forged_row_leads_nowhere_outside_the_store(tmp_path: Path, uri: str) -> None:
    """Who writes to the database can name any file in a row; no worker reads, writes or deletes it."""
    store = ArtifactStore((tmp_path / "store").as_uri())
    store.ensure()
    neighbour = tmp_path / "neighbour"
    neighbour.write_text("mine")
    uri = uri.replace("/{top}", str(tmp_path))
    attempts: list[Callable[[], object]] = [
        lambda: store.read_bytes(uri),
        lambda: store.exists(uri),
        lambda: store.delete(uri),
        lambda: store.put_bytes(uri, b"theirs"),
        lambda: store.local_path(uri).__enter__(),
        lambda: store.locate(uri),
    ]
    for attempt in attempts:
        with pytest.raises(ArtifactMissing):
            attempt()
    assert neighbour.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["neighbour"]


@pytest.mark.parametrize("name", ["a\0b", "", "x" * 10_000])
def test_a_name_that_nothing_can_hold_is_refused_before_anything_is_stored(house: House, name: str) -> None:
    with pytest.raises(PipelineError):
        house.submit([{"custom_id": name, "prompt": "x"}])
    with house.deployment.database.read() as uow:
        assert not uow.jobs.list(limit=1)
