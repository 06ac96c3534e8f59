"""What the probe finds out: rounding sets the bounds, a broken mask fails, an expert that rounding picked is neither."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from tests.fixtures.shaky import shake
from tests.fixtures.tiny_machines import text
from tests.fixtures.tiny_models import CONFIGS, tiny_model
from workers.engines.batching.canonical import Bounds, one_row
from workers.engines.batching.lane_caches import Geometry
from workers.engines.batching.probing import PROBE_TOKENS, ProbeResult, probe_decoding
from workers.engines.batching.routers import RouterWatch

PROMPTS = [text(5, 1), text(17, 2), text(40, 3)]


def probe(name: str, model: Any) -> tuple[ProbeResult, Bounds, RouterWatch]:
    bounds = Bounds("float32")
    routers = RouterWatch(model, CONFIGS[name], Bounds("float32"))
    return probe_decoding(model, PROMPTS, "float32", bounds, routers), bounds, routers


def tied_routers(name: str) -> Any:
    """Three of the four experts that a router picks two from are as good, and rounding shows."""
    model = tiny_model(name)
    for layer in model.layers:
        layer.mlp.gate.weight[2:] = layer.mlp.gate.weight[1]
        shake(layer.mlp.gate, 1e-4)
    return model


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_architecture_keeps_its_logits_in_a_batch(name: str) -> None:
    model = tiny_model(name)
    found, bounds, _ = probe(name, model)
    ways = 2 if one_row(model).can_rewind else 1  # token by token, and as a block
    assert found.passed and found.steps == len(PROMPTS) * PROBE_TOKENS * ways
    assert max(bounds.seen.values()) == found.deviation < 1e-4


def test_rounding_sets_the_bounds() -> None:
    model = tiny_model("llama")
    shake(model, 1e-3)
    found, bounds, _ = probe("llama", model)
    assert found.passed
    # The largest difference of two noises, each the largest of a vocabulary.
    assert 2e-3 < found.deviation < 8e-3
    assert bounds.bound(20) > 2 * found.deviation


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_moe"])
def test_a_mask_that_is_ignored_fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(name)
    make = Geometry._make_mask
    monkeypatch.setattr(Geometry, "_make_mask", lambda self, *args: mx.ones_like(make(self, *args)))
    found, _, _ = probe(name, model)
    assert not found.passed and "mask" in found.reason


def test_nan_fails() -> None:
    model = tiny_model("llama")
    shake(model, float("nan"))
    found, _, _ = probe("llama", model)
    assert not found.passed and "nan" in found.reason


def test_an_expert_that_rounding_picked_is_no_broken_mask_and_no_rounding() -> None:
    found, bounds, routers = probe("qwen3_moe", tied_routers("qwen3_moe"))
    assert found.passed
    # What another expert says differs by far more than its router's scores did.
    assert max([*bounds.seen.values(), *routers.bounds.seen.values()]) < 5e-3
    assert found.close_share > 0.1
