"""Choosing the next token of one row, from nothing but its logits, its seed and its position (law 6)."""

from __future__ import annotations

from hashlib import blake2b

import mlx.core as mx

from workers.engines.requests import Sampling


def sample_greedy(logprobs: mx.array) -> mx.array:
    """The best token of each row: (B, V) -> (B,)."""
    return mx.argmax(logprobs, axis=-1)


class RowSampler:
    """Draws the tokens of one row, in order.

    The draw is the best of logits plus Gumbel noise, and the noise is a function of (seed, choice, position) alone: a
    row gives the same tokens by itself, in any batch and after a resume. Filters apply in the order of transformers:
    temperature, top_k, top_p, min_p.
    """

    def __init__(self, sampling: Sampling, seed: int, choice: int = 0) -> None:
        self._sampling = sampling
        self._seed = seed
        self._choice = choice
        self._position = 0

    def __call__(self, logprobs: mx.array) -> mx.array:
        """(1, V) -> (1,). Called once per position: the batch asks for each row's token exactly once a step."""
        logits = filter_logits(logprobs.astype(mx.float32) / self._sampling.temperature, self._sampling)
        key = noise_key(self._seed, self._choice, self._position)
        self._position += 1
        return mx.argmax(logits + mx.random.gumbel(logits.shape, key=key), axis=-1)


def noise_key(seed: int, choice: int, position: int) -> mx.array:
    """The key of one draw; neighbouring seeds and positions give unrelated noise."""
    digest = blake2b(f"{seed}:{choice}:{position}".encode(), digest_size=8).digest()
    return mx.random.key(int.from_bytes(digest, "big"))


def filter_logits(logits: mx.array, sampling: Sampling) -> mx.array:
    """Set what the filters exclude to minus infinity; the best token always stays.

    Args:
        logits: (1, V) float32, already divided by the temperature.
    """
    vocabulary = logits.shape[-1]
    if 0 < sampling.top_k < vocabulary:
        cut = mx.sort(logits, axis=-1)[..., vocabulary - sampling.top_k, None]
        logits = mx.where(logits < cut, -mx.inf, logits)
    if sampling.top_p < 1.0:
        order = mx.argsort(-logits, axis=-1)
        ranked = mx.softmax(mx.take_along_axis(logits, order, axis=-1), axis=-1)
        # A token stays while the mass before it is below top_p, so the first always does.
        stays = (mx.cumsum(ranked, axis=-1) - ranked) < sampling.top_p
        kept = mx.put_along_axis(mx.zeros_like(stays), order, stays, axis=-1)
        logits = mx.where(kept, logits, -mx.inf)
    if sampling.min_p > 0.0:
        floor = mx.max(logits, axis=-1, keepdims=True) + mx.log(mx.array(sampling.min_p))
        logits = mx.where(logits < floor, -mx.inf, logits)
    return logits
