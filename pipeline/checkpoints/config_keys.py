"""Reading ``config.json`` under one set of names, whatever the family calls them. Knows nothing about what they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

#: Families that another one's layers serve.
_RENAMED = {
    "mistral": "llama",
    "llava": "mistral3",
    "phi-msft": "phixtral",
    "falcon_mamba": "mamba",
    "joyai_llm_flash": "deepseek_v3",
    "kimi_k2": "deepseek_v3",
    "qwen2_5_vl": "qwen2_vl",
    "minimax_m2": "minimax",
    "iquestcoder": "llama",
    "xverse": "llama",
    "gemma4_unified": "gemma4",
}

#: Families around a language model, which their ``text_config`` describes.
_WRAPPERS = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3",
    "lfm2-vl": "lfm2",
    "lfm2_vl": "lfm2",
    "mistral3": "llama",
    "pixtral": "llama",
    "qwen2_vl": "qwen2",
    "qwen3_5_moe": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5",
    "qwen3_5_text": "qwen3_5",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}

#: (outer, nested) where the nested name decides.
_NESTED = {("mistral3", "ministral3"), ("mistral3", "mistral4")}

#: What a family takes for keys that its files may leave out.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "cohere2": {
        "head_dim": 128,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    "gemma3": {"num_attention_heads": 8, "num_key_value_heads": 4},
    "gemma3_text": {
        "hidden_size": 1152,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "intermediate_size": 6912,
        "vocab_size": 262144,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
    "gemma4_text": {
        "head_dim": 256,
        "global_head_dim": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
        "sliding_window": 512,
    },
    "gpt_oss": {"head_dim": 64, "sliding_window": 128},
    "jamba": {"mamba_d_conv": 4, "mamba_d_state": 16, "mamba_expand": 2},
}


class MissingKey(Exception):
    """A key that the family needs is not in the configuration."""


class Keys:
    """A configuration read under the usual names: a nested ``text_config`` first, other families' spellings as well."""

    _OTHER_NAMES = {
        "num_hidden_layers": ("n_layer", "n_layers", "num_layers", "num_transformer_layers"),
        "hidden_size": ("n_embd", "d_model", "model_dim"),
        "num_attention_heads": ("n_head", "n_heads", "num_heads"),
        "num_key_value_heads": ("n_kv_heads", "num_kv_heads"),
        "head_dim": ("hidden_size_per_head",),
        "vocab_size": ("num_vocab", "padded_vocab_size"),
        "intermediate_size": ("block_ff_dim", "mlp_hidden_size", "n_inner", "ffn_hidden_size"),
        "num_experts_per_tok": ("num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k"),
    }

    def __init__(self, config: Config) -> None:
        nested = config.get("text_config")
        nested = nested if isinstance(nested, dict) else {}
        self._values = {name: value for part in (config, nested) for name, value in part.items() if value is not None}
        self.family = find_family(str(config.get("model_type", "")), str(nested.get("model_type", "")))
        for part in (config.get("model_type"), self.family):
            self._values = _DEFAULTS.get(str(part), {}) | self._values

    def get(self, name: str, default: Any = None) -> Any:
        for one in (name, *self._OTHER_NAMES.get(name, ())):
            if one in self._values:
                return self._values[one]
        return default

    def number(self, name: str, default: int | None = None) -> int:
        """Raises MissingKey for what is no whole number and has no default."""
        value = self.get(name, default)
        if type(value) is not int:
            raise MissingKey(name)
        return value

    def words(self, name: str) -> list[Any]:
        """A list, or the letters of a text; raises MissingKey."""
        value = self.get(name)
        if not isinstance(value, list | str) or not value:
            raise MissingKey(name)
        return list(value)

    @property
    def layers(self) -> int:
        return self.number("num_hidden_layers")

    @property
    def heads(self) -> int:
        return self.number("num_attention_heads")

    @property
    def kv_heads(self) -> int:
        return self.number("num_key_value_heads", self.heads)

    @property
    def head_dim(self) -> int:
        return self.number("head_dim") if self.get("head_dim") else self.number("hidden_size") // self.heads


def find_family(outer: str, nested: str) -> str:
    """The language model's family: the name of the file in mlx-lm that builds its layers."""
    outer, nested = _RENAMED.get(outer, outer), _RENAMED.get(nested, nested)
    return nested if (outer, nested) in _NESTED else _WRAPPERS.get(outer, outer)
