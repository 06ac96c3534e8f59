"""Rounding that turns a router's pick over changes what follows by more than rounding: nothing is chosen from that."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import minimax, qwen3_moe

from tests.fixtures.drafting import make_machine, make_rows, run_rows
from workers.engines.batching.canonical import Bounds, CanonicalPass
from workers.engines.batching.machine import Machine
from workers.engines.batching.probing import probe_decoding
from workers.engines.batching.routers import RouterWatch
from workers.engines.batching.rows import Row
from workers.engines.requests import Sampling

CONFIG = {"num_experts_per_tok": 1}


class Linear(nn.Linear):
    """Two outputs that are equal but for rounding, which depends on how many rows there are."""

    def __call__(self, x: mx.array) -> mx.array:
        scores = super().__call__(x)
        place = 0 if x.shape[0] == 1 else 1
        return scores.at[..., place].add(2e-6)


def tied_experts() -> Any:
    """Two layers of two experts, between which rounding decides."""
    shape = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    model = qwen3_moe.Model(
        qwen3_moe.ModelArgs(
            model_type="qwen3_moe",
            intermediate_size=48,
            num_experts=2,
            num_experts_per_tok=1,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            moe_intermediate_size=24,
            rms_norm_eps=1e-5,
            vocab_size=64,
            rope_theta=10_000.0,
            tie_word_embeddings=False,
            max_position_embeddings=256,
            norm_topk_prob=True,
            **shape,
        )
    )
    random = np.random.default_rng(3)
    model.update(
        tree_unflatten(
            [
                (name, mx.array(random.normal(0, 0.35, weight.shape).astype(np.float32)))
                for name, weight in tree_flatten(model.parameters())
                if weight.ndim > 1
            ]
        )
    )
    for layer in model.layers:
        gate = Linear(32, 2, bias=False)
        gate.weight = mx.zeros((2, 32))
        layer.mlp.gate = gate
    mx.eval(model.parameters())
    return model


def machine_of(model: Any) -> Machine:
    machine = make_machine(model, ends=())
    machine.routers = RouterWatch(model, CONFIG, Bounds("float32"))
    assert machine.routers.is_watching
    return machine


def alone(machine: Machine, row: Row) -> list[int]:
    """Greedy tokens of the canonical pass."""
    tokens = list(row.prompt)
    for _ in range(row.max_tokens):
        tokens.append(int(CanonicalPass(machine.model).last(tokens).argmax()))
    return tokens[len(row.prompt) :]


def test_a_token_is_not_chosen_from_experts_that_rounding_picked() -> None:
    machine = machine_of(tied_experts())
    rows = make_rows(4, max_tokens=8)
    expected = [alone(machine, row) for row in rows]
    result = run_rows(machine, rows, 4)
    assert result.tokens == expected
    assert result.counts["canonical_choices"] == 4 * 8
    assert machine.bounds.seen == {}  # what other experts say is no rounding of a logit


def test_a_drawn_token_is_not_chosen_from_experts_that_rounding_picked() -> None:
    model = tied_experts()
    sampling = Sampling(temperature=0.8, top_p=0.9)
    narrow = run_rows(machine_of(model), make_rows(3, max_tokens=6, sampling=sampling), 1)
    assert run_rows(machine_of(model), make_rows(3, max_tokens=6, sampling=sampling), 3).tokens == narrow.tokens


def test_picks_that_are_all_close_count_as_close_choices_when_a_model_is_probed() -> None:
    model = tied_experts()
    routers = RouterWatch(model, CONFIG, Bounds("float32"))
    for layer in model.layers:  # experts that do the same: only the picks are close, logits are as they were
        for part in (layer.mlp.switch_mlp.gate_proj, layer.mlp.switch_mlp.up_proj, layer.mlp.switch_mlp.down_proj):
            part.weight = mx.repeat(part.weight[:1], 2, axis=0)
    probe = probe_decoding(model, [[1, 2, 3], [4, 5, 6, 7, 8]], "float32", Bounds("float32"), routers)
    assert probe.passed
    assert probe.close_share == 1.0


@pytest.mark.parametrize("watched", [True, False])
def test_routers_whose_scores_are_shifted_before_the_pick_are_not_watched(watched: bool) -> None:
    if watched:
        model = tied_experts()
    else:
        args = {"hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
        model = minimax.Model(
            minimax.ModelArgs(
                model_type="minimax",
                max_position_embeddings=64,
                num_experts_per_tok=1,
                num_local_experts=2,
                shared_intermediate_size=24,
                num_hidden_layers=1,
                rms_norm_eps=1e-5,
                rope_theta=10_000.0,
                rotary_dim=8,
                vocab_size=64,
                head_dim=8,
                **args,
            )
        )
    routers = RouterWatch(model, CONFIG, Bounds("float32"))
    assert routers.is_needed
    assert routers.is_watching is watched
    if watched:
        assert not RouterWatch(tied_experts(), {**CONFIG, "n_group": 2}, Bounds("float32")).is_watching
