"""A BERT-family text encoder in MLX: token ids in, one hidden state per token out.

Post-layer-norm blocks, learned positions, token types, as `model_type: bert` checkpoints publish them. Knows nothing
about text, pooling or files other than the weights and their `config.json`.
"""

# mypy: disable-error-code="no-untyped-call,no-any-return"
# mlx.nn has no types: what a Module returns is Any to mypy.

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import LayerNorm

from pipeline.errors import ModelUnsupported
from pipeline.ports import JsonObject
from workers.engines.platform import is_metal


def gelu(x: mx.array) -> mx.array:
    """The exact (erf) GELU. Not `nn.gelu`: that one is compiled, which on a CPU needs a C++ compiler at run time."""
    return x * (0.5 * (1 + mx.erf(x * math.sqrt(0.5))))


def gelu_tanh(x: mx.array) -> mx.array:
    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu(x: mx.array) -> mx.array:
    return mx.maximum(x, 0)


ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "gelu": gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": relu,
}


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The sizes of an encoder, in the words of its `config.json`."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float
    hidden_act: str

    @classmethod
    def from_json(cls, config: JsonObject) -> EncoderConfig:
        """Read a `config.json`; raises ModelUnsupported for what this encoder does not compute."""
        if (model_type := config.get("model_type")) != "bert":
            raise ModelUnsupported(
                f"no text encoder for model_type {model_type!r}", hint="model_type bert is supported"
            )
        # Each is a variant of the same layout whose weights would load and give wrong vectors without a word.
        refused = {
            "position_embedding_type": config.get("position_embedding_type", "absolute") != "absolute",
            "is_decoder": bool(config.get("is_decoder")),
            "add_cross_attention": bool(config.get("add_cross_attention")),
            "quantization": bool(config.get("quantization") or config.get("quantization_config")),
            "hidden_act": config.get("hidden_act", "gelu") not in ACTIVATIONS,
        }
        for name, is_refused in refused.items():
            if is_refused:
                raise ModelUnsupported(f"the text encoder does not support {name} = {config.get(name)!r}")
        defaults: dict[str, Any] = {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}
        try:
            values = {name: config[name] if name in config else defaults[name] for name in cls.__dataclass_fields__}
        except KeyError as error:
            raise ModelUnsupported(f"config.json has no {error.args[0]}") from error
        made = cls(**values)
        if made.hidden_size % made.num_attention_heads:
            raise ModelUnsupported(f"hidden_size {made.hidden_size} is no multiple of {made.num_attention_heads} heads")
        return made

    def as_json(self) -> JsonObject:
        return asdict(self)


class Attention(Module):
    """Multi-head attention of every token to every token that the mask lets through."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        D = config.hidden_size
        self.heads = config.num_attention_heads
        self.query = Linear(D, D)
        self.key = Linear(D, D)
        self.value = Linear(D, D)
        self.out = Linear(D, D)
        self.norm = LayerNorm(D, eps=config.layer_norm_eps)

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        B, L, D = x.shape
        q, k, v = (
            projection(x).reshape(B, L, self.heads, -1).transpose(0, 2, 1, 3)
            for projection in (self.query, self.key, self.value)
        )
        mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=(D // self.heads) ** -0.5, mask=mask)
        return self.norm(x + self.out(mixed.transpose(0, 2, 1, 3).reshape(B, L, D)))


class FeedForward(Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.up = Linear(config.hidden_size, config.intermediate_size)
        self.down = Linear(config.intermediate_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]

    def __call__(self, x: mx.array) -> mx.array:
        return self.norm(x + self.down(self.activation(self.up(x))))


class Layer(Module):
    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        return self.feed_forward(self.attention(x, mask))


class Encoder(Module):
    """The whole encoder, without any pooling head."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.words = Embedding(config.vocab_size, config.hidden_size)
        self.positions = Embedding(config.max_position_embeddings, config.hidden_size)
        self.types = Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = [Layer(config) for _ in range(config.num_hidden_layers)]

    def __call__(self, ids: mx.array, lengths: mx.array) -> mx.array:
        """Encode right-padded rows.

        Args:
            ids: [B, L] token ids; what stands beyond a row's length is not read.
            lengths: [B] true lengths, each at least 1 (an all-masked row would be NaN).

        Returns:
            [B, L, D] hidden states in the weights' dtype; those beyond a row's length mean nothing.
        """
        L = ids.shape[1]
        x = self.words(ids) + self.positions.weight[:L] + self.types.weight[0]
        x = self.norm(x)
        is_real = mx.arange(L)[None, :] < lengths[:, None]
        mask = mx.where(is_real, 0.0, -math.inf).astype(x.dtype)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return x


