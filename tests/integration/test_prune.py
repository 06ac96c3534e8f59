"""Prune takes rows first and files after them, only what nothing needs, and can be killed at any moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from pipeline.db.base import Base
from pipeline.db.repository.base import utc_now
from pipeline.db.states import JobStatus
from pipeline.db.values import (
    IndexView,
    ItemFailure,
    Measurement,
    NewPart,
    NewVector,
    NewVectors,
    ShardLease,
)
from pipeline.errors import ItemError, NotFound
from pipeline.failpoints import FAIL_POINTS
from pipeline.formats.ranges import dump_ranges
from pipeline.jobs.finalize import finalize
from pipeline.jobs.planner import plan
from pipeline.jobs.prune import PruneOptions, PruneReport, prune
from pipeline.jobs.retry import retry
from pipeline.jobs.submit import submit_index
from pipeline.ports import Verdict, WorkItem
from pipeline.specs import IndexSpec
from pipeline.store import layout
from pipeline.store.inventory import FileKind
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import SHORT_LEASES, claim, requests, running_service, work_until_end
from tests.fixtures.scripted_host import ScriptedHost

HOUR_S = 3600.0

#: Tables whose rows belong to no job.
LASTING = {"embedding_spaces", "leases", "models", "store_identity"}

#: Every job that has ended is old.
NOW = {"older_than_s": 0.0, "grace_s": HOUR_S}


@pytest.fixture
def house(make_house: MakeHouse, database_url: str) -> House:
    return make_house(database_url=database_url, **SHORT_LEASES)


def sweep(house: House, **values: Any) -> PruneReport:
    return prune(house.deployment, PruneOptions(**(NOW | values)))


def age(house: House, *uris: str, hours: float = 48) -> None:
    """Make files of the store older than the grace period; all of them when none is named."""
    for uri in uris or [file.uri for file in house.deployment.store.files("")]:
        then = time.time() - hours * HOUR_S
        with suppress(FileNotFoundError):  # what is being written may have its name by now
            os.utime(house.deployment.store.locate(uri), (then, then))


def files(house: House) -> set[str]:
    return {file.uri for file in house.deployment.store.files("")} - {layout.store_marker()}


def row_counts(house: House) -> dict[str, int]:
    with house.deployment.database.engine.connect() as connection:
        counts = {
            table.name: connection.scalar(select(func.count()).select_from(table)) or 0
            for table in Base.metadata.sorted_tables
        }
    return {name: count for name, count in counts.items() if count}


def named_files(house: House) -> set[str]:
    """Every file that a row names."""
    columns = [
        column
        for table in Base.metadata.sorted_tables
        for column in table.columns
        if column.name == "uri" or column.name.endswith("_uri")
    ]
    with house.deployment.database.engine.connect() as connection:
        return {uri for column in columns for uri in connection.scalars(select(column)) if uri}


def register(house: House, lease: ShardLease, places: list[int], ordinal: int = 0) -> None:
    """A part with answers and a vector file for these places; the first place errs."""
    store, shard = house.deployment.store, lease.shard
    lines = [{"i": places[0], "id": f"r{places[0]}", "error": {"code": "scripted", "message": "x"}}]
    lines += [{"i": place, "id": f"r{place}", "body": {"object": "x"}} for place in places[1:]]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    part = store.put_bytes(layout.part_file(shard.job_id, shard.ordinal, lease.token, ordinal), data)
    file = store.put_bytes(layout.vector_file(shard.job_id, shard.ordinal, lease.token, ordinal), data)
    rows = tuple(NewVector(place, f"r{place}", 0, "h" * 64, 1.0, 1, False, 0, 1) for place in places[1:])
    vectors = NewVectors("d" * 64, {}, 2, True, file.uri, file.sha256, rows)
    failure = ItemFailure(f"r{places[0]}", places[0] + 1, "scripted", "x")
    new = NewPart(ordinal, part.uri, part.sha256, dump_ranges(places), len(places) - 1, 1)
    with house.deployment.database.write() as uow:
        uow.parts.register(lease, new, [failure], vectors)


def ended(house: House, items: int = 4, kind: str = "generate", measures: int = 1, **fields: Any) -> str:
    """A job that has ended, with a row in every table that a job can have one in (but an index)."""
    wanted = requests(items) if kind == "generate" else [{"custom_id": f"r{n}", "text": str(n)} for n in range(items)]
    job_id = house.submit(wanted, kind=kind, shard_items=items, **fields)
    plan(house.deployment, job_id, owner="planner")
    lost = claim(house, job_id, "lost")
    (shard,) = house.shards(job_id)
    with house.deployment.database.write() as uow:
        assert uow.shards.take_back(shard, "scripted")  # leaves a failed attempt
    lease = claim(house, job_id, "one")
    assert lease.token > lost.token
    register(house, lease, list(range(items)))
    with house.deployment.database.write() as uow:
        uow.metrics.add(job_id, [Measurement("x", float(n), "s", lease.shard_id, "one") for n in range(measures)])
        uow.verdicts.add(lease, [Verdict("draft", "held", "same_tokens", "x")])
        uow.shards.complete(lease)
        assert uow.jobs.close_if_drained(job_id)
    assert finalize(house.deployment, job_id, owner="finalizer")
    assert house.job(job_id).status is JobStatus.COMPLETED
    return job_id


def built(house: House, name: str, source: str, *, publish: bool = True) -> str:
    """An index job that has ended, with its version and files."""
    job_id = submit_index(house.deployment, IndexSpec(name=name, sources=(source,))).job.id
    plan(house.deployment, job_id, owner="planner")
    lease = claim(house, job_id, "one")
    index_id, store = job_id.replace("job_", "idx_"), house.deployment.store
    index = store.put_bytes(layout.index_file(index_id, lease.token), b"index")
    manifest = store.put_bytes(layout.index_manifest(index_id, lease.token), b"{}")
    line = b'{"i":0,"id":"%s","body":{"object":"index"}}\n' % name.encode()
    part = store.put_bytes(layout.part_file(job_id, 0, lease.token, 0), line)
    view = IndexView(
        index_id,
        job_id,
        name,
        "d" * 64,
        "Flat",
        "ip",
        {},
        2,
        3,
        index.uri,
        index.sha256,
        manifest.uri,
        1.0,
        1,
        utc_now(),
    )
    with house.deployment.database.write() as uow:
        uow.parts.register(lease, NewPart(0, part.uri, part.sha256, "0", 1, 0))
        uow.indexes.add(view)
        uow.shards.complete(lease)
        assert uow.jobs.close_if_drained(job_id)
    assert finalize(house.deployment, job_id, owner="finalizer")
    return job_id


def test_an_old_job_goes_with_all_rows_and_files_and_others_stay_as_they_are(house: House) -> None:
    young = house.submit(requests(2, prefix="y"))
    plan(house.deployment, young, owner="planner")
    claim(house, young, "two")
    rows, kept = row_counts(house), files(house)
    old = ended(house)
    assert {"parts", "vectors", "vector_files", "item_errors", "failed_attempts", "metrics"} <= row_counts(house).keys()
    age(house)

    foretold = sweep(house, dry_run=True)
    assert house.job(old).pruned_at is None
    report = sweep(house)

    assert (report.jobs, report.kept, report.waiting.count) == (1, 0, 0)
    assert row_counts(house) == rows | {"embedding_spaces": 1}
    assert files(house) == kept
    assert (foretold.jobs, foretold.rows, foretold.files) == (report.jobs, report.rows, report.files)
    assert set(report.files) == {FileKind.INPUT, FileKind.PART, FileKind.VECTORS, FileKind.OUTPUT}
    assert report.total.size > 0
    assert not Path(house.deployment.store.locate(f"jobs/{old}")).exists()
    with pytest.raises(NotFound):
        retry(house.deployment, old)
    assert sweep(house).total.count == 0


def test_a_job_that_ended_later_and_the_youngest_stay(house: House) -> None:
    jobs = [ended(house, seed=seed) for seed in range(3)]
    assert sweep(house, older_than_s=HOUR_S).jobs == 0
    report = sweep(house, keep=2)
    assert (report.jobs, report.reasons) == (1, dict.fromkeys(jobs[1:], "is among the 2 youngest"))
    with pytest.raises(AssertionError):
        house.job(jobs[0])


def test_files_that_no_row_names_go_after_the_grace_period_and_no_others(house: House) -> None:
    job_id = ended(house)
    registered = files(house)
    store = house.deployment.store
    lost = [
        layout.part_file(job_id, 0, 1, 0),  # of an attempt that lost its lease
        layout.vector_file(job_id, 0, 1, 0),
        layout.output_file(job_id, 9),  # of a finalizer that woke late
        layout.index_file("idx_gone", 1),
        layout.index_manifest("idx_gone", 1),
        layout.input_file("ab" * 32),  # of a submit that never came to its row
        f"tmp/{'0' * 32}",
    ]
    strangers = ["notes.txt", f"jobs/{job_id}/.DS_Store", "tmp/notes"]
    for uri in (*lost, *strangers):
        store.put_bytes(uri, b"12345")
    young = sweep(house, older_than_s=HOUR_S)
    assert (young.waiting.count, young.total.count, young.strangers.count) == (len(lost), 0, 2)
    age(house)
    old = sweep(house, older_than_s=HOUR_S)
    assert (old.total.count, old.total.size, old.waiting.count) == (len(lost), 5 * len(lost), 0)
    assert files(house) == registered | set(strangers)
    assert len(house.results(job_id)) == 3


def test_a_file_whose_lease_is_held_stays_however_old_it_is(house: House) -> None:
    """A worker that sleeps between a part's file and its row, for days, while nobody else took the shard."""
    job_id = house.submit(requests(2))
    plan(house.deployment, job_id, owner="planner")
    lease = claim(house, job_id, "sleeps")
    uri = layout.part_file(job_id, 0, lease.token, 0)
    before = layout.part_file(job_id, 0, lease.token - 1, 0)
    for name in (uri, before):
        house.deployment.store.put_bytes(name, b"{}\n")
    age(house)
    report = sweep(house)
    assert (report.held.count, report.total.count) == (1, 1)
    assert uri in files(house) and before not in files(house)
    (shard,) = house.shards(job_id)
    with house.deployment.database.write() as uow:
        assert uow.shards.take_back(shard, "stale")
    assert sweep(house).total.count == 1
    assert uri not in files(house)


