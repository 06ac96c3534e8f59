"""Does a row give the same answer in a batch as alone? Asked once per model, when it is loaded (law 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

from workers.engines.sampling import sample_greedy

#: Texts of clearly different length, so that the batch pads.
PROBE_TEXTS = (
    "The capital of France is",
    "Here is a list of the colours of the rainbow, from the outside to the inside: red, orange, yellow,",
    (
        "Water is made of hydrogen and oxygen. When it gets cold enough it becomes ice, and when it gets hot enough it "
        "becomes steam. Between these two, at the temperatures that we find pleasant, water is a"
    ),
)
PROBE_TOKENS = 8

#: How far a token's log probability may move between alone and batched, by type: rounding, not a mask ignored.
_TOLERANCE = {"float32": 1e-3, "float16": 0.1, "bfloat16": 0.5}


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """``deviation``: largest move of a chosen token's log probability, over the steps that could be compared."""

    passed: bool
    rows: int
    steps: int
    deviation: float


def probe_batching(model: Any, prompts: Sequence[list[int]], dtype: str) -> ProbeResult:
    """Decode ``prompts`` greedily alone and together, and compare.

    Other tokens are no failure where the two best were closer than the tolerance (a tie that rounding decides); such a
    row is compared no further.
    """
    tolerance = _TOLERANCE.get(dtype, _TOLERANCE["bfloat16"])
    together = _decode(model, prompts)
    passed, steps, deviation = True, 0, 0.0
    for prompt, batched in zip(prompts, together, strict=True):
        for (token, alone_logprobs), (other, batch_logprobs) in zip(_decode(model, [prompt])[0], batched, strict=True):
            steps += 1
            moved = abs(float(alone_logprobs[token]) - float(batch_logprobs[token]))
            gap = float(alone_logprobs[token]) - float(alone_logprobs[other])
            deviation = max(deviation, moved)
            # NaN compares false, so a model that gives NaN fails here.
            if not (moved <= tolerance and gap <= 2 * tolerance):
                passed = False
            if token != other or not passed:
                break
    return ProbeResult(passed, len(prompts), steps, deviation)


def _decode(model: Any, prompts: Sequence[list[int]]) -> list[list[tuple[int, mx.array]]]:
    """For each prompt its greedy tokens with the (V,) log probabilities they were chosen from."""
    generator: Any = BatchGenerator(
        model, sampler=sample_greedy, completion_batch_size=len(prompts), prefill_batch_size=len(prompts)
    )
    try:
        rows: dict[int, list[tuple[int, mx.array]]] = {
            uid: [] for uid in generator.insert(list(prompts), [PROBE_TOKENS] * len(prompts))
        }
        while responses := generator.next_generated():
            for response in responses:
                rows[response.uid].append((response.token, response.logprobs))
        return list(rows.values())
    finally:
        generator.close()