#: Published name (after an optional `bert.`) to ours; `{n}` stays.
_RENAMES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), ours)
    for pattern, ours in (
        (r"^embeddings\.word_embeddings\.", "words."),
        (r"^embeddings\.position_embeddings\.", "positions."),
        (r"^embeddings\.token_type_embeddings\.", "types."),
        (r"^embeddings\.LayerNorm\.", "norm."),
        (r"^encoder\.layer\.(\d+)\.attention\.self\.", r"layers.\1.attention."),
        (r"^encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"layers.\1.attention.out."),
        (r"^encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.", r"layers.\1.attention.norm."),
        (r"^encoder\.layer\.(\d+)\.intermediate\.dense\.", r"layers.\1.feed_forward.up."),
        (r"^encoder\.layer\.(\d+)\.output\.dense\.", r"layers.\1.feed_forward.down."),
        (r"^encoder\.layer\.(\d+)\.output\.LayerNorm\.", r"layers.\1.feed_forward.norm."),
    )
)

#: Heads that sit on top of the hidden states, and a buffer of positions; none of them changes a hidden state.
_NOT_ENCODER = re.compile(r"^(pooler\.|cls\.|embeddings\.position_ids$)")


def rename_weight(name: str) -> str | None:
    """Our name of a published weight; None for one that the encoder has no use for, KeyError for an unknown one."""
    bare = name.removeprefix("bert.")
    if _NOT_ENCODER.match(bare):
        return None
    bare = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", bare))
    for pattern, ours in _RENAMES:
        renamed, count = pattern.subn(ours, bare)
        if count:
            return renamed
    raise KeyError(name)


def weight_files(folder: Path) -> list[Path]:
    """The checkpoint's weight files in order; raises ModelUnsupported when there is none in safetensors form."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise ModelUnsupported(f"{folder} has no model*.safetensors", hint="save the model as safetensors")
    return files


def choose_dtype(name: str) -> mx.Dtype | None:
    """The dtype to compute in. ``auto`` is float32 on a CPU and, as None, the checkpoint's own on Metal."""
    if name == "auto":
        return None if is_metal() else mx.float32
    dtypes = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
    if name not in dtypes:
        raise ModelUnsupported(f"the text encoder does not compute in {name!r}")
    return dtypes[name]


def load_encoder(folder: Path, config: EncoderConfig, dtype: mx.Dtype | None) -> Encoder:
    """Load the weights, every one of them under its place, in ``dtype`` (None: as they are).

    Raises ModelUnsupported when a weight is missing, unknown or of another shape.
    """
    weights: dict[str, mx.array] = {}
    for path in weight_files(folder):
        loaded: Any = mx.load(str(path))
        weights.update(_renamed(loaded.items(), path))
    encoder = Encoder(config)
    try:
        encoder.load_weights(list(weights.items()), strict=True)
    except ValueError as error:
        raise ModelUnsupported(f"{folder} does not hold the encoder its config.json describes: {error}") from error
    if dtype is not None:
        encoder.set_dtype(dtype)
    encoder.eval()
    mx.eval(encoder.parameters())
    return encoder


def _renamed(weights: Iterable[tuple[str, mx.array]], path: Path) -> Iterable[tuple[str, mx.array]]:
    for name, value in weights:
        try:
            ours = rename_weight(name)
        except KeyError as error:
            raise ModelUnsupported(f"{path.name} holds {name!r}, which is no weight of a plain BERT encoder") from error
        if ours is not None:
            yield ours, value
