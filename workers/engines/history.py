"""What a rule remembers of the answer it saw last, so that one new token costs one token. Pure from outside."""

from __future__ import annotations

from collections.abc import Sequence


class History:
    """The answer tokens of the last call."""

    def __init__(self) -> None:
        self._tokens: list[int] = []

    def follow(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """Become ``tokens``; returns what was taken off the end and then what was put there."""
        now = list(tokens)
        common = _common_length(self._tokens, now)
        removed, added = self._tokens[common:], now[common:]
        self._tokens = now
        return removed, added


def _common_length(one: list[int], other: list[int]) -> int:
    """By halves, so that slices are compared and not tokens one by one."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
