"""Expert models choose inside a forward too: a router that picks k of its experts. Watches how close those picks were.

A pick that rounding turns over moves what follows by more than rounding, so a bound on logits says nothing about it. A
position whose pick was close is read again canonically: its token is chosen from that, and the row goes on from there.
Only routers that are plain linear layers and pick the best of their scores are seen; a model with others is said to be
unwatched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from workers.engines.batching.canonical import Bounds

_NAMES = ("gate", "router")
_LINEAR = ("Linear", "QuantizedLinear")
_EXPERTS = ("switch_mlp", "experts", "switch_glu")
#: What is added to a router's scores before experts are picked, or picks groups of them first: the scores alone say nothing.
_SHIFTS = ("e_score_correction_bias", "expert_bias")
_GROUPS = ("n_group", "num_expert_group", "num_expert_groups")
_COUNT_KEYS = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts", "moe_topk")


class RouterWatch:
    """Margins of a model's routers during a forward.

    Attributes:
        is_needed: the model has experts.
        is_watching: all of its routers are seen.
        bounds: how far a router's scores were seen from those of the canonical pass.
    """

    def __init__(self, model: Any, config: dict[str, Any], bounds: Bounds) -> None:
        self._scores: list[mx.array] = []
        self._is_on = False
        self.bounds = bounds
        blocks = [module for _, module in model.named_modules() if any(name in module for name in _EXPERTS)]
        routers = [module[name] for module in blocks for name in _NAMES if name in module]
        text = {**config, **(config.get("text_config") or {})}
        self._picks = next((text[key] for key in _COUNT_KEYS if isinstance(text.get(key), int)), 0)
        linear = [router for router in routers if type(router).__name__ in _LINEAR]
        self.is_needed = bool(blocks)
        is_shifted = any(name in module for module in blocks for name in _SHIFTS)
        has_groups = any(isinstance(text.get(key), int) and text[key] > 1 for key in _GROUPS)
        picks_by_score = self._picks > 0 and not is_shifted and not has_groups
        self.is_watching = bool(blocks) and picks_by_score and len(linear) == len(blocks)
        if self.is_watching:
            for router in linear:
                _listen(router, self._hear)

    def _hear(self, scores: mx.array) -> None:
        if self._is_on:
            self._scores.append(scores)

    @contextmanager
    def listening(self) -> Iterator[list[mx.array]]:
        """Scores of each router, (rows, columns, experts), of the forwards inside."""
        self._scores, self._is_on = [], self.is_watching
        try:
            yield self._scores
        finally:
            self._is_on = False

    def margins(self, scores: list[mx.array], shape: tuple[int, int]) -> mx.array | None:
        """(rows, columns): how far the last expert picked was ahead of the first one left out, the closest layer."""
        margins = []
        for layer in scores:
            ranked = mx.sort(layer.astype(mx.float32).reshape(*shape, -1), axis=-1)
            if self._picks < ranked.shape[-1]:
                margins.append(ranked[..., -self._picks] - ranked[..., -self._picks - 1])
        return mx.min(mx.stack(margins), axis=0) if margins else None

    def picked(self, scores: np.ndarray[Any, Any]) -> frozenset[int]:
        """Experts that a router picks by these (experts,) scores."""
        return frozenset(np.argsort(scores)[-self._picks :].tolist())

    def lead(self, scores: np.ndarray[Any, Any]) -> float:
        """How far the last one picked is ahead of the first one left out; infinite where none is."""
        ranked = np.sort(scores)
        return float(ranked[-self._picks] - ranked[-self._picks - 1]) if self._picks < len(ranked) else np.inf


def _listen(router: Any, hear: Any) -> None:
    """Let a layer tell its output, by a subclass of its own class: its weights and their names stay as they are."""
    plain = type(router)

    class Heard(plain):  # type: ignore[valid-type, misc]
        def __call__(self, x: mx.array) -> mx.array:
            scores: mx.array = super().__call__(x)
            hear(scores)
            return scores

    Heard.__name__ = plain.__name__
    router.__class__ = Heard
