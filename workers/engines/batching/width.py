"""How many rows at once give the most tokens a second, as far as it was seen. Wider is not always faster."""

from __future__ import annotations

#: A narrower batch is taken when it was this much faster; what is measured here is noisy.
CLEARLY = 1.1

#: Steps of a width before its figure counts, and after which a wider one is tried again.
LEAST_STEPS, TRY_AGAIN_STEPS = 8, 512

_KEPT = 0.9


class WidthGauge:
    """Seconds of a plain decoding step by number of rows, as a fading mean. No answer depends on it."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._steps: dict[int, int] = {}
        self._held_back = 0

    def see(self, rows: int, seconds: float) -> None:
        """One step of so many rows."""
        self._steps[rows] = self._steps.get(rows, 0) + 1
        known = self._seconds.get(rows)
        self._seconds[rows] = seconds if known is None else _KEPT * known + (1 - _KEPT) * seconds

    def best(self, most: int) -> int:
        """Rows to decode together, at most ``most``: that many, unless fewer were clearly faster."""
        rates = {rows: rows / self._seconds[rows] for rows, steps in self._steps.items() if steps >= LEAST_STEPS}
        widest = max((rows for rows in rates if rows <= most), default=None)
        if widest is None or widest < most:
            return most
        fastest = max((rows for rows in rates if rows <= most), key=lambda rows: (rates[rows], rows))
        if rates[fastest] < CLEARLY * rates[widest]:
            return most
        self._held_back += 1
        if self._held_back > TRY_AGAIN_STEPS:
            self._held_back, self._steps[widest] = 0, 0
            return most
        return fastest
