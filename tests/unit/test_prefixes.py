"""Shared prefixes against a naive model of them, under a budget, with arrays small enough to count."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.engines.batching.lane_caches import Segment
from workers.engines.batching.prefixes import LEAST_TOKENS, PrefixNode, PrefixStore

#: Bytes of a token: keys and values of one layer, a float32 each.
TOKEN_BYTES = 8

# Prompts are made of blocks, so that they share beginnings of many lengths, some of them too short to be kept.
BLOCKS = [
    list(range(20)),
    list(range(5)),
    [7] * 40,
    [0, *range(30, 50)],
    list(range(17)),
    [3],
    [7] * 13,
    list(range(100, 164)),
    list(range(100, 150)),
]
prompts_of = st.lists(
    st.lists(st.sampled_from(BLOCKS), max_size=5).map(lambda blocks: [token for block in blocks for token in block]),
    max_size=9,
)
grains = st.sampled_from([1, 1, 8, 64])


def compute(node: PrefixNode, length: int | None = None) -> list[Segment]:
    """Keys that say the token and values that say its place, so that a piece that was cut wrongly shows."""
    tokens = mx.array(node.tokens[:length], mx.float32).reshape(1, 1, -1, 1)
    places = mx.arange(node.start, node.start + tokens.size, dtype=mx.float32).reshape(1, 1, -1, 1)
    return [(tokens, places)]


def read(store: PrefixStore, prompt: Sequence[int]) -> int:
    """As the scheduler does: compute what is missing on a prompt's path, outermost first. Tokens that are known then."""
    for _ in range(1000):
        path = store.path(prompt)
        missing = next((node for node in path if node.segments is None), None)
        if missing is None:
            check(path, prompt)
            return path[-1].end if path else 0
        if store.allows(missing, len(missing.tokens) * TOKEN_BYTES):
            assert store.keep(missing, compute(missing))
    raise AssertionError("the store asks for the same again and again")


def check(path: Sequence[PrefixNode], prompt: Sequence[int]) -> None:
    """The path's keys and values are those of the prompt, place by place."""
    tokens: list[float] = []
    places: list[float] = []
    for node in path:
        assert node.segments is not None
        [(keys, values)] = node.segments
        tokens += np.array(keys).ravel().tolist()
        places += np.array(values).ravel().tolist()
    assert tokens == list(prompt[: len(tokens)])
    assert places == list(range(len(places)))
    assert len(tokens) < max(1, len(prompt))


def held(store: PrefixStore) -> list[PrefixNode]:
    return [node for node in store._walk() if node.segments is not None]


def assert_all_reachable(store: PrefixStore) -> None:
    for node in held(store):
        assert node.parent is not None and (node.parent is store._root or node.parent.segments is not None)