def test_outputs_of_a_finalizer_at_work_stay(house: House) -> None:
    job_id = house.submit(requests(2))
    plan(house.deployment, job_id, owner="planner")
    lease = claim(house, job_id, "one")
    register(house, lease, [0, 1])
    with house.deployment.database.write() as uow:
        uow.shards.complete(lease)
        uow.jobs.close_if_drained(job_id)
        finalizing = uow.jobs.lease(job_id, JobStatus.FINALIZING, "two")
    assert finalizing is not None
    uri = layout.output_file(job_id, finalizing.token)
    house.deployment.store.put_bytes(uri, b"")
    age(house)
    assert sweep(house).held.count == 1
    with house.deployment.database.write() as uow:
        assert uow.jobs.free_lease(house.job(job_id))
    assert sweep(house).files.keys() == {FileKind.OUTPUT}
    assert uri not in files(house)


def test_an_item_file_stays_while_any_job_reads_it(house: House) -> None:
    first, second = ended(house), house.submit(requests(4), shard_items=4)
    uri = house.job(second).input_uri
    assert uri == house.job(first).input_uri
    age(house)
    assert sweep(house).jobs == 1
    assert uri in files(house)


def test_what_an_index_is_made_of_stays_with_it(house: House) -> None:
    source, lone = ended(house, kind="embed"), ended(house, kind="embed", dimensions=2)
    oldest, before, live = (built(house, "docs", source) for _ in range(3))
    report = sweep(house)
    assert report.jobs == 2, "the index version that no alias leads to, and the embed job that nothing is made of"
    assert report.reasons == {
        before: "is what can be gone back to from docs",
        live: "is live as docs",
        source: report.reasons[source],
    }
    assert report.reasons[source].startswith("gave its vectors to the index of job_")
    with house.deployment.database.read() as uow:
        assert uow.jobs.get(oldest) is None and uow.jobs.get(lone) is None
        assert uow.indexes.of_job(live) is not None


