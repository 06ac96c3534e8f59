"""The budget of memory as arithmetic: what a load takes, what is let in, how an estimate is corrected."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engines.batching.budget import MOST_STRETCH, RESERVE, STEP_TOKENS, LaneCost, Load, MemoryBudget

COST = LaneCost(fixed=1000, per_token=10, windows=((100, 4),))
BUDGET = MemoryBudget(None, 1 << 20, COST, forward_bytes=5000, attention_bytes=3)

loads = st.builds(
    Load,
    rows=st.integers(1, 40),
    tokens=st.integers(1, 5000),
    reading=st.integers(0, 8),
    reading_tokens=st.integers(0, 5000),
    kept_bytes=st.integers(0, 10_000),
    lanes=st.integers(0, 40),
    places=st.integers(0, 5000),
)


def test_a_window_ends_what_a_row_takes() -> None:
    assert COST.row_bytes(10) == 1000 + 10 * 14
    assert COST.row_bytes(1000) == 1000 + 1000 * 10 + 100 * 4
    assert COST.lane_bytes(1) == 1000 + STEP_TOKENS * 14
    assert COST.lane_bytes(1000) == 1000 + 1024 * 10 + 128 * 4
    # Neither does one whose prompt is being read, nor a prefix, forget what is behind the window.
    assert COST.reading_bytes(1000) == 1000 + 1024 * 14
    assert COST.kept_bytes(1000) == 14_000


def test_lanes_of_two_models_take_the_sum() -> None:
    other = LaneCost(5, 2, ((50, 1),))
    for tokens in (1, 70, 3000):
        assert (COST + other).row_bytes(tokens) == COST.row_bytes(tokens) + other.row_bytes(tokens)


@given(loads)
def test_a_larger_load_takes_no_less(load: Load) -> None:
    size = BUDGET.cache_bytes(load)
    assert size >= load.rows * COST.row_bytes(load.tokens) + load.kept_bytes
    for larger in (
        replace(load, rows=load.rows + 1),
        replace(load, tokens=load.tokens + 100),
        replace(load, reading=load.reading + 1),
        replace(load, reading_tokens=load.reading_tokens + 100),
        replace(load, kept_bytes=load.kept_bytes + 1),
        replace(load, lanes=load.lanes + 1),
        replace(load, places=load.places + 1),
    ):
        assert BUDGET.cache_bytes(larger) >= size


@given(loads)
def test_a_load_is_let_in_up_to_the_ceilings_and_no_further(load: Load) -> None:
    size = BUDGET.cache_bytes(load)
    assert BUDGET.allows(load)
    assert BUDGET.of_job(None, size, LaneCost()).allows(load)
    assert not BUDGET.of_job(None, size - 1, LaneCost()).allows(load)
    needed = int((BUDGET.resident_bytes + size + 5000 + 3 * load.tokens) / (1 - RESERVE))
    assert BUDGET.of_job(needed + 2, None, LaneCost()).allows(load)
    assert not BUDGET.of_job(needed - 2, None, LaneCost()).allows(load)


def test_a_jobs_ceiling_is_never_above_the_machines() -> None:
    machine = replace(BUDGET, limit_bytes=1000)
    assert machine.of_job(500.0, 70.0, LaneCost()).limit_bytes == 500
    assert machine.of_job(2000, None, LaneCost()).limit_bytes == 1000
    assert machine.of_job(None, 70.0, LaneCost()).kv_limit_bytes == 70


@pytest.mark.parametrize(
    ("limit", "kv_limit", "share"), [(None, None, None), (1000, None, 100), (None, 1000, 250), (1000, 100, 25)]
)
def test_prefixes_take_a_share_of_the_ceilings(limit: int | None, kv_limit: int | None, share: int | None) -> None:
    assert replace(BUDGET, limit_bytes=limit, kv_limit_bytes=kv_limit).prefix_bytes == share


def test_an_estimate_is_stretched_by_what_is_held_and_no_further_than_it_can_be_true() -> None:
    budget, load = replace(BUDGET), Load(2, 100)
    estimated = 20_000 + 5000 + 3 * 100
    budget.see(budget.resident_bytes + estimated // 2, 20_000, 100)
    assert budget.stretch == 1.0
    budget.see(budget.resident_bytes + 2 * estimated, 20_000, 100)
    assert budget.stretch == 2.0
    budget.see(budget.resident_bytes + 100 * estimated, 20_000, 100)
    assert budget.stretch == MOST_STRETCH
    tight = replace(
        budget, limit_bytes=int((budget.resident_bytes + budget.cache_bytes(load) + 5300) / (1 - RESERVE)) + 9
    )
    assert not tight.allows(load)
    assert replace(tight, stretch=1.0).allows(load)
    # Shapes of keys and values are known, and need no stretching.
    assert budget.of_job(1 << 40, budget.cache_bytes(load), LaneCost()).allows(load)
