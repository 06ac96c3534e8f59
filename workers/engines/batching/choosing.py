"""Choosing the next token of one row, and whether rounding could have chosen another.

A choice is a function of logits, seed, choice and position (law 6). The draw is the best of tempered logits plus Gumbel
noise, which is keyed by (seed, choice, position) and the token, so neighbours and order play no part. Two forwards of
the same tokens in another shape differ by rounding; a choice is *settled* when no logits within ``bound`` of these, each
of any two apart, would give another token. What is not settled is decided canonically (:mod:`.canonical`).
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from workers.engines.batching.seams import Logits
from workers.engines.requests import Sampling

Floats = npt.NDArray[np.float64]


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
        return Choice(best, bool(logits[best] - _second(logits, best) > bound))
    scaled = logits.astype(np.float64) / sampling.temperature
    bound = bound / sampling.temperature
    cut = cut_of(scaled, sampling, bound)
    tokens = np.flatnonzero(scaled >= cut.possible)
    drawn = scaled[tokens] + gumbel_noise(seed, choice, position, len(logits))[tokens]
    kept = np.where(scaled[tokens] >= cut.exact, drawn, -np.inf)
    winner = int(np.argmax(kept))
    token = int(tokens[winner])
    is_sure = scaled[token] >= cut.sure or (token == best and scaled[best] - _second(scaled, best) > bound)
    return Choice(token, bool(is_sure and drawn[winner] - _second(drawn, winner) > bound))


def gumbel_noise(seed: int, choice: int, position: int, size: int) -> Floats:
    """(size,) standard Gumbel noise; neighbouring seeds and positions give unrelated noise."""
    digest = blake2b(f"{seed}:{choice}:{position}".encode(), digest_size=16).digest()
    uniform = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "big"))).random(size)
    noise: Floats = -np.log(-np.log(np.maximum(uniform, np.finfo(np.float64).tiny)))
    return noise


def cut_of(scaled: Floats, sampling: Sampling, bound: float) -> Cut:
    """What top_k, top_p and min_p keep, in that order; the best token always stays, and equals stay together.

    Args:
        scaled: (V,) logits over the temperature.
        bound: in the unit of ``scaled``.
    """
    exact = sure = possible = -np.inf
    if sampling.top_k == 0 and sampling.top_p >= 1.0:
        return _floor(Cut(exact, sure, possible), float(scaled.max()), sampling, bound)
    ranked = np.sort(scaled)[::-1]
    loose = bound  # how far the mass before a token may be off, as a share
    if 0 < sampling.top_k < len(ranked):
        last, next_ = ranked[sampling.top_k - 1], ranked[sampling.top_k]
        exact, sure, possible = last, next_ + bound, last - bound
        weights = np.exp(ranked - ranked[0])
        # Tokens of which rounding decides whether they are among the k change what the others' shares are of.
        open_ = weights[(ranked < sure) & (ranked >= possible)].sum() if last - next_ <= bound else 0.0
        ranked = ranked[ranked >= exact]
        loose += float(open_ / weights[: len(ranked)].sum())
    if sampling.top_p < 1.0:
        shares = np.exp(ranked - ranked[0])
        mass = np.cumsum(shares) / shares.sum()
        exact = max(exact, ranked[_nucleus_end(mass, sampling.top_p)])
        sure = max(sure, _apart(ranked, _nucleus_end(mass, sampling.top_p / (1 + loose)), bound))
        widest = sampling.top_p / max(1e-9, 1 - loose)
        possible = max(possible, ranked[_nucleus_end(mass, widest)] - bound) if widest < 1 else possible
    return _floor(Cut(exact, sure, possible), float(ranked[0]), sampling, bound)


def _nucleus_end(mass: Floats, share: float) -> int:
    """Rank of the last token whose predecessors hold less than ``share``; the first always does."""
    return min(int(np.searchsorted(mass, share, side="left")), len(mass) - 1)


def _apart(ranked: Floats, rank: int, bound: float) -> float:
    """The lowest logit down to ``rank`` that none below can overtake; infinite where each may be overtaken."""
    for place in range(rank, -1, -1):
        if place + 1 == len(ranked) or ranked[place] - ranked[place + 1] > bound:
            return float(ranked[place])
    return np.inf


def _floor(cut: Cut, best: float, sampling: Sampling, bound: float) -> Cut:
    if sampling.min_p == 0.0:
        return cut
    floor = best + float(np.log(sampling.min_p))
    return Cut(
        max(cut.exact, min(floor, best)), max(cut.sure, floor + bound), max(cut.possible, min(floor, best) - bound)
    )


def _second(values: npt.NDArray[np.floating], best: int) -> float:
    """The largest of the others; -inf where there is none."""
    rest = [part.max() for part in (values[:best], values[best + 1 :]) if len(part)]
    return float(max(rest, default=-np.inf))
