"""A GGUF file turned into a checkpoint: the folder, its refusals, and that it appears whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from tokenizers import Tokenizer

from pipeline.errors import ModelNotFound, ModelUnsupported
from tests.fixtures.models import write_tiny_llama
from workers.engines.gguf import convert_gguf
from workers.engines.loading import load_language_model

HEADS, KV_HEADS, HIDDEN, LAYERS = 4, 2, 32, 2

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def interleave(weight: mx.array, heads: int) -> mx.array:
    """What llama.cpp's converter does to query and key rows: first and second halves of a head take turns."""
    rows, columns = weight.shape
    return mx.stack(list(weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(0, 1)), axis=2).reshape(
        rows, columns
    )


def gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    layer, _, part = name.removeprefix("model.layers.").removesuffix(".weight").partition(".")
    return f"blk.{layer}.{_NAMES[part]}.weight"


@pytest.fixture
def original(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "original")


@pytest.fixture
def write_gguf(tmp_path: Path, original: Path) -> Any:
    """Writes the tiny checkpoint as GGUF, with changes to metadata and tensors."""

    def write(metadata: dict[str, Any] | None = None, tensors: dict[str, mx.array] | None = None) -> Path:
        config = json.loads((original / "config.json").read_text())
        tokenizer = json.loads((original / "tokenizer.json").read_text())
        vocabulary = Tokenizer.from_file(str(original / "tokenizer.json")).get_vocab()
        words = sorted(vocabulary, key=lambda word: vocabulary[word])
        special = {token["content"] for token in tokenizer["added_tokens"]}
        number = lambda value: mx.array(value, dtype=mx.uint32)  # noqa: E731
        plain: dict[str, Any] = {
            "general.architecture": "llama",
            "llama.embedding_length": number(HIDDEN),
            "llama.feed_forward_length": number(config["intermediate_size"]),
            "llama.block_count": number(LAYERS),
            "llama.attention.head_count": number(HEADS),
            "llama.attention.head_count_kv": number(KV_HEADS),
            "llama.rope.dimension_count": number(HIDDEN // HEADS),
            "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
            "llama.rope.freq_base": mx.array(10000.0),
            "llama.context_length": number(config["max_position_embeddings"]),
            "llama.vocab_size": number(len(words)),
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
            "tokenizer.ggml.token_type": mx.array([3 if word in special else 1 for word in words], dtype=mx.int32),
            "tokenizer.ggml.bos_token_id": number(vocabulary["<|start|>"]),
            "tokenizer.ggml.eos_token_id": number(vocabulary["<|end|>"]),
            "tokenizer.ggml.padding_token_id": number(vocabulary["<|pad|>"]),
            "tokenizer.ggml.unknown_token_id": number(vocabulary["<|pad|>"]),
            "tokenizer.chat_template": "{{ messages[0].content }}",
        }
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}
        arrays = {}
        for name, weight in mx.load(str(original / "model.safetensors")).items():
            rotary = next((count for part, count in heads.items() if part in name), None)
            arrays[gguf_name(name)] = weight if rotary is None else interleave(weight, rotary)
        file = tmp_path / "model.gguf"
        mx.save_gguf(str(file), arrays | (tensors or {}), plain | (metadata or {}))
        return file

    return write


def test_converted_checkpoint_computes_what_the_original_does(write_gguf: Any, original: Path, tmp_path: Path) -> None:
    convert_gguf(write_gguf(), tmp_path / "converted", dtype="float32")
    tokens = mx.array([[5, 9, 2, 77, 150, 31]])
    ours, theirs = (load_language_model(path) for path in (tmp_path / "converted", original))
    assert mx.array_equal(ours.model(tokens), theirs.model(tokens))
    assert ours.context_length == theirs.context_length
    assert ours.tokenizer.eos_token_ids == theirs.tokenizer.eos_token_ids
    text = "hello world <|end|> the quick brown fox"
    assert ours.tokenizer.encode(text) == theirs.tokenizer.encode(text)
    assert ours.tokenizer.has_chat_template


def test_default_type_is_half_precision(write_gguf: Any, tmp_path: Path) -> None:
    convert_gguf(write_gguf(), tmp_path / "converted")
    weights = mx.load(str(tmp_path / "converted" / "model.safetensors"))
    assert {weight.dtype for weight in weights.values()} == {mx.float16}
    assert json.loads((tmp_path / "converted" / "config.json").read_text())["torch_dtype"] == "float16"


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"general.architecture": "mamba"}, "mamba"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model"),
        ({"tokenizer.ggml.pre": "qwen2"}, "qwen2"),
        ({"llama.rope.scaling.type": "yarn"}, "rotary"),
    ],
)
def test_what_is_not_understood_is_refused(
    write_gguf: Any, tmp_path: Path, metadata: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelUnsupported, match=said):
        convert_gguf(write_gguf(metadata), tmp_path / "converted")
    assert not (tmp_path / "converted").exists()


def test_tensor_without_a_place_is_refused_and_leaves_nothing_behind(write_gguf: Any, tmp_path: Path) -> None:
    file = write_gguf(tensors={"blk.0.attn_q_norm.weight": mx.ones(8)})
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ModelUnsupported, match="attn_q_norm"):
        convert_gguf(file, tmp_path / "converted")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_failure_while_writing_leaves_nothing_behind(
    write_gguf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf()
    before = sorted(path.name for path in tmp_path.iterdir())

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("workers.engines.gguf._write_json", full)
    with pytest.raises(OSError, match="No space"):
        convert_gguf(file, tmp_path / "converted")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_one_that_another_process_made_meanwhile_stays(write_gguf: Any, tmp_path: Path) -> None:
    target = tmp_path / "converted"
    convert_gguf(write_gguf(), target)
    (target / "mark").touch()
    convert_gguf(write_gguf(), target, dtype="float32")
    assert (target / "mark").exists()
    assert json.loads((target / "config.json").read_text())["torch_dtype"] == "float16"


def test_file_that_is_missing_or_no_gguf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        convert_gguf(tmp_path / "none.gguf", tmp_path / "converted")
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelUnsupported, match="cannot be read as GGUF"):
        convert_gguf(tmp_path / "text.gguf", tmp_path / "converted")
    with pytest.raises(ValueError, match="int3"):
        convert_gguf(tmp_path / "text.gguf", tmp_path / "converted", dtype="int3")
