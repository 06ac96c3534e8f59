"""Reasoning and tool calls: told apart in an answer, and brought into a prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tool_parsers.json_tools import parse_tool_call as parse_json
from mlx_lm.tool_parsers.kimi_k2 import parse_tool_call as parse_kimi
from mlx_lm.tool_parsers.mistral import parse_tool_call as parse_mistral
from mlx_lm.tool_parsers.pythonic import parse_tool_call as parse_pythonic
from mlx_lm.tool_parsers.qwen3_coder import parse_tool_call as parse_coder

from pipeline.errors import ItemError
from pipeline.ports import Answer, JsonObject
from tests.fixtures.dialogues import HELLO, MARKERS, OPENING_TEMPLATE, TOOL_TEMPLATE, ask, say, write_dialogue
from workers.engines.chat import Dialogue
from workers.engines.replies import Reply
from workers.engines.tool_calls import parse_calls

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    },
}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Köln"}}</tool_call>'
Pair = tuple[Dialogue, Any]


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A tokenizer that knows think and tool markers."""
    return write_dialogue(tmp_path_factory.mktemp("turns") / "marked", TOOL_TEMPLATE, MARKERS, context_length=1000)


@pytest.fixture(scope="module")
def opening(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The same with a template that opens the reasoning."""
    return write_dialogue(tmp_path_factory.mktemp("turns") / "opening", OPENING_TEMPLATE, MARKERS)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return write_dialogue(tmp_path_factory.mktemp("turns") / "plain", None)


def speak(pair: Pair, text: str, *, ends: bool = True, **body: Any) -> tuple[Reply, Answer, JsonObject]:
    """What becomes of a row that says ``text``."""
    dialogue, tokenizer = pair
    reply = ask(dialogue, **{"max_tokens": 200, **body})
    say(reply.rows[0], tokenizer.encode(text), end=dialogue.end_tokens[0] if ends else None)
    if reply.rows[0].reason is None:
        reply.rows[0].reason = "length"
    answer = reply.answer(dialogue, "chat", "m", report_cache=False)
    assert answer.body is not None
    return reply, answer, answer.body["choices"][0]


# --- reasoning -------------------------------------------------------------------------------------------------------


def test_reasoning_is_no_content(marked: Pair) -> None:
    reply, answer, choice = speak(marked, "<think>\nhm, 1 < 2\n</think>\n\nTwo.")
    assert choice["message"] == {"role": "assistant", "content": "Two.", "reasoning_content": "hm, 1 < 2"}
    tokens = len(marked[1].encode("<think>\nhm, 1 < 2\n</think>"))
    assert answer.usage["completion_tokens_details"] == {"reasoning_tokens": tokens}
    assert answer.usage["completion_tokens"] == len(reply.rows[0].tokens) > tokens


def test_reasoning_that_the_prompt_opened_needs_no_marker(opening: Pair) -> None:
    _, answer, choice = speak(opening, "hm</think>Two.")
    assert choice["message"] == {"role": "assistant", "content": "Two.", "reasoning_content": "hm"}
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] == len(opening[1].encode("hm</think>"))


def test_channels_are_told_apart(tmp_path: Path) -> None:
    words = ("<|channel|>", "<|message|>", "analysis", "final", "commentary")
    pair = write_dialogue(tmp_path / "channels", None, words, context_length=1000)
    said = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Two."
    # The tiny tokenizer ends its answers with what is the end of a channel here.
    _, answer, choice = speak(pair, said, ends=False)
    assert choice["message"] == {"role": "assistant", "content": "Two.", "reasoning_content": "hm"}
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] == len(pair[1].encode("<|message|>hm<|end|>"))
    _, _, choice = speak(pair, "<|channel|>final<|message|>Two.")
    assert choice["message"] == {"role": "assistant", "content": "Two."}
    rule = ask(pair[0], response_format={"type": "json_object"}).rows[0].rule
    assert rule is not None
    brace, end, first = pair[1].encode("{")[0], pair[0].end_tokens[0], np.zeros(pair[0].vocabulary.size, np.float32)
    heads = {
        "": (True, False),
        "<|channel|>analysis<|message|>hm": (True, True),
        "<|channel|>final<|message|>": (True, False),
        "<|channel|>final<|message|>{": (False, False),
    }
    for text, (opens, any_word) in heads.items():
        ruled = rule.apply(first, pair[1].encode(text))
        assert np.isfinite(ruled[[brace, pair[1].encode("a")[0]]]).tolist() == [opens, any_word]
        assert not np.isfinite(ruled[end])


def test_special_tokens_are_text_inside_a_call_alone(marked: Pair) -> None:
    assert speak(marked, "a<|start|>b", tools=[TOOL])[2]["message"]["content"] == "ab"
    inside = "<tool_call>a<|start|>b</tool_call>"
    assert speak(marked, inside, tools=[TOOL])[2]["message"]["content"] == inside


def test_reasoning_that_was_cut_leaves_no_content(opening: Pair) -> None:
    _, _, choice = speak(opening, "hm, first", ends=False)
    assert choice["message"] == {"role": "assistant", "content": "", "reasoning_content": "hm, first"}
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("text", ["  no thought", "a < b > c </tool", "half a <thin", "", "é 🦊"])
def test_answer_without_markers_is_its_text(marked: Pair, text: str) -> None:
    _, answer, choice = speak(marked, text)
    assert choice["message"] == {"role": "assistant", "content": text}
    assert answer.usage["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_message_that_speaks_of_the_marker_opens_nothing(marked: Pair) -> None:
    for text in ("<think>", "what is <think> in ", "<think>\n"):
        _, _, choice = speak(marked, "a tag", messages=[{"role": "user", "content": text}])
        assert choice["message"] == {"role": "assistant", "content": "a tag"}


def test_stop_texts_count_in_the_content_alone(marked: Pair) -> None:
    reply, _, choice = speak(marked, "<think>a. b.</think>\n\nOne. Two.", stop=[". ", "\n\n"])
    assert choice["message"] == {"role": "assistant", "content": "One", "reasoning_content": "a. b."}
    assert choice["finish_reason"] == "stop"
    assert not reply.rows[0].ended


def test_row_that_begins_again_stops_in_the_same_place(marked: Pair) -> None:
    dialogue, tokenizer = marked
    reply = ask(dialogue, stop=["stop"], tools=[TOOL], parallel_tool_calls=False)
    (row,) = reply.rows
    for text in ("<think>st", "one stop", "<think>stop</think>one stop", CALL, "one stop"):
        row.restart()
        say(row, tokenizer.encode(text))
        assert (row.reason == "stop") == (text != "<think>st")


def test_logprobs_cover_reasoning(marked: Pair) -> None:
    _, _, choice = speak(marked, "<think>a</think>b", logprobs=True)
    told = [entry["token"] for entry in choice["logprobs"]["content"]]
    assert told == ["<think>", "a", "</think>", "b"]


def test_model_without_markers_says_nothing_of_reasoning(plain: Pair) -> None:
    _, answer, choice = speak(plain, "<think>a</think>b")
    assert choice["message"]["content"] == "<think>a</think>b"
    assert "completion_tokens_details" not in answer.usage


# --- tool calls ------------------------------------------------------------------------------------------------------


def test_call_becomes_a_tool_call_with_an_id_of_its_own(marked: Pair) -> None:
    said = f"<think>hm</think>Let me look.\n{CALL}\n{CALL}"
    reply, _, choice = speak(marked, said, tools=[TOOL])
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Let me look.", "hm")
    calls = message["tool_calls"]
    assert [(call["type"], call["function"]["name"]) for call in calls] == [("function", "weather")] * 2
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "Köln"}
    assert calls[0]["id"] != calls[1]["id"]
    assert speak(marked, said, tools=[TOOL])[2] == choice
    assert reply.unparsed_calls == 0


def test_ids_differ_between_choices_and_items(marked: Pair) -> None:
    dialogue, tokenizer = marked
    ids = []
    for seed in (5, 6):
        reply = ask(dialogue, seed=seed, n=2, tools=[TOOL], max_tokens=200)
        for row in reply.rows:
            say(row, tokenizer.encode(CALL), end=dialogue.end_tokens[0])
        body = reply.answer(dialogue, "chat", "m", report_cache=False).body
        assert body is not None
        ids += [choice["message"]["tool_calls"][0]["id"] for choice in body["choices"]]
        assert body["choices"][0]["message"]["content"] is None
    assert len(set(ids)) == 4


@pytest.mark.parametrize(
    "inside", ["{nonsense", '{"name": 5, "arguments": {}}', "[]", '{"name": "f", "arguments": [1]}']
)
def test_call_that_is_none_stays_content_and_is_counted(marked: Pair, inside: str) -> None:
    said = f"Look: <tool_call>{inside}</tool_call> and <tool_call>{inside}"
    reply, _, choice = speak(marked, said, tools=[TOOL])
    assert choice["message"] == {"role": "assistant", "content": said}
    assert (choice["finish_reason"], reply.unparsed_calls) == ("stop", 2)


def test_one_call_ends_the_answer_where_only_one_is_allowed(marked: Pair) -> None:
    reply, _, choice = speak(marked, CALL + CALL, tools=[TOOL], parallel_tool_calls=False)
    assert len(choice["message"]["tool_calls"]) == 1
    assert len(reply.rows[0].tokens) == len(marked[1].encode(CALL))
    assert (choice["finish_reason"], reply.dropped_calls) == ("tool_calls", 0)


@pytest.mark.parametrize("body", [{}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}])
def test_without_tools_a_call_is_text(marked: Pair, body: JsonObject) -> None:
    reply, _, choice = speak(marked, CALL, **body)
    assert choice["message"] == {"role": "assistant", "content": CALL}
    assert "tools" not in marked[1].decode(reply.rows[0].prompt)


def test_model_that_knows_no_tools_refuses_them(plain: Pair) -> None:
    with pytest.raises(ItemError) as caught:
        ask(plain[0], tools=[TOOL])
    assert (caught.value.item_code, caught.value.param) == ("unsupported_parameter", "tools")
    ask(plain[0], tools=[TOOL], tool_choice="none")


def test_template_sees_tools_calls_results_and_names(marked: Pair) -> None:
    made = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "Ann"},
        {"role": "assistant", "tool_calls": [made]},
        {"role": "tool", "content": "sun", "tool_call_id": "c1"},
    ]
    reply = ask(marked[0], messages=messages, tools=[TOOL], overflow="truncate_left", max_tokens=1)
    shown = marked[1].decode(reply.rows[0].prompt)
    assert reply.truncated == 0
    assert json.dumps(TOOL["function"]["name"]) in shown
    assert "user Ann\nab<|end|>" in shown
    assert '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call><|end|>' in shown
    assert "tool\nsun<|end|>" in shown


def test_arguments_of_a_message_that_are_no_json_are_refused_with_their_place(marked: Pair) -> None:
    made = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    with pytest.raises(ItemError) as caught:
        ask(marked[0], messages=[*HELLO, {"role": "assistant", "tool_calls": [made]}])
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("parser", "text", "expected"),
    [
        (parse_json, '{"name": "f", "arguments": {"a": [1, null]}}', [("f", {"a": [1, None]})]),
        (parse_json, '{"name": "f", "arguments": "{\\"a\\": 1}"}', [("f", {"a": 1})]),
        (parse_pythonic, "[f(a=1), g(b='x')]", [("f", {"a": 1}), ("g", {"b": "x"})]),
        (parse_mistral, '[{"name": "f", "arguments": {"a": 1}}]', [("f", {"a": 1})]),
        (parse_kimi, '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>', None),
        (
            parse_coder,
            "<function=weather>\n<parameter=days>\n3\n</parameter>\n</function>",
            [("weather", {"days": 3})],
        ),
    ],
)
def test_parsers_of_mlx_lm_give_calls(parser: Any, text: str, expected: list[tuple[str, Any]] | None) -> None:
    calls = parse_calls(text, parser, [TOOL])
    assert calls is not None
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == (expected or [("f", {"a": 1})])


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '{"name": "\\ud800", "arguments": {}}',
        '{"arguments": {}}',
        "null",
        "[" * 100_000,
    ],
)
def test_what_no_json_file_can_hold_is_no_call(text: str) -> None:
    assert parse_calls(text, parse_json, []) is None


@given(st.text(max_size=60))
def test_any_text_is_a_call_or_none(text: str) -> None:
    for parser in (parse_json, parse_pythonic, parse_mistral, parse_kimi, parse_coder):
        for call in parse_calls(text, parser, [TOOL]) or []:
            assert type(json.loads(call["arguments"])) is dict
