"""The generation engine on a tiny random model, in this process: what answers look like and why they end."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from tokenizers import Tokenizer

from pipeline.errors import ModelNotFound, ModelNotTrusted, ModelUnsupported, NoChatTemplate
from pipeline.ports import Answer, EngineEvent, EngineInfo, EngineRequest, JsonObject, RunStats, WorkItem
from tests.fixtures.models import TINY_CONTEXT, write_tiny_llama
from workers.engines import machines
from workers.engines.batching.probing import ProbeResult
from workers.engines.batching.scheduler import Scheduler
from workers.engines.generation import GenerationEngine
from workers.engines.loading import load_language_model
from workers.engines.replies import Reply

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def load(path: Path, endpoint: str = CHAT, dtype: str = "auto") -> tuple[GenerationEngine, EngineInfo]:
    engine = GenerationEngine()
    info = engine.load(EngineRequest("generate", str(path), "digest", dtype, {"endpoint": endpoint}))
    return engine, info


def run(
    engine: GenerationEngine, *bodies: JsonObject, endpoint: str = CHAT, width: int = 4, **given: Any
) -> tuple[list[Answer], RunStats]:
    items = [WorkItem(index, f"item-{index}", body, seed=index) for index, body in enumerate(bodies)]
    events: list[EngineEvent] = []
    options = {"endpoint": endpoint, "model_name": "tiny", "sampling": {"max_tokens": 16}, "width": width, **given}
    stats = engine.run(items, options, done=frozenset(), emit=events.append, should_stop=lambda: False)
    answers = [event for event in events if isinstance(event, Answer)]
    return sorted(answers, key=lambda answer: answer.index), stats


def chat(text: str = "hello world", **parameters: Any) -> JsonObject:
    return {"messages": [{"role": "user", "content": text}], **parameters}


def choice(answer: Answer) -> JsonObject:
    assert answer.body is not None, answer.error
    (only,) = answer.body["choices"]
    return dict(only)


def text_of(answer: Answer) -> str:
    return str(choice(answer)["message"]["content"])


@pytest.fixture(scope="module")
def engine(tiny_llama_path: Path) -> GenerationEngine:
    return load(tiny_llama_path)[0]


def test_chat_answer_has_openais_shape(engine: GenerationEngine) -> None:
    (answer,), stats = run(engine, chat(max_tokens=5))
    assert answer.body == {
        "object": "chat.completion",
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "logprobs": None,
                "finish_reason": "length",
                "message": {"role": "assistant", "content": text_of(answer)},
            }
        ],
        "usage": answer.usage,
    }
    assert answer.usage["completion_tokens"] == 5
    assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + 5
    assert (stats.prompt_tokens, stats.output_tokens) == (answer.usage["prompt_tokens"], 5)
    assert 0 < answer.measures["ttft_s"] <= answer.measures["request_s"]
    assert {"itl_s_p50", "itl_s_p95"} <= set(stats.measures)


def test_completion_answer_has_openais_shape(tiny_base_path: Path) -> None:
    engine, _ = load(tiny_base_path, COMPLETIONS)
    (answer,), _ = run(engine, {"prompt": "the quick brown", "max_tokens": 3}, endpoint=COMPLETIONS)
    assert answer.body is not None
    assert answer.body["object"] == "text_completion"
    assert set(choice(answer)) == {"index", "text", "logprobs", "finish_reason"}


def test_job_defaults_hold_for_silent_items(engine: GenerationEngine) -> None:
    (answer,), _ = run(engine, chat())
    assert answer.usage["completion_tokens"] == 16


def test_greedy_tokens_are_those_of_plain_single_row_decoding(engine: GenerationEngine, tiny_llama_path: Path) -> None:
    loaded = load_language_model(tiny_llama_path)
    texts = ["a", "hello world " * 8, "the lazy dog", "system " * 3, "what is your name"]
    answers, _ = run(engine, *(chat(text, max_tokens=20) for text in texts))
    for text, answer in zip(texts, answers, strict=True):
        messages = [{"role": "user", "content": text}]
        prompt = loaded.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        plain: list[int] = []
        for token, _ in generate_step(mx.array(prompt), loaded.model, max_tokens=20):
            plain.append(token)
            if token in loaded.tokenizer.eos_token_ids:
                break
        assert answer.usage["completion_tokens"] == len(plain)
        assert answer.usage["prompt_tokens"] == len(prompt)
        assert text_of(answer) == loaded.tokenizer.decode(plain, skip_special_tokens=True)


def test_stop_text_ends_the_answer_before_it_and_others_go_on(engine: GenerationEngine) -> None:
    (whole,), _ = run(engine, chat(max_tokens=40))
    text = text_of(whole)
    # A text in the middle, longer than one token's, so that it lies across token boundaries.
    stop = text[10:16]
    assert len(stop) == 6
    (stopped, other, unstopped), _ = run(
        engine,
        chat(max_tokens=40, stop=["never written", stop]),
        chat(max_tokens=40),
        chat(max_tokens=40, stop="never written"),
    )
    assert text_of(stopped) == text[: text.index(stop)]
    assert choice(stopped)["finish_reason"] == "stop"
    assert 0 < stopped.usage["completion_tokens"] < 40
    assert text_of(other) == text_of(unstopped) == text
    assert choice(unstopped)["finish_reason"] == "length"


def test_end_token_ends_an_answer_counts_as_a_token_and_is_no_text(tiny_llama_path: Path, tmp_path: Path) -> None:
    # The token that the model says third, made the end token of a copy.
    loaded = load_language_model(tiny_llama_path)
    prompt = loaded.tokenizer.apply_chat_template(chat()["messages"], add_generation_prompt=True)
    plain = [token for token, _ in generate_step(mx.array(prompt), loaded.model, max_tokens=8)]
    end = next(token for token in plain[2:] if token not in plain[:2])
    copy = shutil.copytree(tiny_llama_path, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "eos_token_id": [config["eos_token_id"], end]}))
    ending, _ = load(copy)
    (answer,), _ = run(ending, chat(max_tokens=30))
    assert choice(answer)["finish_reason"] == "stop"
    assert answer.usage["completion_tokens"] == plain.index(end) + 1
    assert text_of(answer) == loaded.tokenizer.decode(plain[: plain.index(end)], skip_special_tokens=True)
    # An end token in the very place of the limit is a stop, not a cut.
    (answer,), _ = run(ending, chat(max_tokens=plain.index(end) + 1))
    assert choice(answer)["finish_reason"] == "stop"


def test_item_over_the_context_errs_with_both_counts_and_the_last_fitting_one_does_not(
    engine: GenerationEngine,
) -> None:
    (short,), _ = run(engine, chat(max_tokens=1))
    room = TINY_CONTEXT - short.usage["prompt_tokens"]
    (fits, over), _ = run(engine, chat(max_tokens=room), chat(max_tokens=room + 1))
    assert fits.succeeded
    assert over.error is not None
    assert over.error["code"] == "context_length_exceeded"
    counts = [TINY_CONTEXT, TINY_CONTEXT + 1, short.usage["prompt_tokens"], room + 1]
    assert [int(number) for number in re.findall(r"\d+", over.error["message"])] == counts


def test_seed_of_an_item_takes_the_place_of_its_own(engine: GenerationEngine) -> None:
    sampled = chat(temperature=1.5, max_tokens=12)
    (first, second, third), _ = run(engine, {**sampled, "seed": 7}, {**sampled, "seed": 7}, sampled)
    assert text_of(first) == text_of(second) != text_of(third)


def test_any_text_has_an_outcome(engine: GenerationEngine) -> None:
    texts = ["", " ", "\n", "🦊", "a", "x" * 100_000]
    answers, _ = run(engine, *(chat(text, max_tokens=2) for text in texts))
    assert [answer.succeeded for answer in answers] == [True] * 5 + [False]
    assert answers[-1].error is not None
    assert answers[-1].error["code"] == "context_length_exceeded"


def test_row_whose_text_cannot_be_decoded_errs_alone(engine: GenerationEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    (expected, _), _ = run(engine, chat("good"), chat("bad", max_tokens=7))
    plain = Reply.answer

    def answer(reply: Reply, *args: Any, **options: Any) -> Answer:
        if reply.index == 1:
            raise RuntimeError("bytes of no alphabet")
        return plain(reply, *args, **options)

    monkeypatch.setattr(Reply, "answer", answer)
    (good, bad), _ = run(engine, chat("good"), chat("bad", max_tokens=7))
    assert good.body == expected.body
    assert bad.error == {
        "code": "decode_failed",
        "message": "the answer cannot be decoded: bytes of no alphabet",
        "param": None,
    }


def test_rows_never_exceed_the_width(engine: GenerationEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    live: list[int] = []
    plain = Scheduler.step

    def step(self: Scheduler) -> Any:
        advances = plain(self)
        live.append(len(self._decoder.rows))
        return advances

    monkeypatch.setattr(Scheduler, "step", step)
    run(engine, *(chat("x" * n, max_tokens=3 + n % 5) for n in range(12)), width=3)
    assert max(live) <= 3  # fewer, where fewer were faster


def test_what_a_governor_decided_is_of_one_run_however_many_there_were(engine: GenerationEngine) -> None:
    assert engine._machine is not None
    for number in range(200):
        engine._machine.governor.log.note(number, 1, 1, "plain", "lookup", "as it was in runs before")
    _, stats = run(engine, chat("a b a b a b"), accelerate="auto")
    assert all("as it was in runs before" not in verdict.reason for verdict in stats.verdicts)
    assert engine._machine.governor.log.steps.total() == stats.counters["decode_steps"]
    assert len(engine._machine.governor.log.entries) < 64


def test_probe_passes_and_a_failed_one_means_width_one(tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, info = load(tiny_llama_path)
    assert info.details["probe"]["passed"]
    assert info.details["probe"]["width_limit"] is None
    expected, stats = run(engine, chat("a"), chat("b b b"))
    assert "width_declined" not in stats.counters

    plain = machines.probe_decoding
    failed = ProbeResult(False, 3, 24, 1.0, 0.0, "said so")
    monkeypatch.setattr(machines, "probe_decoding", lambda *given: failed if len(given[1]) > 1 else plain(*given))
    engine, info = load(tiny_llama_path)
    assert info.details["probe"]["width_limit"] == 1
    answers, stats = run(engine, chat("a"), chat("b b b"))
    assert stats.counters["width_declined"] == 1
    assert [(verdict.mechanism, verdict.outcome) for verdict in stats.verdicts] == [("batching", "declined")]
    assert [answer.body for answer in answers] == [answer.body for answer in expected]


def test_probe_catches_a_mask_that_is_ignored(tiny_llama_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in ml-explore/mlx-lm#1906: in a batch, padding is attended to."""
    from mlx_lm.models import llama

    plain = llama.scaled_dot_product_attention

    def unmasked(*args: Any, mask: Any = None, **options: Any) -> Any:
        return plain(*args, mask="causal" if isinstance(mask, mx.array) else mask, **options)

    monkeypatch.setattr(llama, "scaled_dot_product_attention", unmasked)
    _, info = load(tiny_llama_path)
    assert not info.details["probe"]["passed"]


