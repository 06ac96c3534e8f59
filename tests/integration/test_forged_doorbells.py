"""Law 1: whoever can write to the broker can make a worker look in the database, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import create_engine, inspect, text

from pipeline.db.states import JobStatus
from pipeline.jobs.dispatch import FINALIZE, PLAN, RUN, celery_options
from tests.fixtures.house import House, MakeHouse
from tests.fixtures.in_process import requests

QUICK = {"poll_s": 0.3, "reconcile_s": 0.3}

#: Rows that change by themselves while a worker lives: its heartbeat, and who reconciles.
ALIVE = {"workers", "leases"}


@pytest.fixture
def belled_house(make_house: MakeHouse, database_url: str, redis_url: str) -> House:
    """Each database, and Redis: the broker that others can reach."""
    return make_house(database_url=database_url, broker_url=redis_url, **QUICK)


def contents(house: House) -> dict[str, list[str]]:
    """Every row of every table, as text."""
    engine = create_engine(house.settings.resolved_database_url)
    found = {}
    with engine.connect() as connection:
        for table in inspect(connection).get_table_names():
            if table not in ALIVE:
                rows = connection.execute(text(f'SELECT * FROM "{table}"'))
                found[table] = sorted(repr(tuple(row)) for row in rows)
    engine.dispose()
    return found


def forged(ended: str) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    long = "job_" + "f" * 10_000
    for task in (PLAN, FINALIZE):
        for argument in (ended, "job_0000000000000000", long, "../../etc/passwd", "'; DROP TABLE jobs; --", "%", ""):
            yield task, [argument], {}
        for strange in ({"id": ended}, [ended], None, 7, True, 1e308):
            yield task, [strange], {}
        yield task, [], {}
        yield task, [ended], {"owner": "somebody"}
        yield task, [ended, ended], {}
        yield task, [], {"job_id": ended}
    for queue in ("generate", "index", "control", "no such queue", long, {"queue": "generate"}, None):
        yield RUN, [queue], {}
    yield RUN, ["generate"], {"only_job": ended}


@pytest.mark.timeout(180)
def test_forged_and_replayed_doorbells_change_no_row(belled_house: House) -> None:
    house = belled_house
    worker = house.start_worker()
    ended = house.submit(requests(6), shard_items=2)
    assert house.wait_end(ended).status is JobStatus.COMPLETED, house.logs()
    before = contents(house)
    assert before["jobs"]
    assert before["parts"]
    app = Celery("forger", set_as_current=False)
    app.conf.update(celery_options(house.settings))
    for task, args, kwargs in forged(ended):
        app.send_task(task, args=args, kwargs=kwargs, queue="generate" if task == RUN else "control")
    with app.connection_for_read() as connection:
        client = connection.default_channel.client
        house.wait_for(
            lambda: not any(client.llen(queue) for queue in ("control", "generate")) and not client.hlen("unacked"),
            "all of it to be taken",
        )
        app.send_task(PLAN, args=[ended], queue="control")  # what is heard after all of it
        house.wait_for(lambda: not client.llen("control") and not client.hlen("unacked"), "the last to be heard")
    app.close()
    assert contents(house) == before
    assert worker.poll() is None, house.logs()
    later = house.submit(requests(2))
    assert house.wait_end(later).status is JobStatus.COMPLETED, house.logs()
    assert [row for row in contents(house)["jobs"] if ended in row] == before["jobs"]
