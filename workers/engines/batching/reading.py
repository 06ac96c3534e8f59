"""Who waits, and whose prompt is read next: the row that may take longest, and those about as long beside it.

A prefix that waiting rows share is read first, once, and its keys and values are given to each of them.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx

from workers.engines.batching.canonical import CHUNK_TOKENS, one_row
from workers.engines.batching.lanes import Lanes, SingleLane
from workers.engines.batching.machine import Machine
from workers.engines.batching.prefixes import PrefixNode
from workers.engines.batching.rows import Row
from workers.engines.tally import Tally

#: Prompt tokens, padding included, that one forward reads.
PREFILL_TOKENS = 512

#: Prompt tokens, padding included, of rows that are read together, and how much of them may be padding: a forward over few
#: tokens costs up to twice as much a token as one over many.
GROUP_TOKENS, MOST_PADDED = 1024, 1.3

#: Waiting rows that are looked at for ones about as long as the first.
POOL = 48

#: Whether these rows may be read beside all that is in flight, and so many bytes of prefixes more be kept.
HasRoom = Callable[[Sequence[Row], int], bool]


@dataclass(slots=True)
class Reading:
    """Rows whose prompts are being read together. ``node`` is set when they are read for a shared prefix alone."""

    rows: list[Row]
    lanes: Any
    tokens: list[list[int]]
    node: PrefixNode | None = None
    read: int = 0

    @property
    def columns(self) -> int:
        return max(map(len, self.tokens))


class Through(NamedTuple):
    """A row whose prompt is read, but for its last token, and where its keys and values are."""

    row: Row
    lanes: Any
    lane: int


class PromptReader:
    """Waiting rows, and the group that is being read.

    Args:
        can_pad: several prompts may be read in one forward, the shorter ones padded.
        shares_prefixes: shared prefixes are looked for and computed once.
        on_start: told of rows before the model sees them.
    """

    def __init__(
        self,
        machine: Machine,
        tally: Tally,
        *,
        can_pad: bool,
        shares_prefixes: bool,
        on_start: Callable[[Sequence[Row]], None],
    ) -> None:
        self._machine = machine
        self._tally = tally
        self._on_start = on_start
        self._waiting: list[tuple[int, int, Row]] = []
        self._order = itertools.count()
        self._reading: Reading | None = None
        empty = one_row(machine.model)
        self._is_canonical = machine.routers.is_needed and machine.is_exact and empty.can_rewind
        self._reads_alone = self._is_canonical or not can_pad
        self.shares_prefixes = shares_prefixes and empty.can_branch
        tally.count("prefixes_refused", shares_prefixes and not empty.can_branch)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and self._reading is None

    @property
    def is_reading(self) -> bool:
        return self._reading is not None

    @property
    def rows(self) -> list[Row]:
        """Rows that are being read."""
        return [] if self._reading is None else self._reading.rows

    @property
    def nbytes(self) -> int:
        return 0 if self._reading is None else int(self._reading.lanes.nbytes)

    def add(self, rows: Iterable[Row]) -> None:
        """Rows that come; with all that wait they are searched for what they share."""
        self.put_back(rows)
        if self.shares_prefixes:
            grain = CHUNK_TOKENS if self._is_canonical else 1
            self._machine.prefixes.plan([row.prompt for _, _, row in self._waiting], grain)

    def put_back(self, rows: Iterable[Row]) -> None:
        """Rows that wait again."""
        for row in rows:
            heapq.heappush(self._waiting, (-row.most_tokens, next(self._order), row))

    def discard(self, gone: set[Row]) -> None:
        """Forget rows; those that are read beside one of them begin again."""
        self._waiting = [entry for entry in self._waiting if entry[2] not in gone]
        heapq.heapify(self._waiting)
        if gone & set(self.rows):
            self.put_back(row for row in self.interrupt() if row not in gone)

    def interrupt(self) -> list[Row]:
        """Stop reading; the rows that were being read belong to nobody then."""
        rows, self._reading = self.rows, None
        return rows

    def without_prefixes(self) -> None:
        """Read every prompt in full from now on."""
        self._tally.count("prefixes_given_up", self.shares_prefixes)
        self.shares_prefixes = False
        self._machine.prefixes.clear()

    # --- who is next -------------------------------------------------------------------------------------------------

    @property
    def next(self) -> Row | None:
        """Who would be read next."""
        return self._waiting[0][2] if self._waiting else None

    def begin(self, free: int, has_room: HasRoom, prefix_bytes: Callable[[int], int]) -> None:
        """Choose the next group, of at most ``free`` rows; there is room for the first.

        ``prefix_bytes`` says what so many tokens of a prefix take.
        """
        head = self._waiting[0][2]
        path = self._machine.prefixes.path(head.prompt) if self.shares_prefixes else []
        missing = next((place for place, node in enumerate(path) if node.segments is None), None)
        if missing is not None and self._may_keep(head, path[missing], has_room, prefix_bytes):
            self._on_start([head])  # its tokens go first, and would be to blame
            self._reading = self._of_prefix(path[:missing], path[missing])
        else:
            self._reading = self._of_rows(path if missing is None else path[:missing], free, has_room)

    def _may_keep(self, head: Row, node: PrefixNode, has_room: HasRoom, prefix_bytes: Callable[[int], int]) -> bool:
        """Whether a prefix will find room once it is computed; it is given up if not."""
        size = prefix_bytes(len(node.tokens))
        if has_room([head], size) and self._machine.prefixes.allows(node, size):
            return True
        self._machine.prefixes.give_up(node)
        self._tally.count("prefixes_without_room")
        return False

    def _of_prefix(self, known: list[PrefixNode], node: PrefixNode) -> Reading:
        lanes = one_row(self._machine.model)
        for each in known:
            assert each.segments is not None
            lanes.paste(0, each.segments)
        return Reading([], lanes, [list(node.tokens)], node)

    def _of_rows(self, path: list[PrefixNode], free: int, has_room: HasRoom) -> Reading:
        start = path[-1].end if path else 0
        rows = self._alike(start, path, free, has_room)
        self._on_start(rows)
        now = time.monotonic()
        lanes = self.new_lanes(spare=None)
        lanes.open(len(rows))
        for lane, row in enumerate(rows):
            row.admitted_at, row.cached_tokens = row.admitted_at or now, start
            for node in path:
                assert node.segments is not None and isinstance(lanes, Lanes)
                lanes.paste(lane, node.segments)
        self._tally.count("prefix_tokens", start * len(rows))
        tokens = [row.so_far[start:-1] for row in rows]
        self._tally.count("prompt_tokens_read", sum(map(len, tokens)))
        return Reading(rows, lanes, tokens)

    def _alike(self, start: int, path: list[PrefixNode], free: int, has_room: HasRoom) -> list[Row]:
        """The first row, and of those that come soon the ones whose rest is nearest to its own in length."""
        head = heapq.heappop(self._waiting)[2]
        if self._reads_alone or free == 1:
            return [head]
        pool = [heapq.heappop(self._waiting) for _ in range(min(POOL, len(self._waiting)))]
        rows, rests = [head], [len(head.so_far) - 1 - start]
        for entry in sorted(pool, key=lambda entry: abs(len(entry[2].so_far) - 1 - start - rests[0])):
            row, rest = entry[2], len(entry[2].so_far) - 1 - start
            padded = (len(rows) + 1) * max(*rests, rest)
            if len(rows) == free or padded > min(GROUP_TOKENS, MOST_PADDED * (sum(rests) + rest)):
                break
            is_beside = not self.shares_prefixes or self._machine.prefixes.path(row.prompt) == path
            if is_beside and has_room([*rows, row], 0):
                rows.append(row)
                rests.append(rest)
                pool.remove(entry)
        for entry in pool:
            heapq.heappush(self._waiting, entry)
        return rows

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self) -> tuple[int, list[Through]]:
        """One forward over the next piece of the group: tokens that were read, and the rows that are through."""
        reading = self._reading
        assert reading is not None
        per_row = CHUNK_TOKENS if self._is_canonical else max(1, PREFILL_TOKENS // len(reading.tokens))
        piece = [tokens[reading.read : reading.read + per_row] for tokens in reading.tokens]
        if any(piece):
            with self._tally.call():
                self._forward(reading.lanes, piece)
            reading.read += per_row
        count = sum(map(len, piece))
        self._tally.add_tokens(count)
        if reading.read < reading.columns:
            return count, []
        self._reading = None
        if reading.node is not None:
            self._keep(reading.lanes, reading.node)
        return count, [Through(row, reading.lanes, lane) for lane, row in enumerate(reading.rows)]

    def _forward(self, lanes: Any, piece: list[list[int]]) -> None:
        least = CHUNK_TOKENS if self._is_canonical else 0
        lanes.forward([tokens + [0] * (least - len(tokens)) for tokens in piece])
        mx.eval(lanes.arrays)
        lanes.advance([len(tokens) for tokens in piece])

    def _keep(self, lanes: Any, node: PrefixNode) -> None:
        segments = lanes.segments(0, node.start, node.end)
        mx.eval(segments)
        kept = self._machine.prefixes.keep(node, segments)
        self._tally.count("prefixes_computed" if kept else "prefixes_without_room")

    def new_lanes(self, spare: int | None) -> Lanes | SingleLane:
        """Empty lanes; a single one where the model has no others."""
        is_single = self._machine.width_limit == 1 and isinstance(one_row(self._machine.model), SingleLane)
        return SingleLane(self._machine.model) if is_single else Lanes(self._machine.model, spare=spare)
