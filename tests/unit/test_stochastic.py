"""The stochastic rule keeps the distribution: chi-square tests with fixed seeds, at a bound of one in a thousand."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.fixtures.drafting import make_machine, random_llama, run_rows, with_noise
from workers.engines.batching.choosing import Floats, choose
from workers.engines.batching.drafter import FullModelDrafter
from workers.engines.batching.rows import Row
from workers.engines.batching.seams import Draws, Logits
from workers.engines.batching.stochastic import Drawn, distribution, keep_or_draw
from workers.engines.requests import Sampling

#: Tokens of the small models.
FEW = 6

#: Normal deviate of a chance of one in a thousand.
ONE_IN_A_THOUSAND = 3.0902

SAMPLING = Sampling(temperature=1.3, top_p=0.97)


def is_likely(seen: Mapping[Any, int], chances: Mapping[Any, float]) -> bool:
    """Pearson's chi-square at 0.001, by Wilson and Hilferty's approximation; rare cells are put together."""
    total = sum(seen.values())
    cells, rare = [], [0.0, 0.0]
    assert not seen.keys() - {key for key, chance in chances.items() if chance > 0}
    for key, chance in chances.items():
        cell = [float(seen.get(key, 0)), total * chance]
        if cell[1] < 8:
            rare = [rare[0] + cell[0], rare[1] + cell[1]]
        else:
            cells.append(cell)
    cells += [rare] if rare[1] > 1 else []
    statistic = sum((got - expected) ** 2 / expected for got, expected in cells)
    freedom = len(cells) - 1
    bound = freedom * (1 - 2 / (9 * freedom) + ONE_IN_A_THOUSAND * (2 / (9 * freedom)) ** 0.5) ** 3
    return bool(statistic < bound)


def logits_of(seed: int, size: int = 12) -> Logits:
    return np.random.default_rng(seed).normal(0, 1.5, size).astype(np.float32)


def draw(logits: Logits, draws: Draws) -> int:
    return choose(logits, draws.sampling, draws.seed, draws.choice, draws.position, 0.0).token


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=1.0), Sampling(temperature=0.7, top_k=5), Sampling(temperature=1.5, top_p=0.8, min_p=0.02)],
    ids=["plain", "top_k", "top_p"],
)
def test_one_token_keeps_its_distribution(sampling: Sampling) -> None:
    target, drafter = logits_of(1), logits_of(2)
    seen, kept = Counter[int](), 0
    for seed in range(5000):
        draws = Draws(sampling, seed, 0, 3)
        guess = Drawn([draw(drafter, draws)], [distribution(drafter, draws)])
        token = keep_or_draw(target, draws, guess, 0)
        seen[token] += 1
        kept += token == guess[0]

    own, theirs = (distribution(logits, Draws(sampling, 0, 0, 0)) for logits in (target, drafter))
    assert is_likely(seen, dict(enumerate(own)))
    assert abs(kept / 5000 - np.minimum(own, theirs).sum()) < 0.03


def test_the_test_finds_a_wrong_rule() -> None:
    """What is drawn after a refusal must come from the difference, not from the whole."""
    target, drafter = logits_of(1), logits_of(2)
    own, theirs = (distribution(logits, Draws(Sampling(1.0), 0, 0, 0)) for logits in (target, drafter))
    random = np.random.default_rng(0)
    seen = Counter[int]()
    for _ in range(5000):
        guess = int(random.choice(len(theirs), p=theirs))
        is_kept = random.random() * theirs[guess] < own[guess]
        seen[guess if is_kept else int(random.choice(len(own), p=own))] += 1

    assert not is_likely(seen, dict(enumerate(own)))


def test_equal_distributions_keep_every_guess() -> None:
    logits = logits_of(4)
    for seed in range(200):
        draws = Draws(SAMPLING, seed, 0, 0)
        guess = Drawn([draw(logits, draws)], [distribution(logits, draws)])
        assert keep_or_draw(logits, draws, guess, 0) == guess[0]


def test_a_drafter_with_fewer_tokens_leaves_the_others_possible() -> None:
    target, drafter = logits_of(1, 8), logits_of(2, 6)
    seen = Counter[int]()
    for seed in range(3000):
        draws = Draws(Sampling(temperature=1.2), seed, 0, 0)
        guess = Drawn([draw(drafter, draws)], [distribution(drafter, draws)])
        seen[keep_or_draw(target, draws, guess, 0)] += 1

    assert is_likely(seen, dict(enumerate(distribution(target, draws))))


def test_what_excludes_everything_is_an_error() -> None:
    with pytest.raises(FloatingPointError):
        distribution(np.full(4, -np.inf, np.float32), Draws(SAMPLING, 0, 0, 0))
    with pytest.raises(FloatingPointError):
        distribution(np.array([1.0, np.nan], np.float32), Draws(SAMPLING, 0, 0, 0))


def test_slices_keep_their_distributions() -> None:
    chances: list[Floats] = [np.eye(3)[place] for place in range(3)]
    guess = Drawn([0, 1, 2], chances)[:2]

    assert list(guess) == [0, 1]
    assert isinstance(guess, Drawn)
    assert len(guess.chances) == 2


# --- through the scheduler ---


def triples(model: Any, prompt: list[int], sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Chances of each three tokens, from the model's own logits."""
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        texts = list(chances)
        logits = np.array(model(mx.array([[*prompt, *text] for text in texts]))[:, -1])
        shares = [distribution(row, Draws(sampling, 0, 0, 0)) for row in logits]
        chances = {
            (*text, token): chances[text] * share[token]
            for (text, share), token in itertools.product(zip(texts, shares, strict=True), range(FEW))
        }
    return chances


