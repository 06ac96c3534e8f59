"""What a footprint says of caches, against what mlx-lm's own caches allocate on tiny random models."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from pipeline.checkpoints.footprint import CACHE_STEP, Footprint, footprint_of

BASE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "vocab_size": 60,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
WINDOW = {"sliding_window": 16, "sliding_window_pattern": 2, "layer_types": ALTERNATING}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 16,
    "norm_topk_prob": True,
}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
ROPE = {"type": "default", "mrope_section": [1, 1, 0], "rope_theta": 10000, "partial_rotary_factor": 0.5}
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_d_ssm": 64,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": BASE,
    "qwen3": BASE,
    "qwen3_moe": BASE | EXPERTS,
    "gemma3_text": BASE | WINDOW,
    "gemma3": {"text_config": BASE | WINDOW | {"model_type": "gemma3_text"}, "vocab_size": 60},
    "gpt_oss": BASE | WINDOW | EXPERTS,
    "gemma4_text": BASE
    | WINDOW
    | {
        "global_head_dim": 16,
        "num_kv_shared_layers": 1,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 60,
    },
    "qwen3_5": {"text_config": BASE | LINEAR | {"model_type": "qwen3_5_text", "rope_parameters": ROPE}},
    "falcon_h1": BASE | MAMBA,
    "lfm2": BASE
    | {
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 48,
        "block_multiple_of": 16,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1, 3],
    },
    "mamba2": {
        "num_heads": 4,
        "head_dim": 16,
        "vocab_size": 60,
        "hidden_size": 32,
        "intermediate_size": 64,
        "state_size": 8,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": 4,
    },
    "glm4_moe_lite": BASE
    | EXPERTS
    | {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "topk_method": "noaux_tc",
        "partial_rotary_factor": 1.0,
        "rope_interleave": True,
    },
}

#: MLX's CPU build multiplies experts in float32 only.
HALF_TOO = sorted(name for name in CONFIGS if "num_experts_per_tok" not in CONFIGS[name])


def build(name: str, dtype: mx.Dtype) -> tuple[Any, Footprint]:
    config = CONFIGS[name] | {"model_type": name}
    family = importlib.import_module(f"mlx_lm.models.{name}")
    model = family.Model(family.ModelArgs.from_dict(copy.deepcopy(config)))
    model.set_dtype(dtype)
    model.eval()
    return model, footprint_of(config, dtype_bytes=dtype.size, weights_bytes=0)


def read(model: Any, cache: list[Any], rows: int, columns: int) -> int:
    """Bytes of the caches after one more forward."""
    mx.eval(model(mx.full((rows, columns), 3), cache=cache), [one.state for one in cache])
    return sum(one.nbytes for one in cache)


def check(found: int, footprint: Footprint, tokens: int, *, rows: int = 1, chunk: int = 1) -> None:
    """Never below what is allocated, and above it by no more than one step of growth."""
    bound = footprint.batch_bytes(rows, tokens, chunk=chunk)
    exact = sum(
        footprint.dtype_bytes * (one.token_values * min(tokens, one.window or tokens) + one.state_values)
        + 4 * one.float32_values
        for one in footprint.caches
    )
    assert rows * exact <= found <= bound
    grown = footprint.dtype_bytes * (CACHE_STEP - 1) * sum(one.token_values for one in footprint.caches)
    assert bound - found <= rows * grown


@pytest.mark.parametrize("name", CONFIGS)
def test_rows_keep_what_the_footprint_says(name: str) -> None:
    model, footprint = build(name, mx.float32)
    assert footprint.unknown == ()
    cache = make_prompt_cache(model)
    check(read(model, cache, 1, 40), footprint, 40, chunk=40)
    check(read(model, cache, 1, 1), footprint, 41)
    merged = [one.merge([one, copy.copy(one), copy.copy(one)]) for one in cache]
    check(read(model, merged, 3, 1), footprint, 42, rows=3)


@pytest.mark.parametrize("name", HALF_TOO)
def test_state_that_stays_float32_is_counted_as_such(name: str) -> None:
    model, footprint = build(name, mx.bfloat16)
    cache = make_prompt_cache(model)
    check(read(model, cache, 1, 5), footprint, 5, chunk=5)


def test_caches_grow_in_steps_and_the_bound_holds_across_them() -> None:
    model, footprint = build("llama", mx.float32)
    cache = make_prompt_cache(model)
    tokens = 0
    for columns in (100, 100, 100, 1, 255, 1):
        tokens += columns
        check(read(model, cache, 1, columns), footprint, tokens, chunk=columns)


@pytest.mark.parametrize(
    ("name", "trimming"),
    [("llama", "always"), ("glm4_moe_lite", "always"), ("gemma3", "within_window"), ("gpt_oss", "within_window")]
    + [(name, "never") for name in ("qwen3_5", "falcon_h1", "lfm2", "mamba2")],
)
def test_trimming_is_what_the_caches_allow(name: str, trimming: str) -> None:
    model, footprint = build(name, mx.float32)
    assert footprint.trimming == trimming
    cache = make_prompt_cache(model)
    assert all(one.is_trimmable() for one in cache) == (trimming != "never")
    read(model, cache, 1, 40)
    assert all(one.is_trimmable() for one in cache) == (trimming == "always")


def test_one_forward_takes_about_what_is_estimated() -> None:
    config = BASE | {"model_type": "llama", "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3}
    family = importlib.import_module("mlx_lm.models.llama")
    model = family.Model(family.ModelArgs.from_dict(config))
    mx.eval(model.parameters())
    footprint = footprint_of(config, dtype_bytes=4, weights_bytes=0)
    cache = make_prompt_cache(model)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    kept = read(model, cache, 1, 256)
    taken = mx.get_peak_memory() - before - kept
    estimate = footprint.step_bytes(1, 256, context=256, logits_columns=256)
    assert 0.7 * taken <= estimate <= 3 * taken
