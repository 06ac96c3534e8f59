"""One key, one job; one database, one store."""

from __future__ import annotations

import io
import json
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from pipeline.db.states import JobStatus, Outcome
from pipeline.errors import ConfigError, Conflict, DatabaseUnavailable
from pipeline.jobs.cancel import cancel, settle
from pipeline.jobs.deployment import Deployment
from pipeline.jobs.intake import IntakeOptions
from pipeline.jobs.submit import Submission, SubmitOptions, submit_items
from pipeline.specs import JobKind
from pipeline.store import layout
from tests.fixtures.house import House


def submit(
    house: House,
    *texts: str,
    key: str | None = "nightly",
    shard_items: int = 8,
    dedupe: bool = False,
    expires_in_s: float | None = None,
) -> Submission:
    options = SubmitOptions(idempotency_key=key, dedupe=dedupe, expires_in_s=expires_in_s)
    lines = b"".join(json.dumps({"custom_id": text, "prompt": text}).encode() + b"\n" for text in texts)
    intake = IntakeOptions(kind=JobKind.GENERATE, model="fake")
    fields = {"kind": "generate", "shard_items": shard_items}
    return submit_items(house.deployment, io.BytesIO(lines), fields, intake, options)


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


# --- the same content ---


def test_dedupe_gives_the_job_over_the_same_file_and_options(house: House) -> None:
    first = submit(house, "a", "b", key=None)
    again = submit(house, "a", "b", key=None, dedupe=True)
    assert (again.job.id, again.same) == (first.job.id, "content")
    assert submit(house, "a", "b", key="new", dedupe=True).job.id == first.job.id, "the key is left for another"
    assert count_jobs(house) == 1
    for texts, shard_items in ((("a", "c"), 8), (("b", "a"), 8), (("a", "b"), 4)):
        other = submit(house, *texts, key=None, dedupe=True, shard_items=shard_items)
        assert (other.existing, other.job.id == first.job.id) == (False, False)
    assert submit(house, "a", "b", key=None).same is None, "without the option nobody looks"


@pytest.mark.parametrize("outcome", Outcome)
def test_job_that_does_not_end_well_is_not_given_back(house: House, outcome: Outcome) -> None:
    """Neither while it ends nor afterwards; the one made in its place is, and of several the newest."""
    first = submit(house, "a", key=None, dedupe=True).job.id
    with house.deployment.database.write() as uow:
        assert uow.jobs.request_outcome(first, outcome)
    second = submit(house, "a", key=None, dedupe=True)
    assert not second.existing
    settle(house.deployment, first)
    third = submit(house, "a", key=None)
    found = submit(house, "a", key=None, dedupe=True)
    assert (found.job.id, found.same) == (third.job.id, "content")
    cancel(house.deployment, third.job.id)
    assert submit(house, "a", key=None, dedupe=True).job.id == second.job.id


def test_submits_of_the_same_content_at_once_make_one_job(house: House) -> None:
    """And when that one has failed, they make one more."""
    for _ in range(2):
        before = count_jobs(house)
        start = threading.Barrier(6)
        made: list[Submission] = []

        def go(start: threading.Barrier = start, made: list[Submission] = made) -> None:
            start.wait()
            made.append(submit(house, "a", "b", key=None, dedupe=True))

        threads = [threading.Thread(target=go) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made) == 6
        assert len({one.job.id for one in made}) == 1
        assert sorted(one.existing for one in made) == [False] + [True] * 5
        assert count_jobs(house) == before + 1
        with house.deployment.database.write() as uow:
            assert uow.jobs.request_outcome(made[0].job.id, Outcome.FAILED)


def test_deadline_is_counted_from_the_submission_by_the_clock_of_the_database(house: House) -> None:
    with house.deployment.database.read() as uow:
        before = uow.jobs._now()
    job = submit(house, "a", key=None, expires_in_s=3600.0).job
    with house.deployment.database.read() as uow:
        after = uow.jobs._now()
    assert job.expires_at is not None
    assert before <= job.expires_at - timedelta(hours=1) <= after
    assert submit(house, "b", key=None).job.expires_at is None


# --- around the commit ---


def test_database_that_goes_away_at_the_commit_leaves_the_id_to_look_for(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the job was made is not known then: here it was."""
    from pipeline.db.repository.jobs import JobRepository

    def get(self: JobRepository, job_id: str) -> None:
        raise DatabaseUnavailable("gone")

    with monkeypatch.context() as patched:
        patched.setattr(JobRepository, "get", get)
        with pytest.raises(DatabaseUnavailable) as caught:
            submit(house, "a", key=None)
    with house.deployment.database.read() as uow:
        (job,) = uow.jobs.list()
    assert job.status is JobStatus.VALIDATING
    assert f"pipeline status {job.id}" in str(caught.value.hint)


# --- the store ---


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
