"""How much memory rows take, from what a model's lanes were seen to take, and how many may be let in.

Bytes are of this process. The estimate is made of shapes that a first forward showed; what it leaves out (the
allocator's waste, a library's own buffers) shows in the resident size, and the estimate is stretched by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

#: A part of a budget that is left alone: memory is asked for in steps.
RESERVE = 0.08

#: Of the ceilings of memory, and of keys and values, what prefixes may take.
PREFIX_SHARE, PREFIX_KV_SHARE = 0.1, 0.25

#: Lanes grow by this many tokens at a time.
STEP_TOKENS = 128

#: Lanes that may be made beyond those that are needed.
SPARE_LANES = 4

#: What is held may be so many times what was estimated; more has another cause than rows.
MOST_STRETCH = 4.0


@dataclass(frozen=True, slots=True)
class LaneCost:
    """Bytes of a row: a constant, so much a token, and so much a token of windowed layers up to their window's end."""

    fixed: int = 0
    per_token: int = 0
    windows: tuple[tuple[int, int], ...] = ()

    def __add__(self, other: LaneCost) -> LaneCost:
        """A row that has a lane in both."""
        return LaneCost(self.fixed + other.fixed, self.per_token + other.per_token, (*self.windows, *other.windows))

    def row_bytes(self, tokens: int) -> int:
        """Keys and values of a row of so many tokens, and nothing besides."""
        windowed = sum(rate * min(tokens, most) for most, rate in self.windows)
        return self.fixed + self.per_token * tokens + windowed

    def lane_bytes(self, tokens: int) -> int:
        """A lane of which so many places are needed."""
        windowed = sum(rate * whole_steps(min(tokens, most)) for most, rate in self.windows)
        return self.fixed + self.per_token * whole_steps(tokens) + windowed

    def reading_bytes(self, tokens: int) -> int:
        """A lane in which so much of a prompt is read: windowed layers keep all places there."""
        return self.fixed + self.kept_bytes(whole_steps(tokens))

    def kept_bytes(self, tokens: int) -> int:
        """So many tokens of a prefix, of which windowed layers keep all places too."""
        return tokens * (self.per_token + sum(rate for _, rate in self.windows))


@dataclass(frozen=True, slots=True)
class Load:
    """What is in flight, or would be.

    Attributes:
        rows: that are decoded, those included that are still being read.
        tokens: most tokens of the longest.
        reading: rows that are read together, the longest of ``reading_tokens``.
        kept_bytes: prefixes.
        lanes: that exist already, each with ``places``.
    """

    rows: int
    tokens: int
    reading: int = 0
    reading_tokens: int = 0
    kept_bytes: int = 0
    lanes: int = 0
    places: int = 0


@dataclass(slots=True)
class MemoryBudget:
    """Admits rows while the estimate stays below ``limit_bytes``; None lets everything in.

    Attributes:
        resident_bytes: what the process holds with the model loaded and nothing in flight.
        forward_bytes: what the largest forward takes beside caches, but for attention.
        attention_bytes: what attention takes in it for each token of context.
        kv_limit_bytes: what keys and values, prefixes included, may take; None for no limit of their own.
        stretch: how much more than estimated was once held; at least 1.
    """

    limit_bytes: int | None
    resident_bytes: int
    cost: LaneCost
    forward_bytes: int
    attention_bytes: int = 0
    kv_limit_bytes: int | None = None
    stretch: float = field(default=1.0)

    def of_job(self, limit_bytes: float | None, kv_limit_bytes: float | None, beside: LaneCost) -> MemoryBudget:
        """The same with a job's own ceilings, where they are lower, and what each row takes ``beside`` its lane."""
        limit = min((int(each) for each in (self.limit_bytes, limit_bytes) if each is not None), default=None)
        kv_limit = None if kv_limit_bytes is None else int(kv_limit_bytes)
        return replace(self, limit_bytes=limit, kv_limit_bytes=kv_limit, cost=self.cost + beside)

    @property
    def prefix_bytes(self) -> int | None:
        """What prefixes may take of the ceilings; None where there are none."""
        shares = ((self.limit_bytes, PREFIX_SHARE), (self.kv_limit_bytes, PREFIX_KV_SHARE))
        return min((int(limit * share) for limit, share in shares if limit is not None), default=None)

    def cache_bytes(self, load: Load) -> int:
        """Keys, values and states: lanes are as long as the longest row, and more are made at a time than are needed.

        A row that is read, or decided canonically, has a lane of its own for that time.
        """
        lanes = max(load.lanes, load.rows, min(2 * load.rows - 2, load.rows + SPARE_LANES))
        beside = max(load.reading * self.cost.reading_bytes(load.reading_tokens), self.cost.reading_bytes(load.tokens))
        return lanes * self.cost.lane_bytes(max(load.tokens, load.places)) + beside + load.kept_bytes

    def allows(self, load: Load) -> bool:
        """Whether so much may be in flight."""
        caches = self.cache_bytes(load)
        if self.kv_limit_bytes is not None and caches > self.kv_limit_bytes:
            return False
        needed = self.resident_bytes + self.stretch * (caches + self._forward(load.tokens))
        return self.limit_bytes is None or needed <= self.limit_bytes * (1 - RESERVE)

    def refusal(self, load: Load) -> str:
        """Why this, which is one row, is not let in."""
        caches = self.cache_bytes(load)
        limit, least, what = self.kv_limit_bytes, caches, "ceiling of keys and values"
        if limit is None or caches <= limit:
            least = int((self.resident_bytes + caches + self._forward(load.tokens)) / (1 - RESERVE))
            limit, what = self.limit_bytes, "memory ceiling"
        return (
            f"the {what} of {limit or 0:,} bytes is too small for one row: {load.tokens:,} tokens of prompt and "
            f"answer need about {least:,} bytes"
        )

    def _forward(self, tokens: int) -> int:
        return self.forward_bytes + self.attention_bytes * tokens

    def see(self, resident_bytes: int, cache_bytes: int, tokens: int) -> None:
        """Correct the estimate by what the process holds now, with such caches, the longest row of ``tokens``."""
        estimated = cache_bytes + self._forward(tokens)
        held = resident_bytes - self.resident_bytes
        if estimated > 0:
            self.stretch = max(self.stretch, min(MOST_STRETCH, held / estimated))


def whole_steps(tokens: int) -> int:
    """Places of a lane that holds so many tokens."""
    return -(-tokens // STEP_TOKENS) * STEP_TOKENS
