"""From an item's body to its rows and from finished rows to OpenAI's answer, with rows that say what the test wants."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.errors import InvalidValue, ItemError
from pipeline.ports import JsonObject
from tests.fixtures.dialogues import ask, say, write_dialogue
from tests.fixtures.models import TINY_CONTEXT
from workers.engines.chat import Dialogue
from workers.engines.replies import Reply
from workers.engines.requests import Role


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dialogue, Any]:
    return write_dialogue(tmp_path_factory.mktemp("replies") / "plain", None)


def answer(reply: Reply, dialogue: Dialogue, role: Role = "chat", *, report_cache: bool = False) -> JsonObject:
    body = reply.answer(dialogue, role, "tiny", report_cache=report_cache).body
    assert body is not None
    return body


def test_choices_stand_in_order_and_the_prompt_counts_once(plain: tuple[Dialogue, Any]) -> None:
    dialogue, tokenizer = plain
    reply = ask(dialogue, n=3, max_tokens=4)
    assert [(row.item, row.choice, row.seed, row.max_tokens) for row in reply.rows] == [(0, c, 5, 4) for c in range(3)]
    texts = ["quick", "brow", "fo"]
    for row, text in reversed(list(zip(reply.rows, texts, strict=True))):
        assert not reply.is_finished
        say(row, tokenizer.encode(text)[:3], end=dialogue.end_tokens[0])
    assert reply.is_finished
    body = answer(reply, dialogue)
    expected = [tokenizer.decode(tokenizer.encode(text)[:3]) for text in texts]
    assert [choice["message"] for choice in body["choices"]] == [
        {"role": "assistant", "content": text} for text in expected
    ]
    assert [(choice["index"], choice["finish_reason"]) for choice in body["choices"]] == [(c, "stop") for c in range(3)]
    prompt, completion = len(reply.rows[0].prompt), sum(len(row.tokens) for row in reply.rows)
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def test_measures_cover_all_choices(plain: tuple[Dialogue, Any]) -> None:
    dialogue, _ = plain
    reply = ask(dialogue, n=2, max_tokens=3)
    for row, start in zip(reply.rows, (10.0, 20.0), strict=True):
        row.admitted_at = start
        for step in (2.0, 3.0, 4.0):
            row.add(50, start + step, is_end=False)
    measures = reply.answer(dialogue, "chat", "tiny", report_cache=False).measures
    assert measures == {"ttft_s": 2.0, "request_s": 14.0, "itl_mean_s": 1.0}


def test_cached_tokens_are_told_only_when_asked_for(plain: tuple[Dialogue, Any]) -> None:
    dialogue, tokenizer = plain
    reply = ask(dialogue, n=2)
    for row, cached in zip(reply.rows, (7, 30), strict=True):
        say(row, tokenizer.encode("dog"), end=dialogue.end_tokens[0])
        row.cached_tokens = cached
    assert "prompt_tokens_details" not in answer(reply, dialogue)["usage"]
    assert answer(reply, dialogue, report_cache=True)["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}


def test_stop_text_over_several_tokens_ends_the_answer_before_it(plain: tuple[Dialogue, Any]) -> None:
    dialogue, tokenizer = plain
    reply = ask(dialogue, stop=["zz", "fox ju"], logprobs=True)
    assert say(reply.rows[0], tokenizer.encode("the quick brown fox jumps over"))
    (choice,) = answer(reply, dialogue)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("the quick brown ", "stop")
    told = "".join(entry["token"] for entry in choice["logprobs"]["content"])
    assert told.startswith("the quick brown ")
    assert "ju" not in told


def test_cut_prompt_is_counted(plain: tuple[Dialogue, Any]) -> None:
    dialogue, _ = plain
    long = [{"role": "user", "content": "x" * 1000}]
    for policy in ("truncate_left", "truncate_middle"):
        reply = ask(dialogue, overflow=policy, messages=long, max_tokens=10)
        assert len(reply.rows[0].prompt) == TINY_CONTEXT - 10
        whole = ask(dialogue, overflow=policy, max_tokens=10)
        assert (reply.truncated > 700, whole.truncated) == (True, 0)
    with pytest.raises(ItemError) as caught:
        ask(dialogue, messages=long)
    assert caught.value.item_code == "context_length_exceeded"


def test_what_needs_no_rule_has_none(plain: tuple[Dialogue, Any]) -> None:
    dialogue, _ = plain
    idle = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {}}
    assert ask(dialogue, **idle, response_format={"type": "text"}).rows[0].rule is None
    rows = ask(dialogue, presence_penalty=1, n=2).rows
    assert rows[0].rule is not None
    assert rows[0].rule is not rows[1].rule


def test_bias_of_a_token_that_does_not_exist_is_refused(plain: tuple[Dialogue, Any]) -> None:
    dialogue, _ = plain
    last = dialogue.vocabulary.size - 1
    ask(dialogue, logit_bias={str(last): 1})
    with pytest.raises(InvalidValue) as caught:
        ask(dialogue, logit_bias={str(last + 1): 1})
    assert caught.value.param == "logit_bias"


# --- log probabilities -----------------------------------------------------------------------------------------------


def test_chat_logprobs_have_openais_shape(plain: tuple[Dialogue, Any]) -> None:
    dialogue, tokenizer = plain
    reply = ask(dialogue, logprobs=True, top_logprobs=2)
    tokens = tokenizer.encode("é fox")
    say(reply.rows[0], tokens, end=dialogue.end_tokens[0])
    reply.rows[0].logprobs[0] = reply.rows[0].logprobs[0]._replace(top=((tokens[0], -0.5), (9, float("-inf"))))
    (choice,) = answer(reply, dialogue)["choices"]
    content = choice["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "é fox"
    assert len(content) == len(tokens)
    assert (content[0]["token"], content[0]["bytes"]) == ("bytes:\\xc3", [0xC3])
    assert content[0]["top_logprobs"] == [{"token": "bytes:\\xc3", "logprob": -0.5, "bytes": [0xC3]}]
    assert [entry["logprob"] for entry in content[-1]["top_logprobs"]] == [-0.5, -2.0]
    assert choice["logprobs"]["refusal"] is None


def test_chat_without_top_logprobs_tells_the_chosen_tokens_alone(plain: tuple[Dialogue, Any]) -> None:
    dialogue, tokenizer = plain
    reply = ask(dialogue, logprobs=True)
    assert reply.rows[0].top_logprobs == 0
    say(reply.rows[0], tokenizer.encode("fox"), end=dialogue.end_tokens[0])
    (choice,) = answer(reply, dialogue)["choices"]
    assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])


def test_completion_logprobs_are_parallel_arrays(plain: tuple[Dialogue, Any]) -> None:
    dialogue, tokenizer = plain
    tokens = tokenizer.encode("the é fox")
    bodies = []
    for wanted in (0, 1):
        reply = ask(dialogue, "completion", logprobs=wanted)
        say(reply.rows[0], tokens, end=dialogue.end_tokens[0])
        bodies.append(answer(reply, dialogue, "completion"))
    (bare,), (told,) = bodies[0]["choices"], bodies[1]["choices"]
    assert bare["text"] == "the é fox"
    assert bare["logprobs"]["top_logprobs"] is None
    shown = told["logprobs"]
    assert set(shown) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert shown["token_logprobs"] == [-0.5] * len(tokens)
    assert shown["top_logprobs"] == [{token: -0.5} for token in shown["tokens"]]
    pieces = [tokenizer.decode([token]) for token in tokens]
    whole = [(place, piece) for place, piece in zip(shown["text_offset"], pieces, strict=True) if "\ufffd" not in piece]
    assert all("the é fox"[place:].startswith(piece) for place, piece in whole)
    assert shown["text_offset"] == sorted(shown["text_offset"])


def test_no_logprobs_are_told_unasked(plain: tuple[Dialogue, Any]) -> None:
    dialogue, tokenizer = plain
    for role in ("chat", "completion"):
        reply = ask(dialogue, role)
        assert reply.rows[0].top_logprobs is None
        say(reply.rows[0], tokenizer.encode("fox"), end=dialogue.end_tokens[0])
        assert answer(reply, dialogue, role)["choices"][0]["logprobs"] is None


def test_text_that_cannot_be_decoded_is_an_error_of_the_item(plain: tuple[Dialogue, Any]) -> None:
    dialogue, _ = plain
    reply = ask(dialogue)
    say(reply.rows[0], [2**40], end=dialogue.end_tokens[0])
    with pytest.raises(ItemError) as caught:
        answer(reply, dialogue)
    assert caught.value.item_code == "decode_failed"