def test_a_token_that_the_tokenizer_has_and_the_model_has_not_is_an_error_of_the_item(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "grown")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["zebra"])
    tokenizer.save(str(folder / "tokenizer.json"))
    engine, _ = load(folder)
    (bad, good), _ = run(engine, chat("a zebra"), chat("a b"))
    assert bad.error is not None
    assert bad.error["code"] == "invalid_value"
    assert "none of the model's" in bad.error["message"]
    assert good.error is None


def test_chat_without_a_template_is_refused_before_any_work(tiny_base_path: Path) -> None:
    with pytest.raises(NoChatTemplate):
        load(tiny_base_path, CHAT)


def test_half_precision_is_taken_when_asked_for_and_float32_is_the_default_of_a_cpu(tiny_llama_path: Path) -> None:
    if mx.default_device() == mx.gpu:
        pytest.skip("on Metal the checkpoint's own type is the default")
    assert load(tiny_llama_path, dtype="bfloat16")[1].numeric_platform["dtype"] == "bfloat16"
    assert load(tiny_llama_path)[1].numeric_platform["dtype"] == "float32"


def test_checkpoints_that_cannot_be_run_say_why(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no folder"):
        load(tmp_path / "nowhere")
    bare = write_tiny_llama(tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="no weights"):
        load(bare)
    strange = write_tiny_llama(tmp_path / "strange")
    config = json.loads((strange / "config.json").read_text())
    (strange / "config.json").write_text(json.dumps({**config, "model_type": "abacus"}))
    with pytest.raises(ModelUnsupported, match="abacus"):
        load(strange)
    (strange / "config.json").write_text(json.dumps({**config, "model_file": "evil.py"}))
    with pytest.raises(ModelNotTrusted, match="brings its own code"):
        load(strange)
    (strange / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ModelUnsupported, match="Missing"):
        load(strange)


def test_a_second_model_guesses_and_changes_no_answer(tiny_llama_path: Path) -> None:
    bodies = [chat("the quick brown fox " * n, max_tokens=12) for n in range(1, 6)]
    plain, _ = run(load(tiny_llama_path)[0], *bodies)
    engine = GenerationEngine()
    engine.load(
        EngineRequest(
            "generate", str(tiny_llama_path), "digest", options={"endpoint": CHAT, "draft_path": str(tiny_llama_path)}
        )
    )
    for accelerate in ("draft", "auto"):
        answers, stats = run(engine, *bodies, accelerate=accelerate, draft={"tokens": 3, "acceptance": "sampler_match"})
        assert [answer.body for answer in answers] == [answer.body for answer in plain]
        if accelerate == "draft":
            assert stats.counters["draft_accepted"] == stats.counters["draft_proposed"] > 0
            assert stats.counters["decode_steps"] < 12
