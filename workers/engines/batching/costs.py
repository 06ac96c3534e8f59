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

#: Steps after which a cost should be measured again (other rows, a warmer machine), and becomes more doubtful.
_STALE = 256

#: The same for plain steps, which all ratios rest on: a wrong one makes everything else look cheap.
_PLAIN_STALE = 96

#: Share of a ratio's excess over 1 that may be wrong, by what it rests on.
_DOUBT_STALE, _DOUBT_FEW, _DOUBT_BETWEEN, _DOUBT_NEIGHBOUR, _DOUBT_PRIOR = 0.2, 0.4, 0.3, 0.4, 0.6


#: Width and size of the context, both rounded; and measured ratios by columns.
Cell = tuple[int, int]
Curve = dict[int, float]


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
        if self.samples and step - self.last_step > _STALE:
            self.samples = deque([self.typical], maxlen=_SAMPLES)
        self.samples.append(seconds)
        self.typical = sorted(self.samples)[(len(self.samples) - 1) // 2]
        self.last_step = step

    def doubt(self, step: int) -> float:
        few = _DOUBT_FEW / len(self.samples) if len(self.samples) < _ENOUGH else 0.0
        old = _DOUBT_STALE * max(0, (step - self.last_step) // _STALE)
        return max(few, min(_DOUBT_PRIOR, old))


class StepCosts:
    """Costs by width (rows), columns (tokens per row) and context (tokens in the cache of the longest row)."""

    def __init__(self) -> None:
        self._cells: dict[Cell, dict[int, _Shape]] = {}
        self._curves: dict[Cell, Curve] = {}

    def add(self, step: int, *, width: int, columns: int, context: int, seconds: float) -> None:
        key = _cell(width, context)
        self._cells.setdefault(key, {}).setdefault(columns, _Shape()).add(step, seconds)
        for cell in [cell for cell in self._curves if cell[0] == key[0]]:
            del self._curves[cell]

    def plain_seconds(self, width: int, context: int) -> float | None:
        """Seconds of a plain step of so many rows, at the likest context; None before one was measured."""
        return self._plain_seconds(_cell(width, context))

    def is_plain_known(self, step: int, width: int, context: int) -> bool:
        """A plain step of so many rows was measured, and not too long ago."""
        rows, _ = _cell(width, context)
        last = [
            shapes[1].last_step for (cell_rows, _), shapes in self._cells.items() if cell_rows == rows and 1 in shapes
        ]
        return bool(last) and step - max(last) <= _PLAIN_STALE

    def estimate(self, step: int, *, width: int, columns: int, context: int) -> Estimate:
        """From measurements here; else from the likest width and context; else from a cautious guess."""
        if columns == 1:
            return Estimate(1.0, 0.0)
        here = _cell(width, context)
        shapes = self._cells.get(here, {})
        own = self._curve(here)
        if columns in own:
            return Estimate(own[columns], shapes[columns].doubt(step))
        neighbour, scale = self._nearest(here, own, columns)
        if neighbour is not None:
            ratio = _between(neighbour, columns, _prior_slope(width))
            return Estimate(1.0 + (ratio - 1.0) * scale, _DOUBT_NEIGHBOUR)
        if len(own) > 1:
            return Estimate(
                _between(own, columns, _prior_slope(width)), _DOUBT_BETWEEN if columns < max(own) else _DOUBT_PRIOR
            )
        return Estimate(1.0 + _prior_slope(width) * (columns - 1), _DOUBT_PRIOR)

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

    def _plain_seconds(self, cell: Cell) -> float | None:
        known = [other for other, shapes in self._cells.items() if other[0] == cell[0] and 1 in shapes]
        if not known:
            return None
        return self._cells[min(known, key=lambda other: (_distance(cell, other), other))][1].typical

    def _curve(self, cell: Cell) -> Curve:
        """Measured ratios by columns, 1 among them; empty without a plain step of so many rows."""
        if cell not in self._curves:
            plain = self._plain_seconds(cell)
            known = {c: shape.typical / plain for c, shape in self._cells.get(cell, {}).items()} if plain else {}
            self._curves[cell] = known | {1: 1.0} if plain else {}
        return self._curves[cell]

    def _nearest(self, here: Cell, own: Curve, columns: int) -> tuple[Curve | None, float]:
        """The likest cell that reaches so many columns, if it can tell more than ours; and how much steeper ours is."""
        if len(own) > 1 and max(own) > columns:
            return None, 1.0
        known = [cell for cell, shapes in self._cells.items() if max(shapes) >= columns and self._curve(cell)]
        if not known:
            return None, 1.0
        nearest = min(known, key=lambda cell: (_distance(here, cell), cell))
        curve = self._curve(nearest)
        if len(own) > 1:
            theirs = sum(_between(curve, c, _prior_slope(nearest[0])) - 1.0 for c in own)
            ours = sum(ratio - 1.0 for ratio in own.values())
            return curve, min(2.0, max(0.5, ours / theirs)) if theirs > 0 else 1.0
        return curve, max(1.0, sqrt(here[0] / nearest[0]))


def _cell(width: int, context: int) -> Cell:
    """Widths that differ by less than a quarter share a cell, and contexts up to each power of two from 128 on."""
    step = 1 << max(0, width.bit_length() - 3)
    return -(-width // step) * step, max(0, (context - 1).bit_length() - 7)


def _distance(one: Cell, other: Cell) -> float:
    return abs(log2(one[0] / other[0])) + 0.25 * abs(one[1] - other[1])


def _prior_slope(width: int) -> float:
    return min(1.0, PRIOR_SLOPE * sqrt(width))


def _between(curve: Curve, columns: int, slope: float) -> float:
    """Ratio on the straight line between measured columns; past the last one at least as steep as ``slope``."""
    points = sorted(curve.items())
    for (low, low_ratio), (high, high_ratio) in pairwise(points):
        if columns <= high:
            return low_ratio + (high_ratio - low_ratio) * max(0, columns - low) / (high - low)
    last, last_ratio = points[-1]
    steepness = max(slope, (last_ratio - 1.0) / (last - 1)) if last > 1 else slope
    return last_ratio + (columns - last) * steepness
