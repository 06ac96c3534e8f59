"""The canonical pass: logits that are a function of the tokens and the numeric platform alone.

Rounding depends on the shape of a forward: its rows, its columns, how long the keys are. The pass always reads one row
from its first token, in chunks of a fixed number of columns, the last one padded. So the logits behind a prefix never
depend on what stands beside or behind it, nor on how the prefix was decoded. They decide where a decoding forward's own
logits are too close to call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from workers.engines.batching.lanes import CannotBatch, Lanes, SingleLane
from workers.engines.batching.seams import Logits

#: Columns of every forward of a canonical pass.
CHUNK_TOKENS = 64

#: What a rounding error is at least thought to be, in logits, by the type that is computed in.
LEAST_DEVIATION = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.5e-2}

#: How often the largest deviation seen fits into the bound: two logits may move in opposite directions, and what was
#: seen is not the worst there is.
SAFETY = 4.0


class CanonicalPass:
    """Reads rows in the one shape that decides."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def last(self, tokens: Sequence[int]) -> Logits:
        """(V,) float32 logits behind the last of ``tokens``."""
        for _, logits in self.walk(tokens, len(tokens) - 1):
            return logits
        raise ValueError("no tokens")

    def walk(self, tokens: Sequence[int], start: int) -> Iterator[tuple[int, Logits]]:
        """For each place from ``start`` on, the logits behind it; one forward a chunk."""
        lanes = one_row(self._model)
        for first in range(0, len(tokens), CHUNK_TOKENS):
            chunk = tokens[first : first + CHUNK_TOKENS]
            logits = self._forward(lanes, chunk)
            if first + CHUNK_TOKENS <= start:
                mx.eval(lanes.arrays)
                continue
            wanted = range(max(start, first), first + len(chunk))
            block = np.array(logits[0, wanted.start - first : wanted.stop - first].astype(mx.float32))
            yield from zip(wanted, block, strict=True)

    def read(self, tokens: Sequence[int], lanes: Lanes | None = None) -> Lanes:
        """The only row of lanes, brought to the end of ``tokens``; it stands at a whole number of chunks before."""
        lanes = lanes or one_row(self._model)
        for first in range(lanes.lengths[0], len(tokens), CHUNK_TOKENS):
            self._forward(lanes, tokens[first : first + CHUNK_TOKENS])
            mx.eval(lanes.arrays)
        return lanes

    @staticmethod
    def _forward(lanes: Any, chunk: Sequence[int]) -> mx.array:
        logits: mx.array = lanes.forward([[*chunk, *([0] * (CHUNK_TOKENS - len(chunk)))]])
        lanes.advance([len(chunk)])
        return logits


def one_row(model: Any) -> Any:
    """An empty row that keeps all its places, in lanes where the model has them."""
    try:
        lanes: Lanes | SingleLane = Lanes(model)
    except CannotBatch:
        lanes = SingleLane(model)
    lanes.open(1)
    return lanes


def deviation(one: Logits, other: Logits) -> float:
    """Largest difference of two vectors of logits; a token that both exclude does not differ."""
    difference = np.zeros(np.shape(one))
    np.subtract(one, other, out=difference, where=np.asarray(one) != other)
    return float(np.abs(difference).max())


class Bounds:
    """How far decoding logits were seen from canonical ones, by length of context, and what is close because of it.

    A bucket is the bit length of the context. One that was never looked at is taken to be as far off as the largest
    below it, a half more for each doubling in between.
    """

    def __init__(self, dtype: str) -> None:
        self._least = LEAST_DEVIATION.get(dtype, LEAST_DEVIATION["bfloat16"])
        self._seen: dict[int, float] = {}

    def see(self, context: int, deviation: float) -> None:
        """A logit behind ``context`` tokens was so far from its canonical value; what is no number is no rounding."""
        bucket = context.bit_length()
        if math.isfinite(deviation):
            self._seen[bucket] = max(self._seen.get(bucket, 0.0), deviation)

    def deviation(self, context: int) -> float:
        """Largest deviation to be expected behind ``context`` tokens."""
        bucket = context.bit_length()
        grown = (value * 1.5 ** max(0, bucket - seen) for seen, value in self._seen.items())
        return max(self._least, max(grown, default=0.0))

    def bound(self, context: int) -> float:
        """Two logits closer than this are decided canonically."""
        return SAFETY * self.deviation(context)

    @property
    def seen(self) -> dict[int, float]:
        """Largest deviation by bucket."""
        return dict(sorted(self._seen.items()))
