"""Rows in, finished rows out: when prompts are read, who decodes together, who guesses ahead, what fits into memory.

Longest expected first, so that the tail is short; a row joins the decoding rows as soon as its prompt is read. What is
read in a row before decoding goes on is bounded once half of the width decodes. Rows may arrive at any time. No answer
depends on any of this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import mlx.core as mx

from pipeline.errors import CeilingExceeded
from workers.engines.batching.budget import Load, MemoryBudget
from workers.engines.batching.canonical import one_row
from workers.engines.batching.decoding import Advance, Decoder
from workers.engines.batching.guessing import Guesser
from workers.engines.batching.machine import Machine
from workers.engines.batching.reading import PromptReader, Through
from workers.engines.batching.rows import Row
from workers.engines.memory import held_bytes
from workers.engines.tally import Tally

#: Prompt tokens read before the next decoding step, when at least half of the width decodes.
PREFILL_BURST = 2048

#: Rows whose prompts are read before there is a place for them, so that several are read together.
AHEAD = 8

#: Share of the ceiling from which on memory is given back.
PRESSED = 0.95

#: Steps between two corrections of the estimate of memory.
CORRECT_STEPS = 16


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
        can_rewind = one_row(machine.model).can_rewind
        tally.count("guessing_refused", guesser is not None and not can_rewind)
        self._guesser = guesser = guesser if can_rewind else None
        self._reader = PromptReader(
            machine,
            tally,
            can_pad=can_rewind,
            shares_prefixes=shares_prefixes,
            on_start=on_start,
        )
        lanes = self._reader.new_lanes(spare=1 if guesser is None else guesser.most_columns)
        self._decoder = Decoder(machine, lanes, tally)
        machine.prefixes.fit(self._budget.prefix_bytes)
        self._ready: deque[Through] = deque()
        self._burst = self._steps = 0
        self.most_cache_bytes = self.most_resident_bytes = self.most_rows = 0

    # --- for the engine ----------------------------------------------------------------------------------------------

    def add(self, rows: Iterable[Row]) -> None:
        """Rows to answer, now or while others are decoded. They are planned together."""
        self._reader.add(rows)

    @property
    def is_idle(self) -> bool:
        return self._reader.is_idle and not self._decoder.rows and not self._ready

    @property
    def in_flight(self) -> int:
        return len(self._decoder.rows) + len(self._ready) + len(self._reader.rows)

    @property
    def width(self) -> int:
        return self._width

    def step(self) -> list[Advance]:
        """One forward: a piece of prompts, or every decoding row's next tokens. Call while not idle."""
        self._steps += 1
        self._look_at_memory()
        self._see_caches()
        self.most_rows = max(self.most_rows, self.in_flight)
        self._join()
        if self._may_read() and (self._reader.is_reading or self._begin_reading()):
            self._read()
            return []
        self._burst = 0
        return self._decode()

    def discard(self, rows: Sequence[Row]) -> None:
        """Forget rows wherever they are; nothing more is heard of them."""
        gone = set(rows)
        self._reader.discard(gone)
        self._ready = deque(one for one in self._ready if one.row not in gone)
        for row in [row for row in self._decoder.rows if row in gone]:
            self._leave(row)

    def take_back(self, row: Row) -> None:
        """Decode a finished row again from its prompt."""
        row.restart()
        self._reader.put_back([row])

    def restart(self) -> None:
        """Decode all rows in flight again from their prompts."""
        rows = [*self._decoder.rows, *self._not_begun()]
        for row in list(self._decoder.rows):
            self._leave(row)
        for row in rows:
            row.restart()
        self._reader.put_back(rows)

    def narrow(self, width: int) -> None:
        """Let no more than so many rows in from now on."""
        self._width = min(self._width, width)

    def without_prefixes(self) -> None:
        """Read every prompt in full from now on."""
        self._reader.without_prefixes()

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

    def _not_begun(self) -> list[Row]:
        """Take back the rows whose prompts are read or being read, and which have no place yet."""
        rows = [one.row for one in self._ready]
        self._ready.clear()
        return rows + self._reader.interrupt()

    def _leave(self, row: Row) -> None:
        self._decoder.leave(row)
        if self._guesser is not None:
            self._guesser.end(row)

    # --- reading prompts ---------------------------------------------------------------------------------------------

    def _may_read(self) -> bool:
        return self._burst < PREFILL_BURST or 2 * len(self._decoder.rows) < self._width

    def _begin_reading(self) -> bool:
        """False when nobody waits, the batch is full, or there is no room."""
        free = self._free()
        head = self._reader.next
        if free <= 0 or head is None:
            return False
        if not self._has_room([head]):
            if self._decoder.rows:
                return False
            self._refuse(head)
        ahead = AHEAD if self._width > 1 else 0
        self._reader.begin(free + ahead, self._has_room, self._budget.cost.kept_bytes)
        return True

    def _free(self) -> int:
        """Places for which no row is ready."""
        return self._machine.gauge.best(self._width) - len(self._decoder.rows) - len(self._ready)

    def _read(self) -> None:
        count, through = self._reader.read()
        self._burst += count
        self._ready.extend(through)
        self._join()

    def _join(self) -> None:
        """Rows that are ready take the places that are free."""
        while self._ready and len(self._decoder.rows) < self._width:
            one = self._ready.popleft()
            self._decoder.join(one.row, one.lanes, one.lane)
            if self._guesser is not None:
                self._guesser.begin(one.row)
            self._see_caches(0 if self._ready else one.lanes.nbytes)

    # --- decoding ----------------------------------------------------------------------------------------------------

    def _decode(self) -> list[Advance]:
        rows = list(self._decoder.rows)
        guesses: Mapping[Row, Sequence[int]] = {}
        if self._guesser is not None:
            guesses = self._guesser.guess(rows, is_last=self._reader.is_idle and not self._ready)
        context = max(self._decoder.lanes.lengths)
        advances = self._decoder.step(guesses)
        self._tally.count("decode_steps")
        self._tally.count("decode_rows", len(rows))
        said = sum(len(advance.tokens) for advance in advances)
        self._tally.add_tokens(said)
        self._tally.count("decode_tokens", said)
        if self._guesser is not None:
            self._guesser.learn(advances, context, self._decoder.forward_s)
        if not guesses:
            self._machine.gauge.see(len(rows), self._decoder.forward_s)
        return advances

    # --- memory ------------------------------------------------------------------------------------------------------

    @property
    def _cache_bytes(self) -> int:
        guessing = 0 if self._guesser is None else self._guesser.nbytes
        kept = self._machine.prefixes.nbytes + self._ready_bytes
        return int(self._decoder.lanes.nbytes + self._reader.nbytes + kept + guessing)

    @property
    def _ready_bytes(self) -> int:
        """Rows that were read together share their lanes until the last has its place."""
        return sum({id(one.lanes): int(one.lanes.nbytes) for one in self._ready}.values())

    def _see_caches(self, beside_bytes: int = 0) -> None:
        self.most_cache_bytes = max(self.most_cache_bytes, self._cache_bytes + beside_bytes)

    def _has_room(self, reading: Sequence[Row], prefix_bytes: int = 0) -> bool:
        """Whether these rows may be read together beside all that is in flight, and so much more of prefixes kept."""
        return self._budget.allows(self._load(reading, prefix_bytes))

    def _load(self, reading: Sequence[Row], prefix_bytes: int = 0) -> Load:
        rows = [*self._decoder.rows, *(one.row for one in self._ready), *reading]
        lanes, places = self._decoder.lanes.room
        columns = 1 if self._guesser is None else self._guesser.most_columns
        return Load(
            rows=len(rows),
            tokens=max(row.most_tokens for row in rows) + columns,
            reading=len(reading),
            reading_tokens=max(len(row.so_far) for row in reading),
            kept_bytes=self._machine.prefixes.nbytes + self._ready_bytes + prefix_bytes,
            lanes=lanes,
            places=places,
        )

    def _refuse(self, row: Row) -> None:
        """Not even one row fits: prefixes go first, then the job is told."""
        self.without_prefixes()
        budget = self._budget
        # What stretched the estimate may be over; with nothing else in flight the row goes by what shapes say.
        mx.clear_cache()
        budget.stretch = 1.0
        if not self._has_room([row]):
            hint = "raise the ceiling, or take a smaller model or shorter items"
            raise CeilingExceeded(budget.refusal(self._load([row])), hint=hint)

    def _look_at_memory(self) -> None:
        """Correct the estimate by what is held; where the ceiling is near, give back what can be given back."""
        budget = self._budget
        if budget.limit_bytes is None:
            return
        held = held_bytes()
        self.most_resident_bytes = max(self.most_resident_bytes, held)
        if self._steps % CORRECT_STEPS:
            return
        longest = max((row.most_tokens for row in self._decoder.rows), default=0)
        budget.see(held, self._cache_bytes, longest)
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
        self._reader.put_back([*rows, *self._not_begun()])
        self.narrow(max(1, len(self._decoder.rows)))
