"""Rows in, finished rows out: who reads a prompt next, who decodes together, who guesses ahead.

Longest expected first, so that the tail is short; prompts of like length are read together, up to a number of tokens a
forward; a row joins the decoding rows as soon as its prompt is read. What is read in a row before decoding goes on is
bounded once half of the width decodes. Rows may arrive at any time. No answer depends on any of this.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from pipeline.errors import CeilingExceeded
from workers.engines.batching.budget import MemoryBudget
from workers.engines.batching.canonical import CHUNK_TOKENS, one_row
from workers.engines.batching.decoding import Advance, Decoder
from workers.engines.batching.guessing import Guesser
from workers.engines.batching.lanes import Lanes, SingleLane
from workers.engines.batching.machine import Machine
from workers.engines.batching.prefixes import PrefixNode
from workers.engines.batching.rows import Row
from workers.engines.memory import rss_bytes
from workers.engines.tally import Tally

#: Prompt tokens, padding included, that one forward reads.
PREFILL_TOKENS = 512

#: Prompt tokens read before the next decoding step, when at least half of the width decodes.
PREFILL_BURST = 2048

#: Share of the ceiling from which on memory is given back.
PRESSED = 0.95

#: Steps between two corrections of the estimate of memory.
CORRECT_STEPS = 16


@dataclass(slots=True)
class _Reading:
    """Rows whose prompts are being read together. ``node`` is set when they are read for a shared prefix alone."""

    rows: list[Row]
    lanes: Any
    tokens: list[list[int]]
    node: PrefixNode | None = None
    read: int = 0

    @property
    def columns(self) -> int:
        return max(map(len, self.tokens))


class Scheduler:
    """One run over one machine.

    Args:
        width: most rows in flight.
        budget: the machine's with the job's own ceilings.
        guesser: who guesses ahead; None decodes token by token.
        shares_prefixes: shared prefixes are looked for and computed once.
        on_start: told of rows before the model sees them.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        width: int,
        tally: Tally,
        budget: MemoryBudget | None = None,
        guesser: Guesser | None = None,
        shares_prefixes: bool = True,
        on_start: Callable[[Sequence[Row]], None] = lambda rows: None,
    ) -> None:
        self._machine = machine
        self._budget = machine.budget if budget is None else budget
        self._width = width if machine.width_limit is None else min(width, machine.width_limit)
        self._tally = tally
        self._guesser = guesser
        self._on_start = on_start
        self._waiting: list[tuple[int, int, Row]] = []
        self._order = itertools.count()
        self._reading: _Reading | None = None
        self._burst = self._steps = 0
        lanes = self._new_lanes(spare=1 if guesser is None else guesser.most_columns)
        self._decoder = Decoder(machine, lanes, tally)
        can_branch = one_row(machine.model).can_branch
        self._shares_prefixes = shares_prefixes and can_branch
        tally.count("prefixes_refused", shares_prefixes and not can_branch)
        self.most_cache_bytes = self.most_resident_bytes = self.most_rows = 0

    # --- for the engine ----------------------------------------------------------------------------------------------

    def add(self, rows: Iterable[Row]) -> None:
        """Rows to answer, now or while others are decoded. They are planned together."""
        self._push(rows)
        if self._shares_prefixes:
            grain = CHUNK_TOKENS if self._reads_canonically else 1
            self._machine.prefixes.plan([row.prompt for _, _, row in self._waiting], grain)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and self._reading is None and not self._decoder.rows

    @property
    def in_flight(self) -> int:
        return len(self._decoder.rows) + (len(self._reading.rows) if self._reading else 0)

    def step(self) -> list[Advance]:
        """One forward: a piece of prompts, or every decoding row's next tokens. Call while not idle."""
        self._steps += 1
        self._look_at_memory()
        self.most_cache_bytes = max(self.most_cache_bytes, self._cache_bytes)
        self.most_rows = max(self.most_rows, self.in_flight)
        if self._may_read() and (self._reading is not None or self._begin_reading()):
            self._read()
            return []
        self._burst = 0
        return self._decode()

    @property
    def width(self) -> int:
        return self._width

    def discard(self, rows: Sequence[Row]) -> None:
        """Forget rows wherever they are; nothing more is heard of them."""
        gone = set(rows)
        self._waiting = [entry for entry in self._waiting if entry[2] not in gone]
        heapq.heapify(self._waiting)
        for row in [row for row in self._decoder.rows if row in gone]:
            self._leave(row)
        if self._reading is not None and gone & set(self._reading.rows):
            others = [row for row in self._reading.rows if row not in gone]
            self._reading = None
            self._push(others)

    def take_back(self, row: Row) -> None:
        """Decode a finished row again from its prompt."""
        row.restart()
        self._push([row])

    def restart(self) -> None:
        """Decode all rows in flight again from their prompts."""
        rows = [*self._decoder.rows, *(self._reading.rows if self._reading else ())]
        for row in list(self._decoder.rows):
            self._leave(row)
        self._reading = None
        for row in rows:
            row.restart()
        self._push(rows)

    def narrow(self, width: int) -> None:
        """Let no more than so many rows in from now on."""
        self._width = min(self._width, width)

    def keep_guessers(self, names: Collection[str]) -> None:
        """Only these may guess from now on."""
        if self._guesser is not None:
            self._guesser.keep(names)

    @property
    def guess_failures(self) -> Mapping[str, str]:
        """Who failed while guessing, and how."""
        return {} if self._guesser is None else self._guesser.failures

    def tell(self, tally: Tally) -> None:
        """Count what guessing came to."""
        for name, count in (self._guesser.counters() if self._guesser is not None else {}).items():
            tally.count(name, count)

    def without_prefixes(self) -> None:
        """Read every prompt in full from now on."""
        self._tally.count("prefixes_given_up", self._shares_prefixes)
        self._shares_prefixes = False
        self._machine.prefixes.clear()

    def _push(self, rows: Iterable[Row]) -> None:
        for row in rows:
            heapq.heappush(self._waiting, (-row.most_tokens, next(self._order), row))

    def _leave(self, row: Row) -> None:
        self._decoder.leave(row)
        if self._guesser is not None:
            self._guesser.end(row)

    # --- reading prompts ---------------------------------------------------------------------------------------------

    def _may_read(self) -> bool:
        return self._burst < PREFILL_BURST or 2 * len(self._decoder.rows) < self._width

    def _begin_reading(self) -> bool:
        """Choose who is read next; false when nobody waits, or there is no room."""
        width = self._machine.gauge.best(self._width)
        free = width - len(self._decoder.rows)
        if free <= 0 or not self._waiting:
            return False
        head = self._waiting[0][2]
        if not self._has_room(len(self._decoder.rows) + 1, head):
            if self._decoder.rows:
                return False
            self._refuse(head)
        path = self._machine.prefixes.path(head.prompt) if self._shares_prefixes else []
        missing = next((place for place, node in enumerate(path) if node.segments is None), None)
        if missing is not None and self._may_keep(path[missing]):
            self._on_start([head])  # its tokens go first, and would be to blame
            self._reading = self._of_prefix(path[:missing], path[missing])
            return True
        known = path if missing is None else path[:missing]
        self._reading = self._of_rows(known, free)
        return True

    def _of_prefix(self, known: list[PrefixNode], node: PrefixNode) -> _Reading:
        lanes = one_row(self._machine.model)
        for each in known:
            assert each.segments is not None
            lanes.paste(0, each.segments)
        return _Reading([], lanes, [list(node.tokens)], node)

    def _of_rows(self, path: list[PrefixNode], free: int) -> _Reading:
        """The row that is expected to take longest, and those that may come next whose rest is about as long."""
        start = path[-1].end if path else 0
        rows = self._alike(start, path, free)
        self._on_start(rows)
        now = time.monotonic()
        lanes = self._new_lanes(spare=None)
        lanes.open(len(rows))
        for lane, row in enumerate(rows):
            row.admitted_at, row.cached_tokens = row.admitted_at or now, start
            for node in path:
                assert node.segments is not None and isinstance(lanes, Lanes)
                lanes.paste(lane, node.segments)
        self._tally.count("prefix_tokens", start * len(rows))
        tokens = [row.so_far[start:-1] for row in rows]
        self._tally.count("prompt_tokens_read", sum(map(len, tokens)))
        return _Reading(rows, lanes, tokens)

    def _alike(self, start: int, path: list[PrefixNode], free: int) -> list[Row]:
        head = heapq.heappop(self._waiting)
        rows, rest = [head[2]], len(head[2].so_far) - 1 - start
        if self._reads_alone:
            return rows
        passed = []
        for _ in range(min(free - 1, len(self._waiting))):
            entry = heapq.heappop(self._waiting)
            row = entry[2]
            other = len(row.so_far) - 1 - start
            is_alike = abs(other - rest) <= max(4, rest // 8) and (len(rows) + 1) * max(rest, other) <= PREFILL_TOKENS
            # All that are read together have their keys twice for a moment, and not one of them alone.
            has_room = self._has_room(len(self._decoder.rows) + 2 * len(rows) + 1, head[2])
            if is_alike and has_room and (not self._shares_prefixes or self._machine.prefixes.path(row.prompt) == path):
                rows.append(row)
            else:
                passed.append(entry)
        for entry in passed:
            heapq.heappush(self._waiting, entry)
        return rows

    @property
    def _reads_alone(self) -> bool:
        """Padding would change a recurrent state, and an expert model's prompts are read in the canonical shape."""
        return not self._decoder.lanes.can_rewind or self._reads_canonically

    @property
    def _reads_canonically(self) -> bool:
        return self._machine.routers.is_needed and self._machine.is_exact and self._decoder.lanes.can_rewind

    def _read(self) -> None:
        """One forward over the next piece of the prompts that are being read; rows that are through join the others."""
        reading = self._reading
        assert reading is not None
        per_row = CHUNK_TOKENS if self._reads_canonically else max(1, PREFILL_TOKENS // len(reading.tokens))
        piece = [tokens[reading.read : reading.read + per_row] for tokens in reading.tokens]
        if any(piece):
            with self._tally.call():
                self._forward(reading, piece)
            reading.read += per_row
            self._burst += sum(map(len, piece))
            self._tally.add_tokens(sum(map(len, piece)))
        if reading.read < reading.columns:
            return
        self._reading = None
        if reading.node is not None:
            segments = reading.lanes.segments(0, reading.node.start, reading.node.end)
            mx.eval(segments)
            kept = self._machine.prefixes.keep(reading.node, segments)
            self._tally.count("prefixes_computed" if kept else "prefixes_without_room")
            return
        for lane, row in enumerate(reading.rows):
            self._decoder.join(row, reading.lanes, lane)
            if self._guesser is not None:
                self._guesser.begin(row)

    def _forward(self, reading: _Reading, piece: list[list[int]]) -> None:
        least = CHUNK_TOKENS if self._reads_canonically else 0
        reading.lanes.forward([tokens + [0] * (least - len(tokens)) for tokens in piece])
        mx.eval(reading.lanes.arrays)
        reading.lanes.advance([len(tokens) for tokens in piece])

    def _new_lanes(self, spare: int | None) -> Lanes | SingleLane:
        is_single = self._machine.width_limit == 1 and isinstance(one_row(self._machine.model), SingleLane)
        return SingleLane(self._machine.model) if is_single else Lanes(self._machine.model, spare=spare)

    # --- decoding ----------------------------------------------------------------------------------------------------

    def _decode(self) -> list[Advance]:
        rows = list(self._decoder.rows)
        guesses: Mapping[Row, Sequence[int]] = {}
        if self._guesser is not None:
            guesses = self._guesser.guess(rows, is_last=not self._waiting and self._reading is None)
        context = max(self._decoder.lanes.lengths)
        advances = self._decoder.step(guesses)
        self._tally.count("decode_steps")
        self._tally.count("decode_rows", len(rows))
        self._tally.add_tokens(sum(len(advance.tokens) for advance in advances))
        if self._guesser is not None:
            self._guesser.learn(advances, context, self._decoder.forward_s)
        if not guesses:
            self._machine.gauge.see(len(rows), self._decoder.forward_s)
        return advances

    # --- memory ------------------------------------------------------------------------------------------------------

    @property
    def _cache_bytes(self) -> int:
        reading = self._reading.lanes.nbytes if self._reading else 0
        return int(self._decoder.lanes.nbytes + reading + self._machine.prefixes.nbytes)

    def _has_room(self, rows: int, row: Row) -> bool:
        longest = max([row.most_tokens, *(each.most_tokens for each in self._decoder.rows)])
        return self._budget.allows(rows, longest, self._machine.prefixes.nbytes)

    def _may_keep(self, node: PrefixNode) -> bool:
        """Whether a prefix will find room once it is computed; it is given up if not."""
        if self._machine.prefixes.allows(node, self._budget.cost.kept_bytes(len(node.tokens))):
            return True
        self._tally.count("prefixes_without_room")
        return False

    def _refuse(self, row: Row) -> None:
        """Not even one row fits: prefixes go first, then the job is told."""
        self.without_prefixes()
        budget = self._budget
        # What stretched the estimate may be over; with nothing else in flight the row goes by what shapes say.
        mx.clear_cache()
        budget.stretch = 1.0
        if self._has_room(1, row):
            return
        raise CeilingExceeded(
            f"the memory ceiling of {budget.limit_bytes:,} bytes is too small for one row: {row.most_tokens} tokens "
            f"of prompt and answer need about {budget.least_bytes(row.most_tokens):,} bytes",
            hint="raise the ceiling, or take a smaller model or shorter items",
        )

    def _look_at_memory(self) -> None:
        """Correct the estimate by what is held; where the ceiling is near, give back what can be given back."""
        budget = self._budget
        if budget.limit_bytes is None:
            return
        held = rss_bytes()
        self.most_resident_bytes = max(self.most_resident_bytes, held)
        if self._steps % CORRECT_STEPS:
            return
        longest = max((row.most_tokens for row in self._decoder.rows), default=0)
        budget.see(held, self.in_flight, longest, self._machine.prefixes.nbytes)
        if held > budget.limit_bytes * PRESSED:
            self._tally.count("memory_pressed")
            self.without_prefixes()
            self._shed()
            mx.clear_cache()

    def _shed(self) -> None:
        """Half of the decoding rows, those that came last, wait for a while and go on from where they were."""
        rows = self._decoder.rows[(len(self._decoder.rows) + 1) // 2 :]
        for row in rows:
            self._leave(row)
            self._tally.count("rows_shed")
        self._push(rows)
        self.narrow(max(1, len(self._decoder.rows)))
