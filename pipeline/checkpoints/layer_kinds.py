"""The kinds of layers that language models are built of, by what a row keeps for one. Knows nothing about families."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.checkpoints.config_keys import Keys


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Numbers (not bytes) that one row keeps for one layer.

    Attributes:
        token_values: keys and values of one token.
        window: most tokens that are kept; None keeps all.
        state_values: recurrent state in the type the model computes in.
        float32_values: recurrent state that is float32 whatever the model computes in.
    """

    token_values: int = 0
    window: int | None = None
    state_values: int = 0
    float32_values: int = 0


def attention(keys: Keys, *, window: int | None = None) -> LayerCache:
    return LayerCache(2 * keys.kv_heads * keys.head_dim, window)


def latent(keys: Keys) -> LayerCache:
    """Multi-head latent attention: one compressed vector and one rotated key for all heads."""
    return LayerCache(keys.number("kv_lora_rank") + keys.number("qk_rope_head_dim"))


def gated_delta(keys: Keys) -> LayerCache:
    key_heads, value_heads = keys.number("linear_num_key_heads"), keys.number("linear_num_value_heads")
    key_dim, value_dim = keys.number("linear_key_head_dim"), keys.number("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    return LayerCache(
        state_values=(keys.number("linear_conv_kernel_dim", 4) - 1) * channels,
        float32_values=value_heads * value_dim * key_dim,
    )


def selective(
    heads: int, head_dim: int, state: int, groups: int, kernel: int, *, inner: int | None = None
) -> LayerCache:
    """Mamba 2: the last inputs of a convolution, and a float32 state per head."""
    channels = (inner or heads * head_dim) + 2 * groups * state
    return LayerCache(state_values=(kernel - 1) * channels, float32_values=heads * head_dim * state)
