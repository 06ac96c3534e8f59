"""A row's tokens come from its logits, seed and position, and rounding cannot turn over what is said to be settled."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workers.engines.batching.choosing import Choice, choose, cut_of, gumbel_noise
from workers.engines.batching.seams import Logits
from workers.engines.requests import Sampling

#: Probabilities of a vocabulary of five.
PROBABILITIES = [0.1, 0.4, 0.05, 0.15, 0.3]
LOGITS = np.log(np.array(PROBABILITIES, np.float32))

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.0, 1.0, 3.0]),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    top_k=st.integers(0, 7),
    min_p=st.one_of(st.just(0.0), st.just(1.0), st.floats(0.01, 0.99)),
)
# Few values, so that ties and steps as large as the bound are common; with rest, so that they are not everything.
logit_values = st.one_of(
    st.integers(-8, 8).map(lambda value: value / 4), st.floats(-4, 4, width=32), st.sampled_from([-math.inf, 0.0, 30.0])
)
logit_lists = st.lists(logit_values, min_size=1, max_size=6).filter(lambda values: max(values) > -math.inf)
bounds = st.sampled_from([1e-5, 1e-2, 0.25, 0.5, 1.0, 3.0])


def naive_choice(logits: Sequence[float], sampling: Sampling, seed: int) -> int:
    """The rule written out token by token, in the order of transformers' filters."""
    if sampling.temperature == 0.0:
        return max(range(len(logits)), key=lambda token: (logits[token], -token))
    scaled = [logit / sampling.temperature for logit in logits]
    kept = set(range(len(logits)))
    if sampling.top_k:
        kept = {token for token in kept if sum(other > scaled[token] for other in scaled) < sampling.top_k}
    if sampling.top_p < 1.0:
        total = math.fsum(math.exp(scaled[token] - max(scaled)) for token in kept)
        better = {
            token: math.fsum(math.exp(scaled[o] - max(scaled)) for o in kept if scaled[o] > scaled[token])
            for token in kept
        }
        kept = {token for token in kept if scaled[token] == max(scaled) or better[token] / total < sampling.top_p}
    if sampling.min_p:
        kept = {token for token in kept if scaled[token] >= max(scaled) + math.log(sampling.min_p)}
    noise = gumbel_noise(seed, 0, 0, np.arange(len(logits)))
    return max(kept, key=lambda token: scaled[token] + noise[token])


def moved(logits: Sequence[float], half: float, random: np.random.Generator) -> Iterator[list[float]]:
    """Logits moved by less than ``half`` each: for few tokens every corner of the cube, for many the worst ones.

    Those move the best ones one way and the rest the other way, but for one of the tokens.
    """
    directions: list[Sequence[float]] = random.uniform(-1, 1, (20, len(logits))).tolist()
    if len(logits) <= 6:
        directions += itertools.product((-1.0, 0.0, 1.0) if len(logits) <= 4 else (-1.0, 1.0), repeat=len(logits))
    else:
        ranks = np.argsort(np.argsort(-np.array(logits)))
        for end in range(len(logits) + 1):
            halves = np.where(ranks < end, 1.0, -1.0)
            flipped = halves * (1 - 2 * np.eye(len(logits)))
            directions += [*flipped.tolist(), *(-flipped).tolist()]
    for direction in directions:
        yield [logit + half * 0.999 * sign for logit, sign in zip(logits, direction, strict=True)]


def choice_of(logits: Sequence[float], sampling: Sampling, bound: float, seed: int = 0) -> Choice:
    return choose(np.array(logits, np.float32), sampling, seed, 0, 0, bound)


@settings(max_examples=400)
@given(logit_lists, samplings, bounds, st.integers(0, 50))
# A token of which rounding decides whether it is among the k changes the others' shares.
@example([1.0, 0.5, 0.5, 0.5, -1.0], Sampling(1.0, top_k=3, top_p=0.8), 1e-2, 5)
# Fewer tokens are left than top_k keeps.
@example([1.0, -math.inf, -math.inf, -math.inf, 0.5], Sampling(1.0, top_k=3, top_p=0.5), 0.25, 1)
def test_what_is_settled_no_rounding_within_the_bound_turns_over(
    values: list[float], sampling: Sampling, bound: float, seed: int
) -> None:
    _stays_settled([float(np.float32(value)) for value in values], sampling, bound, seed)


def _stays_settled(logits: list[float], sampling: Sampling, bound: float, seed: int) -> None:
    choice = choice_of(logits, sampling, bound, seed)
    if not choice.settled:
        return
    for others in moved(logits, bound / 2, np.random.default_rng(seed)):
        assert naive_choice(others, sampling, seed) == choice.token, others


