"""Is a decoding step what the canonical pass says it is? Asked when a model is loaded (law 6).

Texts of different length are decoded together, token by token and then all tokens at once, as guesses are checked. Each
step's logits are laid beside those of the canonical pass over the same tokens. A mask that is ignored shows as a difference far above rounding; what is left is
rounding, and sets the bounds below which choices are made canonically.

Where a router of an expert model picks another expert because of rounding, what follows differs by more than that. Its
scores still must not, and a row is compared up to there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from workers.engines.batching.canonical import SAFETY, Bounds, CanonicalPass, deviation, one_row
from workers.engines.batching.lanes import CannotBatch, Lanes
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
        steps: steps of a row that were compared.
        deviation: largest difference of a logit from its canonical value.
        close_share: share of steps whose two best tokens, or a router's last pick and the next, were closer than the
            bound that follows.
        reason: why it failed, "" where it passed.
    """

    passed: bool
    rows: int
    steps: int
    deviation: float
    close_share: float
    reason: str = ""


class _Step(NamedTuple):
    """One forward of all rows: (rows, V) logits, and each router's (rows, experts) scores."""

    logits: np.ndarray[Any, Any]
    scores: list[np.ndarray[Any, Any]]


@dataclass(slots=True)
class _Findings:
    """Lead of the best token, and of a router's last pick, at each step that was compared, with its context."""

    deviation: float = 0.0
    leads: list[float] = field(default_factory=list)
    picks: list[float] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)

    def close_share(self, routers: RouterWatch) -> float:
        bound = SAFETY * self.deviation
        close = [
            lead <= bound or pick <= routers.bounds.bound(context)
            for lead, pick, context in zip(self.leads, self.picks, self.contexts, strict=True)
        ]
        return sum(close) / max(1, len(close))


class _Differs(Exception):
    """Rows do not keep their logits in a batch."""


def probe_decoding(
    model: Any, prompts: Sequence[list[int]], dtype: str, bounds: Bounds, routers: RouterWatch
) -> ProbeResult:
    """Decode ``prompts`` greedily together and compare every step; ``bounds`` learn what rounding does."""
    try:
        lanes = Lanes(model, spare=PROBE_TOKENS)
        texts = [_read_into(model, lanes, prompt, routers) for prompt in prompts]
        steps = [_step(lanes, texts, routers) for _ in range(PROBE_TOKENS)]
        block = _block(lanes, texts, routers) if lanes.can_rewind else []
    except CannotBatch as error:
        return ProbeResult(False, len(prompts), 0, 0.0, 0.0, str(error))
    except Exception as error:  # noqa: BLE001 - families that compute with one offset for all rows raise anything
        return ProbeResult(False, len(prompts), 0, 0.0, 0.0, f"rows cannot be decoded together: {error}")
    findings = _Findings()
    tolerance = TOLERANCE.get(dtype, TOLERANCE["bfloat16"])
    try:
        for lane, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            for way in filter(None, (steps, block)):
                mine = [_Step(step.logits[lane], [layer[lane] for layer in step.scores]) for step in way]
                _compare(model, text, len(prompt) - 1, mine, tolerance, bounds, routers, findings)
    except _Differs as error:
        return ProbeResult(False, len(prompts), len(findings.leads), findings.deviation, 0.0, str(error))
    share = findings.close_share(routers)
    return ProbeResult(True, len(prompts), len(findings.leads), findings.deviation, share)


def _read_into(model: Any, lanes: Lanes, prompt: list[int], routers: RouterWatch) -> list[int]:
    """As the scheduler reads: prompts of expert models in the canonical shape."""
    reading = one_row(model)
    if len(prompt) > 1 and routers.is_needed and lanes.can_rewind:
        reading = CanonicalPass(model).read(prompt[:-1])
    elif len(prompt) > 1:
        reading.forward([prompt[:-1]])
        reading.advance([len(prompt) - 1])
    lanes.adopt(reading, 0)
    return list(prompt)


def _step(lanes: Lanes, texts: Sequence[list[int]], routers: RouterWatch) -> _Step:
    with routers.listening() as heard:
        logits = lanes.forward([[text[-1]] for text in texts]).astype(mx.float32)
    lanes.advance([1] * len(texts))
    step = _Step(
        np.array(logits[:, -1]), [np.array(layer.astype(mx.float32)).reshape(len(texts), -1) for layer in heard]
    )
    for text, token in zip(texts, step.logits.argmax(axis=-1).tolist(), strict=True):
        text.append(token)
    return step


def _block(lanes: Lanes, texts: Sequence[list[int]], routers: RouterWatch) -> list[_Step]:
    """The same steps in one forward, as guesses are checked: rows go back and read what they said at once."""
    lanes.advance([-PROBE_TOKENS] * len(texts))
    with routers.listening() as heard:
        logits = np.array(lanes.forward([text[-PROBE_TOKENS - 1 : -1] for text in texts]).astype(mx.float32))
    scores = [np.array(layer.astype(mx.float32)).reshape(len(texts), PROBE_TOKENS, -1) for layer in heard]
    return [_Step(logits[:, place], [layer[:, place] for layer in scores]) for place in range(PROBE_TOKENS)]


def _compare(
    model: Any,
    text: Sequence[int],
    start: int,
    steps: Sequence[_Step],
    tolerance: float,
    bounds: Bounds,
    routers: RouterWatch,
    findings: _Findings,
) -> None:
    """Lay one row's steps beside the canonical pass over what it said; raises _Differs."""
    with routers.listening() as heard:
        canonical = dict(CanonicalPass(model).walk(text[:-1], start))
    layers = len(steps[0].scores)
    # Each chunk of the pass told all its layers.
    expected = [
        np.concatenate([np.array(each.astype(mx.float32)).reshape(each.shape[-2], -1) for each in heard[layer::layers]])
        for layer in range(layers)
    ]
    for place, step in enumerate(steps, start):
        scores = [layer[place] for layer in expected]
        findings.contexts.append(place + 1)
        best, second = np.partition(canonical[place], -2)[-2:][::-1]
        findings.leads.append(float(best - second))
        findings.picks.append(min(map(routers.lead, scores), default=np.inf))
        for one, other in zip(scores, step.scores, strict=True):
            difference = _checked(float(np.abs(one - other).max()), tolerance)
            routers.bounds.see(place + 1, difference)
            if routers.picked(one) != routers.picked(other):
                return
        difference = _checked(deviation(canonical[place], step.logits), tolerance)
        findings.deviation = max(findings.deviation, difference)
        bounds.see(place + 1, difference)


def _checked(difference: float, tolerance: float) -> float:
    # NaN compares false, so a model that gives NaN fails here.
    if not difference <= tolerance:
        raise _Differs(f"a row's logits change by {difference:.3g} in a batch: a mask is ignored, or worse")
    return difference
