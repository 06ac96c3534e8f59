"""The embedding engine over a tiny random encoder, in this process."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipeline.errors import JobError, ModelUnsupported
from pipeline.ports import Answer, EngineInfo, EngineRequest
from tests.fixtures.encoders import write_tiny_bert
from tests.fixtures.engine_run import Recorded
from workers.engines.embedding import EmbeddingEngine
from workers.engines.encoder import EncoderConfig, load_encoder, rename_weight

BODIES: list[dict[str, Any]] = [{"input": "fox " * (1 + 7 * place % 29)} for place in range(11)]


def loaded(folder: Path, **options: Any) -> tuple[EmbeddingEngine, EngineInfo]:
    engine = EmbeddingEngine()
    return engine, engine.load(EngineRequest("embed", str(folder), options=options))


def matrix(answer: Answer) -> np.ndarray:
    return np.frombuffer(answer.vectors, "<f4").reshape(-1, answer.dimension)


def replaced_weights(folder: Path, rename: Any) -> None:
    file = folder / "model.safetensors"
    save_file(rename(load_file(file)), file)


# --- the shard ---


def test_parts_are_whole_groups_and_a_resume_gives_the_same_bytes(tiny_bert_path: Path) -> None:
    options = {"batch_size": 4}
    engine, _ = loaded(tiny_bert_path, **options)
    whole = Recorded(engine, BODIES, options)
    assert [len(part) for part in whole.parts] == [4, 4, 3, 0]
    for done in (whole.parts[0], whole.parts[1] | whole.parts[2], {0}, {0, 3, 7}):
        rest = Recorded(engine, BODIES, options, done=frozenset(done))
        assert rest.answers == {index: answer for index, answer in whole.answers.items() if index not in done}


def test_finished_groups_are_not_computed_again(tiny_bert_path: Path) -> None:
    options = {"batch_size": 4}
    engine, _ = loaded(tiny_bert_path, **options)
    whole = Recorded(engine, BODIES, options)
    rest = Recorded(engine, BODIES, options, done=frozenset(whole.parts[0]))
    last = Recorded(engine, BODIES, options, done=frozenset(range(11)))
    assert 0 < rest.stats.counters["padded_tokens"] < whole.stats.counters["padded_tokens"]
    assert last.events == []
    assert last.stats.counters == {}


def test_stop_leaves_whole_parts_only(tiny_bert_path: Path) -> None:
    engine, _ = loaded(tiny_bert_path, batch_size=4)
    run = Recorded(engine, BODIES, {"batch_size": 4}, stop_after=1)
    assert run.stats.cancelled
    assert [len(part) for part in run.parts] == [4, 0]


def test_run_for_another_space_than_loaded_is_refused(tiny_bert_path: Path) -> None:
    engine, _ = loaded(tiny_bert_path)
    assert Recorded(engine, BODIES[:1], {"batch_size": 2, "inline": True, "model_name": "m"}).body(0)["model"] == "m"
    with pytest.raises(JobError, match="another embedding space"):
        Recorded(engine, BODIES, {"overflow": "truncate"})
    with pytest.raises(JobError, match="not valid"):
        Recorded(engine, BODIES, {"overlap": 3})


# --- the answer ---


def test_inline_vectors_are_those_of_the_rows(tiny_bert_path: Path) -> None:
    engine, _ = loaded(tiny_bert_path, inline=True)
    bodies = [{"input": ["fox", "dog"]}, {"input": "fox", "encoding_format": "base64", "user": "me", "model": "m"}]
    run = Recorded(engine, bodies, {"inline": True, "model_name": "tiny"})
    body = run.body(0)
    assert [entry["index"] for entry in body["data"]] == [0, 1]
    np.testing.assert_array_equal(np.float32([entry["embedding"] for entry in body["data"]]), matrix(run.answers[0]))
    assert base64.b64decode(run.body(1)["data"][0]["embedding"]) == run.answers[1].vectors
    assert body["usage"] == {"prompt_tokens": 6, "total_tokens": 6}


def test_without_inline_the_answer_says_where_each_vector_is_from(tiny_bert_path: Path) -> None:
    engine, _ = loaded(tiny_bert_path, overflow="chunk", chunk_overlap=4)
    run = Recorded(engine, [{"input": ["fox", "fox " * 50]}], {"overflow": "chunk", "chunk_overlap": 4})
    data = run.body(0)["data"]
    assert [entry["input"] for entry in data] == [0, 1, 1]
    assert [(entry["start"], entry["end"]) for entry in data] == [(row.start, row.end) for row in run.answers[0].rows]
    assert not any("embedding" in entry for entry in data)
    assert run.stats.counters["chunked_texts"] == 1
    assert run.stats.counters["vectors"] == 3


def test_dimensions_are_cut_before_normalisation(tiny_bert_path: Path) -> None:
    raw = Recorded(loaded(tiny_bert_path, normalize=False)[0], BODIES[:2], {"normalize": False})
    short = Recorded(loaded(tiny_bert_path, dimensions=8)[0], BODIES[:2], {"dimensions": 8})
    for index in (0, 1):
        expected = matrix(raw.answers[index])[:, :8]
        norm = np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(matrix(short.answers[index]), expected / norm, rtol=1e-5)
        assert short.answers[index].rows[0].norm == pytest.approx(float(norm[0, 0]), rel=1e-5)


def test_prompt_changes_the_vector_and_the_recipe(tiny_bert_path: Path) -> None:
    plain, info = loaded(tiny_bert_path)
    asked, asked_info = loaded(tiny_bert_path, prompt_name="query")
    by_hand = Recorded(plain, [{"input": "hello world fox"}])
    by_name = Recorded(asked, [{"input": "fox"}], {"prompt_name": "query"})
    assert by_hand.answers[0].vectors == by_name.answers[0].vectors
    assert by_name.answers[0].rows[0].end == 3
    assert info.recipe != asked_info.recipe
    with pytest.raises(JobError, match="no prompt named"):
        loaded(tiny_bert_path, prompt_name="passage")


@pytest.mark.parametrize(
    ("option", "value"),
    [("overflow", "truncate"), ("dimensions", 8), ("normalize", False), ("prompt_name", "query")],
)
def test_recipe_tells_spaces_apart(tiny_bert_path: Path, tmp_path: Path, option: str, value: object) -> None:
    recipe = loaded(tiny_bert_path)[1].recipe
    assert loaded(tiny_bert_path, **{option: value})[1].recipe != recipe
    assert loaded(tiny_bert_path, batch_size=5, inline=True, model_name="m")[1].recipe == recipe
    assert loaded(write_tiny_bert(tmp_path / "same"))[1].recipe == recipe
    assert loaded(write_tiny_bert(tmp_path / "other", seed=1))[1].recipe != recipe


# --- faults ---


class FaultyEngine(EmbeddingEngine):
    """Gives a NaN in the last row of every forward that has more than one: a fault that only batches have."""

    def _encode(self, rows: Sequence[Sequence[int]]) -> Any:
        vectors = super()._encode(rows)
        if len(rows) > 1:
            vectors[-1, 0] = np.nan
        return vectors


def test_row_that_fails_in_a_batch_is_run_again_alone(tiny_bert_path: Path) -> None:
    engine, _ = loaded(tiny_bert_path)
    expected = Recorded(engine, BODIES)
    engine.__class__ = FaultyEngine
    run = Recorded(engine, BODIES)
    assert run.stats.counters["rerun_alone"] == 1
    for index in range(len(BODIES)):
        np.testing.assert_allclose(matrix(run.answers[index]), matrix(expected.answers[index]), atol=1e-6)


def test_vector_that_is_never_finite_errs_its_item_alone(tiny_bert_path: Path) -> None:
    engine, _ = loaded(tiny_bert_path)
    run = Recorded(engine, [{"input": "fox"}, {"input": ["dog", "poison"]}, {"input": "lazy dog"}])
    assert run.error(1)["code"] == "non_finite_vector"
    assert run.answers[1].vectors == b""
    assert run.answers[0].succeeded
    assert run.answers[2].succeeded


def test_zero_vector_errs(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path / "bert")

    def zeroed(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        for end in ("gamma", "beta"):
            weights[f"encoder.layer.1.output.LayerNorm.{end}"][:] = 0
        return weights

    replaced_weights(folder, zeroed)
    engine, info = loaded(folder)
    assert Recorded(engine, [{"input": "fox"}]).error(0)["code"] == "non_finite_vector"
    assert info.details["probe"] == {"passed": False, "cosine": None}


def test_model_that_fails_the_probe_runs_one_text_at_a_time_and_says_so(tiny_bert_path: Path) -> None:
    engine = FaultyEngine()
    info = engine.load(EngineRequest("embed", str(tiny_bert_path)))
    assert not info.details["probe"]["passed"]
    assert info.details["batch_size"] == 1
    run = Recorded(engine, BODIES)
    assert [len(part) for part in run.parts] == [1] * 11 + [0]
    assert all(answer.succeeded for answer in run.answers.values())


# --- weights and configurations ---


def test_weights_load_with_and_without_the_prefix_and_the_old_norm_names(tmp_path: Path) -> None:
    plain, prefixed = write_tiny_bert(tmp_path / "plain"), write_tiny_bert(tmp_path / "prefixed")
    replaced_weights(
        prefixed,
        lambda weights: (
            {
                "bert." + name.replace("gamma", "weight").replace("beta", "bias"): value
                for name, value in weights.items()
            }
            | {"cls.predictions.bias": np.zeros(3, np.float32)}
        ),
    )
    answers = [Recorded(loaded(folder)[0], BODIES[:3]).answers for folder in (plain, prefixed)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, change: str) -> None:
    folder = write_tiny_bert(tmp_path / "bert")

    def broken(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        name = "encoder.layer.1.output.dense.bias"
        if change == "missing":
            del weights[name]
        else:
            weights["encoder.layer.1.extra.weight" if change == "unknown" else name] = np.zeros(7, np.float32)
        return weights

    replaced_weights(folder, broken)
    with pytest.raises(ModelUnsupported):
        loaded(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "xlm-roberta"},
        {"position_embedding_type": "relative_key"},
        {"is_decoder": True},
        {"hidden_act": "swish"},
        {"quantization": {"bits": 4}},
        {"num_attention_heads": 5},
    ],
)
def test_configuration_that_is_not_computed_is_refused(change: dict[str, Any]) -> None:
    config = {
        "model_type": "bert",
        "vocab_size": 8,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 8,
        "max_position_embeddings": 8,
    }
    assert EncoderConfig.from_json(config).hidden_act == "gelu"
    with pytest.raises(ModelUnsupported):
        EncoderConfig.from_json(config | change)
    with pytest.raises(ModelUnsupported, match="vocab_size"):
        EncoderConfig.from_json({name: value for name, value in config.items() if name != "vocab_size"})


def test_heads_above_the_encoder_have_no_place_and_strangers_are_an_error() -> None:
    assert rename_weight("bert.pooler.dense.weight") is None
    assert rename_weight("embeddings.LayerNorm.gamma") == "norm.weight"
    with pytest.raises(KeyError):
        rename_weight("encoder.layer.0.crossattention.self.query.weight")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_stays_finite_beside_padding(tiny_bert_path: Path, dtype: mx.Dtype) -> None:
    import json

    config = EncoderConfig.from_json(json.loads((tiny_bert_path / "config.json").read_text()))
    encoder = load_encoder(tiny_bert_path, config, dtype)
    hidden = encoder(mx.array([[2, 5, 6, 7, 3], [2, 5, 3, 0, 0]]), mx.array([5, 3]))
    assert hidden.dtype == dtype
    alone = encoder(mx.array([[2, 5, 3]]), mx.array([3]))
    np.testing.assert_allclose(
        np.array(hidden[1, :3].astype(mx.float32)), np.array(alone[0].astype(mx.float32)), atol=0.05
    )
