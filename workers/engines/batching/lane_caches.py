"""One layer's cache of rows that stand at different places: what a model sees, and what the scheduler does with it.

Models see the same methods as on mlx-lm's caches: ``offset``, ``make_mask``, ``update_and_fetch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from workers.engines.batching.budget import SPARE_LANES, whole_steps

#: Keys and values of one layer: (1, heads, tokens, dimension) each.
Segment = tuple[mx.array, mx.array]


class Geometry:
    """Where each row stands, shared by the layers of one :class:`Lanes`."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.columns = 0
        self.offset: Any = 0
        self.places = mx.array(0)
        self._masks: dict[tuple[int | None, int | None], Any] = {}

    def begin(self, columns: int) -> None:
        """The next forward reads ``columns`` tokens of every row."""
        self.columns = columns
        self._masks = {}
        # A plain number where it serves: some families compute with it and cannot take one per row.
        is_level = len(set(self.lengths)) == 1
        starts = mx.array(self.lengths)
        self.offset = self.lengths[0] if is_level else starts
        self.places = starts[:, None] + mx.arange(columns)

    @property
    def end(self) -> int:
        """First place behind the longest row, after the forward."""
        return max(self.lengths) + self.columns

    def mask(self, window: int | None, ring: int | None, *, as_array: bool) -> Any:
        """True where a query may look, (rows, 1, columns, keys); None or "causal" where that says the same."""
        end = self.end
        wraps = ring is not None and end > ring
        is_level = len(set(self.lengths)) == 1
        if is_level and not wraps and not as_array and (window is None or end <= window):
            return None if self.columns == 1 else "causal"
        key = (window, ring if wraps else None)
        if key not in self._masks:
            self._masks[key] = self._make_mask(window, ring if wraps else None, end)
        return self._masks[key]

    def _make_mask(self, window: int | None, ring: int | None, end: int) -> mx.array:
        queries = self.places[:, None, :, None]
        if ring is None:
            keys = mx.arange(end)[None, None, None, :]
            mask = keys <= queries
        else:
            # A slot holds the newest of the places that fall on it; below 0 it was never written.
            newest = self.places[:, -1:]
            keys = (newest - (newest - mx.arange(ring)) % ring)[:, None, None, :]
            mask = (keys <= queries) & (keys >= 0)
        return mask if window is None else mask & (keys > queries - window)


