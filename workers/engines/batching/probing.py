"""Is a decoding step what the canonical pass says it is? Asked when a model is loaded (law 6).

Texts of different length are decoded together, token by token, and each step's logits are laid beside those of the
canonical pass over the same tokens. A mask that is ignored shows as a difference far above rounding; what is left is
rounding, and sets the bounds below which choices are made canonically.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
        close_share: share of steps whose two best tokens, or a router's picks, were closer than the bound that follows.
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
        texts, steps = _decode(model, prompts, routers)
    except CannotBatch as error:
        return ProbeResult(False, len(prompts), 0, 0.0, 0.0, str(error))
    except Exception as error:  # noqa: BLE001 - families that compute with one offset for all rows raise anything
        return ProbeResult(False, len(prompts), 0, 0.0, 0.0, f"rows cannot be decoded together: {error}")
    return _compare(model, prompts, texts, steps, dtype, bounds, routers)


class _Step(NamedTuple):
    """(rows, V) logits; of each router (rows, experts) scores; (rows,) how close its closest pick was."""

    logits: np.ndarray[Any, Any]
    scores: list[np.ndarray[Any, Any]]
    margins: np.ndarray[Any, Any]


def _decode(model: Any, prompts: Sequence[list[int]], routers: RouterWatch) -> tuple[list[list[int]], list[_Step]]:
    """The prompts with what follows them, and what was seen in each step."""
    lanes = Lanes(model, spare=1)
    texts = [_read_into(model, lanes, prompt) for prompt in prompts]
    steps: list[_Step] = []
    for _ in range(PROBE_TOKENS):
        with routers.listening() as heard:
            logits = np.array(lanes.forward([[text[-1]] for text in texts])[:, -1].astype(mx.float32))
        scores = [np.array(layer.astype(mx.float32)).reshape(len(texts), -1) for layer in heard]
        margins = routers.margins(heard, (len(texts), 1))
        steps.append(_Step(logits, scores, np.full(len(texts), np.inf) if margins is None else np.array(margins)[:, 0]))
        lanes.advance([1] * len(texts))
        for text, token in zip(texts, logits.argmax(axis=-1).tolist(), strict=True):
            text.append(token)
    return texts, steps


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
    steps: Sequence[_Step],
    dtype: str,
    bounds: Bounds,
    routers: RouterWatch,
) -> ProbeResult:
    tolerance = TOLERANCE.get(dtype, TOLERANCE["bfloat16"])
    largest, leads = 0.0, []
    for lane, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        start = len(prompt) - 1
        with routers.listening() as heard:
            canonical = dict(CanonicalPass(model).walk(text[:-1], start))
        for place, step in enumerate(steps):
            logits = canonical[start + place]
            difference = float(np.abs(logits - step.logits[lane]).max())
            best, second = np.partition(logits, -2)[-2:][::-1]
            leads.append(float(best - second))
            # NaN compares false, so a model that gives NaN fails here.
            if not difference <= tolerance:
                reason = f"a row's logits change by {difference:.3g} in a batch: a mask is ignored, or worse"
                return ProbeResult(False, len(prompts), lane * len(steps) + place + 1, difference, 0.0, reason)
            largest = max(largest, difference)
            bounds.see(start + place + 1, difference)
        _compare_routers(heard, steps, lane, start, routers)
    picks = np.array([step.margins for step in steps]).T.reshape(-1)
    close = (np.array(leads) <= SAFETY * largest) | (picks <= routers.bounds.bound(max(map(len, texts))))
    return ProbeResult(True, len(prompts), len(leads), largest, float(close.mean()))


def _compare_routers(
    heard: Sequence[mx.array], steps: Sequence[_Step], lane: int, start: int, routers: RouterWatch
) -> None:
    """``heard`` holds the routers of each chunk of the canonical pass, one after another."""
    for layer in range(layers := len(steps[0].scores)):
        chunks = [np.array(each.astype(mx.float32)).reshape(each.shape[-2], -1) for each in heard[layer::layers]]
        canonical = np.concatenate(chunks)
        for place, step in enumerate(steps):
            difference = float(np.abs(canonical[start + place] - step.scores[layer][lane]).max())
            routers.bounds.see(start + place + 1, difference)
