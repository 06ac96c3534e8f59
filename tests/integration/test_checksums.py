"""Bytes that changed in the store are refused before a library opens them, from the command line to the child."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.db.states import JobStatus
from pipeline.errors import ArtifactCorrupt, ExitCode
from pipeline.jobs.submit import submit_index
from pipeline.specs import IndexSpec
from tests.fixtures.house import House, MakeHouse

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def house(make_house: MakeHouse) -> House:
    return make_house()


def embed(house: House) -> str:
    job_id = house.submit([{"custom_id": f"d{n}", "text": f"text {n}"} for n in range(8)], kind="embed")
    assert house.work_off(job_id).status is JobStatus.COMPLETED, house.logs()
    return job_id


def build(house: House, source: str) -> str:
    return submit_index(house.deployment, IndexSpec(name="docs", sources=(source,), recall_queries=2)).job.id


@contextmanager
def altered(file: Path, place: int = -3) -> Iterator[None]:
    """One bit in the data: the file has its length and its header, and any reader would take it."""
    whole = file.read_bytes()
    data = bytearray(whole)
    data[place] ^= 1
    file.write_bytes(data)
    yield
    file.write_bytes(whole)


def only(house: House, pattern: str) -> Path:
    (file,) = Path(house.deployment.store.locate("")).glob(pattern)
    return file


def search(house: House) -> tuple[int, bytes]:
    done = house.pipeline("search", "docs", "text 3", check=False)
    return done.returncode, done.stdout + done.stderr


def test_an_index_is_not_built_from_vectors_that_changed(house: House) -> None:
    source = embed(house)
    with altered(only(house, "jobs/*/vectors/**/*.safetensors")):
        job_id = build(house, source)
        job = house.work_off(job_id)
    assert (job.status, job.error_code) == (JobStatus.FAILED, "artifact_corrupt"), house.logs()
    assert "does not have the checksum" in (job.error_message or "")
    assert not list(Path(house.deployment.store.locate("")).glob("indexes/**/*.faiss"))
    assert house.work_off(build(house, source)).status is JobStatus.COMPLETED, "the same, whole"


def test_a_changed_index_is_not_opened(house: House) -> None:
    assert house.work_off(build(house, embed(house))).status is JobStatus.COMPLETED, house.logs()
    index, manifest = only(house, "indexes/*/*.faiss"), only(house, "indexes/*/*.json")
    assert search(house)[0] == ExitCode.OK
    with altered(index, -30):
        code, said = search(house)
        assert code != ExitCode.OK
        assert b"does not have the checksum" in said
        # Whoever changes the index can change the manifest beside it; the row is what counts.
        text = manifest.read_text()
        manifest.write_text(json.dumps(json.loads(text) | {"sha256": hashlib.sha256(index.read_bytes()).hexdigest()}))
        code, said = search(house)
        assert code != ExitCode.OK
        assert b"describes another index than its row" in said
    manifest.write_text(text)
    assert search(house)[0] == ExitCode.OK


def test_changed_results_are_not_given_out(house: House) -> None:
    job_id = embed(house)
    output = only(house, f"jobs/{job_id}/output.*.jsonl")
    with altered(output):
        done = house.pipeline("results", job_id, check=False)
        assert done.returncode != ExitCode.OK
        assert done.stdout == b""
        assert b"does not have the checksum" in done.stderr
        with pytest.raises(ArtifactCorrupt):
            house.results(job_id)
    assert len(house.results(job_id)) == 8
