"""What one run of one arm gave: an outcome for each item, and the figures. Knows nothing about how it was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.ports import Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """One item's end in one run. Times are seconds; None where an arm cannot know them.

    Attributes:
        tokens: answer tokens of each choice, end tokens included; empty where the engine does not tell them.
        texts: each choice's text.
        error: the code, for an item that erred.
        first_token_s: from the start of the run to the item's first token.
        done_s: from the start of the run to its end.
        ttft_s: from the moment its prompt began to be read to the first token.
        itl_mean_s: mean time between its tokens.
    """

    custom_id: str
    tokens: tuple[tuple[int, ...], ...] = ()
    texts: tuple[str, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None
    first_token_s: float | None = None
    done_s: float | None = None
    ttft_s: float | None = None
    itl_mean_s: float | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes. ``resident`` are (seconds since the start, resident size) samples; the peaks are of this run.

    ``ru_maxrss`` is the kernel's own peak; where ``is_maxrss_of_run`` is false it is that of the process so far.
    ``mlx_peak`` is what MLX had allocated at most.
    """

    resident: tuple[tuple[float, int], ...]
    at_start: int
    peak: int
    ru_maxrss: int
    is_maxrss_of_run: bool
    mlx_peak: int


@dataclass(frozen=True, slots=True)
class ArmRun:
    """One run: outcomes in the order of the items.

    ``itl_s`` are the percentiles of the time between any two tokens of a row, under ``p50`` and ``p95``.
    """

    outcomes: tuple[Outcome, ...]
    seconds: float
    memory: MemoryUse
    itl_s: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    verdicts: tuple[Verdict, ...] = ()
    engine_s: float | None = None

    @property
    def output_tokens(self) -> int:
        return sum(one.output_tokens for one in self.outcomes)

    @property
    def prompt_tokens(self) -> int:
        return sum(one.prompt_tokens for one in self.outcomes)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens by end-to-end seconds."""
        return self.output_tokens / self.seconds


def percentile(values: Sequence[float], share: int) -> float | None:
    """By nearest rank; None for no values."""
    ranked = sorted(values)
    return ranked[-(-share * len(ranked) // 100) - 1] if ranked else None