def test_what_a_running_build_reads_stays_and_what_is_being_removed_is_built_from_no_more(house: House) -> None:
    source, other = ended(house, kind="embed"), ended(house, kind="embed", dimensions=2)
    submit_index(house.deployment, IndexSpec(name="docs", sources=(source,)))
    with house.deployment.database.write() as uow:
        uow.retention.mark([other])
    with pytest.raises(NotFound):
        submit_index(house.deployment, IndexSpec(name="docs", sources=(other,)))
    report = sweep(house)
    assert (report.jobs, list(report.reasons)) == (1, [source])


def test_a_job_and_its_retries_go_together(house: House) -> None:
    parent = ended(house)
    child = retry(house.deployment, parent).job.id
    report = sweep(house)
    assert report.reasons == {parent: f"{child} of the same retries is validating"}
    host = ScriptedHost()
    with running_service(house, host, only_job=child) as service:
        work_until_end(house, service, child)
    age(house)
    foretold = sweep(house, dry_run=True)
    report = sweep(house)
    assert (foretold.jobs, report.jobs, report.kept) == (2, 2, 0)
    assert files(house) == set()


def test_a_retry_against_a_prune_keeps_both_jobs_or_makes_none(house: House) -> None:
    """Who points at a job holds its row: prune waits, and then sees the child."""
    parent = ended(house)
    reports: list[PruneReport] = []
    thread = threading.Thread(target=lambda: reports.append(sweep(house)))
    with house.deployment.database.write() as uow:
        assert uow.retention.hold(parent)
        thread.start()
        time.sleep(0.2)  # either order must end well; this lets prune come to the lock
        uow.jobs.add(job_id="job_child", kind="generate", spec=house.job(parent).spec, total=1, parent_job_id=parent)
    thread.join()
    assert (reports[0].jobs, list(reports[0].reasons)) == (0, [parent])
    assert house.job(parent).pruned_at is None
    assert house.job("job_child").parent_job_id == parent


