"""How much memory rows take, from what a model's lanes were seen to take, and how many may be let in.

Bytes are of this process. The estimate is made of shapes that a first forward showed; what it leaves out (the
allocator's waste, a library's own buffers) shows in the resident size, and the estimate is stretched by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

#: A part of a budget that is left alone: memory is asked for in steps.
RESERVE = 0.08


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
        windowed = sum(rate * min(tokens, most) for most, rate in self.windows)
        return self.fixed + self.per_token * tokens + windowed

    def kept_bytes(self, tokens: int) -> int:
        """So many tokens of a prefix, of which windowed layers keep all places too."""
        return tokens * (self.per_token + sum(rate for _, rate in self.windows))


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

    def rows_bytes(self, rows: int, tokens: int) -> int:
        """Caches of ``rows`` rows, the longest of ``tokens``: lanes are as long as the longest one."""
        return int(rows * self.cost.row_bytes(tokens) * self.stretch)

    def allows(self, rows: int, tokens: int, kept_bytes: int) -> bool:
        """Whether so many rows may be in flight beside ``kept_bytes`` of prefixes.

        A row's keys exist twice while it moves from reading its prompt to decoding, and lanes that grow are copied.
        """
        caches = self.rows_bytes(rows + 1, tokens) + kept_bytes
        if self.kv_limit_bytes is not None and caches > self.kv_limit_bytes:
            return False
        needed = self.resident_bytes + caches + self._forward(tokens)
        return self.limit_bytes is None or needed <= self.limit_bytes * (1 - RESERVE)

    def _forward(self, tokens: int) -> int:
        return int((self.forward_bytes + self.attention_bytes * tokens) * self.stretch)

    def least_bytes(self, tokens: int) -> int:
        """What one row of so many tokens needs in all."""
        return int((self.resident_bytes + self.rows_bytes(2, tokens) + self._forward(tokens)) / (1 - RESERVE))

    def see(self, resident_bytes: int, rows: int, tokens: int, kept_bytes: int) -> None:
        """Correct the estimate by what the process holds now."""
        estimated = self.rows_bytes(rows, tokens) + kept_bytes + self._forward(tokens)
        held = resident_bytes - self.resident_bytes
        if estimated > 0 and held > estimated:
            self.stretch = max(self.stretch, min(4.0, self.stretch * held / estimated))
