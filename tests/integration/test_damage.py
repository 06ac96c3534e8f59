"""Registered files that are not what their rows say: unregistered with their counts, and their items run again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.db.states import JobStatus, Outcome
from pipeline.db.values import ItemFailure, PartView
from pipeline.errors import ArtifactMissing
from pipeline.formats.items import Item
from pipeline.jobs.cancel import settle
from pipeline.jobs.damage import MISSING_TRIES
from pipeline.jobs.execution import ShardExecution
from pipeline.jobs.finalize import finalize
from pipeline.jobs.planner import plan
from pipeline.jobs.recording import PartRecorder
from pipeline.jobs.service import WorkerService
from pipeline.ports import Answer
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, claim, requests, running_service, work_until_end
from workers.supervisor import Supervisor


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT_LEASES)


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def lose_last_line(file: Path) -> None:
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


def overwrite(file: Path) -> None:
    """What a bad disk gives: as long as before, and nothing that can be read."""
    file.write_bytes(b"\x00" * file.stat().st_size)


def double_a_line(file: Path) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines, lines[0]]))


def done_but_for_its_outputs(house: House, service: WorkerService, kind: str) -> str:
    """A job of two shards whose finalizer has not come yet."""
    texts = [
        {"custom_id": f"r{index}", "prompt" if kind == "generate" else "text": f"say {index}"} for index in range(8)
    ]
    job_id = house.submit(texts, kind=kind, shard_items=4)
    plan(house.deployment, job_id, owner=service.worker_id)
    service.serve()
    assert house.job(job_id).status is JobStatus.FINALIZING
    return job_id


def first_part(house: House, job_id: str) -> tuple[PartView, Path]:
    with house.deployment.database.read() as uow:
        part = uow.parts.of_shard(house.shards(job_id)[0].id)[0]
    return part, Path(house.deployment.store.locate(part.uri))


@pytest.fixture
def real_children(house: House) -> Iterator[WorkerService]:
    """A service whose slot starts real children, of the fake engine."""
    with running_service(house, Supervisor(house.settings)) as service:
        yield service


@pytest.mark.parametrize("break_file", [halve, lose_last_line, overwrite, double_a_line])
def test_corrupt_part_is_unregistered_and_its_items_run_again(
    house: House, real_children: WorkerService, break_file: Callable[[Path], None]
) -> None:
    job_id = done_but_for_its_outputs(house, real_children, "generate")
    part, file = first_part(house, job_id)
    break_file(file)
    assert not finalize(house.deployment, job_id, owner="finalizer")
    job = house.job(job_id)
    assert (job.status, job.succeeded, job.processing, job.shards_open) == (JobStatus.IN_PROGRESS, 4, 4, 1)
    assert part.uri in (house.shards(job_id)[0].last_error or "")
    job = work_until_end(house, real_children, job_id)
    assert (job.status, job.succeeded, job.error_code) == (JobStatus.COMPLETED, 8, None)
    assert [line["custom_id"] for line in house.results(job_id)] == [f"r{index}" for index in range(8)]


def test_corrupt_vectors_are_unregistered_with_their_rows(house: House, real_children: WorkerService) -> None:
    job_id = done_but_for_its_outputs(house, real_children, "embed")
    part, _ = first_part(house, job_id)
    with house.deployment.database.read() as uow:
        (vectors,) = uow.repairs.files_of(part.id)
    overwrite(Path(house.deployment.store.locate(vectors.uri)))
    job = work_until_end(house, real_children, job_id)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 8)
    with house.deployment.database.read() as uow:
        files = list(uow.vectors.files_of([job_id]))
        assert uow.repairs.files_of(part.id) == []
    assert sum(file.count for file in files) == 8
    for file in files:
        house.deployment.store.verify(file.uri, file.sha256)


def test_corrupt_part_of_a_cancelled_job_leaves_its_items_cancelled(house: House, real_children: WorkerService) -> None:
    job_id = house.submit(requests(8), shard_items=4)
    plan(house.deployment, job_id, owner="planner")
    lease = claim(house, job_id, real_children.worker_id)
    ShardExecution(house.deployment, lease, Supervisor(house.settings), threading.Event()).run()
    with house.deployment.database.write() as uow:
        assert uow.jobs.request_outcome(job_id, Outcome.CANCELLED)
    settle(house.deployment, job_id)
    _, file = first_part(house, job_id)
    halve(file)
    job = work_until_end(house, real_children, job_id)
    assert (job.status, job.succeeded, job.cancelled, job.processing) == (JobStatus.CANCELLED, 0, 8, 0)
    assert {line["error"]["code"] for line in house.results(job_id, "errors")} == {"batch_cancelled"}


def test_part_that_is_corrupt_again_and_again_costs_its_shard_and_no_more(
    make_house: MakeHouse, database_url: str
) -> None:
    house = make_house(database_url=database_url, **SHORT_LEASES | {"max_attempts": 2})
    with running_service(house, Supervisor(house.settings)) as service:
        job_id = done_but_for_its_outputs(house, service, "generate")
        for _ in range(3):
            halve(first_part(house, job_id)[1])
            assert not finalize(house.deployment, job_id, owner="finalizer")
            service.serve()
        job = work_until_end(house, service, job_id)
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, 4, 4)
    assert {line["error"]["code"] for line in house.results(job_id, "errors")} == {"shard_failed"}


def test_missing_part_stops_the_finalizer_until_it_is_there_again(house: House, real_children: WorkerService) -> None:
    """Law 4: it is never taken for unanswered items; a share may be away. The job's row says what is wrong."""
    job_id = done_but_for_its_outputs(house, real_children, "generate")
    part, file = first_part(house, job_id)
    whole = file.read_bytes()
    file.unlink()
    with pytest.raises(ArtifactMissing):
        finalize(house.deployment, job_id, owner="finalizer")
    job = house.job(job_id)
    assert (job.status, job.error_code, job.lease_owner) == (JobStatus.FINALIZING, "artifact_missing", "finalizer")
    assert part.uri in (job.error_message or "")
    assert job.output_uri is None
    assert not finalize(house.deployment, job_id, owner="another"), "the lease is left to run out"
    file.write_bytes(whole)
    job = work_until_end(house, real_children, job_id)
    assert (job.status, job.succeeded, job.error_code, job.error_message) == (JobStatus.COMPLETED, 8, None, None)
    assert len(house.results(job_id)) == 8
    with house.deployment.database.read() as uow:
        assert part in uow.parts.of_shard(part.shard_id)


