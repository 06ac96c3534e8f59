"""The written contract of a job's accelerations: what must stay the same, what is measured, what may not be passed.

``docs/contract.md`` says what each word promises and how it is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from pipeline.errors import CeilingUnmeasurable
from pipeline.specs.base import Frozen
from pipeline.specs.sizes import ByteSize

#: The strictest first: what keeps one keeps all behind it.
Correctness = Literal["greedy_identical", "distribution_preserving", "statistical", "task_quality"]

#: What happens where a check finds that an acceleration does not keep the contract.
Fallback = Literal["fail", "decline", "baseline"]

Measure = Literal[
    "output_tokens_per_s",
    "items_per_s",
    "ttft_p50",
    "ttft_p95",
    "itl_p50",
    "itl_p95",
    "request_p50_s",
    "request_p95_s",
    "accepted_per_verify",
    "prefix_hit_rate",
]

#: Ceilings that this version has means to measure; each of the others is refused by its name.
MEASURABLE = frozenset({"resident_bytes", "kv_bytes", "model_start_s"})

#: How a job is called whose answers depend on more than its seeds.
NOT_SEED_STABLE = "distribution_preserving, not seed-stable"


class Ceilings(Frozen):
    """What may not be passed; None leaves it to the host. Sizes are bytes, or text such as ``6GiB``."""

    resident_bytes: ByteSize | None = Field(default=None, description="resident memory of the engine's process")
    kv_bytes: ByteSize | None = Field(default=None, description="keys and values of all rows and kept prefixes")
    model_start_s: float | None = Field(default=None, gt=0, description="seconds from start of the load to ready")
    bandwidth: ByteSize | None = Field(default=None, description="memory traffic, bytes a second")
    occupancy: float | None = Field(default=None, gt=0, le=1, description="share of the time the GPU is busy")
    power_w: float | None = Field(default=None, gt=0, description="watts of the whole machine")

    @property
    def given(self) -> Mapping[str, float]:
        """Those that are set, by name."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


class Contract(Frozen):
    """What a job asks of the machinery that makes it fast. A worker checks it while it works."""

    correctness: Correctness = "greedy_identical"
    measure: tuple[Measure, ...] = Field(default=(), description="what `status` shows beside the ceilings")
    ceilings: Ceilings = Ceilings()
    fallback: Fallback = "decline"
    shadow: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description="share of the tokens that are decoded again by the plain path; 1 is every row",
    )


def check_measurable(contract: Contract) -> None:
    """Raises CeilingUnmeasurable, naming the first ceiling that nobody could hold the job to."""
    for name in contract.ceilings.given:
        if name not in MEASURABLE:
            raise CeilingUnmeasurable(
                f"contract.ceilings.{name}: no host here can measure this",
                hint=f"leave it out; ceilings that are measured: {', '.join(sorted(MEASURABLE))}",
            )
