"""The written contract of a job's accelerations: what must stay the same, what is measured, what may not be passed."""

from __future__ import annotations

from typing import Literal

from pipeline.specs.base import Frozen

Correctness = Literal["greedy_identical", "distribution_preserving", "statistical", "task_quality"]
Fallback = Literal["fail", "decline", "baseline"]


class Contract(Frozen):
    """What a job asks of the machinery that makes it fast. A worker checks it while it works."""

    correctness: Correctness = "greedy_identical"
    fallback: Fallback = "decline"