def test_a_running_job_is_not_harmed_by_one_prune_after_the_other(house: House) -> None:
    """All its files look old all the time: what saves them is their rows, and the lease of who writes them."""
    job_id = house.submit(requests(30), shard_items=10)
    over = threading.Event()
    errors: list[Exception] = []

    def keep_pruning() -> None:
        try:
            while not over.is_set():
                age(house, *(uri for uri in files(house) if uri.startswith("jobs/")), "inputs/none")
                sweep(house, older_than_s=HOUR_S)
        except Exception as error:  # noqa: BLE001 - whatever it is fails the test, below
            errors.append(error)

    def hook(item: WorkItem) -> None:
        time.sleep(0.01)
        if item.custom_id == "r7":
            raise ItemError("scripted", code="scripted")

    pruner = threading.Thread(target=keep_pruning)
    pruner.start()
    try:
        with running_service(house, ScriptedHost(hook)) as service:
            job = work_until_end(house, service, job_id)
    finally:
        over.set()
        pruner.join()
    assert not errors
    assert (job.status, job.succeeded, job.errored) == (JobStatus.COMPLETED, 29, 1)
    assert len(house.results(job_id)) == 29
    assert named_files(house) <= files(house)


def test_workers_that_left_long_ago_are_forgotten_unless_a_measurement_names_them(house: House) -> None:
    with house.deployment.database.write() as uow:
        for worker_id in ("one", "left", "live"):
            uow.workers.add(worker_id=worker_id, host="h", pid=1, queues=["generate"], slots=1, device="test", memory=0)
    with house.deployment.database.write() as uow:
        for worker_id in ("one", "left"):
            uow.workers.set_status(worker_id, "stopped")
    ended(house)  # measured by "one"
    assert sweep(house, older_than_s=HOUR_S).workers == 0
    assert sweep(house, keep=1, dry_run=True).workers == 1
    assert sweep(house, keep=1).workers == 1
    assert sweep(house).workers == 1
    assert row_counts(house)["workers"] == 1