def shared_with(prompts: Sequence[Sequence[int]], index: int, grain: int) -> int:
    """Naively: the longest beginning of a prompt, its last token left out, that another of the prompts has too."""
    mine = prompts[index][:-1]
    longest = 0
    for other, prompt in enumerate(prompts):
        if other != index:
            theirs = prompt[:-1]
            common = next(
                (at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), min(len(mine), len(theirs))
            )
            longest = max(longest, common // grain * grain)
    return longest


@settings(max_examples=150)
@given(prompts_of, grains)
def test_each_prompt_finds_what_it_shares_with_another(prompts: list[list[int]], grain: int) -> None:
    store = PrefixStore(1 << 30)
    store.plan(prompts, grain)
    for index, prompt in enumerate(prompts):
        known = read(store, prompt)
        shared = shared_with(prompts, index, grain)
        # Less than all of it only by a piece that is too short to be kept for its own sake.
        assert shared - max(LEAST_TOKENS, grain) < known <= shared or known == shared
        assert all(node.end % grain == 0 for node in store.path(prompt))


@settings(max_examples=150)
@given(st.lists(prompts_of, min_size=1, max_size=3), grains, st.integers(0, 2000), st.randoms(use_true_random=False))
def test_whatever_is_planned_and_read_bytes_are_counted_and_never_above_the_limit(
    shards: list[list[list[int]]], grain: int, limit: int, random: object
) -> None:
    store = PrefixStore(limit)
    for prompts in shards:
        store.plan(prompts, grain)
        for prompt in sorted(prompts, key=lambda _: random.random()):  # type: ignore[attr-defined]
            read(store, prompt)
            sizes = [sum(keys.nbytes + values.nbytes for keys, values in node.segments or ()) for node in held(store)]
            assert store.nbytes == sum(sizes) <= limit
            assert_all_reachable(store)
        limit = random.randrange(limit + 1)  # type: ignore[attr-defined]
        store.fit(limit)
        assert store.nbytes <= limit
        assert_all_reachable(store)


def test_prompts_that_differ_after_a_short_common_head_find_their_own_prefixes() -> None:
    """As a chat template's first tokens before different system prompts."""
    head, one, two = [1, 2, 3], [4] * 30, [5] * 30
    prompts = [[*head, *one, 8, 8], [*head, *one, 9, 9], [*head, *two, 8, 8], [*head, *two, 9, 9]]
    store = PrefixStore(1 << 20)
    store.plan(prompts)
    assert [read(store, prompt) for prompt in prompts] == [33] * 4


def test_the_last_token_of_a_prompt_is_left_to_be_read() -> None:
    store = PrefixStore(1 << 20)
    prompt = list(range(40))
    store.plan([prompt, prompt])
    assert read(store, prompt) == 39
    # One whose end lies where the other's prefix ends.
    assert [node.end for node in store.path(prompt[:39])] == []


def test_prefixes_nest_and_outlive_the_plan_that_made_them() -> None:
    store = PrefixStore(1 << 20)
    system, shots = list(range(20)), list(range(50, 80))
    first = [[*system, *shots, 1, 1], [*system, *shots, 2, 2], [*system, 3, 3]]
    store.plan(first)
    assert [read(store, prompt) for prompt in first] == [50, 50, 20]
    store.plan([[9, 9], [9, 8]])
    later = [*system, *shots, 7, 7]
    assert [node.end for node in store.path(later)] == [20, 50]
    # A plan that parts inside a run that was computed cuts it, and nothing is computed again.
    store.plan([[*system[:18], 90, 90], [*system[:18], 91, 91]])
    assert all(node.segments is not None for node in store.path(later))
    assert [node.end for node in store.path(later)] == [18, 20, 50]
    assert read(store, later) == 50


def test_a_plan_that_was_not_carried_out_is_forgotten() -> None:
    store = PrefixStore(1 << 20)
    store.plan([list(range(40)), list(range(40))])
    store.plan([])
    assert store.path(list(range(40))) == []
    assert list(store._walk()) == []


def test_a_run_that_is_short_is_not_shared() -> None:
    store = PrefixStore(1 << 20)
    for length in (LEAST_TOKENS - 1, LEAST_TOKENS):
        prompts = [[*range(length), last, last] for last in (90, 91)]
        store.plan(prompts)
        assert [node.end for node in store.path(prompts[0])] == [length] * (length == LEAST_TOKENS)


def test_a_prompt_alone_plans_nothing() -> None:
    store = PrefixStore(1 << 20)
    store.plan([list(range(100))])
    assert store.path(list(range(100))) == []


def test_the_least_recently_used_goes_first_and_what_others_continue_goes_last() -> None:
    store = PrefixStore(100 * TOKEN_BYTES)
    system = [1] * 40
    ends = [[n] * 30 for n in (10, 11, 12)]
    prompts = [[*system, *end, last, last] for end in ends for last in (90, 91)]
    store.plan(prompts)
    assert read(store, prompts[0]) == read(store, prompts[2]) == 70
    store.path(prompts[0])  # used again
    assert read(store, prompts[4]) == 70
    kept = {node.tokens[0] for node in held(store)}
    assert kept == {1, 10, 12}
    assert store.nbytes == 100 * TOKEN_BYTES


def test_what_a_run_continues_stays_though_others_were_used_since() -> None:
    store = PrefixStore(90 * TOKEN_BYTES)
    prompts = [[*[n] * 30, *[n + 1] * more, last, last] for n, more in ((10, 30), (20, 0)) for last in (90, 91)]
    prompts.append([*[10] * 30, 92, 92])
    store.plan(prompts)
    assert read(store, prompts[4]) == read(store, prompts[2]) == 30
    outer, inner = store.path(prompts[0])
    store.path(prompts[2])
    store.fit(60 * TOKEN_BYTES)
    assert store.keep(inner, compute(inner))
    assert held(store) == [outer, inner]


def test_shrinking_takes_ends_before_what_they_continue() -> None:
    store = PrefixStore(1 << 20)
    prompts = [[*[1] * 30, *[2] * 30, last, last] for last in (90, 91)] + [[*[1] * 30, 3, 3]]
    store.plan(prompts)
    assert read(store, prompts[0]) == 60
    store.fit(30 * TOKEN_BYTES)
    assert [node.tokens[0] for node in held(store)] == [1]


def test_a_store_is_never_made_larger_than_it_was() -> None:
    store = PrefixStore(1000)
    for asked, limit in ((500, 500), (None, 1000), (2000, 1000)):
        store.fit(asked)
        assert store.limit_bytes == limit


def test_runs_are_cut_at_whole_grains_only() -> None:
    """Twelve tokens in common, of which a grain of 8 leaves too few to share; what follows begins at 8 all the same."""
    store = PrefixStore(1 << 20)
    prompts = [[*range(12), *[n] * 30, last, last] for n in (50, 60) for last in (90, 91)]
    store.plan(prompts, 8)
    assert [read(store, prompt) for prompt in prompts] == [40] * 4
    assert {node.end for prompt in prompts for node in store.path(prompt)} == {8, 40}


def test_what_cannot_fit_beside_its_beginning_is_given_up_and_not_asked_for_again() -> None:
    """Each fits alone. Keeping one in place of the other would go on for ever."""
    store = PrefixStore(50 * TOKEN_BYTES)
    prompts = [[*[1] * 40, *[2] * 40, last, last] for last in (3, 4)] + [[*[1] * 40, 5, 5]]
    store.plan(prompts)
    assert [read(store, prompt) for prompt in prompts] == [40, 40, 40]
    store.plan(prompts)  # another shard may ask anew
    assert [read(store, prompt) for prompt in prompts] == [40, 40, 40]


@pytest.mark.parametrize("forget", ["clear", "plan"])
def test_what_was_forgotten_while_it_was_computed_is_not_kept(forget: str) -> None:
    store = PrefixStore(1 << 20)
    prompt = list(range(40))
    store.plan([prompt, prompt])
    [node] = store.path(prompt)
    if forget == "clear":
        store.clear()
    else:
        store.plan([])
    assert not store.keep(node, compute(node))
    assert store.nbytes == 0


def test_a_run_that_is_cut_while_it_is_computed_keeps_its_places() -> None:
    store = PrefixStore(1 << 20)
    prompt = list(range(60))
    store.plan([prompt, prompt])
    [node] = store.path(prompt)
    store.plan([prompt, prompt, prompt[:25]])
    assert (node.start, node.end) == (24, 59)
    assert store.keep(node, compute(node))
    assert read(store, prompt) == 59


def test_memory_of_what_was_dropped_is_given_up() -> None:
    size = 1 << 20
    store = PrefixStore(3 * size)
    prompts = [[n, *range(20), last, last] for n in range(8) for last in (90, 91)]
    store.plan(prompts)
    mx.clear_cache()
    before = mx.get_active_memory()
    for prompt in prompts[::2]:
        [node] = store.path(prompt)
        keys = mx.zeros((1, 1, len(node.tokens), size // (8 * len(node.tokens))))
        values = mx.zeros_like(keys) + 1
        mx.eval(keys, values)
        assert store.keep(node, [(keys, values)])
        del keys, values
        assert mx.get_active_memory() - before <= store.nbytes + 4096
    # Of a run that is cut in two, each half goes by itself.
    store.plan([[7, *range(18), last, last] for last in (92, 93)])
    assert mx.get_active_memory() - before <= store.nbytes + 4096
    front_and_back = store.path(prompts[14])
    assert [node.end for node in front_and_back] == [19, 21]
    store.fit(front_and_back[0].nbytes)
    assert mx.get_active_memory() - before <= store.nbytes + 4096
    store.clear()
    del node, front_and_back
    assert mx.get_active_memory() - before <= 4096


def test_another_grain_begins_anew() -> None:
    store = PrefixStore(1 << 20)
    prompt = list(range(40))
    store.plan([prompt, prompt])
    read(store, prompt)
    store.plan([prompt, prompt], 16)
    assert [(node.end, node.segments) for node in store.path(prompt)] == [(32, None)]
    assert store.nbytes == 0
