"""What a governor decided, kept small enough for a job's record."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

#: Changes that are kept word for word; later ones are only counted.
KEPT = 64


@dataclass(slots=True)
class DecisionLog:
    """Steps by mechanism, and the changes of who is in charge with their reasons."""

    steps: Counter[str] = field(default_factory=Counter)
    trials: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    entries: list[dict[str, Any]] = field(default_factory=list)

    def count(self, mechanism: str, *, is_trial: bool) -> None:
        self.steps[mechanism] += 1
        if is_trial:
            self.trials[mechanism] += 1

    def note(self, step: int, width: int, context: int, before: str, after: str, why: str) -> None:
        self.changes[f"{before} to {after}"] += 1
        if len(self.entries) < KEPT:
            self.entries.append(
                {"step": step, "width": width, "context": context, "from": before, "to": after, "why": why}
            )

    def as_json(self) -> dict[str, Any]:
        return {
            "steps": dict(sorted(self.steps.items())),
            "trials": dict(sorted(self.trials.items())),
            "changes": dict(sorted(self.changes.items())),
            "decisions": list(self.entries),
        }
