"""The arithmetic of footprints, and what they say they do not know."""

from __future__ import annotations

import pytest

from pipeline.checkpoints.footprint import Footprint, footprint_of

SMOLLM2 = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
}


def of(config: dict[str, object], weights_bytes: int = 0) -> Footprint:
    return footprint_of(config, dtype_bytes=4, weights_bytes=weights_bytes)


def test_keys_and_values_of_every_layer_are_counted() -> None:
    found = of(SMOLLM2)
    assert found.token_bytes == 30 * 2 * 3 * 64 * 4
    assert found.row_bytes(1) == 256 * found.token_bytes
    assert found.batch_bytes(4, 100) == 4 * found.row_bytes(100)
    assert (found.state_bytes, found.window_bytes, found.trimming, found.unknown) == (0, 0, "always", ())


def test_rows_fill_what_the_weights_leave() -> None:
    found = of(SMOLLM2, weights_bytes=500 << 20)
    assert found.rows_within(500 << 20, 256) == 0
    rows = found.rows_within(2 << 30, 256)
    used = found.weights_bytes + found.batch_bytes(rows, 256) + found.step_bytes(rows, 1, context=256)
    assert used <= 2 << 30
    one_more = found.batch_bytes(rows + 1, 256) + found.step_bytes(rows + 1, 1, context=256)
    assert found.weights_bytes + one_more > 2 << 30


def test_a_chunk_with_all_its_logits_costs_the_vocabulary() -> None:
    found = of(SMOLLM2)
    last = found.step_bytes(4, 16, context=100)
    assert found.step_bytes(4, 16, context=100, logits_columns=16) == 4 * 16 * 49152 * 12 > last
    assert found.step_bytes(4, 512, context=4096, fused_attention=True) < found.step_bytes(4, 512, context=4096) / 2


def test_window_layers_stop_growing() -> None:
    layer_types = ["sliding_attention", "full_attention"]
    config = {**SMOLLM2, "num_hidden_layers": 2, "layer_types": layer_types, "sliding_window": 100}
    found = of(config)
    per_layer = 2 * 3 * 64 * 4
    assert found.row_bytes(5000) == per_layer * (100 + 5255)
    assert found.row_bytes(5000, chunk=512) == per_layer * (100 + 511 + 5255)
    assert (found.trimming, found.smallest_window) == ("within_window", 100)


def test_unknown_family_is_named_and_counted_as_plain() -> None:
    found = of({**SMOLLM2, "model_type": "novelty"})
    assert found.token_bytes == of(SMOLLM2).token_bytes
    assert found.unknown == ("the caches of the family novelty: counted as attention over all tokens in every layer",)


def test_missing_keys_are_named_and_nothing_is_guessed() -> None:
    found = of({"model_type": "llama", "hidden_size": 8})
    assert found.caches == ()
    assert found.unknown == (
        "the size of the caches: config.json has no usable num_hidden_layers",
        "what a forward takes: config.json has no usable vocab_size",
    )
    assert of({}).unknown[0] == "the size of the caches: config.json has no usable num_hidden_layers"


@pytest.mark.parametrize(
    "wrong",
    [
        {"model_type": "gemma3_text", "num_hidden_layers": "many"},
        {"num_attention_heads": 0},
        {"num_attention_heads": "x", "head_dim": []},
        {"model_type": "jamba", "layers_block_type": ["attention"]},
        {"model_type": "nemotron_h", "layer_types": 3},
        {"model_type": "gpt_oss", "layer_types": 7},
        {"text_config": [1], "num_key_value_heads": None, "num_hidden_layers": {}},
        {"model_type": None, "num_hidden_layers": None},
    ],
)
def test_nonsense_is_named_and_never_raises(wrong: dict[str, object]) -> None:
    found = of({**SMOLLM2, **wrong})
    assert found.caches == ()
    assert found.unknown


def test_text_model_inside_a_wrapper_decides() -> None:
    wrapped = of({"model_type": "mistral3", "text_config": {**SMOLLM2, "model_type": "mistral"}, "hidden_size": 9999})
    assert wrapped.token_bytes == of(SMOLLM2).token_bytes
    assert wrapped.family == "llama"
