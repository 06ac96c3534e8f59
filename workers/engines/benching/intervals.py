"""Ratios of paired runs and how sure they are. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, stdev

#: Student's t, 97.5 %, for 1 to 30 degrees of freedom; beyond that the normal value serves.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ratio:
    """``per_run`` pairs the runs of one repetition; ``interval`` is 95 % for their geometric mean.

    None for the interval of a single repetition: nothing is known of its spread.
    """

    per_run: tuple[float, ...]
    median: float
    low: float
    high: float
    interval: tuple[float, float] | None


def paired_ratio(values: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """``values[i] / baseline[i]``, which must be positive and equally many.

    The interval is Student's t on the logarithms: runs of a busy machine differ by factors, and those of one
    repetition share them.
    """
    ratios = tuple(value / base for value, base in zip(values, baseline, strict=True))
    logs = [math.log(one) for one in ratios]
    interval = None
    if len(logs) > 1:
        mean = sum(logs) / len(logs)
        freedom = len(logs) - 1
        reach = (_T[freedom - 1] if freedom <= len(_T) else 1.96) * stdev(logs) / math.sqrt(len(logs))
        interval = (math.exp(mean - reach), math.exp(mean + reach))
    return Ratio(ratios, median(ratios), min(ratios), max(ratios), interval)
