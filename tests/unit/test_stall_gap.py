"""A parent that was away itself does not blame its child for the silence."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pipeline.errors import ChildStalled
from workers import run as run_module
from workers.process import ChildProcess
from workers.run import GAP_S, ChildRun


class SilentChild:
    """Says nothing for ``silence`` looks, each of which takes ``step_s`` of the clock, then a token."""

    pid = 1
    is_ended_on_purpose = False

    def __init__(self, clock: FakeTime, silence: int, step_s: float) -> None:
        self._clock, self._silence, self._step_s = clock, silence, step_s
        self.killed = False

    def receive(self, timeout_s: float) -> Any:
        self._clock.now += self._step_s
        self._silence -= 1
        return None if self._silence >= 0 else ({"type": "progress", "tokens": 1, "items": 0, "phase": "decode"}, b"")

    def kill(self) -> None:
        self.killed = True

    def quote(self) -> str:
        return ""

    def send(self, message: object) -> None:
        """Nobody listens."""


class FakeTime:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("step_s", "silence", "stalls"),
    [(0.25, 8, False), (0.25, 400, True), (GAP_S + 60.0, 1, False), (GAP_S - 1.0, 20, True)],
)
def test_silence_counts_only_while_the_parent_looks(
    monkeypatch: pytest.MonkeyPatch, step_s: float, silence: int, stalls: bool
) -> None:
    clock = FakeTime()
    monkeypatch.setattr(run_module, "time", clock)
    child = SilentChild(clock, silence, step_s)
    run = ChildRun(
        cast(ChildProcess, child), [0], stall_timeout_s=30.0, cancel_grace_s=1.0, on_death=lambda error: None
    )
    events = run.events()
    if stalls:
        with pytest.raises(ChildStalled):
            next(events)
    else:
        next(events)
    assert child.killed is stalls
