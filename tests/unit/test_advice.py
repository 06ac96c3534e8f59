"""Advice is a function of facts: what is possible, what is chosen, and what is said not to be known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.advice.facts import DraftFacts, HostFacts, ModelFacts, Replay, SharedPrefixes, Spread, WorkloadFacts
from pipeline.advice.lines import Mechanism
from pipeline.advice.report import Report, make_report
from pipeline.checkpoints.weights import Weights
from pipeline.specs import GenerateSpec

LLAMA = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
}
HYBRID = LLAMA | {
    "model_type": "qwen3_5",
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "full_attention_interval": 4,
}
EXPERTS = LLAMA | {"model_type": "qwen3_moe", "num_experts_per_tok": 2, "moe_intermediate_size": 512}
WINDOWED = LLAMA | {"model_type": "gemma3_text", "sliding_window": 128, "sliding_window_pattern": 6}

CPU = HostFacts("cpu", 24 << 30, 14 << 30, system="linux x86_64", blas="openblas 0.3")
MAC = HostFacts("metal", 64 << 30, 38 << 30)
WORK = WorkloadFacts(
    items=300,
    items_are_estimated=False,
    sampled=300,
    invalid=0,
    prompt_chars=Spread(100, 200, 300, 400),
    prompt_tokens=Spread(50, 100, 150, 200),
    answer_tokens=Spread(64, 64, 64, 64),
    row_tokens=Spread(114, 164, 214, 264),
    shared=SharedPrefixes(30_000, 15_000, 60, 50),
    repeats=0.25,
    copy_words=0.5,
    greedy=1.0,
    choices=300,
    features={},
    over_context=0,
)


def model(config: dict[str, Any] = LLAMA, name: str = "target", **changes: Any) -> ModelFacts:
    weights = Weights(270 << 20, 135_000_000, 0, 0, frozenset({"model.embed_tokens.weight"}))
    facts = ModelFacts(name, config, weights, "bfloat16", None, 8192, True, True)
    return replace(facts, **changes)


def spec(**fields: Any) -> GenerateSpec:
    return GenerateSpec.model_validate({"model": {"name": "target"}, **fields})


def report(
    config: dict[str, Any] = LLAMA,
    *,
    host: HostFacts = CPU,
    work: WorkloadFacts | None = WORK,
    drafter: DraftFacts | None = None,
    **fields: Any,
) -> Report:
    return make_report(spec(**fields), model(config), work, host, drafter)


def line(found: Report, name: str) -> Mechanism:
    return next(one for one in found.mechanisms if one.name == name)


BUILT = ("continuous batching", "shared prefixes", "prompt lookup", "full-model drafter")


@pytest.mark.parametrize(
    ("config", "possible"),
    [
        (LLAMA, ("yes", "yes", "yes", "unknown")),
        (WINDOWED, ("yes", "yes", "yes", "unknown")),
        (EXPERTS, ("yes", "yes", "yes", "unknown")),
        (HYBRID, ("yes", "no", "no", "no")),
        (LLAMA | {"model_type": "llama4", "attention_chunk_size": 64}, ("no", "no", "no", "no")),
    ],
)
def test_the_kind_of_cache_decides_what_is_possible(config: dict[str, Any], possible: tuple[str, ...]) -> None:
    found = report(config)
    assert tuple(line(found, name).possible for name in BUILT) == possible
    for name, answer in zip(BUILT, possible, strict=True):
        assert line(found, name).chosen == "no" or answer == "yes"


@pytest.mark.parametrize(
    ("fields", "chosen"),
    [
        ({}, ("yes", "yes", "measured", "measured")),
        ({"accelerate": "off"}, ("yes", "yes", "no", "no")),
        ({"accelerate": "lookup"}, ("yes", "yes", "yes", "no")),
        ({"accelerate": "draft"}, ("yes", "yes", "no", "yes")),
        ({"prefix_cache": False}, ("yes", "no", "measured", "measured")),
        ({"width": 1}, ("no", "yes", "measured", "measured")),
    ],
)
def test_the_spec_decides_what_is_chosen(fields: dict[str, Any], chosen: tuple[str, ...]) -> None:
    drafter = DraftFacts(model(name="small"), None)
    found = report(drafter=drafter, **({"draft": {"model": {"name": "small"}}} | fields))
    assert tuple(line(found, name).chosen for name in BUILT) == chosen


def test_width_is_bounded_by_the_spec_the_rows_and_the_memory() -> None:
    assert report(width=16).room.width == 16
    assert report(work=replace(WORK, items=5, sampled=5, choices=5)).room.width == 5
    assert report(work=replace(WORK, items=5, sampled=5, choices=15)).room.width == 15
    tight = report(host=replace(CPU, budget_bytes=700 << 20), width=64)
    assert 0 < tight.room.width < 64
    assert "by memory" in line(tight, "continuous batching").why
    shared_out = report(host=replace(CPU, budget_bytes=1400 << 20, slots=2), width=64)
    assert shared_out.room == tight.room
    held = report(width=64, contract={"ceilings": {"kv_bytes": "100MiB"}})
    assert held.room.rows == (100 << 20) // held.footprint.row_bytes(264)


def test_a_budget_too_small_for_one_row_is_said() -> None:
    found = report(host=replace(CPU, budget_bytes=520 << 20))
    batching = line(found, "continuous batching")
    assert (batching.possible, batching.chosen, found.room.rows) == ("no", "no", 0)
    assert "not one row of 264 tokens fits" in batching.why
    small = report(host=replace(CPU, budget_bytes=100 << 20))
    assert any("the weights alone are more than the budget" in one for one in small.remarks)


@pytest.mark.parametrize(
    ("drafter", "possible", "why"),
    [
        (DraftFacts(model(name="small"), "7 tokens differ"), "no", "another vocabulary: 7 tokens differ"),
        (DraftFacts(model(HYBRID, name="small"), None), "no", "the drafter cannot go back"),
        (DraftFacts(model(name="small", draft_kind="dflash"), None), "no", "is a dflash drafter"),
        (DraftFacts(model(name="small"), None), "yes", "same tokenizer by its files"),
    ],
)
def test_a_drafter_has_to_fit_the_model(drafter: DraftFacts, possible: str, why: str) -> None:
    found = line(report(drafter=drafter), "full-model drafter")
    assert found.possible == possible
    assert why in found.why


def test_replayed_answers_narrow_the_gain_of_lookup() -> None:
    copied = line(report(work=replace(WORK, replay=Replay("job_1", 10, 900, 300))), "prompt lookup")
    assert (copied.gain.least, copied.gain.most) == (1.5, 2.83)
    prose = line(report(work=replace(WORK, replay=Replay("job_1", 10, 300, 300))), "prompt lookup")
    assert (prose.gain.least, prose.gain.most) == (0.97, 0.97)
    assert "job_1" in prose.why


def test_gains_measured_on_a_cpu_are_not_claimed_elsewhere() -> None:
    assert line(report(), "continuous batching").gain.least == 6.6
    assert line(report(width=6), "continuous batching").gain == replace(
        line(report(), "continuous batching").gain, least=2.7, most=4.2
    )
    assert line(report(width=100), "continuous batching").gain.most is None
    for found in (report(host=MAC), report(EXPERTS)):
        for name in ("continuous batching", "prompt lookup"):
            gain = line(found, name).gain
            assert (gain.least, gain.most) == (None, None)
            assert gain.basis.startswith("unknown here")


def test_what_is_shared_bounds_the_gain_and_the_memory() -> None:
    found = line(report(), "shared prefixes")
    assert (found.gain.least, found.gain.most) == (1.0, 2.0)
    assert found.memory_bytes == 60 * report().footprint.token_bytes
    alone = line(report(work=replace(WORK, shared=SharedPrefixes(30_000, 300, 20, 0))), "shared prefixes")
    assert (alone.possible, alone.chosen, alone.memory_bytes) == ("yes", "no", 0)


@pytest.mark.parametrize(
    ("name", "facts", "possible"),
    [
        ("MTP head", {"weights": Weights(1, 1, 0, 0, frozenset({"mtp.layers.0.weight"}))}, "yes"),
        (
            "MTP head",
            {
                "config": LLAMA | {"num_nextn_predict_layers": 1},
                "weights": Weights(1, 1, 0, 0, frozenset({"model.layers.30.eh_proj.weight"})),
            },
            "yes",
        ),
        ("MTP head", {"weights": Weights(1, 1, 0, 0, frozenset({"vision.layers.30.weight"}))}, "no"),
        ("MTP head", {"config": LLAMA | {"num_nextn_predict_layers": 1}}, "no"),
        ("block diffusion", {"config": LLAMA | {"model_type": "llada2_moe"}}, "yes"),
        ("block diffusion", {}, "no"),
        ("KV quantization", {}, "yes"),
        ("KV quantization", {"config": WINDOWED}, "no"),
        ("KV quantization", {"config": LLAMA | {"head_dim": 80}}, "no"),
        ("DFlash drafter", {}, "unknown"),
    ],
)
def test_what_is_not_built_is_said_to_be_so(name: str, facts: dict[str, Any], possible: str) -> None:
    found = line(make_report(spec(), model(**facts), WORK, CPU), name)
    assert (found.possible, found.chosen) == (possible, "no")
    assert found.why.startswith("not built yet; ")


@pytest.mark.parametrize(
    ("facts", "host", "fields", "work", "remark"),
    [
        ({"has_chat_template": False}, CPU, {}, {}, "the model has no chat template"),
        ({"quantization": "4-bit, group 64"}, CPU, {}, {}, "packed weights (4-bit, group 64) are unpacked"),
        ({}, MAC, {}, {}, "bfloat16 is coarse"),
        ({}, CPU, {"model": {"name": "m", "dtype": "float16"}}, {}, "float16 is coarse"),
        ({"config": EXPERTS}, CPU, {}, {}, "an expert model chooses inside a forward too"),
        ({"config": HYBRID}, CPU, {}, {}, "recurrent layers keep one state"),
        ({}, replace(CPU, blas="libblas.so"), {}, {}, "libblas.so multiplies for MLX"),
        ({}, CPU, {}, {"over_context": 3}, "3 of 300 sampled requests do not fit the context"),
        ({}, CPU, {"overflow": "truncate_left"}, {"over_context": 3}, "are cut (truncate_left)"),
        ({}, CPU, {}, {"invalid": 2}, "2 of 302 sampled lines are invalid"),
        ({}, CPU, {}, {"features": {"n": 4}, "choices": 312}, "ask for 312 answers"),
    ],
)
def test_remarks(
    facts: dict[str, Any], host: HostFacts, fields: dict[str, Any], work: dict[str, Any], remark: str
) -> None:
    with_it = make_report(spec(**fields), model(**facts), replace(WORK, **work), host)
    assert any(remark in one for one in with_it.remarks)
    assert not any(remark in one for one in report().remarks)


def test_what_is_not_known_is_named() -> None:
    assert any("the requests: no input is named" in one for one in report(work=None).unknown)
    blind = replace(WORK, prompt_tokens=None, row_tokens=None, shared=None, repeats=None)
    found = report(work=blind)
    assert any("no tokenizer.json" in one for one in found.unknown)
    assert found.room.rows is None
    assert any("the family novelty" in one for one in report(LLAMA | {"model_type": "novelty"}).unknown)
    assert any(
        "all but a sample: 300 of about 9,000" in one
        for one in report(work=replace(WORK, items=9000, items_are_estimated=True)).unknown
    )
    assert any("gains on this Mac" in one for one in report(host=MAC).unknown)
    unread = report({"model_type": "llama"})
    assert unread.room.rows is None
    assert unread.as_document()["model"]["token_bytes"] is None