def rows_of(prompt: list[int], count: int, sampling: Sampling = SAMPLING) -> list[Row]:
    return [
        Row(item=seed, choice=0, prompt=list(prompt), max_tokens=3 + seed % 4, sampling=sampling, seed=seed)
        for seed in range(count)
    ]


def test_answers_keep_their_distribution() -> None:
    target = random_llama(3, vocabulary=FEW, spread=0.5)
    drafter = with_noise(random_llama(3, vocabulary=FEW), target, 1, 0.25)
    proposer = FullModelDrafter(drafter, vocabulary=FEW, most_tokens=3, acceptance="stochastic")
    rows = rows_of([1, 4, 2, 5], 1600)

    result = run_rows(make_machine(target, ends=()), rows, 48, proposer, 3)

    assert 0.3 < result.counts["draft_accepted"] / result.counts["draft_positions_tested"] < 0.95
    assert is_likely(Counter(tuple(row.tokens[:3]) for row in rows), triples(target, [1, 4, 2, 5], SAMPLING))


def test_it_keeps_more_than_equal_draws_do_and_the_same_rounds_give_the_same_answers() -> None:
    target = random_llama(3, vocabulary=FEW, spread=0.5)
    drafter = with_noise(random_llama(3, vocabulary=FEW), target, 1, 0.25)
    results = []
    for acceptance in ("stochastic", "stochastic", "sampler_match"):
        proposer = FullModelDrafter(drafter, vocabulary=FEW, most_tokens=3, acceptance=acceptance)
        results.append(run_rows(make_machine(target, ends=()), rows_of([1, 4, 2, 5], 120), 20, proposer, 3))

    one, again, match = results
    assert one.tokens == again.tokens
    assert one.tokens != match.tokens
    kept = [result.counts["draft_accepted"] / result.counts["draft_positions_tested"] for result in (one, match)]
    assert kept[0] > kept[1]


def test_greedy_rows_of_such_a_job_are_those_of_plain_decoding() -> None:
    target = random_llama(3, vocabulary=FEW, spread=0.5)
    drafter = with_noise(random_llama(3, vocabulary=FEW), target, 1, 0.25)
    proposer = FullModelDrafter(drafter, vocabulary=FEW, most_tokens=3, acceptance="stochastic")
    machine = make_machine(target, ends=())

    drafted = run_rows(machine, rows_of([1, 4, 2], 6, Sampling()), 6, proposer, 3)
    assert drafted.tokens == run_rows(machine, rows_of([1, 4, 2], 6, Sampling()), 1).tokens
    assert drafted.counts["draft_proposed"] > 0