class LaneKV:
    """Keys and values of one attention layer.

    With a ``window`` and a ``ring`` (at least window plus the columns of a forward) a lane holds only what the window
    can still reach, place ``p`` in slot ``p % ring``; going back by ring minus window tokens loses nothing.
    """

    def __init__(self, geometry: Geometry, window: int | None = None, ring: int | None = None) -> None:
        self._geometry = geometry
        self.window = window
        self._ring = ring
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    # --- what a model asks -------------------------------------------------------------------------------------------

    @property
    def offset(self) -> Any:
        return self._geometry.offset

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        return self._geometry.mask(window_size or self.window, self._ring, as_array=return_array)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        geometry, rows = self._geometry, len(self._geometry.lengths)
        end = geometry.end if self._ring is None else min(geometry.end, self._ring)
        self._reserve(rows, end, keys, values)
        assert self.keys is not None and self.values is not None
        lane = mx.arange(rows)[:, None]
        place = geometry.places if self._ring is None else geometry.places % self._ring
        self.keys[lane, :, place] = keys.transpose(0, 2, 1, 3)
        self.values[lane, :, place] = values.transpose(0, 2, 1, 3)
        return self.keys[:rows, :, :end], self.values[:rows, :, :end]

    # --- what the scheduler asks -------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        return 0 if self.keys is None or self.values is None else self.keys.nbytes + self.values.nbytes

    @property
    def token_bytes(self) -> int:
        """What a token of a row takes."""
        return 0 if self.keys is None else self.nbytes // (self.keys.shape[0] * self.keys.shape[2])

    @property
    def arrays(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [self.keys, self.values]

    def segment(self, row: int, start: int, end: int) -> Segment:
        """A copy of a row's places ``start`` to ``end``; only of lanes without a ring."""
        assert self.keys is not None and self.values is not None and self._ring is None
        return (
            mx.contiguous(self.keys[row : row + 1, :, start:end]),
            mx.contiguous(self.values[row : row + 1, :, start:end]),
        )

    def paste(self, row: int, start: int, segment: Segment) -> None:
        """Write places from ``start`` on; ``row`` may be the first behind the rows there are."""
        keys, values = segment
        end = start + keys.shape[2]
        if self._ring is not None and end > self._ring:
            assert start == 0
            keys, values = (mx.roll(x[:, :, end - self._ring :], (end - self._ring) % self._ring, 2) for x in segment)
            end = self._ring
        self._reserve(row + 1, end, keys, values)
        assert self.keys is not None and self.values is not None
        self.keys[row : row + 1, :, start:end] = keys
        self.values[row : row + 1, :, start:end] = values

    def move(self, source: int, target: int) -> None:
        """Row ``source`` takes the lane ``target``."""
        if self.keys is None or self.values is None or source == target:
            return
        self.keys[target : target + 1] = self.keys[source : source + 1]
        self.values[target : target + 1] = self.values[source : source + 1]

    def wipe(self, row: int) -> None:
        """Zeros in place of what a row left: a NaN that is masked would still be one for the next row there."""
        if self.keys is not None and self.values is not None:
            self.keys[row] = 0
            self.values[row] = 0

    def fit(self, rows: int, tokens: int) -> None:
        """Give memory back when less than half of it is used."""
        if self.keys is None or self.values is None:
            return
        lanes, _, capacity, _ = self.keys.shape
        wanted = whole_steps(tokens if self._ring is None else min(tokens, self._ring))
        if rows == 0:
            self.keys = self.values = None
        elif lanes > 2 * rows or capacity > 2 * wanted:
            self.keys = mx.contiguous(self.keys[:rows, :, :wanted])
            self.values = mx.contiguous(self.values[:rows, :, :wanted])

    def _reserve(self, rows: int, tokens: int, keys: mx.array, values: mx.array) -> None:
        lanes = capacity = 0
        if self.keys is not None:
            lanes, _, capacity, _ = self.keys.shape
        if rows <= lanes and tokens <= capacity:
            return
        lanes = lanes if rows <= lanes else max(rows, min(2 * lanes, rows + SPARE_LANES))
        capacity = capacity if tokens <= capacity else whole_steps(tokens)
        self.keys = _grown(self.keys, lanes, capacity, keys)
        self.values = _grown(self.values, lanes, capacity, values)


def cut_segments(segments: Sequence[Segment], length: int) -> tuple[list[Segment], list[Segment]]:
    """The first ``length`` places and the rest, as copies: a view would keep the whole alive."""
    front = [(mx.contiguous(keys[:, :, :length]), mx.contiguous(values[:, :, :length])) for keys, values in segments]
    back = [(mx.contiguous(keys[:, :, length:]), mx.contiguous(values[:, :, length:])) for keys, values in segments]
    mx.eval(front, back)
    return front, back


def _grown(old: mx.array | None, lanes: int, capacity: int, like: mx.array) -> mx.array:
    """Zeros, and not whatever memory held: a masked NaN would still be one."""
    new = mx.zeros((lanes, like.shape[1], capacity, like.shape[3]), like.dtype)
    if old is not None:
        new[: old.shape[0], :, : old.shape[2]] = old
    return new


class LaneState(ArraysCache):
    """Recurrent state of all rows: it cannot go back, and a padded column would change it."""

    cache: Any

    def __init__(self, size: int) -> None:
        base: Any = super()  # mlx-lm has no types
        base.__init__(size)

    @property
    def arrays(self) -> list[mx.array]:
        return [array for array in self.cache if array is not None]

    def take(self, other: LaneState, row: int, rows: int) -> None:
        """Append a row of another one to the ``rows`` that are here. A state that was never written is all zeros."""
        for place, array in enumerate(other.cache):
            old, new = self.cache[place], None if array is None else array[row : row + 1]
            if new is None and old is not None:  # nothing was read in the other one
                new = mx.zeros_like(old[:1])
            elif old is None and new is not None and rows:
                old = mx.zeros((rows, *new.shape[1:]), new.dtype)
            parts = [part for part in (old, new) if part is not None]
            self.cache[place] = mx.concatenate(parts) if parts else None

    def keep(self, rows: Sequence[int]) -> None:
        """These rows, in this order."""
        order = mx.array(list(rows), mx.int32)
        self.cache = [array[order] if rows and array is not None else None for array in self.cache]
