"""The views say the same on both databases: how a job went, who is at work, which index is live."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.orm import Session

from pipeline.db import models
from pipeline.db.states import JobStatus, Outcome, ShardStatus
from pipeline.db.views import VIEWS

pytestmark = pytest.mark.each_database

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    engine = create_engine(database_url)
    with engine.connect() as opened:
        yield opened
    engine.dispose()


def add(connection: Connection, *rows: object) -> None:
    """Insert rows in the order given, whatever the mapper thinks of dependencies."""
    with Session(connection, join_transaction_mode="create_savepoint", expire_on_commit=False) as session:
        for row in rows:
            session.add(row)
            session.flush()
        session.commit()


def make_job(job_id: str, status: JobStatus, **values: Any) -> models.Job:
    counts = {name: values.get(name, 0) for name in ("processing", "succeeded", "errored", "cancelled", "expired")}
    fields = {"kind": "generate", "spec": {}, "total": sum(counts.values()), "created_at": NOW, **counts, **values}
    return models.Job(id=job_id, status=status, **fields)


def make_shard(job_id: str, ordinal: int, status: ShardStatus, **values: Any) -> models.Shard:
    place = {"start_byte": 0, "end_byte": 1, "first_item": 0, "item_count": 4, "token_count": 9}
    return models.Shard(job_id=job_id, ordinal=ordinal, status=status, **place, **values)


def select(connection: Connection, query: str) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(text(query)).mappings()]


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_an_empty_database_is_empty(connection: Connection, name: str) -> None:
    assert select(connection, f"SELECT * FROM {name}") == []


@pytest.mark.parametrize(
    ("status", "counts", "outcome"),
    [
        (JobStatus.COMPLETED, {"succeeded": 3}, "all_succeeded"),
        (JobStatus.COMPLETED, {}, "all_succeeded"),
        (JobStatus.COMPLETED, {"succeeded": 2, "errored": 1}, "some_errored"),
        (JobStatus.COMPLETED, {"errored": 3}, "all_errored"),
        (JobStatus.CANCELLED, {"succeeded": 1, "cancelled": 2}, "cancelled"),
        (JobStatus.EXPIRED, {"errored": 1, "expired": 2}, "expired"),
        (JobStatus.FAILED, {"errored": 3}, "failed"),
        (JobStatus.IN_PROGRESS, {"errored": 3}, None),
        (JobStatus.FINALIZING, {"succeeded": 3}, None),
    ],
)
def test_job_status_says_how_a_job_went(
    connection: Connection, status: JobStatus, counts: dict[str, int], outcome: str | None
) -> None:
    add(connection, make_job("job", status, **counts))
    (row,) = select(connection, "SELECT outcome, total FROM job_status")
    assert row == {"outcome": outcome, "total": sum(counts.values())}


def test_job_status_tells_what_was_asked_from_how_it_went(connection: Connection) -> None:
    add(connection, make_job("job", JobStatus.CANCELLING, outcome=Outcome.CANCELLED, processing=1))
    (row,) = select(connection, "SELECT status, outcome, asked_outcome FROM job_status")
    assert row == {"status": "cancelling", "outcome": None, "asked_outcome": "cancelled"}


def test_job_status_counts_the_shards_of_its_own_job(connection: Connection) -> None:
    add(
        connection,
        make_job("one", JobStatus.IN_PROGRESS, processing=8, shards_total=3, shards_open=2),
        make_job("two", JobStatus.QUEUED, processing=4, shards_total=1, shards_open=1),
        make_shard("one", 0, ShardStatus.FAILED, attempts=5),
        make_shard("one", 1, ShardStatus.LEASED, attempts=1),
        make_shard("one", 2, ShardStatus.PENDING),
        make_shard("two", 0, ShardStatus.PENDING),
    )
    query = "SELECT job_id, shards_open, shards_running, shards_failed, attempts FROM job_status ORDER BY job_id"
    assert [tuple(row.values()) for row in select(connection, query)] == [("one", 2, 1, 1, 6), ("two", 1, 0, 0, 0)]


def test_job_status_has_one_end_whatever_the_end_was(connection: Connection) -> None:
    add(
        connection,
        make_job("a", JobStatus.COMPLETED, completed_at=NOW),
        make_job("b", JobStatus.EXPIRED, expired_at=NOW),
        make_job("c", JobStatus.IN_PROGRESS),
    )
    ended = [row["ended_at"] for row in select(connection, "SELECT ended_at FROM job_status ORDER BY job_id")]
    assert [bool(value) for value in ended] == [True, True, False]


def test_job_errors_names_item_line_and_shard(connection: Connection) -> None:
    shard = make_shard("job", 7, ShardStatus.DONE, errored=1)
    add(connection, make_job("job", JobStatus.COMPLETED, errored=1), shard)
    place = {"job_id": "job", "shard_id": shard.id, "custom_id": "q-1", "line": 12}
    add(connection, models.ItemErrorRow(**place, code="context_length_exceeded", message="too long"))
    (row,) = select(connection, "SELECT * FROM job_errors")
    assert row == {
        "job_id": "job",
        "custom_id": "q-1",
        "line": 12,
        "code": "context_length_exceeded",
        "message": "too long",
        "shard": 7,
    }


def test_worker_status_counts_the_slots_that_are_busy(connection: Connection) -> None:
    facts = {"host": "mac-1", "pid": 1, "queues": "generate", "slots": 2, "device": "metal", "memory_bytes": 1 << 36}
    add(
        connection,
        models.Worker(id="w1", status="live", started_at=NOW, seen_at=NOW, **facts),
        models.Worker(id="w2", status="live", started_at=NOW, seen_at=NOW, **facts),
        make_job("job", JobStatus.IN_PROGRESS, processing=8),
        make_shard("job", 0, ShardStatus.LEASED, lease_owner="w1"),
        make_shard("job", 1, ShardStatus.DONE, lease_owner="w1"),
    )
    rows = select(connection, "SELECT worker_id, slots, slots_busy FROM worker_status ORDER BY worker_id")
    assert [tuple(row.values()) for row in rows] == [("w1", 2, 1), ("w2", 2, 0)]


def test_index_status_tells_the_live_version_from_the_one_before(connection: Connection) -> None:
    files = {"uri": "u", "sha256": "0", "manifest_uri": "m", "created_at": NOW, "space_digest": "space"}
    shape = {"name": "docs", "factory": "Flat", "metric": "ip", "dimension": 3, "count": 5, "recall": 1.0}
    add(
        connection,
        make_job("job", JobStatus.COMPLETED),
        models.EmbeddingSpace(digest="space", recipe={}, dimension=3, normalized=True, created_at=NOW),
        *(models.IndexVersion(id=name, job_id="job", **files, **shape) for name in ("v1", "v2", "v3")),
        models.IndexAlias(name="docs", index_id="v3", previous_index_id="v2", moved_at=NOW),
    )
    query = "SELECT index_id, live_as, previous_of, vectors, recall FROM index_status ORDER BY index_id"
    assert [tuple(row.values()) for row in select(connection, query)] == [
        ("v1", None, None, 5, 1.0),
        ("v2", None, "docs", 5, 1.0),
        ("v3", "docs", None, 5, 1.0),
    ]


def test_job_verdicts_sums_over_shards_and_gives_the_last_reason(connection: Connection) -> None:
    shards = [make_shard("job", ordinal, ShardStatus.DONE) for ordinal in range(2)]
    add(connection, make_job("job", JobStatus.COMPLETED), make_job("other", JobStatus.COMPLETED), *shards)
    other = make_shard("other", 0, ShardStatus.DONE)
    add(connection, other)
    kind = {"mechanism": "draft", "outcome": "declined", "code": "slower", "token": 1, "at": NOW}
    add(
        connection,
        models.VerdictRow(job_id="job", shard_id=shards[0].id, reason="at width 4", count=3, worker_id="w1", **kind),
        models.VerdictRow(job_id="job", shard_id=shards[1].id, reason="at width 8", count=4, worker_id="w2", **kind),
        models.VerdictRow(
            job_id="job",
            shard_id=shards[1].id,
            reason="x",
            count=1,
            **{**kind, "outcome": "held", "code": "same_tokens"},
        ),
        models.VerdictRow(job_id="other", shard_id=other.id, reason="not this job's", count=9, **kind),
    )
    query = """
        SELECT mechanism, outcome, code, count, shards, reason, last_worker_id FROM job_verdicts
        WHERE job_id = 'job' ORDER BY outcome
    """
    assert [tuple(row.values()) for row in select(connection, query)] == [
        ("draft", "declined", "slower", 7, 2, "at width 8", "w2"),
        ("draft", "held", "same_tokens", 1, 1, "x", None),
    ]


def test_job_metrics_shows_shard_and_job_measurements(connection: Connection) -> None:
    shard = make_shard("job", 3, ShardStatus.DONE)
    add(connection, make_job("job", JobStatus.COMPLETED), shard)
    facts = {"job_id": "job", "name": "tokens_per_s", "unit": "1/s", "at": NOW}
    add(connection, models.Metric(shard_id=shard.id, value=50.5, **facts), models.Metric(value=49.0, **facts))
    rows = select(connection, "SELECT kind, shard, host, name, value, unit FROM job_metrics ORDER BY value")
    assert [tuple(row.values()) for row in rows] == [
        ("generate", None, None, "tokens_per_s", 49.0, "1/s"),
        ("generate", 3, None, "tokens_per_s", 50.5, "1/s"),
    ]