@pytest.mark.parametrize("point", sorted(name for name in FAIL_POINTS if name.startswith("prune.")))
def test_a_prune_that_is_killed_leaves_nothing_dangling_and_the_next_one_ends_it(house: House, point: str) -> None:
    stays = house.submit(requests(2, prefix="s"))
    kept = files(house)
    goes = ended(house, measures=1500)  # more rows than go in one transaction
    with_key = house.submit(requests(1), options=_key("again"))
    host = ScriptedHost()
    with running_service(house, host, only_job=with_key) as service:
        work_until_end(house, service, with_key)
    age(house)
    time.sleep(1.1)
    killed = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "prune", "--older-than", "1s"],
        env=house.environ | {"PIPELINE_FAIL_POINT": point},
        capture_output=True,
        timeout=120,
    )
    assert killed.returncode == -9, killed.stderr.decode()
    assert named_files(house) <= files(house), "a row names a file that is gone"
    with house.deployment.database.read() as uow:
        listed = {job.id for job in uow.jobs.list()}
        marked = [uow.jobs.get(job_id) for job_id in (goes, with_key)]
    assert stays in listed
    assert len(listed) < 3, "a job whose removal has begun is shown to nobody"
    for job in marked:
        assert job is None or (job.pruned_at is None) == (job.id in listed)
    sweep(house, older_than_s=1.0)
    assert files(house) == kept
    left = row_counts(house)
    assert {table: left[table] for table in left if table not in LASTING} == {"jobs": 1}
    assert house.submit(requests(1), options=_key("again")) != with_key


def _key(key: str) -> Any:
    from pipeline.jobs.submit import SubmitOptions

    return SubmitOptions(idempotency_key=key)


def test_the_command_says_what_would_go_and_takes_its_rule_from_the_settings(make_house: MakeHouse) -> None:
    house = make_house(keep_jobs_s=0.0, prune_grace_s=0.0)
    ended(house)
    document = json.loads(house.pipeline("prune", "--dry-run", "--json").stdout)
    assert (document["dry_run"], document["jobs"], document["rows"]["parts"]) == (True, 1, 1)
    assert document["total"]["count"] == sum(tally["count"] for tally in document["files"].values()) == 5
    said = house.pipeline("prune")
    assert "files in all" in said.stdout.decode()
    assert files(house) == set()


def test_a_bucket_is_pruned_like_a_folder(make_house: MakeHouse, bucket_url: str) -> None:
    house = make_house(store_url=bucket_url)
    goes, stays = ended(house), house.submit(requests(2, prefix="s"))
    house.deployment.store.put_bytes(layout.output_file(goes, 99), b"late")
    foretold = sweep(house, dry_run=True, grace_s=0.0)
    report = sweep(house, grace_s=0.0)
    assert (report.jobs, report.total.count) == (1, foretold.total.count)
    assert files(house) == {house.job(stays).input_uri}
