"""Caches of rows that go through a model together, one lane a row, each at its own length.

mlx-lm's batch caches keep rows aligned on the right: every join and every leave copies all keys, and a guess that is not
taken has to go back for all rows at once. Here a row starts at the left of its lane and has a length of its own, so
joining writes one lane, leaving moves one, and going back is a smaller number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, RotatingKVCache, make_prompt_cache

from workers.engines.batching.budget import STEP_TOKENS, LaneCost
from workers.engines.batching.lane_caches import Geometry, LaneKV, LaneState, Segment

#: Places beyond its window that a windowed layer is thought to take, where guesses are made.
USUAL_SPARE = 65


class CannotBatch(Exception):
    """A model keeps a kind of cache that has no lanes."""


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
    def room(self) -> tuple[int, int]:
        """(lanes, places) for which there is memory already."""
        shapes = [layer.keys.shape for layer in self._kv if layer.keys is not None]
        return max((shape[0] for shape in shapes), default=0), max((shape[2] for shape in shapes), default=0)

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

    def drop(self, row: int, *, is_broken: bool = False) -> None:
        """Remove a row; the last one takes its place. Of one that is broken nothing stays in memory."""
        last = len(self) - 1
        for layer in self._kv:
            if is_broken:
                layer.wipe(row)
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
    room = (0, 0)

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

    def drop(self, row: int, *, is_broken: bool = False) -> None:
        self._cache, self.lengths = [], []
