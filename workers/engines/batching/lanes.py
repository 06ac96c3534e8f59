"""Caches of rows that go through a model together, one lane a row, each at its own length.

mlx-lm's batch caches keep rows aligned on the right: every join and every leave copies all keys, and a guess that is not
taken has to go back for all rows at once. Here a row starts at the left of its lane and has a length of its own, so
joining writes one lane, leaving moves one, and going back is a smaller number. Models see the same methods as on
mlx-lm's caches (``offset``, ``make_mask``, ``update_and_fetch``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache

from workers.engines.batching.budget import LaneCost

#: Lanes grow by this many tokens at a time.
STEP_TOKENS = 128

#: Places beyond its window that a windowed layer is thought to take, where guesses are made.
USUAL_SPARE = 64

#: Keys and values of one layer: (1, heads, tokens, dimension) each.
Segment = tuple[mx.array, mx.array]


class CannotBatch(Exception):
    """A model keeps a kind of cache that has no lanes."""


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

    def fit(self, rows: int, tokens: int) -> None:
        """Give memory back when less than half of it is used."""
        if self.keys is None or self.values is None:
            return
        lanes, _, capacity, _ = self.keys.shape
        wanted = _rounded(tokens if self._ring is None else min(tokens, self._ring))
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
        lanes = lanes if rows <= lanes else max(rows, min(2 * lanes, rows + 4))
        capacity = capacity if tokens <= capacity else _rounded(tokens)
        self.keys = _grown(self.keys, lanes, capacity, keys)
        self.values = _grown(self.values, lanes, capacity, values)


def cut_segments(segments: Sequence[Segment], length: int) -> tuple[list[Segment], list[Segment]]:
    """The first ``length`` places and the rest, as copies: a view would keep the whole alive."""
    front = [(mx.contiguous(keys[:, :, :length]), mx.contiguous(values[:, :, :length])) for keys, values in segments]
    back = [(mx.contiguous(keys[:, :, length:]), mx.contiguous(values[:, :, length:])) for keys, values in segments]
    mx.eval(front, back)
    return front, back


def _rounded(tokens: int) -> int:
    return -(-tokens // STEP_TOKENS) * STEP_TOKENS


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


class Lanes:
    """All layers' caches of the rows that go through one model together.

    Args:
        spare: with a number, windowed layers keep only their window and so many places more, which is how far a row
            may go back; None keeps all places, as prefixes need.

    Raises:
        CannotBatch: the model has a cache of another kind.
    """

    def __init__(self, model: Any, *, spare: int | None = None) -> None:
        self._model = model
        self._geometry = Geometry()
        self._spare = spare
        self._kv: list[LaneKV] = []
        self._states: list[LaneState] = []
        self._layers = [self._lane(cache) for cache in make_prompt_cache(model)]

    def _lane(self, cache: Any) -> Any:
        kind = type(cache)
        if kind is KVCache:
            self._kv.append(LaneKV(self._geometry))
            return self._kv[-1]
        if kind is RotatingKVCache and cache.keep == 0:
            ring = None if self._spare is None else cache.max_size + self._spare
            self._kv.append(LaneKV(self._geometry, cache.max_size, ring))
            return self._kv[-1]
        if kind is ArraysCache:
            self._states.append(LaneState(len(cache.cache)))
            return self._states[-1]
        if kind is CacheList:
            together: Any = CacheList
            return together(*(self._lane(part) for part in cache.caches))
        raise CannotBatch(f"{kind.__name__} has no form for several rows")

    def __len__(self) -> int:
        return len(self._geometry.lengths)

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each row that the model has read."""
        return self._geometry.lengths

    @property
    def can_rewind(self) -> bool:
        """Tokens that were read can be forgotten again."""
        return not self._states

    @property
    def can_branch(self) -> bool:
        """A prefix of a row can be given to others."""
        return not self._states and all(layer._ring is None for layer in self._kv)

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self._kv) + sum(array.nbytes for s in self._states for array in s.arrays)

    @property
    def arrays(self) -> list[mx.array]:
        """What to evaluate when no logits are wanted."""
        kept: list[mx.array] = [array for layer in self._kv for array in layer.arrays]
        for state in self._states:
            kept += state.arrays
        return kept

    @property
    def cost(self) -> LaneCost:
        """What a row takes; known once something was read."""
        full, windows = 0, []
        for layer in self._kv:
            rate, window = layer.token_bytes, layer.window
            if window is None:
                full += rate
            else:
                windows.append((window + (self._spare or USUAL_SPARE), rate))
        rows = max(1, len(self))
        fixed = sum(array.nbytes for state in self._states for array in state.arrays) // rows
        return LaneCost(fixed, full, tuple(windows))

    def open(self, rows: int) -> None:
        """Begin with ``rows`` empty rows; only once."""
        assert not self._geometry.lengths
        self._geometry.lengths = [0] * rows

    def forward(self, tokens: Sequence[Sequence[int]]) -> mx.array:
        """Read each row's next tokens; (rows, columns, V) logits, of which a row's own columns count.

        Shorter rows are padded on the right; what is written there lies behind the row and is written over. The row
        stands where it stood until :meth:`advance`. With recurrent state all rows must bring the same number.
        """
        columns = max(map(len, tokens))
        assert not self._states or all(len(row) == columns for row in tokens)
        self._geometry.begin(columns)
        batch = mx.array([[*row, *([0] * (columns - len(row)))] for row in tokens])
        logits: mx.array = self._model(batch, cache=self._layers)
        return logits

    def advance(self, counts: Sequence[int]) -> None:
        """Each row has kept so many of the tokens it read last."""
        lengths = self._geometry.lengths
        self._geometry.lengths = [length + count for length, count in zip(lengths, counts, strict=True)]

    def adopt(self, other: Lanes, row: int) -> None:
        """Append a row of lanes that keep all places."""
        mine, length = len(self), other.lengths[row]
        for layer, theirs in zip(self._kv, other._kv, strict=True) if length else ():
            layer.paste(mine, 0, theirs.segment(row, 0, length))
        for state, their_state in zip(self._states, other._states, strict=True):
            state.take(their_state, row, mine)
        self._geometry.lengths.append(length)

    def drop(self, row: int) -> None:
        """Remove a row; the last one takes its place."""
        last = len(self) - 1
        for layer in self._kv:
            layer.move(last, row)
        order = [last if place == row else place for place in range(last)]
        for state in self._states:
            state.keep(order)
        self._geometry.lengths = [self._geometry.lengths[place] for place in order]
        longest = max(self._geometry.lengths, default=0)
        for layer in self._kv:
            layer.fit(last, longest + STEP_TOKENS)

    def replace(self, row: int, other: Lanes) -> None:
        """What ``other`` has read in its only row takes the place of a row's; both have read the same tokens."""
        length = self.lengths[row]
        for layer, theirs in zip(self._kv, other._kv, strict=True):
            layer.paste(row, 0, theirs.segment(0, 0, length))

    def segments(self, row: int, start: int, end: int) -> list[Segment]:
        """Copies of a row's places in every layer."""
        return [layer.segment(row, start, end) for layer in self._kv]

    def paste(self, row: int, segments: Sequence[Segment]) -> None:
        """Continue a row with places that were read elsewhere."""
        start = self._geometry.lengths[row]
        for layer, segment in zip(self._kv, segments, strict=True):
            layer.paste(row, start, segment)
        self._geometry.lengths[row] = start + segments[0][0].shape[2]


class SingleLane:
    """The same methods over mlx-lm's own cache, for one row of a model whose caches have no lanes."""

    can_rewind = can_branch = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cache: list[Any] = []
        self.lengths: list[int] = []

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        return sum(int(cache.nbytes) for cache in self._cache)

    @property
    def arrays(self) -> list[Any]:
        return [cache.state for cache in self._cache]

    def open(self, rows: int) -> None:
        assert rows == 1
        self._cache, self.lengths = make_prompt_cache(self._model), [0]

    def forward(self, tokens: Sequence[Sequence[int]]) -> mx.array:
        logits: mx.array = self._model(mx.array([list(tokens[0])]), cache=self._cache)
        return logits

    def advance(self, counts: Sequence[int]) -> None:
        self.lengths[0] += counts[0]

    def adopt(self, other: SingleLane, row: int) -> None:
        self._cache, self.lengths = other._cache, other.lengths

    def drop(self, row: int) -> None:
        self._cache, self.lengths = [], []
