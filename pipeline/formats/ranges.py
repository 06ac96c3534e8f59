"""Sets of small integers as run-length text, the way a parts row says which items it holds: ``0-4,7,9-12``."""

from __future__ import annotations

from collections.abc import Iterable


def dump_ranges(values: Iterable[int]) -> str:
    """Canonical text of a set; "" for the empty one."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and runs[-1][1] == value - 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def parse_ranges(text: str) -> frozenset[int]:
    """The inverse of :func:`dump_ranges`."""
    values: set[int] = set()
    for run in filter(None, text.split(",")):
        low, _, high = run.partition("-")
        values.update(range(int(low), int(high or low) + 1))
    return frozenset(values)