@settings(max_examples=30)
@given(st.integers(0, 1000), st.floats(0.2, 3), st.floats(0.05, 0.99), st.sampled_from([0, 0, 12]), bounds)
def test_the_same_where_many_hold_little_each(seed: int, spread: float, top_p: float, top_k: int, bound: float) -> None:
    random = np.random.default_rng(seed)
    logits = random.normal(0, spread, 18).astype(np.float32).tolist()
    _stays_settled(logits, Sampling(1.0, top_p=top_p, top_k=top_k), bound, seed)


def test_odds_of_many_tokens_grow_by_the_exponential_of_the_bound() -> None:
    # The best holds a tenth, and 0.1 * (1 + 1) < 0.215; but as odds it is 1/9 * e, a share of 0.23.
    logits = [0.0, -1e-3, *[-1.0111] * 22]
    sampling = Sampling(1.0, top_p=0.215)
    seed = next(seed for seed in range(1000) if _leads(logits, seed, 1, 1.5, sampling))
    assert choice_of(logits, sampling, 0.0, seed).token == 1
    assert not choice_of(logits, sampling, 1.0, seed).settled


@given(logit_lists, samplings, bounds, st.integers(0, 1000))
def test_the_token_is_the_one_of_the_rule_written_out(
    values: list[float], sampling: Sampling, bound: float, seed: int
) -> None:
    logits = [float(np.float32(value)) for value in values]
    choice = choice_of(logits, sampling, bound, seed)
    assert choice.token == choice_of(logits, sampling, 0.0, seed).token
    if choice_of(logits, sampling, 1e-9, seed).settled:  # else the last digit of a sum may decide
        assert choice.token == naive_choice(logits, sampling, seed)


@pytest.mark.parametrize(
    ("sampling", "logits", "distance"),
    [
        (Sampling(), [0.0, 1.0, 2.0], 1.0),
        (Sampling(), [2.0, 1.0, 2.0], 0.0),
        # The last token that top_k keeps is ahead of the next by half.
        (Sampling(1.0, top_k=2), [0.0, 8.0, 0.5], 0.5),
        # min_p cuts at log 0.5 behind the best.
        (Sampling(1.0, min_p=0.5), [0.0, math.log(0.5) + 0.25, -5.0], 0.25),
    ],
)
def test_settled_as_long_as_the_bound_is_less_than_the_distance_from_the_cut(
    sampling: Sampling, logits: list[float], distance: float
) -> None:
    # A seed whose draw is the token beside the cut, well ahead of what may be kept.
    edge = sorted(range(3), key=lambda token: -logits[token])[0 if sampling.is_greedy else 1]
    seed = next(seed for seed in range(10_000) if _leads(logits, seed, edge, 1.5, sampling))
    assert choice_of(logits, sampling, 0.0, seed).token == edge or distance == 0.0
    if distance:
        assert choice_of(logits, sampling, distance * 0.99, seed) == Choice(edge, True)
    assert not choice_of(logits, sampling, distance * 1.01, seed).settled


def _leads(logits: Sequence[float], seed: int, token: int, by: float, sampling: Sampling) -> bool:
    if sampling.is_greedy:
        return True
    drawn = np.array(logits) + gumbel_noise(seed, 0, 0, np.arange(len(logits)))
    return bool(drawn[token] - np.delete(drawn, token).max() > by)


def test_a_token_at_the_cut_of_top_p_is_open_and_one_far_from_it_is_settled() -> None:
    # The first two hold exactly 0.75; whether the third, a quarter, stays hangs on rounding when top_p is 0.75.
    logits = np.log([0.5, 0.25, 0.25 - 1e-6, 1e-6])
    seed = next(seed for seed in range(100) if np.argmax(logits + gumbel_noise(seed, 0, 0, np.arange(4))) == 2)
    assert not choice_of(logits, Sampling(1.0, top_p=0.75), 1e-4, seed).settled
    assert choice_of(logits, Sampling(1.0, top_p=0.9), 1e-4, seed) == Choice(2, True)
    assert choice_of(logits, Sampling(1.0, top_p=0.4), 1e-4, seed) == Choice(0, True)


