"""Retrying what failed: a child job over the same items, with the same seeds, whose answers fill the gaps in order."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from pipeline.db.states import JobStatus, Outcome
from pipeline.errors import ArtifactCorrupt, Conflict, ItemError, ModelChanged, NotFound, NothingToRetry
from pipeline.formats.items import parse_items
from pipeline.jobs.cancel import cancel
from pipeline.jobs.merged_results import iter_merged, with_retries
from pipeline.jobs.planner import plan
from pipeline.jobs.retry import RetryOptions, retry
from pipeline.jobs.submit import submit_index
from pipeline.ports import WorkItem
from pipeline.specs import IndexSpec
from tests.fixtures.house import House, MakeHouse, masked
from tests.fixtures.in_process import SHORT_LEASES, requests, running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT_LEASES)


class Erring:
    """A hook under which some items err; ``seeds`` are those each item was last given."""

    def __init__(self, codes: dict[str, str]) -> None:
        self.codes = codes
        self.seeds: dict[str, int] = {}

    def __call__(self, item: WorkItem) -> None:
        self.seeds[item.custom_id] = item.seed
        if item.custom_id in self.codes:
            raise ItemError("scripted", code=self.codes[item.custom_id])


def work(house: House, job_id: str, hook: Any = lambda item: None) -> ScriptedHost:
    """Run the job to its end."""
    host = ScriptedHost(hook)
    with running_service(house, host, only_job=job_id) as service:
        work_until_end(house, service, job_id)
    return host


def ids(lines: list[dict[str, Any]]) -> list[str]:
    return [line["custom_id"] for line in lines]


def merged(house: House, job_id: str) -> list[dict[str, Any]]:
    jobs = with_retries(house.deployment, job_id)
    return [json.loads(line) for line in iter_merged(house.deployment, jobs)]


CODES = {"r1": "decode_failed", "r4": "context_length_exceeded", "r7": "decode_failed"}


def ended_job(house: House, **fields: Any) -> tuple[str, Erring]:
    job_id = house.submit(requests(8), shard_items=3, seed=11, **fields)
    erring = Erring(CODES)
    work(house, job_id, erring)
    assert house.job(job_id).errored == len(CODES)
    return job_id, erring


def test_a_retry_has_the_failed_items_with_their_ids_lines_bodies_and_seeds(house: House) -> None:
    parent_id, first = ended_job(house)
    made = retry(house.deployment, parent_id)
    assert (made.job.parent_job_id, made.job.total, made.existing) == (parent_id, 3, False)
    assert made.job.spec == house.job(parent_id).spec
    assert made.job.model_digest == house.job(parent_id).model_digest is not None
    assert made.job.input_uri is not None
    items = parse_items(house.deployment.store.read_bytes(made.job.input_uri, sha256=made.job.input_sha256))
    before = {
        item.custom_id: item for item in parse_items(house.deployment.store.read_bytes(house.job(parent_id).input_uri))
    }
    assert items == [before[custom_id] for custom_id in CODES]
    again = Erring({})
    work(house, made.job.id, again)
    assert again.seeds == {custom_id: first.seeds[custom_id] for custom_id in CODES}
    assert merged(house, parent_id) and ids(merged(house, parent_id)) == [f"r{index}" for index in range(8)]


def test_answers_of_retries_and_of_their_retries_come_in_the_order_of_the_input(house: House) -> None:
    parent_id, _ = ended_job(house)
    child = retry(house.deployment, parent_id).job
    work(house, child.id, Erring({"r4": "context_length_exceeded"}))
    with pytest.raises(NothingToRetry, match=r"no item of .* ended with decode_failed"):
        retry(house.deployment, child.id, RetryOptions(frozenset({"decode_failed"})))
    grandchild = retry(house.deployment, child.id).job
    with pytest.raises(Conflict, match=grandchild.id):
        merged(house, parent_id)
    work(house, grandchild.id)
    twice = retry(house.deployment, parent_id, RetryOptions(again=True)).job  # the same items are answered again
    work(house, twice.id)
    assert ids(merged(house, parent_id)) == [f"r{index}" for index in range(8)]
    whole = house.submit(requests(8), seed=11)
    work(house, whole)
    assert masked(merged(house, parent_id)) == masked(house.results(whole))


def test_errors_narrow_and_each_narrowing_is_a_job_of_its_own(house: House) -> None:
    parent_id, _ = ended_job(house)
    narrow = RetryOptions(frozenset({"decode_failed"}))
    made = retry(house.deployment, parent_id, narrow)
    assert (made.job.total, made.selection and made.selection.other_codes) == (2, {"context_length_exceeded": 1})
    again = retry(house.deployment, parent_id, narrow)
    assert (again.job.id, again.existing) == (made.job.id, True)
    every = retry(house.deployment, parent_id)
    assert every.job.id != made.job.id
    assert [sibling.id for sibling in every.siblings] == [made.job.id]
    with pytest.raises(NothingToRetry) as refused:
        retry(house.deployment, parent_id, RetryOptions(frozenset({"no_such_code"})))
    assert refused.value.hint == "there are: context_length_exceeded (1), decode_failed (2)"


def test_the_same_retry_at_once_makes_one_job(house: House) -> None:
    parent_id, _ = ended_job(house)
    made: list[str] = []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait()
        made.append(retry(house.deployment, parent_id).job.id)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4 and len(set(made)) == 1
    again = retry(house.deployment, parent_id, RetryOptions(again=True))
    assert again.job.id not in made and not again.existing


def test_a_key_of_the_users_makes_one_job_and_no_other(house: House) -> None:
    parent_id, _ = ended_job(house)
    mine = RetryOptions(idempotency_key="tonight")
    made = retry(house.deployment, parent_id, mine)
    assert retry(house.deployment, parent_id, mine).job.id == made.job.id
    with pytest.raises(Conflict, match="tonight"):
        retry(house.deployment, parent_id, RetryOptions(frozenset({"decode_failed"}), "tonight"))


def test_items_of_a_cancelled_job_are_retried(house: House) -> None:
    job_id = house.submit(requests(5), shard_items=2)
    plan(house.deployment, job_id, owner="planner")
    assert cancel(house.deployment, job_id).status is JobStatus.CANCELLED
    made = retry(house.deployment, job_id, RetryOptions(frozenset({"batch_cancelled"})))
    assert made.job.total == 5
    assert work(house, made.job.id).fed


def test_items_of_a_job_that_failed_before_it_was_planned_are_retried(house: House) -> None:
    job_id = house.submit(requests(3))
    with house.deployment.database.write() as uow:
        uow.jobs.request_outcome(job_id, Outcome.FAILED, code="x", message="scripted")
    work(house, job_id)
    assert house.job(job_id).status is JobStatus.FAILED
    assert retry(house.deployment, job_id).job.total == 3


def test_lines_that_were_invalid_are_left_out_and_counted(house: House) -> None:
    lines = [*requests(3), {"custom_id": "bad", "prompt": "x", "no_such_parameter": 1}]
    job_id = house.submit(lines, skip_invalid=True)
    work(house, job_id, Erring({"r2": "decode_failed"}))
    made = retry(house.deployment, job_id)
    assert made.selection is not None
    assert (made.job.total, made.selection.items, made.selection.invalid) == (1, 1, 1)

    only_invalid = house.submit(lines, skip_invalid=True)
    work(house, only_invalid)
    with pytest.raises(NothingToRetry, match=r"1 failed items of .* were invalid lines"):
        retry(house.deployment, only_invalid)


def test_jobs_that_cannot_be_retried_say_why_and_leave_nothing(house: House) -> None:
    running = house.submit(requests(2))
    with pytest.raises(Conflict, match="is validating") as refused:
        retry(house.deployment, running)
    assert f"pipeline requeue {running}" in str(refused.value.hint)
    work(house, running)
    before = {file.uri for file in house.deployment.store.files("")}
    with pytest.raises(NothingToRetry, match=r"all 2 items of .* succeeded"):
        retry(house.deployment, running)
    with pytest.raises(NotFound):
        retry(house.deployment, "job_0000")
    assert {file.uri for file in house.deployment.store.files("")} == before


def test_the_parents_pin_is_kept_and_a_changed_model_is_said(house: House) -> None:
    parent_id, _ = ended_job(house)
    folder = house.add_fake_model()
    before = (folder / "config.json").read_text()
    (folder / "config.json").write_text(json.dumps({"model_type": "pipeline_fake", "batch_size": 2}))
    with pytest.raises(ModelChanged) as refused:
        retry(house.deployment, parent_id)
    assert "--repin" in str(refused.value.hint)
    repinned = retry(house.deployment, parent_id, RetryOptions(repin=True)).job
    assert repinned.model_digest != house.job(parent_id).model_digest
    assert repinned.spec["model"]["digest"] == repinned.model_digest
    (folder / "config.json").write_text(before)
    assert retry(house.deployment, parent_id).job.model_digest == house.job(parent_id).model_digest


@pytest.mark.parametrize("which", ["input_uri", "errors_uri"])
def test_a_file_that_is_not_what_it_was_makes_no_job(house: House, which: str) -> None:
    parent_id, _ = ended_job(house)
    path = Path(house.deployment.store.locate(getattr(house.job(parent_id), which)))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:]))
    with pytest.raises(ArtifactCorrupt):
        retry(house.deployment, parent_id)
    with house.deployment.database.read() as uow:
        assert not uow.jobs.children(parent_id)


def test_a_failed_index_build_is_retried_as_a_whole(make_house: MakeHouse) -> None:
    house = make_house(**SHORT_LEASES)
    embedded = house.submit([{"custom_id": f"t{i}", "text": f"text {i}"} for i in range(4)], kind="embed")
    house.work_off(embedded)
    spec = IndexSpec(name="texts", sources=(embedded,))
    build = submit_index(house.deployment, spec).job.id
    assert cancel(house.deployment, build).status is JobStatus.CANCELLED
    made = retry(house.deployment, build).job
    assert (made.kind, made.total, made.parent_job_id) == ("index", 1, build)
    assert house.work_off(made.id).status is JobStatus.COMPLETED
    with house.deployment.database.read() as uow:
        live = uow.indexes.live("texts")
    assert live is not None and (live.job_id, live.count) == (made.id, 4)


def test_commands_show_parent_and_child_to_each_other(make_house: MakeHouse) -> None:
    house = make_house(**SHORT_LEASES)
    parent_id, _ = ended_job(house)
    first = house.pipeline("retry", parent_id, "--errors", "decode_failed")
    child_id = first.stdout.decode().strip()
    document = json.loads(house.pipeline("retry", parent_id, "--errors", "decode_failed", "--json").stdout)
    assert (document["job"]["job_id"], document["existing"]) == (child_id, True)
    work(house, child_id, Erring({"r7": "decode_failed"}))
    said = house.pipeline("status", parent_id).stdout.decode()
    assert f"{child_id} (some_errored, 1 of 2 succeeded)" in said
    document = json.loads(house.pipeline("status", child_id, "--json").stdout)
    assert (document["job"]["parent_job_id"], document["retries"]) == (parent_id, [])
    done = house.pipeline("results", parent_id, "--with-retries")
    assert ids([json.loads(line) for line in done.stdout.splitlines()]) == ["r0", "r1", "r2", "r3", "r5", "r6"]
    assert "2 of 8 items did not succeed in any of 2 jobs" in done.stderr.decode()
    refused = house.pipeline("retry", parent_id, "--errors", "nothing", check=False)
    assert (refused.returncode, refused.stdout) == (5, b"")
