"""The bounds of rounding, and the pass that decides: logits that are a function of the tokens alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.shaky import shake
from tests.fixtures.tiny_machines import text
from tests.fixtures.tiny_models import shared_model, tiny_model
from workers.engines.batching.canonical import CHUNK_TOKENS, LEAST_DEVIATION, SAFETY, Bounds, CanonicalPass, deviation

contexts = st.integers(1, 1 << 20)
deviations = st.floats(0, 10)


@pytest.mark.parametrize(("dtype", "least"), [*LEAST_DEVIATION.items(), ("float8", LEAST_DEVIATION["bfloat16"])])
def test_nothing_seen_is_the_least_of_the_type(dtype: str, least: float) -> None:
    assert Bounds(dtype).bound(1000) == SAFETY * least


@given(st.lists(st.tuples(contexts, deviations), max_size=8), contexts)
def test_a_bound_is_some_times_the_largest_that_was_seen_and_grows_with_the_context(
    seen: list[tuple[int, float]], context: int
) -> None:
    bounds = Bounds("float32")
    for where, value in seen:
        bounds.see(where, value)
        assert bounds.deviation(where) >= value
    assert bounds.bound(context) == SAFETY * bounds.deviation(context)
    assert bounds.bound(context) <= bounds.bound(2 * context)
    # Two logits may move in opposite directions.
    assert all(bounds.bound(where) >= 2 * value for where, value in seen)


def test_a_longer_context_than_any_seen_is_thought_to_be_half_as_far_off_again_for_each_doubling() -> None:
    bounds = Bounds("float32")
    bounds.see(100, 0.01)  # 64 to 127
    assert bounds.deviation(127) == 0.01
    assert bounds.deviation(128) == 0.015
    assert math.isclose(bounds.deviation(1024), 0.01 * 1.5**4)
    assert bounds.deviation(5) == 0.01
    bounds.see(1024, 0.02)  # looked at, and better than was thought
    assert bounds.seen == {7: 0.01, 11: 0.02}
    assert bounds.deviation(1024) >= 0.02


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_is_no_rounding(value: float) -> None:
    bounds = Bounds("float32")
    bounds.see(10, value)
    assert bounds.bound(10) == Bounds("float32").bound(10)


def test_a_token_that_both_exclude_does_not_differ() -> None:
    one = np.array([-np.inf, 1.0, 2.0], np.float32)
    assert deviation(one, one + np.array([0, 0.5, -0.25], np.float32)) == 0.5
    assert deviation(one, np.array([0.0, 1.0, 2.0], np.float32)) == np.inf
    assert math.isnan(deviation(np.array([np.nan]), np.array([1.0])))


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_moe", "lfm2", "mamba2"])
def test_logits_behind_a_place_do_not_depend_on_what_stands_behind_it(name: str) -> None:
    """Bit by bit, and with a model whose rounding shows: shapes are the same whatever the length."""
    model = tiny_model(name)
    shake(model, 0.1)
    canonical = CanonicalPass(model)
    tokens = text(2 * CHUNK_TOKENS + 9, 1)
    whole = dict(canonical.walk(tokens, 0))
    assert list(whole) == list(range(len(tokens)))
    for length in (1, 2, CHUNK_TOKENS - 1, CHUNK_TOKENS, CHUNK_TOKENS + 1, 2 * CHUNK_TOKENS, len(tokens)):
        np.testing.assert_array_equal(canonical.last(tokens[:length]), whole[length - 1])


def test_a_walk_begins_where_it_is_asked_to() -> None:
    canonical = CanonicalPass(shared_model("llama"))
    tokens = text(CHUNK_TOKENS + 20, 1)
    for start in (0, 5, CHUNK_TOKENS - 1, CHUNK_TOKENS, CHUNK_TOKENS + 19):
        places = [place for place, _ in canonical.walk(tokens, start)]
        assert places == list(range(start, len(tokens)))
    with pytest.raises(ValueError, match="no tokens"):
        canonical.last([])


def test_lanes_that_were_read_go_on_as_if_read_at_once() -> None:
    canonical = CanonicalPass(shared_model("gemma3_text"))
    tokens = text(3 * CHUNK_TOKENS + 5, 1)
    at_once = canonical.read(tokens)
    begun = canonical.read(tokens[: 2 * CHUNK_TOKENS])
    in_two = canonical.read(tokens, begun)
    assert in_two.lengths == at_once.lengths == [len(tokens)]
    np.testing.assert_array_equal(np.array(in_two.forward([[7]])), np.array(at_once.forward([[7]])))