@pytest.mark.parametrize(
    ("sampling", "shares", "distance"),
    [
        # What comes in where it overtakes the last that is kept.
        (Sampling(1.0, top_k=2), [0.6, 0.2, 0.2 * math.exp(-0.1)], 0.1),
        (Sampling(1.0, top_p=0.6), [0.5, 0.25, 0.25 * math.exp(-0.1)], 0.1),
        # What comes in where the best loses some of its lead, and where those before it hold less.
        (Sampling(1.0, min_p=0.4), [0.5, 0.3, 0.5 * 0.4 * math.exp(-0.1)], 0.1),
        (Sampling(1.0, top_p=0.74), [0.5, 0.25, 0.15, 0.1], math.log(0.75 / 0.25 / (0.74 / 0.26))),
    ],
)
def test_a_token_outside_that_would_be_drawn_is_taken_into_account(
    sampling: Sampling, shares: list[float], distance: float
) -> None:
    logits = np.log(shares).tolist()
    seed = next(
        seed
        for seed in range(10_000)
        if _leads(logits, seed, 2, 1.0, sampling)
        and choice_of(logits, sampling, 0.0, seed).token == 0
        and _leads([*logits[:2], -99.0, *logits[3:]], seed, 0, 1.0, sampling)
    )
    assert choice_of(logits, sampling, distance * 0.98, seed) == Choice(0, True)
    assert not choice_of(logits, sampling, distance * 1.02, seed).settled


def test_shares_of_top_p_are_of_what_top_k_keeps() -> None:
    # Of the two that are kept the first holds 4/7, just below top_p; of all it holds 0.4.
    logits, sampling = np.log([0.4, 0.3, 0.1, 0.1, 0.1]).tolist(), Sampling(1.0, top_k=2, top_p=0.58)
    distance = math.log(0.58 / 0.42 / (0.4 / 0.3))
    seed = next(seed for seed in range(10_000) if _leads(logits, seed, 1, 1.0, sampling))
    assert choice_of(logits, sampling, distance * 0.98, seed) == Choice(1, True)
    assert not choice_of(logits, sampling, distance * 1.02, seed).settled


def test_two_draws_that_tie_are_open_however_far_apart_the_logits_are() -> None:
    noise = gumbel_noise(7, 0, 0, np.arange(3))
    logits = np.array([noise[1] - noise[0], 0.0, -50.0])
    assert not choice_of(logits, Sampling(1.0), 1e-5, 7).settled
    assert choice_of(logits + np.array([1e-3, 0.0, 0.0]), Sampling(1.0), 1e-5, 7) == Choice(0, True)


def test_a_lower_temperature_brings_the_bound_closer() -> None:
    """Logits are divided by the temperature, and their rounding with them."""
    logits = [1.0, 0.0]
    leads = {seed: np.ptp(np.array(logits) + gumbel_noise(seed, 0, 0, np.arange(2))) for seed in range(100)}
    seed = next(seed for seed, lead in leads.items() if 0.5 < lead < 1.2)  # further than 0.3, and closer than 0.3 / 0.2
    wide = choice_of(logits, Sampling(1.0), 0.3, seed)
    narrow = [choice_of([t, 0.0], Sampling(t), 0.3, seed) for t in (1.0, 0.2)]
    assert wide == narrow[0] and wide.settled and not narrow[1].settled


@pytest.mark.parametrize("temperature", [1e-320, 1e-12])
def test_next_to_no_temperature_is_greedy(temperature: float) -> None:
    for sampling in (Sampling(temperature), Sampling(temperature, top_k=2, top_p=0.5, min_p=0.1)):
        assert choice_of([1.0, 3.0, 2.0, -math.inf], sampling, 0.0).token == 1


def test_most_real_choices_are_settled() -> None:
    """The rule would be of no use if it found everything open."""
    random = np.random.default_rng(1)
    sampling = Sampling(0.8, top_p=0.95, top_k=50, min_p=0.01)
    settled = [choice_of(random.normal(0, 3, 400), sampling, 1e-4, seed).settled for seed in range(400)]
    assert np.mean(settled) > 0.99


# --- the distribution ------------------------------------------------------------------------------------------------