def test_part_that_stays_missing_is_run_again(house: House, real_children: WorkerService) -> None:
    job_id = done_but_for_its_outputs(house, real_children, "generate")
    _, file = first_part(house, job_id)
    file.unlink()
    job = work_until_end(house, real_children, job_id)
    assert (job.status, job.succeeded) == (JobStatus.COMPLETED, 8)
    assert len(house.results(job_id)) == 8


def test_other_trouble_does_not_make_a_missing_part_a_lost_one(house: House, real_children: WorkerService) -> None:
    """A full disk met three times, then one look at a share that is away: the part is not given up."""
    job_id = done_but_for_its_outputs(house, real_children, "generate")
    for _ in range(MISSING_TRIES):
        with house.deployment.database.write() as uow:
            lease = uow.jobs.lease(job_id, JobStatus.FINALIZING, "hindered")
            assert lease is not None
            uow.jobs.note_trouble(lease, code="store_full", message="no space left")
            uow.jobs.release(lease)
    part, file = first_part(house, job_id)
    file.unlink()
    with pytest.raises(ArtifactMissing):
        finalize(house.deployment, job_id, owner="finalizer")
    with house.deployment.database.read() as uow:
        assert part in uow.parts.of_shard(part.shard_id)


@pytest.mark.timeout(300)
def test_torn_part_whose_items_cannot_be_named_ends_the_job_as_failed(
    house: House, real_children: WorkerService
) -> None:
    """Item file and part are both gone: what can be read is given out, and the job does not finalize for ever."""
    job_id = done_but_for_its_outputs(house, real_children, "generate")
    halve(first_part(house, job_id)[1])
    uri = house.job(job_id).input_uri
    assert uri is not None
    house.deployment.store.delete(uri)
    job = work_until_end(house, real_children, job_id)
    assert (job.status, job.error_code) == (JobStatus.FAILED, "artifact_missing")
    assert (job.succeeded, job.cancelled, job.processing) == (4, 4, 0)
    assert [line["custom_id"] for line in house.results(job_id)] == [f"r{index}" for index in range(4, 8)]


@pytest.mark.timeout(300)
def test_job_cancelled_before_planning_ends_without_its_item_file(house: House, real_children: WorkerService) -> None:
    job_id = house.submit(requests(3))
    with house.deployment.database.write() as uow:
        assert uow.jobs.request_outcome(job_id, Outcome.CANCELLED)
    uri = house.job(job_id).input_uri
    assert uri is not None
    house.deployment.store.delete(uri)
    job = work_until_end(house, real_children, job_id)
    assert (job.status, job.cancelled) == (JobStatus.FAILED, 3)


def test_torn_part_of_a_shard_that_failed_errs_with_it_even_if_the_job_was_cancelled(
    house: House, real_children: WorkerService
) -> None:
    """The counts' machine found it: counted as cancelled, and told as failed."""
    job_id = house.submit(requests(4), shard_items=2)
    plan(house.deployment, job_id, owner="planner")
    lease = claim(house, job_id, "worker")
    items = [Item(f"r{index}", index + 1, {}) for index in range(2)]
    recorder = PartRecorder(house.deployment, lease, items, frozenset())
    recorder.add(Answer(0, body={"object": "chat.completion"}))
    recorder.flush()
    with house.deployment.database.write() as uow:
        uow.shards.fail(lease, "gave up", [ItemFailure("r1", 2, "shard_failed", "gave up")], code="internal_error")
        assert uow.jobs.request_outcome(job_id, Outcome.CANCELLED)
    settle(house.deployment, job_id)
    halve(first_part(house, job_id)[1])
    job = work_until_end(house, real_children, job_id)
    assert (job.status, job.succeeded, job.errored, job.cancelled) == (JobStatus.CANCELLED, 0, 2, 2)
    codes = [line["error"]["code"] for line in house.results(job_id, "errors")]
    assert codes == ["shard_failed", "shard_failed", "batch_cancelled", "batch_cancelled"]
    with house.deployment.database.read() as uow:
        assert dict(uow.jobs.error_counts(job_id)) == {"shard_failed": 2}
