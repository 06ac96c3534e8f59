"""The stochastic rule: a guess that was drawn is kept with a chance, so that what is said is distributed as without it.

With p the row's own distribution and q the one that the guess x was drawn from, x is kept if u < p(x) / q(x), else the
token is drawn from what p has above q. Leviathan, Kalman and Matias, and Chen and others (both 2023) showed that this
gives p, and that no rule keeps more. Numbers are keyed by (seed, choice, position, purpose): the same rounds give the
same answer, but where rounds end depends on the batch, so a seed alone does not decide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import overload

import numpy as np

from workers.engines.batching.choosing import Floats, choose, cut_of
from workers.engines.batching.seams import Draws, Logits


class Drawn(Sequence[int]):
    """Guessed tokens and, for each, the (V,) distribution that it was drawn from."""

    __slots__ = ("chances", "tokens")

    def __init__(self, tokens: Sequence[int], chances: Sequence[Floats]) -> None:
        self.tokens = tuple(tokens)
        self.chances = tuple(chances)

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Drawn: ...

    def __getitem__(self, index: int | slice) -> int | Drawn:
        if isinstance(index, slice):
            return Drawn(self.tokens[index], self.chances[index])
        return self.tokens[index]


def distribution(logits: Logits, draws: Draws) -> Floats:
    """(V,) chances of the next token after temperature, top_k, top_p and min_p; they sum to 1.

    Raises:
        FloatingPointError: NaN, or no token left.
    """
    scaled = logits.astype(np.float64) / draws.sampling.temperature
    best = scaled.max()
    if not np.isfinite(best):
        raise FloatingPointError("the model's logits are not finite")
    weights = np.exp(scaled - best)
    weights[scaled < cut_of(scaled, draws.sampling, 0.0).exact] = 0.0
    chances: Floats = weights / weights.sum()
    return chances


def keep_or_draw(logits: Logits, draws: Draws, guess: Drawn, place: int) -> int:
    """The token behind ``place`` kept guesses; it equals the guess of that place if that is kept, too.

    Behind the last guess it is the ordinary draw.

    Args:
        logits: (V,) float32 after the row's rule.

    Raises:
        FloatingPointError: NaN, or no token left.
    """
    if place == len(guess):
        return choose(logits, draws.sampling, draws.seed, draws.choice, draws.position, 0.0).token
    own, theirs = distribution(logits, draws), _widened(guess.chances[place], len(logits))
    token = guess[place]
    if _uniform(draws, "keep") * theirs[token] < own[token]:
        return token
    rest = np.maximum(own - theirs, 0.0)
    # Nothing is above q only where p and q are the same but for rounding.
    return _draw(rest if rest.any() else own, _uniform(draws, "rest"))


def _draw(weights: Floats, uniform: float) -> int:
    sums = np.cumsum(weights)
    found = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
    return min(found, int(np.flatnonzero(weights)[-1]))


def _widened(chances: Floats, size: int) -> Floats:
    """A drafter may know fewer tokens than its target; it never draws the others."""
    return chances if len(chances) == size else np.pad(chances, (0, size - len(chances)))


def _uniform(draws: Draws, purpose: str) -> float:
    text = f"{draws.seed}:{draws.choice}:{draws.position}:{purpose}"
    key = int.from_bytes(blake2b(text.encode(), digest_size=16).digest(), "big")
    return float(np.random.Generator(np.random.Philox(key=key)).random())