def kept(sampling: Sampling) -> set[int]:
    return set(np.flatnonzero(LOGITS.astype(np.float64) >= cut_of(LOGITS.astype(np.float64), sampling, 0.0).exact))


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0), {0, 1, 2, 3, 4}),
        (Sampling(1.0, top_k=2), {1, 4}),
        (Sampling(1.0, top_k=99), {0, 1, 2, 3, 4}),
        (Sampling(1.0, top_p=0.39), {1}),
        (Sampling(1.0, top_p=0.5), {1, 4}),
        (Sampling(1.0, top_p=0.71), {1, 3, 4}),
        (Sampling(1.0, top_p=1e-6), {1}),
        (Sampling(1.0, min_p=0.5), {1, 4}),
        (Sampling(1.0, min_p=1.0), {1}),
        # top_k first: of the two left, the best has 4/7 of the mass.
        (Sampling(1.0, top_k=2, top_p=0.55), {1}),
    ],
)
def test_filters_keep(sampling: Sampling, expected: set[int]) -> None:
    assert kept(sampling) == expected


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.5),
        Sampling(1.0),
        Sampling(2.0),
        Sampling(1.0, top_k=3),
        Sampling(1.5, top_p=0.75),
        Sampling(1.0, top_k=4, top_p=0.9, min_p=0.3),
    ],
)
@pytest.mark.parametrize("by", ["seed", "choice", "position"])
def test_draws_follow_the_tempered_and_filtered_distribution(sampling: Sampling, by: str) -> None:
    count = 3000
    places = {"seed": (1, 0, 0), "choice": (0, 1, 0), "position": (0, 0, 1)}[by]
    draws = [choose(LOGITS, sampling, *(n * step for step in places), 0.0).token for n in range(count)]
    weights = np.array(PROBABILITIES) ** (1 / sampling.temperature)
    weights[[token for token in range(5) if token not in _kept_at(sampling)]] = 0
    seen, expected = np.bincount(draws, minlength=5), count * weights / weights.sum()
    assert seen[expected == 0].sum() == 0
    # 99.9 % quantile of chi-square with 4 degrees of freedom; the seeds are fixed, so this is no gamble.
    assert ((seen - expected) ** 2 / np.where(expected == 0, 1, expected)).sum() < 18.47


def _kept_at(sampling: Sampling) -> set[int]:
    scaled = LOGITS.astype(np.float64) / sampling.temperature
    return set(np.flatnonzero(scaled >= cut_of(scaled, sampling, 0.0).exact).tolist())


def test_noise_is_a_function_of_seed_choice_position_and_token() -> None:
    np.testing.assert_array_equal(gumbel_noise(1, 2, 3, np.arange(50)), gumbel_noise(1, 2, 3, np.arange(50)))
    # A token's noise is the same in a larger vocabulary: padded heads choose alike.
    np.testing.assert_array_equal(gumbel_noise(1, 2, 3, np.arange(50)), gumbel_noise(1, 2, 3, np.arange(80))[:50])


def test_noise_of_neighbours_is_unrelated() -> None:
    keys = list(itertools.product((-1, 0, 1, 11), (0, 1, 11), (*range(12), 111)))
    noise = np.array([gumbel_noise(*key, np.arange(400)) for key in keys])
    assert len(np.unique(noise)) == noise.size
    related = np.corrcoef(noise)[np.triu_indices(len(keys), 1)]
    # Of 400 unrelated pairs a correlation has a deviation of 1/20; the seeds are fixed.
    assert np.abs(related).max() < 5 / math.sqrt(400)
    assert math.isclose(noise.mean(), np.euler_gamma, abs_tol=0.02)


def test_draws_do_not_touch_a_global_random_state() -> None:
    np.random.seed(3)
    expected = np.random.random(4).tolist()
    np.random.seed(3)
    choice_of(LOGITS.tolist(), Sampling(1.0), 0.0)
    assert np.random.random(4).tolist() == expected


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, top_k=2, top_p=0.5)])
@pytest.mark.parametrize(
    "logits", [[0.0, math.nan, 1.0], [math.nan, -math.inf, 0.0], [0.0, math.inf, 1.0], [-math.inf, -math.inf]]
)
def test_logits_that_are_not_finite_are_an_error(sampling: Sampling, logits: list[float]) -> None:
    with pytest.raises(FloatingPointError, match="not finite"):
        choice_of(logits, sampling, 1e-3)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0), Sampling(1.0, top_k=1, top_p=0.5, min_p=0.5)])
def test_one_token_alone_is_settled(sampling: Sampling) -> None:
    assert choice_of([3.0], sampling, 5.0) == Choice(0, True)
    assert choice_of([-math.inf, 3.0, -math.inf], sampling, 5.0) == Choice(1, True)


def test_logits_stay_as_they_are() -> None:
    logits: Logits = np.array([1.0, 3.0, -np.inf, 2.0], np.float32)
    before = logits.copy()
    choose(logits, Sampling(0.7, top_k=2, top_p=0.9, min_p=0.1), 1, 2, 3, 0.1)
    np.testing.assert_array_equal(logits, before)
