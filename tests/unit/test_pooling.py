"""What a sentence encoder's files say, and the pooling of padded rows."""

from __future__ import annotations

import math
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from pipeline.errors import ModelUnsupported
from tests.fixtures.encoders import TINY_LENGTH, write_tiny_bert
from workers.engines.pooling import parse_pooling, pool, read_sentence_config

PREFIX = "sentence_transformers.models"


def module(kind: str, path: str = "") -> dict[str, object]:
    return {"idx": 0, "name": "0", "path": path, "type": f"{PREFIX}.{kind}"}


def test_layout_is_read_whole(tiny_bert_path: Path) -> None:
    config = read_sentence_config(tiny_bert_path, max_positions=64)
    assert (config.pooling, config.normalize, config.max_length) == ("mean", True, TINY_LENGTH)
    assert config.prompts == {"query": "hello world "}
    assert config.default_prompt is None


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"word_embedding_dimension": 8}, "mean"),
    ],
)
def test_pooling_mode_is_read_from_both_spellings(config: dict[str, object], mode: str) -> None:
    assert parse_pooling(config) == mode


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
        {"pooling_mode_weightedmean_tokens": True},
        {"pooling_mode_mean_sqrt_len_tokens": True},
        {"pooling_mode_of_tomorrow": True},
        {"pooling_mode": "weightedmean"},
        {"pooling_mode": "mean", "include_prompt": False},
    ],
)
def test_pooling_that_is_not_computed_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(ModelUnsupported):
        parse_pooling(config)


@pytest.mark.parametrize("kind", ["Dense", "WordEmbeddings", "LayerNorm"])
def test_module_that_is_not_computed_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    modules = [module("Transformer"), module("Pooling", "1_Pooling"), module(kind, "2_More")]
    folder = write_tiny_bert(tmp_path / "bert", files={"modules.json": modules})
    with pytest.raises(ModelUnsupported, match=kind):
        read_sentence_config(folder, max_positions=64)


def test_folder_without_modules_is_the_plain_mean(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "bert", files={"modules.json": None, "1_Pooling/config.json": None})
    config = read_sentence_config(folder, max_positions=64)
    assert (config.pooling, config.normalize) == ("mean", False)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"sentence_bert_config.json": None}, 64),
        ({"sentence_bert_config.json": {"max_seq_length": None}}, 64),
        ({"tokenizer_config.json": {"model_max_length": 20}}, 20),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, TINY_LENGTH),
    ],
)
def test_length_is_the_least_that_any_file_states(tmp_path: Path, files: dict[str, object], expected: int) -> None:
    folder = write_tiny_bert(tmp_path / "bert", files=files)
    assert read_sentence_config(folder, max_positions=64).max_length == expected


def test_default_prompt_must_be_among_the_prompts(tmp_path: Path) -> None:
    config = {"prompts": {"query": "q: "}, "default_prompt_name": "document"}
    folder = write_tiny_bert(tmp_path / "bert", files={"config_sentence_transformers.json": config})
    with pytest.raises(ModelUnsupported, match="document"):
        read_sentence_config(folder, max_positions=64)


@pytest.mark.parametrize("mode", ["cls", "mean", "max", "lasttoken"])
def test_padding_is_never_pooled(mode: str) -> None:
    hidden = np.random.default_rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    hidden[1, 3:] = math.nan
    row = hidden[1, :3]
    expected = {"cls": row[0], "mean": row.mean(axis=0), "max": row.max(axis=0), "lasttoken": row[2]}[mode]
    pooled = pool(mx.array(hidden), mx.array([5, 3]), mode)  # type: ignore[arg-type]
    np.testing.assert_allclose(np.array(pooled)[1], expected, rtol=1e-6)
