"""A llama-family GGUF file turned into a checkpoint folder that mlx-lm and transformers read.

``python -m workers.engines.gguf SOURCE TARGET [--dtype float16]``. What a file states and this module does not
understand is refused, never guessed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from pipeline.errors import ModelNotFound, ModelUnsupported

#: Half the size of float32, and its rounding is far below that of the 4-bit weights these files hold. bfloat16 would
#: keep fewer digits than the unpacked weights have; packed weights would shut out readers other than MLX.
DEFAULT_DTYPE = "float16"

DTYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}

#: Weights of one scale in GGUF's 4-bit and 8-bit blocks.
_GROUP = 32

_BLOCK = re.compile(r"blk\.(?P<layer>\d+)\.(?P<name>\w+)\.weight")
_BLOCK_NAMES = {
    "attn_k": "self_attn.k_proj",
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_q": "self_attn.q_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.up_proj",
}
_TOP_NAMES = {"token_embd.weight": "model.embed_tokens", "output_norm.weight": "model.norm", "output.weight": "lm_head"}

#: Token type that GGUF gives to control tokens.
_CONTROL = 3


def convert_gguf(source: Path, target: Path, *, dtype: str = DEFAULT_DTYPE) -> None:
    """Write ``target``, a new folder with plain weights in ``dtype``; it appears whole or not at all.

    When another process made ``target`` in the meantime, that one stays.

    Raises:
        ModelNotFound: there is no ``source``.
        ModelUnsupported: another architecture, tokenizer or quantization than is understood here.
        ValueError: an unknown ``dtype``.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if not source.is_file():
        raise ModelNotFound(f"there is no file {source}")
    arrays, metadata = _read(source)
    config = _model_config(metadata, dtype=dtype, is_tied="output.weight" not in arrays)
    tokenizer = _build_tokenizer(metadata)
    weights = dict(_convert_weights(arrays, config, DTYPES[dtype]))
    with _appearing(target) as folder:
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "pt"})
        tokenizer.save(str(folder / "tokenizer.json"))
        _write_json(folder / "config.json", config)
        _write_json(
            folder / "generation_config.json", {key: config[key] for key in config if key.endswith("_token_id")}
        )
        _write_json(folder / "tokenizer_config.json", _tokenizer_config(metadata))


def _read(source: Path) -> tuple[dict[str, mx.array], dict[str, Any]]:
    try:
        loaded: Any = mx.load(str(source), return_metadata=True, format="gguf")  # typed as any file's content
    except (RuntimeError, ValueError) as error:
        raise ModelUnsupported(f"cannot be read as GGUF: {error}", place=str(source)) from error
    arrays, metadata = loaded
    plain = {key: value.tolist() if isinstance(value, mx.array) else value for key, value in metadata.items()}
    _require(plain, "general.architecture", "llama")
    _require(plain, "tokenizer.ggml.model", "gpt2")
    _require(plain, "tokenizer.ggml.pre", "smollm")
    scaling = [key for key in plain if ".rope.scaling." in key]
    if scaling or "rope_freqs.weight" in arrays:
        raise ModelUnsupported("scaled rotary positions are not converted", place=str(source))
    return arrays, plain


def _require(metadata: Mapping[str, Any], key: str, value: str) -> None:
    if metadata.get(key) != value:
        raise ModelUnsupported(f"{key} is {metadata.get(key)!r}; only {value!r} is converted")


def _model_config(metadata: Mapping[str, Any], *, dtype: str, is_tied: bool) -> dict[str, Any]:
    def stated(key: str) -> Any:
        return metadata[f"llama.{key}"]

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": stated("embedding_length"),
        "intermediate_size": stated("feed_forward_length"),
        "num_hidden_layers": stated("block_count"),
        "num_attention_heads": stated("attention.head_count"),
        "num_key_value_heads": stated("attention.head_count_kv"),
        "head_dim": stated("rope.dimension_count"),
        "hidden_act": "silu",
        "rms_norm_eps": stated("attention.layer_norm_rms_epsilon"),
        "rope_theta": float(stated("rope.freq_base")),
        "max_position_embeddings": stated("context_length"),
        "vocab_size": stated("vocab_size"),
        "tie_word_embeddings": is_tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
        "torch_dtype": dtype,
    }


def _convert_weights(
    arrays: Mapping[str, mx.array], config: Mapping[str, Any], dtype: mx.Dtype
) -> Iterator[tuple[str, mx.array]]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name in sorted(arrays):
        if name.endswith((".scales", ".biases")):
            continue
        weight = _unpack(arrays, name)
        if name in _TOP_NAMES:
            yield f"{_TOP_NAMES[name]}.weight", weight.astype(dtype)
            continue
        match = _BLOCK.fullmatch(name)
        if match is None or match["name"] not in _BLOCK_NAMES:
            raise ModelUnsupported(f"the tensor {name!r} has no place in a llama model")
        if match["name"] in heads:
            weight = _order_rotary(weight, heads[match["name"]])
        yield f"model.layers.{match['layer']}.{_BLOCK_NAMES[match['name']]}.weight", weight.astype(dtype)


def _unpack(arrays: Mapping[str, mx.array], name: str) -> mx.array:
    """Plain weights of a tensor; packed ones (out, in * bits / 32) are unpacked in float32."""
    weight = arrays[name]
    scales = arrays.get(name.replace(".weight", ".scales"))
    if scales is None:
        return weight
    biases = arrays[name.replace(".weight", ".biases")]
    bits = weight.shape[1] * 32 // (scales.shape[1] * _GROUP)
    return mx.dequantize(weight, scales.astype(mx.float32), biases.astype(mx.float32), group_size=_GROUP, bits=bits)


def _order_rotary(weight: mx.array, heads: int) -> mx.array:
    """GGUF stores a head's rotary pairs side by side; checkpoints store all first halves, then all second ones."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def _tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    def token(key: str) -> str:
        return str(metadata["tokenizer.ggml.tokens"][metadata[f"tokenizer.ggml.{key}"]])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": token("bos_token_id"),
        "eos_token": token("eos_token_id"),
        "pad_token": token("padding_token_id"),
        "unk_token": token("unknown_token_id"),
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata.get("tokenizer.chat_template"),
    }


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A folder beside ``target`` that takes its name when the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    beside.mkdir()
    try:
        yield beside
        for file in beside.iterdir():
            _sync(file)
        try:
            beside.rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
        _sync(target.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    file.write_text(
        json.dumps({key: item for key, item in value.items() if item is not None}, indent=2), encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.engines.gguf", description=convert_gguf.__doc__)
    parser.add_argument("source", type=Path, help="the .gguf file")
    parser.add_argument("target", type=Path, help="the folder to make")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default=DEFAULT_DTYPE)
    arguments = parser.parse_args()
    convert_gguf(arguments.source, arguments.target, dtype=arguments.dtype)


if __name__ == "__main__":
    main()
