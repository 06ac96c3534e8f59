"""The sums of one run of an engine: tokens, items, counters, time inside engine calls."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Literal

from pipeline.ports import Answer, Progress, RunStats, Verdict
from workers.engines.memory import peak_rss_bytes
from workers.engines.trace import BusyTrace


class Tally:
    """Counts what a run does; ``tokens`` are those that went through the model, padding and repeats excluded."""

    def __init__(self, phase: Literal["embed", "score", "decode"]) -> None:
        self._phase = phase
        self._busy = BusyTrace()
        self._counters: Counter[str] = Counter()
        self._items = 0
        self._tokens = 0

    def call(self) -> AbstractContextManager[None]:
        """The time inside this block is spent in the engine."""
        return self._busy.call()

    def count(self, name: str, number: int = 1) -> None:
        """Add to a counter; one that stays 0 is not reported."""
        self._counters[name] += number

    @property
    def tokens(self) -> int:
        """Tokens that went through the model."""
        return self._tokens

    def counted(self, name: str) -> int:
        """A counter so far."""
        return self._counters[name]

    def add_tokens(self, number: int) -> None:
        self._tokens += number

    def add_answer(self, answer: Answer) -> None:
        """Count an answer's item, and its prompt tokens as those the user is told."""
        self._items += 1
        self._counters["prompt_tokens"] += int(answer.usage.get("prompt_tokens", 0))
        self._counters["output_tokens"] += int(answer.usage.get("completion_tokens", 0))

    def progress(self) -> Progress:
        return Progress(tokens=self._tokens, items=self._items, phase=self._phase)

    def stats(
        self, *, cancelled: bool = False, measures: dict[str, float] | None = None, verdicts: tuple[Verdict, ...] = ()
    ) -> RunStats:
        counters = Counter(self._counters)
        return RunStats(
            prompt_tokens=counters.pop("prompt_tokens", 0),
            output_tokens=counters.pop("output_tokens", 0),
            busy=self._busy.spans,
            peak_rss_bytes=peak_rss_bytes(),
            counters={name: number for name, number in sorted(counters.items()) if number},
            measures=measures or {},
            verdicts=verdicts,
            cancelled=cancelled,
        )
