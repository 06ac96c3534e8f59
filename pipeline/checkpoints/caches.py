"""What one row of a batch keeps for each layer, by family: read off ``config.json``, as mlx-lm lays its caches out.

Knows nothing about weights or memory budgets. A family that is not here is read as plain attention over all tokens,
and that reading is named as not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.checkpoints.config_keys import Config, Keys, MissingKey
from pipeline.checkpoints.layer_kinds import LayerCache, attention, gated_delta, latent, selective


@dataclass(frozen=True, slots=True)
class CacheReading:
    """``unknown`` says in words what the caches rest on and no file states; empty when they are known."""

    family: str
    caches: tuple[LayerCache, ...]
    unknown: tuple[str, ...]


def read_caches(config: Config) -> CacheReading:
    """One entry per layer that keeps anything; no caches, and the reason, where keys are missing."""
    keys = Keys(config)
    reader = _READERS.get(keys.family)
    unknown: tuple[str, ...] = ()
    if reader is None:
        named = keys.family or "without a model_type"
        unknown = (f"the caches of the family {named}: counted as attention over all tokens in every layer",)
        reader = _plain
    try:
        return CacheReading(keys.family, tuple(reader(keys)), unknown)
    except MissingKey as error:
        return CacheReading(keys.family, (), (f"the size of the caches: config.json has no usable {error}",))
    except (TypeError, ValueError, LookupError, ArithmeticError):  # a list too short, a word for a number, no heads
        reason = f"the size of the caches: config.json does not fit the family {keys.family}"
        return CacheReading(keys.family, (), (reason,))


# --- families ----------------------------------------------------------------------------------------------------------


def _plain(keys: Keys) -> Iterator[LayerCache]:
    yield from (attention(keys) for _ in range(keys.layers))


def _one_kv_head(keys: Keys) -> Iterator[LayerCache]:
    kv_heads = 1 if keys.get("multi_query", True) else keys.heads
    yield from (LayerCache(2 * kv_heads * keys.head_dim) for _ in range(keys.layers))


def _heads_by_layer(keys: Keys) -> Iterator[LayerCache]:
    for heads in keys.words("num_kv_heads")[: keys.layers]:
        yield LayerCache(2 * int(heads) * keys.head_dim)


def _dbrx(keys: Keys) -> Iterator[LayerCache]:
    stated = keys.get("attn_config")
    if not isinstance(stated, dict) or type(stated.get("kv_n_heads")) is not int:
        raise MissingKey("attn_config.kv_n_heads")
    yield from (LayerCache(2 * stated["kv_n_heads"] * keys.head_dim) for _ in range(keys.layers))


def _by_layer_types(keys: Keys) -> Iterator[LayerCache]:
    types = keys.get("layer_types") or ["full_attention"] * keys.layers
    for kind in types[: keys.layers]:
        yield attention(keys, window=keys.number("sliding_window") if kind == "sliding_attention" else None)


def _by_pattern(keys: Keys) -> Iterator[LayerCache]:
    pattern = keys.number("sliding_window_pattern")
    for layer in range(keys.layers):
        yield attention(keys, window=None if (layer + 1) % pattern == 0 else keys.number("sliding_window"))


def _gpt_oss(keys: Keys) -> Iterator[LayerCache]:
    types = keys.get("layer_types") or ["sliding_attention", "full_attention"] * (keys.layers // 2)
    for kind in types:
        yield attention(keys, window=None if kind == "full_attention" else keys.number("sliding_window"))


def _exaone4(keys: Keys) -> Iterator[LayerCache]:
    pattern = keys.get("sliding_window_pattern") or "G"
    for layer in range(keys.layers):
        local = pattern[layer % len(pattern)] == "L"
        yield attention(keys, window=keys.number("sliding_window") if local else None)


def _mimo_v2(keys: Keys) -> Iterator[LayerCache]:
    for local in keys.words("hybrid_layer_pattern")[: keys.layers]:
        name = "swa_" if local == 1 else ""
        values = keys.number(f"{name}head_dim") + keys.number(f"{name}v_head_dim")
        window = keys.number("sliding_window_size") if local == 1 else None
        yield LayerCache(keys.number(f"{name}num_key_value_heads") * values, window)


def _llama4(keys: Keys) -> Iterator[LayerCache]:
    for layer in range(keys.layers):
        yield attention(keys, window=None if (layer + 1) % 4 == 0 else keys.number("attention_chunk_size"))


def _gemma_shared(keys: Keys) -> Iterator[LayerCache]:
    """Gemma 3n and 4: the last layers read the keys and values of earlier ones."""
    pattern = keys.number("sliding_window_pattern", 5)
    types = keys.get("layer_types") or [
        "full_attention" if (layer + 1) % pattern == 0 else "sliding_attention" for layer in range(keys.layers)
    ]
    for kind in types[: keys.layers - keys.number("num_kv_shared_layers")]:
        if kind != "full_attention":
            yield attention(keys, window=keys.number("sliding_window"))
            continue
        heads = keys.kv_heads
        if keys.get("attention_k_eq_v"):
            heads = keys.number("num_global_key_value_heads", heads)
        yield LayerCache(2 * heads * (keys.get("global_head_dim") or keys.head_dim))


def _mla(keys: Keys) -> Iterator[LayerCache]:
    yield from (latent(keys) for _ in range(keys.layers))


def _mla_twice(keys: Keys) -> Iterator[LayerCache]:
    yield from (latent(keys) for _ in range(2 * keys.layers))


def _mla_indexed(keys: Keys) -> Iterator[LayerCache]:
    """DeepSeek V3.2: beside the latent the keys of an index, which mlx-lm keeps twice."""
    for _ in range(keys.layers):
        yield latent(keys)
        yield LayerCache(2 * keys.number("index_head_dim", 128))


def _mla_expanded(keys: Keys) -> Iterator[LayerCache]:
    """Families whose latents mlx-lm expands to all heads before it keeps them."""
    rotated = keys.number("qk_rope_head_dim")
    value = keys.number("v_head_dim", None if keys.family != "minicpm3" else keys.number("hidden_size") // keys.heads)
    per_head = keys.number("qk_nope_head_dim") + rotated + value
    yield from (LayerCache(keys.heads * per_head) for _ in range(keys.layers))


def _mamba(keys: Keys) -> Iterator[LayerCache]:
    inner = keys.number("intermediate_size")
    values = (keys.number("conv_kernel") - 1) * inner + inner * keys.number("state_size")
    yield from (LayerCache(state_values=values) for _ in range(keys.layers))


def _mamba2(keys: Keys) -> Iterator[LayerCache]:
    state = keys.number("ssm_state_size") if keys.get("ssm_state_size") else keys.number("state_size")
    sizes = (keys.number("num_heads"), keys.number("head_dim"), state)
    layer = selective(*sizes, keys.number("n_groups"), keys.number("conv_kernel"))
    yield from (layer for _ in range(keys.layers))


def _mamba_layer(keys: Keys) -> LayerCache:
    """The names of Falcon H1 and Granite 4."""
    sizes = (keys.number("mamba_n_heads"), keys.number("mamba_d_head"), keys.number("mamba_d_state"))
    return selective(
        *sizes, keys.number("mamba_n_groups", 1), keys.number("mamba_d_conv"), inner=keys.get("mamba_d_ssm")
    )


def _falcon_h1(keys: Keys) -> Iterator[LayerCache]:
    for _ in range(keys.layers):
        yield _mamba_layer(keys)
        yield attention(keys)


def _granite_hybrid(keys: Keys) -> Iterator[LayerCache]:
    for kind in keys.words("layer_types"):
        yield _mamba_layer(keys) if kind == "mamba" else attention(keys)


def _jamba(keys: Keys) -> Iterator[LayerCache]:
    inner = keys.number("mamba_expand") * keys.number("hidden_size")
    state = LayerCache(state_values=inner * (keys.number("mamba_d_conv") - 1 + keys.number("mamba_d_state")))
    types = keys.get("layers_block_type")
    for layer in range(keys.layers):
        if types is not None:
            is_attention = types[layer] == "attention"
        else:
            is_attention = layer % keys.number("attn_layer_period") == keys.number("attn_layer_offset")
        yield attention(keys) if is_attention else state


def _nemotron_h(keys: Keys) -> Iterator[LayerCache]:
    names = {"full_attention": "*", "attention": "*", "linear_attention": "M", "mamba": "M", "conv": "M"}
    listed = keys.get("hybrid_override_pattern") or keys.get("layers_block_type") or keys.words("layer_types")
    sizes = (keys.number("mamba_num_heads"), keys.number("mamba_head_dim"), keys.number("ssm_state_size"))
    state = selective(*sizes, keys.number("n_groups"), keys.number("conv_kernel"))
    for kind in listed:
        match names.get(kind, kind):
            case "M":
                yield state
            case "*":
                yield attention(keys)


def _gated_delta_hybrid(keys: Keys) -> Iterator[LayerCache]:
    interval = keys.number("full_attention_interval", 4)
    for layer in range(keys.layers):
        yield attention(keys) if (layer + 1) % interval == 0 else gated_delta(keys)


def _olmo_hybrid(keys: Keys) -> Iterator[LayerCache]:
    types = keys.get("layer_types") or [
        "full_attention" if i % 4 == 3 else "linear_attention" for i in range(keys.layers)
    ]
    for kind in types:
        yield gated_delta(keys) if kind == "linear_attention" else attention(keys)


def _lfm2(keys: Keys) -> Iterator[LayerCache]:
    full = keys.get("full_attn_idxs")
    if full is None:
        full = [layer for layer, kind in enumerate(keys.words("layer_types")) if kind == "full_attention"]
    state = LayerCache(state_values=(keys.number("conv_L_cache") - 1) * keys.number("hidden_size"))
    for layer in range(keys.layers):
        yield attention(keys) if layer in full else state


def _recurrent_gemma(keys: Keys) -> Iterator[LayerCache]:
    types = keys.get("block_types") or keys.words("_block_types")
    width = keys.number("lru_width", keys.number("hidden_size"))
    for layer in range(keys.layers):
        if types[layer % len(types)] == "recurrent":
            yield LayerCache(state_values=keys.number("conv1d_width") * width)
        else:
            yield attention(keys, window=keys.number("attention_window_size"))


def _kimi_linear(keys: Keys) -> Iterator[LayerCache]:
    linear = keys.get("linear_attn_config")
    if not isinstance(linear, dict) or not {"kda_layers", "num_heads", "head_dim"} <= linear.keys():
        raise MissingKey("linear_attn_config")
    width = linear["num_heads"] * linear["head_dim"]
    state = LayerCache(
        state_values=3 * (linear.get("short_conv_kernel_size", 4) - 1) * width,
        float32_values=width * linear["head_dim"],
    )
    for layer in range(keys.layers):
        yield state if layer + 1 in linear["kda_layers"] else latent(keys)


_PLAIN = (
    "Klear apertus bailing_moe bitnet cohere deepseek dots1 ernie4_5 ernie4_5_moe exaone gemma gemma2 glm glm4 glm4_moe "
    "gpt2 gpt_neox gptj granite granitemoe helium hunyuan hunyuan_v1_dense internlm2 internlm3 lille-130m llama4_text "
    "mimo minicpm minimax mixtral nanochat nemotron olmo olmo2 olmoe phi phi3 phimoe phixtral qwen qwen2 qwen2_moe "
    "qwen3 qwen3_moe seed_oss smollm3 solar_open stablelm starcoder2 talkie telechat3"
)

_READERS: dict[str, Callable[[Keys], Iterator[LayerCache]]] = {
    **dict.fromkeys(_PLAIN.split(), _plain),
    **dict.fromkeys(
        ["afmoe", "exaone_moe", "laguna", "llama", "mellum", "ministral3", "muse_glimmer", "olmo3", "spark2_5"],
        _by_layer_types,
    ),
    **dict.fromkeys(("gemma3_text", "cohere2"), _by_pattern),
    **dict.fromkeys(("gemma3n", "gemma4_text"), _gemma_shared),
    **dict.fromkeys(["bailing_moe_v2", "deepseek_v3", "glm4_moe_lite", "mistral4"], _mla),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _mla_indexed),
    **dict.fromkeys(("deepseek_v2", "youtu_llm", "minicpm3"), _mla_expanded),
    **dict.fromkeys(("qwen3_next", "qwen3_5"), _gated_delta_hybrid),
    **dict.fromkeys(("lfm2", "lfm2_moe"), _lfm2),
    "longcat_flash": _mla_twice,
    "gpt_bigcode": _one_kv_head,
    "openelm": _heads_by_layer,
    "dbrx": _dbrx,
    "gpt_oss": _gpt_oss,
    "exaone4": _exaone4,
    "mimo_v2_flash": _mimo_v2,
    "llama4": _llama4,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "falcon_h1": _falcon_h1,
    "granitemoehybrid": _granite_hybrid,
    "jamba": _jamba,
    "nemotron_h": _nemotron_h,
    "olmo_hybrid": _olmo_hybrid,
    "recurrent_gemma": _recurrent_gemma,
    "kimi_linear": _kimi_linear,
}
