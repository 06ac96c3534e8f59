"""A row's tokens come from its logits, seed and position, and from nothing else."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

from workers.engines.requests import Sampling
from workers.engines.sampling import RowSampler, filter_logits, noise_key, sample_greedy

#: Probabilities of a vocabulary of five.
PROBABILITIES = [0.1, 0.4, 0.05, 0.15, 0.3]
LOGITS = mx.log(mx.array([PROBABILITIES]))


def kept(sampling: Sampling) -> set[int]:
    values = np.array(filter_logits(LOGITS, sampling))[0]
    return set(np.flatnonzero(np.isfinite(values)).tolist())


def draw(sampler: RowSampler, count: int) -> list[int]:
    return [int(sampler(LOGITS).item()) for _ in range(count)]


def test_greedy_takes_the_best() -> None:
    assert sample_greedy(mx.concatenate([LOGITS, LOGITS[:, ::-1]])).tolist() == [1, 3]


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0), {0, 1, 2, 3, 4}),
        (Sampling(1.0, top_k=2), {1, 4}),
        (Sampling(1.0, top_k=99), {0, 1, 2, 3, 4}),
        (Sampling(1.0, top_p=0.4), {1}),
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


def test_filters_leave_the_values_of_what_they_keep() -> None:
    filtered = np.array(filter_logits(LOGITS, Sampling(1.0, top_p=0.71, min_p=0.1)))[0]
    finite = np.isfinite(filtered)
    np.testing.assert_array_equal(filtered[finite], np.array(LOGITS)[0][finite])


def test_same_seed_gives_the_same_draws_and_another_seed_others() -> None:
    sampling = Sampling(1.0)
    first = draw(RowSampler(sampling, seed=1), 30)
    assert draw(RowSampler(sampling, seed=1), 30) == first
    assert draw(RowSampler(sampling, seed=2), 30) != first
    assert draw(RowSampler(sampling, seed=1, choice=1), 30) != first


def test_draw_depends_on_its_position_alone() -> None:
    sampler = RowSampler(Sampling(1.0), seed=5)
    whole = draw(sampler, 10)
    # Other logits at the first positions do not move the noise of the later ones.
    other = RowSampler(Sampling(1.0), seed=5)
    for _ in range(4):
        other(LOGITS[:, ::-1])
    assert draw(other, 6) == whole[4:]


def test_draws_do_not_touch_the_global_random_state() -> None:
    mx.random.seed(3)
    expected = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(3)
    draw(RowSampler(Sampling(1.0), seed=1), 5)
    assert mx.random.uniform(shape=(4,)).tolist() == expected


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_distribution(temperature: float) -> None:
    count = 3000
    seen = np.bincount(
        [int(RowSampler(Sampling(temperature), seed=seed)(LOGITS).item()) for seed in range(count)], minlength=5
    )
    weights = np.array(PROBABILITIES) ** (1 / temperature)
    expected = count * weights / weights.sum()
    # 99.9 % quantile of chi-square with 4 degrees of freedom; the seeds are fixed, so this is no gamble.
    assert ((seen - expected) ** 2 / expected).sum() < 18.47


def test_keys_of_neighbours_are_unrelated() -> None:
    keys = {
        tuple(noise_key(seed, choice, position).tolist())
        for seed in (-1, 0, 1)
        for choice in (0, 1)
        for position in range(50)
    }
    assert len(keys) == 300
    words = np.array(sorted(keys), dtype=np.uint64).ravel()
    ones = np.unpackbits(words.astype(">u4").view(np.uint8)).mean()
    assert math.isclose(ones, 0.5, abs_tol=0.02)
