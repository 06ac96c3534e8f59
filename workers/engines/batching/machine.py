"""What stays between shards of one loaded model: its bounds, its prefixes, its memory, what was found out about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workers.engines.batching.budget import MemoryBudget
from workers.engines.batching.canonical import Bounds, CanonicalPass
from workers.engines.batching.governor import Governor
from workers.engines.batching.prefixes import PrefixStore
from workers.engines.batching.routers import RouterWatch
from workers.engines.batching.width import WidthGauge


@dataclass(slots=True)
class Machine:
    """One model and what its rows share.

    Attributes:
        end_tokens: tokens that end an answer.
        vocabulary: tokens that the model can read and say.
        is_exact: close choices are decided canonically. Off where too many are close (coarse types).
        width_limit: most rows at once, by what the probe found; None for no limit.
    """

    model: Any
    dtype: str
    end_tokens: frozenset[int]
    vocabulary: int
    canonical: CanonicalPass
    bounds: Bounds
    routers: RouterWatch
    prefixes: PrefixStore
    budget: MemoryBudget
    gauge: WidthGauge = field(default_factory=WidthGauge)
    governor: Governor = field(default_factory=Governor)
    is_exact: bool = True
    width_limit: int | None = None
