"""Choosing the next token of one row, and whether rounding could have chosen another.

A choice is a function of logits, seed, choice and position (law 6). The draw is the best of tempered logits plus Gumbel
noise, which is keyed by (seed, choice, position) and the token, so neighbours and order play no part. Two forwards of
the same tokens in another shape differ by rounding; a choice is *settled* when no logits within ``bound`` of these, each
of any two apart, would give another token. What is not settled is decided canonically (:mod:`.canonical`).
"""

from __future__ import annotations

from bisect import bisect_left
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workers.engines.batching.seams import Logits
from workers.engines.requests import Sampling

Floats = npt.NDArray[np.float64]

#: Further apart than any two logits; a bound over a small temperature is no larger.
_FAR = 1e300

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

#: Sums of shares are rounded too, by far less than this.
_SLACK = 1e-9


class Choice(NamedTuple):
    """``settled``: no rounding within the bound gives another token."""

    token: int
    settled: bool


class Cut(NamedTuple):
    """Tokens whose tempered logit is at least ``exact`` are kept.

    Under any rounding within the bound, those from ``sure`` on stay and those below ``possible`` do not.
    """

    exact: float
    sure: float
    possible: float


_ALL = Cut(-np.inf, -np.inf, -np.inf)


def choose(logits: Logits, sampling: Sampling, seed: int, choice: int, position: int, bound: float) -> Choice:
    """The next token.

    Args:
        logits: (V,) float32 after the row's rule; -inf excludes a token.
        position: how many tokens the answer has.
        bound: how far two logits may move against each other, in the unit of ``logits``.

    Raises:
        FloatingPointError: NaN, or no token left.
    """
    best = int(np.argmax(logits))
    if not np.isfinite(logits[best]) or np.isnan(logits).any():
        raise FloatingPointError("the model's logits are not finite")
    if sampling.is_greedy:
        return Choice(best, bool(logits[best] - second_best(logits, best) > bound))
    with np.errstate(over="ignore"):  # next to a temperature of almost nothing, others are infinitely far away
        scaled = (logits.astype(np.float64) - float(logits[best])) / sampling.temperature
        bound = min(bound / sampling.temperature, _FAR)
    cut = cut_of(scaled, sampling, bound)
    tokens = np.flatnonzero(scaled >= cut.possible)
    drawn = scaled[tokens] + gumbel_noise(seed, choice, position, tokens)
    kept = np.where(scaled[tokens] >= cut.exact, drawn, -np.inf)
    winner = int(np.argmax(kept))
    token = int(tokens[winner])
    is_sure = scaled[token] >= cut.sure or (token == best and scaled[best] - second_best(scaled, best) > bound)
    return Choice(token, bool(is_sure and drawn[winner] - second_best(drawn, winner) > bound))


def gumbel_noise(seed: int, choice: int, position: int, tokens: npt.NDArray[np.int64]) -> Floats:
    """Standard Gumbel noise of each of ``tokens``; neighbouring seeds, positions and tokens give unrelated noise.

    Counter-based: a token's noise costs nothing for the others. The mixing is SplitMix64's (Steele, Lea and Flood, "Fast
    Splittable Pseudorandom Number Generators", 2014), done twice with half of the key each.
    """
    digest = blake2b(f"{seed}:{choice}:{position}".encode(), digest_size=16).digest()
    first, second = np.frombuffer(digest, dtype="<u8")
    mixed = _mix(_mix(tokens.astype(np.uint64) * _GOLDEN + first) ^ second)
    uniform = ((mixed >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: Floats = -np.log(-np.log(uniform))
    return noise


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def cut_of(scaled: Floats, sampling: Sampling, bound: float) -> Cut:
    """What top_k, top_p and min_p keep, in that order; the best token always stays, and equals stay together.

    Args:
        scaled: (V,) logits over the temperature.
        bound: in the unit of ``scaled``.
    """
    cuts = []
    if sampling.min_p > 0.0:
        best = float(scaled.max())
        floor = best + min(0.0, float(np.log(sampling.min_p)))
        cuts.append(Cut(floor, floor + bound, floor - bound))
    if 0 < sampling.top_k < len(scaled) or sampling.top_p < 1.0:
        ranked = np.sort(scaled)[::-1]
        count = sampling.top_k if 0 < sampling.top_k < len(scaled) else len(scaled)
        inner = Cut(-np.inf, -np.inf, -np.inf)
        if count < len(scaled):
            inner = Cut(ranked[count - 1], ranked[count] + bound, ranked[count - 1] - bound)
        cuts.append(inner)
        if sampling.top_p < 1.0:
            cuts.append(_nucleus(ranked, count, inner, sampling.top_p, bound))
    return Cut(*(max(parts, default=-np.inf) for parts in zip(*cuts, strict=True))) if cuts else _ALL


def _nucleus(ranked: Floats, count: int, inner: Cut, share: float, bound: float) -> Cut:
    """Of the first ``count`` of ``ranked``, and of those equal to the last, what top_p keeps.

    A token stays while what is better than it holds less than ``share``. Rounding can move the odds of any set of
    tokens against the rest by a factor of exp(bound) at most, and put what is within the bound of a token before it.
    """
    weights = np.exp(ranked - ranked[0])
    sums, falling = np.cumsum(weights), -ranked

    def mass(lowest: float) -> float:
        """What those that are at least ``lowest`` hold."""
        return float(sums[np.searchsorted(falling, -lowest, side="right") - 1])

    shrunk = float(np.exp(-bound))
    least = share * shrunk / (share * shrunk + 1 - share) * sums[count - 1] * (1 - _SLACK)
    most = share / (share + (1 - share) * shrunk) * mass(inner.possible) * (1 + _SLACK)

    def is_open(rank: int) -> bool:
        return bool(mass(ranked[rank] - bound) - weights[rank] >= least)

    end = int(np.searchsorted(sums, share * mass(inner.exact), side="left"))
    last_possible = int(np.searchsorted(sums, most, side="left"))
    first_open = bisect_left(range(len(ranked)), True, key=is_open)
    return Cut(
        exact=ranked[min(end, len(ranked) - 1)],
        sure=ranked[first_open - 1] if first_open else np.inf,
        possible=ranked[last_possible] - bound if last_possible < len(ranked) else -np.inf,
    )


def second_best(values: npt.NDArray[np.floating], best: int) -> float:
    """The largest of the others; -inf where there is none."""
    rest = [part.max() for part in (values[:best], values[best + 1 :]) if len(part)]
    return float(max(rest, default=-np.inf))
