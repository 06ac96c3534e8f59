"""What a step costs by its shape, learned from steps that were measured. Has no clock and knows no model.

A step's cost is told as a ratio to a plain step of the same rows, because the ratio carries from one width to the next
better than seconds do.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from math import log2, sqrt
from typing import NamedTuple

#: What each further column is assumed to add to one row's plain step before any was measured; more rows, more cost.
PRIOR_SLOPE = 0.2

#: Newest measurements that a cost rests on. The first of a shape may hold a warm-up; a median of few forgets it.
_SAMPLES = 5

#: From so many measurements on a cost is known.
_ENOUGH = 3

#: Steps after which a cost should be measured again: other rows, a warmer machine.
_STALE = 256

#: Share of a ratio's excess over 1 that may be wrong, by what it rests on.
_DOUBT_STALE, _DOUBT_FEW, _DOUBT_BETWEEN, _DOUBT_NEIGHBOUR, _DOUBT_PRIOR = 0.2, 0.4, 0.3, 0.4, 0.6


class Estimate(NamedTuple):
    """Cost in plain steps of the same rows, and the share of its excess over 1 that may be wrong."""

    ratio: float
    doubt: float

    @property
    def hoped(self) -> float:
        """The ratio if all doubt is resolved in its favour."""
        return 1.0 + (self.ratio - 1.0) * (1.0 - self.doubt)


class _Shape:
    """The newest measurements of one shape, in seconds."""

    __slots__ = ("last_step", "samples", "typical")

    def __init__(self) -> None:
        self.samples: deque[float] = deque(maxlen=_SAMPLES)
        self.typical = 0.0
        self.last_step = 0

    def add(self, step: int, seconds: float) -> None:
        self.samples.append(seconds)
        self.typical = sorted(self.samples)[(len(self.samples) - 1) // 2]
        self.last_step = step

    def doubt(self, step: int) -> float:
        if len(self.samples) < _ENOUGH:
            return _DOUBT_FEW / len(self.samples)
        return _DOUBT_STALE if step - self.last_step > _STALE else 0.0


class StepCosts:
    """Costs by width (rows), columns (tokens per row) and context (tokens in the cache of the longest row)."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], dict[int, _Shape]] = {}

    def add(self, step: int, *, width: int, columns: int, context: int, seconds: float) -> None:
        cell = self._cells.setdefault(_cell(width, context), {})
        cell.setdefault(columns, _Shape()).add(step, seconds)

    def plain_seconds(self, width: int, context: int) -> float | None:
        """Seconds of a plain step here, or None before one was measured."""
        plain = self._cells.get(_cell(width, context), {}).get(1)
        return plain.typical if plain else None

    def is_plain_known(self, step: int, width: int, context: int) -> bool:
        """A plain step was measured here, and not too long ago."""
        plain = self._cells.get(_cell(width, context), {}).get(1)
        return plain is not None and step - plain.last_step <= _STALE

    def estimate(self, step: int, *, width: int, columns: int, context: int) -> Estimate:
        """From measurements here; else from the likest width and context; else from a cautious guess."""
        if columns == 1:
            return Estimate(1.0, 0.0)
        here = _cell(width, context)
        shapes = self._cells.get(here, {})
        if len(shapes) > 1 and 1 in shapes:
            if columns in shapes:
                return Estimate(shapes[columns].typical / shapes[1].typical, shapes[columns].doubt(step))
            return Estimate(_between(shapes, columns, _prior_slope(width)), _DOUBT_BETWEEN)
        neighbour = self._nearest(here)
        if neighbour is None:
            return Estimate(1.0 + _prior_slope(width) * (columns - 1), _DOUBT_PRIOR)
        wider = max(1.0, sqrt(here[0] / neighbour[0]))
        ratio = _between(self._cells[neighbour], columns, _prior_slope(neighbour[0]))
        return Estimate(1.0 + (ratio - 1.0) * wider, _DOUBT_NEIGHBOUR)

    def as_json(self) -> list[dict[str, object]]:
        """Measured costs: seconds of a plain step and ratios by columns, of each width and context."""
        return [
            {
                "width": width,
                "context": 128 << size,
                "plain_s": round(shapes[1].typical, 6),
                "ratios": {str(c): round(shapes[c].typical / shapes[1].typical, 3) for c in sorted(shapes) if c > 1},
            }
            for (width, size), shapes in sorted(self._cells.items())
            if 1 in shapes
        ]

    def _nearest(self, here: tuple[int, int]) -> tuple[int, int] | None:
        known = [cell for cell, shapes in self._cells.items() if len(shapes) > 1 and 1 in shapes]
        return min(known, key=lambda cell: (_distance(here, cell), cell), default=None)


def _cell(width: int, context: int) -> tuple[int, int]:
    """Widths that differ by less than a quarter share a cell, and contexts up to each power of two from 128 on."""
    step = 1 << max(0, width.bit_length() - 3)
    return -(-width // step) * step, max(0, (context - 1).bit_length() - 7)


def _distance(one: tuple[int, int], other: tuple[int, int]) -> float:
    return abs(log2(one[0] / other[0])) + 0.25 * abs(one[1] - other[1])


def _prior_slope(width: int) -> float:
    return min(1.0, PRIOR_SLOPE * sqrt(width))


def _between(shapes: dict[int, _Shape], columns: int, slope: float) -> float:
    """Ratio on the straight line between measured columns; past the last one at least as steep as ``slope``."""
    plain = shapes[1].typical
    points = [(known, shapes[known].typical / plain) for known in sorted(shapes)]
    for (low, low_ratio), (high, high_ratio) in pairwise(points):
        if columns <= high:
            return low_ratio + (high_ratio - low_ratio) * (columns - low) / (high - low)
    last, last_ratio = points[-1]
    return last_ratio + (columns - last) * max(slope, (last_ratio - 1.0) / (last - 1))
