"""The short form of ``make chaos``: two fixed seeds, one on each kind of plumbing, some of the faults of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import report
from tests.chaos.driver import run_seed
from tests.chaos.plan import Options, make_plan
from tests.chaos.surroundings import Surroundings
from tests.fixtures.services import _absent, find_postgres, find_redis

SHORT = {"items": 60, "workers": 2, "work_s": 2.0, "share": 0.45}

EMBEDDED = Options(database="sqlite", broker="embedded", **SHORT)  # type: ignore[arg-type]
FLEET = Options(database="postgresql", broker="redis", **SHORT)  # type: ignore[arg-type]


# Seeds whose short plans strike children, parents, sleepers, databases, brokers and doorbells, between the two of them.


def check(options: Options, seed: int, keep: Path) -> None:
    with Surroundings.open(options) as surroundings:
        record = run_seed(surroundings, seed, keep)
    print(report.table([record]))
    assert not record.wrong, "\n".join([f"seed {seed}: {record.plan}", *record.wrong, f"kept in {record.kept}"])
    assert any(fault.outcome == "recovered" for fault in record.faults)


@pytest.mark.timeout(240)
def test_nothing_is_lost_on_one_machine_without_a_server(tmp_path: Path) -> None:
    check(EMBEDDED, 6, tmp_path)


@pytest.mark.timeout(240)
def test_nothing_is_lost_on_a_fleet(tmp_path: Path) -> None:
    if find_postgres() is None or find_redis() is None:
        _absent("PostgreSQL or Redis")
    check(FLEET, 3, tmp_path)


def test_a_seed_gives_the_same_plan() -> None:
    assert make_plan(7, FLEET, None) == make_plan(7, FLEET, None)
    assert make_plan(7, FLEET, None) != make_plan(8, FLEET, None)


def test_a_plan_says_what_it_leaves_out() -> None:
    plan = make_plan(7, EMBEDDED, "no mount here")
    assert set(plan.left_out) == {"broker restarted", "disk full"}
    assert not {planned.name for planned in plan.middle} & set(plan.left_out)
