"""One key, one job; one database, one store."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from pipeline.errors import ConfigError, Conflict
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.intake import IntakeOptions
from pipeline.jobs.submit import Submission, SubmitOptions, submit_items
from pipeline.specs import JobKind
from pipeline.store import layout
from tests.fixtures.house import House


def submit(house: House, *texts: str, key: str | None = "nightly", shard_items: int = 8) -> Submission:
    lines = b"".join(json.dumps({"custom_id": text, "prompt": text}).encode() + b"\n" for text in texts)
    intake = IntakeOptions(kind=JobKind.GENERATE, model="fake")
    fields = {"kind": "generate", "shard_items": shard_items}
    return submit_items(house.deployment, io.BytesIO(lines), fields, intake, SubmitOptions(idempotency_key=key))


def count_jobs(house: House) -> int:
    with house.deployment.database.read() as uow:
        return len(uow.jobs.list())


def test_same_key_file_and_options_give_the_same_job(house: House) -> None:
    first = submit(house, "a", "b")
    again = submit(house, "a", "b")
    assert (first.existing, again.existing) == (False, True)
    assert again.job.id == first.job.id
    assert count_jobs(house) == 1
    assert submit(house, "a", "b", key=None).job.id != first.job.id


def test_same_key_with_another_file_or_other_options_is_a_conflict(house: House) -> None:
    first = submit(house, "a", "b")
    for texts, shard_items in ((("a", "c"), 8), (("a", "b"), 4)):
        with pytest.raises(Conflict, match=first.job.id):
            submit(house, *texts, shard_items=shard_items)
    assert count_jobs(house) == 1


def marker(house: House) -> Path:
    return Path(house.deployment.store.locate(layout.store_marker()))


def test_marker_that_a_crash_kept_from_being_written_is_completed(house: House) -> None:
    before = marker(house).read_bytes()
    marker(house).unlink()
    Deployment.open(house.settings).close()
    assert marker(house).read_bytes() == before


def test_store_without_a_marker_is_refused_once_there_are_jobs(house: House) -> None:
    submit(house, "a")
    marker(house).unlink()
    with pytest.raises(ConfigError, match="not the store of this database"):
        Deployment.open(house.settings)
    assert not marker(house).exists()


def test_foreign_store_is_refused_and_left_as_it_is(house: House) -> None:
    foreign = json.dumps({"uuid": "another"}).encode()
    marker(house).write_bytes(foreign)
    with pytest.raises(ConfigError, match="not the store of this database"):
        Deployment.open(house.settings)
    assert marker(house).read_bytes() == foreign
