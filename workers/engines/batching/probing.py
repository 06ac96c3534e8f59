"""Is a decoding step what the canonical pass says it is? Asked when a model is loaded (law 6).

Texts of different length are decoded together, token by token, and each step's logits are laid beside those of the
canonical pass over the same tokens. A mask that is ignored shows as a difference far above rounding; what is left is
rounding, and sets the bounds below which choices are made canonically.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from workers.engines.batching.canonical import SAFETY, Bounds, CanonicalPass, one_row
from workers.engines.batching.lanes import CannotBatch, Lanes, SingleLane
from workers.engines.batching.routers import RouterWatch

#: Texts of clearly different length, so that rows differ in where they stand.
PROBE_TEXTS = (
    "The capital of France is",
    "Here is a list of the colours of the rainbow, from the outside to the inside: red, orange, yellow,",
    (
        "Water is made of hydrogen and oxygen. When it gets cold enough it becomes ice, and when it gets hot enough it "
        "becomes steam. Between these two, at the temperatures that we find pleasant, water is a"
    ),
)
PROBE_TOKENS = 8

#: How far logits may be from the canonical ones by rounding, by type; more is a mask ignored.
TOLERANCE = {"float32": 1e-2, "float16": 0.25, "bfloat16": 1.5}


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What was compared.

    Attributes:
        passed: rows keep their logits in a batch.
        deviation: largest difference of a logit from its canonical value.
        close_share: share of steps whose two best tokens were closer than the bound that follows.
        reason: why it failed, "" where it passed.
    """

    passed: bool
    rows: int
    steps: int
    deviation: float
    close_share: float
    reason: str = ""


def probe_decoding(
    model: Any, prompts: Sequence[list[int]], dtype: str, bounds: Bounds, routers: RouterWatch
) -> ProbeResult:
    """Decode ``prompts`` greedily together and compare every step; ``bounds`` learn what rounding does."""
    try:
        lanes = Lanes(model, spare=1)
    except CannotBatch as error:
        return ProbeResult(False, len(prompts), 0, 0.0, 0.0, str(error))
    texts = [_read_into(model, lanes, prompt) for prompt in prompts]
    seen: list[np.ndarray[Any, Any]] = []
    scores: list[list[np.ndarray[Any, Any]]] = []
    for _ in range(PROBE_TOKENS):
        with routers.listening() as heard:
            logits = lanes.forward([[text[-1]] for text in texts]).astype(mx.float32)
        seen.append(np.array(logits[:, -1]))
        scores.append([np.array(layer.astype(mx.float32))[:, -1] for layer in heard])
        lanes.advance([1] * len(texts))
        for text, token in zip(texts, seen[-1].argmax(axis=-1).tolist(), strict=True):
            text.append(token)
    return _compare(model, prompts, texts, seen, scores, dtype, bounds, routers)


def _read_into(model: Any, lanes: Lanes | SingleLane, prompt: list[int]) -> list[int]:
    reading = one_row(model)
    if len(prompt) > 1:
        reading.forward([prompt[:-1]])
        reading.advance([len(prompt) - 1])
    lanes.adopt(reading, 0)
    return list(prompt)


def _compare(
    model: Any,
    prompts: Sequence[list[int]],
    texts: Sequence[list[int]],
    seen: Sequence[np.ndarray[Any, Any]],
    scores: Sequence[list[np.ndarray[Any, Any]]],
    dtype: str,
    bounds: Bounds,
    routers: RouterWatch,
) -> ProbeResult:
    tolerance = TOLERANCE.get(dtype, TOLERANCE["bfloat16"])
    largest, margins = 0.0, []
    for lane, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        start = len(prompt) - 1
        with routers.listening() as heard:
            canonical = dict(CanonicalPass(model).walk(text[:-1], start))
        for step in range(PROBE_TOKENS):
            logits = canonical[start + step]
            difference = float(np.abs(logits - seen[step][lane]).max())
            best, second = np.partition(logits, -2)[-2:][::-1]
            margins.append(float(best - second))
            # NaN compares false, so a model that gives NaN fails here.
            if not difference <= tolerance:
                steps = lane * PROBE_TOKENS + step + 1
                reason = f"a row's logits change by {difference:.3g} in a batch: a mask is ignored, or worse"
                return ProbeResult(False, len(prompts), steps, difference, 0.0, reason)
            largest = max(largest, difference)
            bounds.see(start + step + 1, difference)
        _compare_routers(heard, scores, lane, start, routers)
    close = sum(margin <= SAFETY * largest for margin in margins) / len(margins)
    return ProbeResult(True, len(prompts), len(margins), largest, close)


def _compare_routers(
    heard: Sequence[mx.array], scores: Sequence[list[np.ndarray[Any, Any]]], lane: int, start: int, routers: RouterWatch
) -> None:
    """``heard`` holds the routers of each chunk of the canonical pass, one after another."""
    layers = len(scores[0]) if scores else 0
    if not layers:
        return
    for layer in range(layers):
        chunks = [np.array(each.astype(mx.float32)).reshape(each.shape[-2], -1) for each in heard[layer::layers]]
        canonical = np.concatenate(chunks)
        for step, decoded in enumerate(scores):
            difference = float(np.abs(canonical[start + step] - decoded[layer][lane].reshape(-1)).max())
            routers.bounds.see(start + step + 1, difference)
