"""How many rows at once give the most tokens a second, as far as it was seen. Wider is not always faster."""

from __future__ import annotations

from collections import deque
from statistics import median

#: A narrower batch is taken when it was this much faster; what is measured here is noisy.
CLEARLY = 1.15

#: Newest steps of a width that its figure is the median of, and how many it takes for the figure to count.
NEWEST_STEPS, LEAST_STEPS = 31, 12

#: Answers of a narrower width after which the wider one is tried again.
TRY_AGAIN = 512


class WidthGauge:
    """Seconds of a plain decoding step by number of rows. No answer depends on it."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._held_back = 0

    def see(self, rows: int, seconds: float) -> None:
        """One step of so many rows."""
        self._seconds.setdefault(rows, deque(maxlen=NEWEST_STEPS)).append(seconds)

    def best(self, most: int) -> int:
        """Rows to decode together, at most ``most``: that many, unless fewer were clearly faster."""
        if len(self._seconds.get(most, ())) < LEAST_STEPS:
            return most
        rates = {
            rows: rows / median(seconds)
            for rows, seconds in self._seconds.items()
            if rows <= most and len(seconds) >= LEAST_STEPS
        }
        fastest = max(rates, key=lambda rows: (rates[rows], rows))
        if rates[fastest] < CLEARLY * rates[most]:
            return most
        self._held_back += 1
        if self._held_back > TRY_AGAIN:
            self._held_back = 0
            self._seconds[most].clear()
            return most
        return fastest
